package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// A Registration is what the database is told of a new session.
type Registration struct {
	Session     int64
	ID          string
	Incarnation int64 // of the client's first registration; 0: this is the first
	Process     int64 // the client's number, see ProcessBits
	TTL         time.Duration
	Host        string
	PID         int
	StartedAt   time.Time
}

// ProcessBits is the number of low bits in Registration.Process that count the clients of one
// program. The other bits are random, and the same for all clients of the program. register.sql
// writes the number too.
const ProcessBits = 24

// A Process is where another client with the same ID runs.
type Process struct {
	Host      string
	PID       int
	StartedAt time.Time
	Evicted   bool // it is none: an operator has evicted the client
}

// An Incarnation is one of the server. Where two heartbeats saw different runs, the server may have
// lost what it had not flushed in between: heartbeats, or more.
type Incarnation struct {
	Timeline int64 // names the server and its timeline; 0 where the server does not tell them
	Started  int64 // microseconds since 1970
	Marker   int64 // 0: none is drawn yet
}

// Unmarked is an incarnation as a read tells it. A boot marker comes and goes while the server
// runs, and nothing is lost that anybody owns or holds.
func (r Incarnation) Unmarked() Incarnation {
	r.Marker = 0
	return r
}

// RandomID returns 63 random bits, never 0. A sequence would repeat numbers after a crash or a
// promotion. The bits are the kernel's, because copies of a process draw the same from a generator
// that was copied with it.
func RandomID() int64 {
	var bits [8]byte
	_, _ = rand.Read(bits[:]) // it never fails
	return max(int64(binary.NativeEndian.Uint64(bits[:])>>1), 1)
}

// A Renewal is what is known of a session's last renewal. Where the session was renewed later, a
// copy of the process did it.
type Renewal struct {
	Clock  int64 // of the database, then
	Marker int64 // the server's; 0: the last renewal is not known
}

// A Beat is the answer to a heartbeat.
type Beat struct {
	Alive            bool
	Copied           bool  // it is not alive for the caller, because a copy of its process goes on with it
	Clock            int64 // the database's clock, microseconds since 1970; where the session is alive, at its renewal
	Server           Incarnation
	AcceptedTimeline int64         // of the accepted server
	ServerGeneration int64         // the present one
	Incarnation      int64         // the highest one under the client's ID; it and what follows are of a live session only
	CheckDueIn       time.Duration // until a check for expired sessions is due for the caller
	Sessions         int64         // how many sessions existed at the last check
	Leases           []LeaseBeat
}

// A LeaseBeat is what a heartbeat tells of one lease of which the session is a member.
type LeaseBeat struct {
	Name       string
	Generation int64
	DueIn      time.Duration // until a plan is due; negative: none is
	Weight     int
}

// Register begins a session, and returns its incarnation. Where a newer process has the ID, it
// returns 0 and that process (nil where that one has no session). See register.sql.
func (c *Conn) Register(ctx context.Context, r Registration) (int64, *Process, error) {
	c.notices.concerns(r.Session)
	got, err := one[struct {
		Incarnation int64
		Process
	}](ctx, c, c.statements.Register, r.Session, r.ID, r.Incarnation, r.Process,
		r.TTL.Microseconds(), r.Host, r.PID, r.StartedAt, c.lockWait)
	if err != nil || got.Incarnation != 0 {
		return got.Incarnation, nil, err
	}
	return 0, got.ifAny(), nil
}

// ifAny returns what a statement found; nil: nothing.
func (p Process) ifAny() *Process {
	switch {
	case p.Evicted:
		return &Process{Evicted: true}
	case p.PID == 0:
		return nil
	}
	return &p
}

// Superseder returns the newest process that has a session under a client ID; nil where none has.
// See superseder.sql.
func (c *Conn) Superseder(ctx context.Context, id string) (*Process, error) {
	found, err := one[Process](ctx, c, c.statements.Superseder, id)
	return found.ifAny(), err
}

// tellEvery is how often all leases are returned at least: what somebody changed by hand is heard
// of then, and a join that came late.
const tellEvery = time.Minute

// told is what the last heartbeat on a connection told of leases. It holds until one changes, or a
// plan of one is due.
type told struct {
	session int64
	run     Incarnation // of the server that told it
	seen    string      // a transaction of that run: what committed later is not below it
	at      time.Time
	leases  []LeaseBeat
	names   string // of these, as an array's literal
}

// holds reports whether a change is all that could make the next heartbeat tell something else.
func (t *told) holds(session int64) bool {
	due := func(l LeaseBeat) bool { return l.DueIn >= 0 }
	return t.session == session && time.Since(t.at) < tellEvery && !slices.ContainsFunc(t.leases, due)
}

// Heartbeat renews the session. The caller has watched the clock of this server incarnation for
// that long. See heartbeat.sql.
func (c *Conn) Heartbeat(ctx context.Context, session int64, watched time.Duration, last Renewal) (Beat, error) {
	c.notices.concerns(session)
	var run Incarnation
	seen, names := "0", "{}"
	if c.told.holds(session) {
		run, seen, names = c.told.run, c.told.seen, c.told.names
	}
	answer, err := c.call(ctx, c.statements.Heartbeat, strconv.FormatInt(session, 10), strconv.Itoa(c.lockWait),
		seconds(last.Clock), strconv.FormatInt(last.Marker, 10), seconds(run.Started), strconv.FormatInt(run.Marker, 10), seen, names)
	if err != nil {
		return Beat{}, err
	}
	beat, err := c.beat(answer, session, watched)
	if err != nil {
		return Beat{}, fmt.Errorf("a heartbeat's answer, %q: %w", answer, err)
	}
	return beat, nil
}

// beat reads what heartbeat.sql returns.
func (c *Conn) beat(answer string, session int64, watched time.Duration) (Beat, error) {
	numbers, names, tells := strings.Cut(answer, " {")
	r := reader{words: strings.Split(numbers, " ")}
	if state := r.words[0]; state == "gone" || state == "copied" {
		r.words = r.words[1:]
		beat := Beat{Copied: state == "copied", Clock: r.micros(), AcceptedTimeline: r.number(), ServerGeneration: r.number(), Server: r.run()}
		return beat, r.end()
	}
	expiry, ttl := r.micros(), r.micros()
	if len(r.words) > 0 && r.words[0] == "none" {
		return Beat{}, errors.New("the table server has no row: run sql/schema/server.sql, which makes it, as the owner of the tables")
	}
	beat := Beat{Alive: true, Clock: expiry - ttl, AcceptedTimeline: r.number(), ServerGeneration: r.number()}
	if due := r.micros() - beat.Clock; due > 0 && due <= ttl+time.Second.Microseconds() { // later: the clock stepped back, and it is due now
		beat.CheckDueIn = micros(due)
	}
	beat.Sessions = r.number()
	if unwatched := micros(r.micros()); unwatched > 0 {
		beat.CheckDueIn = min(beat.CheckDueIn, max(unwatched-watched, 0))
	}
	beat.Incarnation = r.number()
	seen := r.word()
	if tells {
		told := told{session: session, at: time.Now(), run: r.run(), names: "{" + names}
		var named []string
		if err := c.Pgx.TypeMap().Scan(pgtype.TextArrayOID, pgtype.TextFormatCode, []byte(told.names), &named); err != nil {
			return Beat{}, err
		}
		told.leases = make([]LeaseBeat, len(named))
		for i, name := range named {
			told.leases[i] = LeaseBeat{name, r.number(), micros(r.micros()), int(r.number())}
		}
		if r.err == nil {
			c.told = told
		}
	}
	c.told.seen = seen
	beat.Server, beat.Leases = c.told.run, c.told.leases
	return beat, r.end()
}

// A reader reads words one after the other. After an error it returns zeros.
type reader struct {
	words []string
	err   error
}

func (r *reader) word() string {
	if len(r.words) == 0 {
		r.err = cmp.Or(r.err, errors.New("it ends too early"))
		return ""
	}
	word := r.words[0]
	r.words = r.words[1:]
	return word
}

func (r *reader) number() int64 {
	n, err := strconv.ParseInt(r.word(), 10, 64)
	r.err = cmp.Or(r.err, err)
	return n
}

// micros reads seconds, and returns microseconds. Infinity is a time that never comes.
func (r *reader) micros() int64 {
	s, err := strconv.ParseFloat(r.word(), 64)
	r.err = cmp.Or(r.err, err)
	return int64(math.Round(max(min(s, 9e9), -9e9) * 1e6)) // a float holds microseconds so far
}

func (r *reader) run() Incarnation { return Incarnation{r.number(), r.micros(), r.number()} }

// end returns what was wrong.
func (r *reader) end() error {
	if r.err == nil && len(r.words) > 0 {
		r.err = fmt.Errorf("it goes on with %q", r.words[0])
	}
	return r.err
}

// seconds writes microseconds as reader.micros reads them.
func seconds(micros int64) string { return strconv.FormatFloat(float64(micros)/1e6, 'f', -1, 64) }

// SetMarker marks this server incarnation, unless it is marked already. See marker.sql.
func (c *Conn) SetMarker(ctx context.Context, marker int64) error {
	return c.exec(ctx, c.statements.Marker, marker, c.lockWait)
}

// AcceptServer accepts a server incarnation that the caller has watched for that long, and returns
// its server generation, above that given; 0: it need not be accepted, or may not be yet. See
// accept.sql.
func (c *Conn) AcceptServer(ctx context.Context, watched time.Duration, run Incarnation, generation int64) (int64, error) {
	accepted, err := one[struct{ Generation int64 }](ctx, c, c.statements.Accept,
		watched.Microseconds(), run.Timeline, run.Started, run.Marker, generation, c.lockWait)
	return accepted.Generation, err
}

// RejectServer has the server accepted again, where its server generation is lower than this one.
// See reject.sql.
func (c *Conn) RejectServer(ctx context.Context, generation int64) error {
	return c.exec(ctx, c.statements.Reject, generation, c.lockWait)
}

// End deletes a session that is no member of any lease, and reports whether the session is gone.
// See close.sql.
func (c *Conn) End(ctx context.Context, session int64) (bool, error) {
	c.told = told{} // if it is not gone, the next heartbeat tells of the leases
	got, err := one[struct{ Ended bool }](ctx, c, c.statements.Close, session, c.lockWait)
	return got.Ended, err
}

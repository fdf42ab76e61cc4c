package store

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// A Registration is the data of a new session.
type Registration struct {
	Session     int64
	ID          string
	Incarnation int64 // of the client's first registration; 0: this is the first
	Process     int64 // the client's number, see ProcessBits
	TTL         time.Duration
	Host        string
	PID         int
	StartedAt   time.Time
	Metadata    string // JSON
}

// ProcessBits is the number of low bits in Registration.Process that count the clients of one
// program. The other bits are random, and the same for all clients of the program. register.sql
// writes the number too.
const ProcessBits = 24

// A Process is another client's process with the same ID.
type Process struct {
	Host      string
	PID       int
	StartedAt time.Time
	Evicted   bool // not a process: an operator has evicted the client
	Contended bool // it lives, and processes have taken the ID from each other too often
}

// An Incarnation is a server incarnation. If two heartbeats saw different ones, the server may have
// lost data that it had not flushed in between: heartbeats, or more.
type Incarnation struct {
	Timeline int64 // identifies the server and its timeline; 0 if the server does not return them
	Started  int64 // microseconds since 1970
	Marker   int64 // the boot marker; 0: not drawn yet
}

// Unmarked returns an incarnation as a read returns it. A boot marker may appear and disappear
// while the server runs, without the loss of an ownership or a lock.
func (r Incarnation) Unmarked() Incarnation {
	r.Marker = 0
	return r
}

// RandomID returns 63 random bits, never 0. A sequence would repeat numbers after a crash or a
// promotion. The bits are the kernel's, because copies of a process would draw the same bits from a
// copied generator.
func RandomID() int64 {
	var bits [8]byte
	_, _ = rand.Read(bits[:]) // it never fails
	return max(int64(binary.NativeEndian.Uint64(bits[:])>>1), 1)
}

// A Renewal is what is known about a session's last renewal. If the session was renewed later, a
// copy of the process did that.
type Renewal struct {
	Clock  int64 // the database's clock at that renewal
	Marker int64 // the server's boot marker; 0: the last renewal is not known
}

// A Beat is the answer to a heartbeat.
type Beat struct {
	Alive            bool
	Copied           bool  // not alive for the caller, because a copy of its process has the session
	Clock            int64 // the database's clock, microseconds since 1970; if alive, at the renewal
	Server           Incarnation
	Tables           int64 // the number of these tables: restored or copied ones have another
	AcceptedTimeline int64 // of the accepted server
	ServerGeneration int64 // the present generation

	// The fields below are only of a live session.

	Incarnation int64         // the highest under the client's ID
	CheckDueIn  time.Duration // the time until a check for expired sessions is due for the caller
	Sessions    int64         // number of sessions at the last check
	Leases      []LeaseBeat
}

// A LeaseBeat is what a heartbeat returns about one lease that the session is a member of.
type LeaseBeat struct {
	Name       string
	Generation int64         // without the joins
	DueIn      time.Duration // the time until a plan is due; negative: no plan is due
	Weight     int
}

// Register begins a session, and returns its incarnation. If a newer process has the ID, or a
// contended one, it returns 0 and that process (nil if that process has no session). See
// register.sql.
func (c *Conn) Register(ctx context.Context, r Registration) (int64, *Process, error) {
	c.notices.concerns(r.Session)
	got, err := one[struct {
		Incarnation int64
		Process
	}](ctx, c, c.statements.Register, r.Session, r.ID, r.Incarnation, r.Process,
		r.TTL.Microseconds(), r.Host, r.PID, r.StartedAt, cmp.Or(r.Metadata, "{}"), c.lockWait)
	if err != nil || got.Incarnation != 0 {
		return got.Incarnation, nil, err
	}
	return 0, got.ifAny(), nil
}

// ifAny returns the process that a statement found, or nil.
func (p Process) ifAny() *Process {
	switch {
	case p.Evicted:
		return &Process{Evicted: true}
	case p.PID == 0:
		return nil
	}
	return &p
}

// Superseder returns the newest process that has a session under a client ID, or nil. See
// superseder.sql.
func (c *Conn) Superseder(ctx context.Context, id string) (*Process, error) {
	found, err := one[Process](ctx, c, c.statements.Superseder, id)
	return found.ifAny(), err
}

// leasesEvery is the longest time until all leases are returned again. Then the client learns of
// changes by hand, and of a join that was executed late.
const leasesEvery = time.Minute

// lastLeases is the last answer of a heartbeat on a connection with leases. It is valid until a lease
// changes, or a plan of one is due.
type lastLeases struct {
	session int64
	run     Incarnation // the server incarnation that returned it
	tables  int64       // the number of its tables
	seen    string      // a transaction of that incarnation: later commits are not below it
	at      time.Time
	leases  []LeaseBeat
}

// hold reports whether only a change could make the next heartbeat return something else.
func (t *lastLeases) hold() bool {
	due := func(l LeaseBeat) bool { return l.DueIn >= 0 }
	return time.Since(t.at) < leasesEvery && !slices.ContainsFunc(t.leases, due)
}

// Heartbeat renews the session. watched is how long the caller has watched the clock of this server
// incarnation. See heartbeat.sql.
func (c *Conn) Heartbeat(ctx context.Context, session int64, watched time.Duration, last Renewal) (Beat, error) {
	c.notices.concerns(session)
	var known lastLeases
	if c.lastLeases.session == session {
		known = c.lastLeases
	}
	renewal := fmt.Sprintf("(%d,%d,%s,%d,%s,%d,%s,%d,%t)", session, c.lockWait, seconds(last.Clock), last.Marker,
		seconds(known.run.Started), known.run.Marker, cmp.Or(known.seen, "0"), len(known.leases), !known.hold())
	answer, err := c.call(ctx, c.statements.Heartbeat, renewal)
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
	numbers, names, hasLeases := strings.Cut(answer, " {")
	r := reader{words: strings.Split(numbers, " ")}
	state := r.words[0]
	if state == "gone" || state == "copied" {
		r.words = r.words[1:]
		beat := Beat{
			Copied: state == "copied", Clock: r.micros(), AcceptedTimeline: r.number(), ServerGeneration: r.number(),
			Server: r.run(), Tables: r.number(),
		}
		return beat, r.end()
	}
	expiry, ttl := r.micros(), r.micros()
	if len(r.words) > 0 && r.words[0] == "none" {
		return Beat{}, errors.New("the table server has no row: " +
			"run sql/schema/server.sql, which creates it, as the owner of the tables")
	}
	beat := Beat{Alive: true, Clock: expiry - ttl, AcceptedTimeline: r.number(), ServerGeneration: r.number()}
	// Otherwise it is due now. A check that is due after a TTL shows that the clock stepped back.
	due := r.micros() - beat.Clock
	if due > 0 && due <= ttl+time.Second.Microseconds() {
		beat.CheckDueIn = micros(due)
	}
	beat.Sessions = r.number()
	unwatched := micros(r.micros())
	if unwatched > 0 {
		beat.CheckDueIn = min(beat.CheckDueIn, max(unwatched-watched, 0))
	}
	beat.Incarnation = r.number()
	seen := r.word()
	if hasLeases {
		last := lastLeases{session: session, at: time.Now(), run: c.lastLeases.run, tables: c.lastLeases.tables}
		if len(r.words) > 0 && r.words[0] == "same" {
			r.words = r.words[1:]
		} else {
			last.run, last.tables = r.run(), r.number()
		}
		var named []string
		err := c.Pgx.TypeMap().Scan(pgtype.TextArrayOID, pgtype.TextFormatCode, []byte("{"+names), &named)
		if err != nil {
			return Beat{}, err
		}
		last.leases = make([]LeaseBeat, len(named))
		for i, name := range named {
			last.leases[i] = LeaseBeat{name, r.number(), micros(r.micros()), int(r.number())}
		}
		if r.err == nil {
			c.lastLeases = last
		}
	}
	c.lastLeases.seen = seen
	beat.Server, beat.Tables = c.lastLeases.run, c.lastLeases.tables
	beat.Leases = c.lastLeases.leases
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

// micros reads seconds, and returns microseconds. Infinity is a time in the far future.
func (r *reader) micros() int64 {
	s, err := strconv.ParseFloat(r.word(), 64)
	r.err = cmp.Or(r.err, err)
	return int64(math.Round(max(min(s, 9e9), -9e9) * 1e6)) // a float represents microseconds exactly up to there
}

func (r *reader) run() Incarnation { return Incarnation{r.number(), r.micros(), r.number()} }

// end returns the first error.
func (r *reader) end() error {
	if r.err == nil && len(r.words) > 0 {
		r.err = fmt.Errorf("it continues with %q", r.words[0])
	}
	return r.err
}

// seconds writes microseconds in the format of reader.micros.
func seconds(micros int64) string { return strconv.FormatFloat(float64(micros)/1e6, 'f', -1, 64) }

// A Report is what only a client knows, for operators.
type Report struct {
	LostLocks []string       // names of locks that it has lost and not released
	Refused   map[string]int // leases that it cannot join again, with its number of partitions
}

// String returns the same text for the same report; empty if there is nothing to report.
func (r Report) String() string {
	if len(r.LostLocks)+len(r.Refused) == 0 {
		return ""
	}
	return fmt.Sprintf("%q %v", r.LostLocks, r.Refused)
}

// Report writes a session's report. See report.sql.
func (c *Conn) Report(ctx context.Context, session int64, r Report) error {
	refused, err := json.Marshal(r.Refused)
	if err != nil {
		return err
	}
	if r.Refused == nil {
		refused = []byte("{}")
	}
	return c.exec(ctx, c.statements.Report, session, append([]string{}, r.LostLocks...), string(refused), c.lockWait)
}

// SetMarker writes the boot marker of this server incarnation, unless it has one. See marker.sql.
func (c *Conn) SetMarker(ctx context.Context, marker int64) error {
	return c.exec(ctx, c.statements.Marker, marker, c.lockWait)
}

// AcceptServer accepts a server incarnation that the caller has watched for that time. It returns
// the new server generation, which is above the given one; 0: the server is accepted already, or
// may not be accepted yet. See accept.sql.
func (c *Conn) AcceptServer(
	ctx context.Context, watched time.Duration, run Incarnation, generation int64,
) (int64, error) {
	accepted, err := one[struct{ Generation int64 }](ctx, c, c.statements.Accept,
		watched.Microseconds(), run.Timeline, run.Started, run.Marker, generation, c.lockWait)
	return accepted.Generation, err
}

// RejectServer makes the server that was accepted on that timeline require acceptance again if its
// server generation is lower than the given one. See reject.sql.
func (c *Conn) RejectServer(ctx context.Context, timeline, generation int64) error {
	return c.exec(ctx, c.statements.Reject, timeline, generation, c.lockWait)
}

// GenerationAt returns the server generation of a server that is accepted at that reading of the
// database's clock. See accept.sql.
func GenerationAt(clock int64) int64 { return clock/time.Second.Microseconds() - 1577836800 }

// End deletes a session that is a member of no lease, and reports whether the session is gone. See
// close.sql.
func (c *Conn) End(ctx context.Context, session int64) (bool, error) {
	c.lastLeases = lastLeases{} // if the session is not gone, the next heartbeat returns the leases
	got, err := one[struct{ Ended bool }](ctx, c, c.statements.Close, session, c.lockWait)
	return got.Ended, err
}

package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
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

// ProcessBits is the number of low bits in Registration.Process that count the clients of one program. The other bits are
// random, and the same for all clients of the program. register.sql writes the number too.
const ProcessBits = 24

// A Process is where another client with the same ID runs.
type Process struct {
	Host      string
	PID       int
	StartedAt time.Time
}

// A Run is one run of the server. Where two heartbeats saw different runs, the server may have lost what it had not flushed
// in between: heartbeats, or more.
type Run struct {
	Timeline int64 // names the server and its timeline; 0 where the server does not tell them
	Started  int64 // microseconds since 1970
	Mark     int64 // 0: none is drawn yet
}

// A Renewal is what is known of a session's last renewal. Where the session was renewed later, a copy of the process did it.
type Renewal struct {
	Clock int64 // of the database, then
	Mark  int64 // of the server's run; 0: the last renewal is not known
}

// A Beat is the answer to a heartbeat.
type Beat struct {
	Alive       bool
	Copied      bool  // it is not alive for the caller, because a copy of its process goes on with it
	Clock       int64 // the database's clock, microseconds since 1970; where the session is alive, at its renewal
	Run         Run
	Settled     int64         // the settled timeline, of the settled server
	Era         int64         // the present one
	Incarnation int64         // the highest one under the client's ID; it and what follows are of a living session only
	CheckDueIn  time.Duration // until a check for expired sessions is due for the caller
	Sessions    int64         // how many sessions existed at the last check
	Leases      []LeaseBeat
}

// A LeaseBeat is what a heartbeat tells of one lease of which the session is a member.
type LeaseBeat struct {
	Name       string
	Generation int64
	DueIn      time.Duration // until a plan is due; negative: none is
	Weight     int
}

// Register begins a session, and returns its incarnation. Where a newer process has the ID, it returns 0 and that process
// (nil where that one has no session). See register.sql.
func (c *Conn) Register(ctx context.Context, r Registration) (int64, *Process, error) {
	type row struct {
		Incarnation *int64
		Host        *string
		PID         *int
		StartedAt   *time.Time
	}
	c.notices.concerns(r.Session)
	got, err := one[row](ctx, c, c.statements.Register, r.Session, r.ID, r.Incarnation, r.Process,
		r.TTL.Microseconds(), r.Host, r.PID, r.StartedAt, c.lockWait)
	if err != nil {
		return 0, nil, err
	}
	if got.Incarnation != nil {
		return *got.Incarnation, nil, nil
	}
	if got.Host == nil {
		return 0, nil, nil
	}
	return 0, &Process{*got.Host, *got.PID, *got.StartedAt}, nil
}

// Superseder returns the newest process that has a session under a client ID; nil where none has. See superseder.sql.
func (c *Conn) Superseder(ctx context.Context, id string) (*Process, error) {
	return maybe[Process](ctx, c, c.statements.Superseder, id)
}

// tellEvery is how often all leases are told at least: what somebody deleted by hand is heard of then.
const tellEvery = time.Minute

// told is what the last heartbeat on a connection told of leases. It holds until one changes, or a plan of one is due.
type told struct {
	session int64
	run     Run    // of the server that told it
	seen    string // a transaction of that run: what committed later is not below it
	at      time.Time
	leases  []LeaseBeat
}

// holds reports whether a change is all that could make the next heartbeat tell something else.
func (t *told) holds(session int64) bool {
	due := func(l LeaseBeat) bool { return l.DueIn >= 0 }
	return t.session == session && time.Since(t.at) < tellEvery && !slices.ContainsFunc(t.leases, due)
}

// Heartbeat renews the session. The caller has watched the clock of this run of the server for that long. See heartbeat.sql.
func (c *Conn) Heartbeat(ctx context.Context, session int64, watched time.Duration, last Renewal) (Beat, error) {
	c.notices.concerns(session)
	var run Run
	seen := "0"
	if c.told.holds(session) {
		run, seen = c.told.run, c.told.seen
	}
	answer, err := call(ctx, c, c.beatAnswer, c.statements.Heartbeat, session, c.lockWait, watched.Microseconds(), last.Clock, last.Mark,
		run.Started, run.Mark, seen)
	if err != nil {
		return Beat{}, err
	}
	n := answer.numbers
	c.told.seen = strconv.FormatInt(n[8], 10)
	if answer.names != nil {
		c.told.session, c.told.at, c.told.run = session, time.Now(), Run{n[9], n[10], n[11]}
		c.told.leases = make([]LeaseBeat, len(answer.names))
		for i, name := range answer.names {
			of := n[leaseNumbers(i):]
			c.told.leases[i] = LeaseBeat{name, of[0], micros(of[1]), int(of[2])}
		}
	}
	return Beat{
		Alive: n[0] == 1, Copied: n[1] == 1, Clock: n[2], Run: c.told.run, Settled: n[3], Era: n[4], Incarnation: n[5],
		CheckDueIn: micros(n[6]), Sessions: n[7], Leases: c.told.leases,
	}, nil
}

// leaseNumbers is how many numbers come before those of a lease.
func leaseNumbers(lease int) int { return 12 + 3*lease }

// A beatAnswer is what heartbeat.sql returns.
type beatAnswer struct {
	numbers []int64
	names   []string // nil: neither the run nor leases are told
}

func (c *Conn) beatAnswer(row pgx.CollectableRow) (answer beatAnswer, err error) {
	types := c.conn.TypeMap()
	parts := pgtype.NewCompositeTextScanner(types, row.RawValues()[0])
	if !parts.Next() {
		return answer, cmp.Or(parts.Err(), errors.New("a heartbeat's answer has no numbers"))
	}
	for word := range strings.SplitSeq(string(parts.Bytes()), " ") {
		number, err := strconv.ParseInt(word, 10, 64)
		if err != nil {
			return answer, fmt.Errorf("a heartbeat's answer: %w", err)
		}
		answer.numbers = append(answer.numbers, number)
	}
	if !parts.Next() {
		return answer, cmp.Or(parts.Err(), errors.New("a heartbeat's answer has no names"))
	}
	want := 9
	if parts.Bytes() != nil {
		if err := types.Scan(pgtype.TextArrayOID, pgtype.TextFormatCode, parts.Bytes(), &answer.names); err != nil {
			return answer, fmt.Errorf("a heartbeat's answer: %w", err)
		}
		want = leaseNumbers(len(answer.names))
	}
	if got := len(answer.numbers); got != want {
		return answer, fmt.Errorf("a heartbeat's answer has %d numbers with %d leases, not %d", got, len(answer.names), want)
	}
	return answer, nil
}

// Mark marks this run of the server, unless it is marked already. See mark.sql.
func (c *Conn) Mark(ctx context.Context, mark int64) error {
	return c.exec(ctx, c.statements.Mark, mark, c.lockWait)
}

// Settle settles a run of the server that the caller has watched for that long, and returns its era, above that given; 0: it need
// not be settled, or may not be yet. See settle.sql.
func (c *Conn) Settle(ctx context.Context, watched time.Duration, run Run, era int64) (int64, error) {
	settled, err := maybe[struct{ Era int64 }](ctx, c, c.statements.Settle,
		watched.Microseconds(), run.Timeline, run.Started, run.Mark, era, c.lockWait)
	if err != nil || settled == nil {
		return 0, err
	}
	return settled.Era, nil
}

// Unsettle has the server settled anew, where its era is lower than this one. See unsettle.sql.
func (c *Conn) Unsettle(ctx context.Context, era int64) error {
	return c.exec(ctx, c.statements.Unsettle, era, c.lockWait)
}

// End deletes a session that is no member of any lease, and reports whether the session is gone. See close.sql.
func (c *Conn) End(ctx context.Context, session int64) (bool, error) {
	got, err := one[struct{ Ended bool }](ctx, c, c.statements.Close, session, c.lockWait)
	return got.Ended, err
}

package store

import (
	"context"
	"time"
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
	Incarnation int64         // the highest one under the client's ID
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

// Heartbeat renews the session. The caller has watched the clock of this run of the server for that long. See heartbeat.sql.
func (c *Conn) Heartbeat(ctx context.Context, session int64, watched time.Duration, last Renewal) (Beat, error) {
	type row struct {
		Alive, Copied                  bool
		Clock, Timeline, Started, Mark int64
		Settled, Era, Incarnation      int64
		CheckDueIn, Sessions           int64
		Names                          []string
		Generations, DueIn             []int64
		Weights                        []int
	}
	c.notices.concerns(session)
	got, err := call[row](ctx, c, c.statements.Heartbeat, session, c.lockWait, watched.Microseconds(), last.Clock, last.Mark)
	if err != nil {
		return Beat{}, err
	}
	beat := Beat{
		Alive: got.Alive, Copied: got.Copied, Clock: got.Clock, Run: Run{got.Timeline, got.Started, got.Mark},
		Settled: got.Settled, Era: got.Era, Incarnation: got.Incarnation, CheckDueIn: micros(got.CheckDueIn), Sessions: got.Sessions,
		Leases: make([]LeaseBeat, len(got.Names)),
	}
	for i, name := range got.Names {
		beat.Leases[i] = LeaseBeat{name, got.Generations[i], micros(got.DueIn[i]), got.Weights[i]}
	}
	return beat, nil
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

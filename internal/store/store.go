// Package store is the only code that talks SQL: one method for each statement of the protocol, on one connection. It
// knows nothing of leases beyond what the statements take and give.
package store

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/sql"
)

// CodeNotOwner is the SQLSTATE that the SQL function guard raises.
const CodeNotOwner = "PL001"

// A Registration is what a session is registered with.
type Registration struct {
	Session     int64
	ID          string
	Incarnation int64 // 0: draw one
	Process     int64 // the same for every session of a client; of one program all but ProcessBits are the same, and rise
	TTL         time.Duration
	Host        string
	PID         int
	StartedAt   time.Time
}

// A Process is who else runs under a client ID.
type Process struct {
	Host      string
	PID       int
	StartedAt time.Time
}

// A Run is one run of the server: between two of them it may have lost asynchronous heartbeats, or more.
type Run struct {
	Timeline int64 // 0 where the server does not tell it
	Started  int64 // microseconds since 1970
	Mark     int64 // 0: none was drawn yet
}

// A Beat is the answer to a heartbeat.
type Beat struct {
	Alive       bool
	Clock       int64 // the database's, microseconds since 1970
	Run         Run
	Settled     int64 // the timeline that is settled
	Incarnation int64 // the highest under the client's ID
	CheckDueIn  time.Duration
	Sessions    int64 // there were at the last check, of all clients
	Leases      []LeaseBeat
}

// A LeaseBeat is what a heartbeat tells of one lease that the session joined.
type LeaseBeat struct {
	Name       string
	Generation int64
	DueIn      time.Duration // until a plan is due; negative: none is asked for
	Weight     int
}

// A Join is the answer to a join.
type Join struct {
	Alive      bool // the session is
	Joined     bool
	Partitions int           // that the lease had before; 0: not known
	DueIn      time.Duration // until the plan that it asked for
}

// An Owned is a partition that the session owns.
type Owned struct {
	Partition int
	Epoch     int64
	Moving    bool // meant for another
}

// A LeaseRead is what a session owns of one lease.
type LeaseRead struct {
	Name       string
	Generation int64
	Timeline   int64   // of the server that answered
	Settled    int64   // the timeline that is settled there
	Owned      []Owned // by partition
}

// An Evicted is the answer to an eviction.
type Evicted struct {
	IDs   []string // client IDs evicted
	Asked []string // leases that ask for a plan now
	// CheckDueIn is how long until the next eviction is due; negative: another client is at it, or may do it.
	CheckDueIn time.Duration
	// Unwatched is the least TTL of the expired sessions that were left alone as the watch was shorter; 0: none was.
	Unwatched time.Duration
}

// A Member is a living member of a lease.
type Member struct {
	Session     int64
	ID          string
	Incarnation int64
	Weight      int
}

// A LeasePlan is all that a plan needs of one lease.
type LeasePlan struct {
	Name       string
	Generation int64
	Members    []Member // by ID, incarnation, session
	// By partition: the sessions that own it and shall (0: none), and the client IDs of the last owner, where that
	// session is gone, and of who gets it back when it returns (empty: none).
	Owners, Targets   []int64
	OwnerIDs, HomeIDs []string
}

// A Move sends a partition to a session; 0: to nobody.
type Move struct {
	Lease     string
	Partition int
	Target    int64
}

// An Applied is the answer to a plan.
type Applied struct {
	Applied  bool // else a lease was not as the plan had read it
	Asked    int  // owners asked to hand over
	Given    int  // partitions given to their targets
	LeftOver int  // partitions held by guarded transactions
	More     bool // there were too many moves for one statement: plan again
}

// maxMoves bounds what one statement moves, so that it does not keep a client from its heartbeat.
const maxMoves = 8192

// A Release is a partition that its owner gives up.
type Release struct {
	Lease     string
	Partition int
	Epoch     int64
}

// A Released is the answer to releases.
type Released struct {
	Released []Handed
	Busy     []Release // still owned, because a guarded transaction holds them; without epoch
	Left     []string  // leases left
	Asking   []string  // leases that ask for a plan now
}

// A Handed is a released partition with its new owner (0: nobody) and epoch.
type Handed struct {
	Lease     string
	Partition int
	Owner     int64
	Epoch     int64
}

// A Conn is a connection on which the statements run. It is for one goroutine at a time.
type Conn struct {
	conn       *pgx.Conn
	line       *line
	statements sql.Statements
	lockWait   int    // milliseconds
	channel    string // of notifications
}

// ProcessBits is how many bits of a process's number count the clients of one program. register.sql knows it too.
const ProcessBits = 24

// Register begins a session. It returns the incarnation under which it owns; 0 where a newer process has the ID, and who.
func (c *Conn) Register(ctx context.Context, r Registration) (int64, *Process, error) {
	type row struct {
		Incarnation *int64
		Host        *string
		PID         *int
		StartedAt   *time.Time
	}
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

// Superseder returns the newest living process under a client ID; nil if there is none.
func (c *Conn) Superseder(ctx context.Context, id string) (*Process, error) {
	return maybe[Process](ctx, c, c.statements.Superseder, id)
}

// Heartbeat renews the session.
func (c *Conn) Heartbeat(ctx context.Context, session int64) (Beat, error) {
	type row struct {
		Alive                            bool
		Clock, Timeline, Started, Mark   int64
		Settled, Incarnation, CheckDueIn int64
		Sessions                         int64
		Names                            []string
		Generations, DueIn               []int64
		Weights                          []int
	}
	got, err := one[row](ctx, c, c.statements.Heartbeat, session, c.lockWait)
	if err != nil {
		return Beat{}, err
	}
	beat := Beat{
		Alive: got.Alive, Clock: got.Clock, Run: Run{got.Timeline, got.Started, got.Mark},
		Settled: got.Settled, Incarnation: got.Incarnation, CheckDueIn: micros(got.CheckDueIn), Sessions: got.Sessions,
		Leases: make([]LeaseBeat, len(got.Names)),
	}
	for i, name := range got.Names {
		beat.Leases[i] = LeaseBeat{name, got.Generations[i], micros(got.DueIn[i]), got.Weights[i]}
	}
	return beat, nil
}

// Mark marks this run of the server, unless somebody did.
func (c *Conn) Mark(ctx context.Context, mark int64) error {
	return c.exec(ctx, c.statements.Mark, mark, c.lockWait)
}

// Settle settles the timeline of the run that was watched for so long; false where it may not or need not. It is busy
// where a guarded transaction is in the way, and shall be tried again soon.
func (c *Conn) Settle(ctx context.Context, watched time.Duration, run Run) (settled, busy bool, err error) {
	due, err := maybe[struct{ Settled bool }](ctx, c, c.statements.Settle,
		watched.Microseconds(), run.Timeline, run.Started, run.Mark, c.lockWait)
	if err != nil || due == nil {
		return false, false, err
	}
	return due.Settled, !due.Settled, nil
}

// End ends a session that has left every lease, and reports whether it is gone.
func (c *Conn) End(ctx context.Context, session int64) (bool, error) {
	got, err := one[struct{ Ended bool }](ctx, c, c.statements.Close, session, c.lockWait)
	return got.Ended, err
}

// Join joins a lease, which is made if it does not exist.
func (c *Conn) Join(ctx context.Context, session int64, lease string, partitions, weight int) (Join, error) {
	type row struct {
		Alive, Joined bool
		Partitions    int
		DueIn         int64
	}
	got, err := one[row](ctx, c, c.statements.Join, session, lease, partitions, weight, c.lockWait)
	return Join{got.Alive, got.Joined, got.Partitions, micros(got.DueIn)}, err
}

// SetWeight changes a member's weight; false where the session is no member.
func (c *Conn) SetWeight(ctx context.Context, session int64, lease string, weight int) (bool, error) {
	done, err := maybe[struct{ Done bool }](ctx, c, c.statements.Weight, session, lease, weight, c.lockWait)
	return done != nil, err
}

// Read returns what the session owns of some leases; nothing for one that does not exist.
func (c *Conn) Read(ctx context.Context, session int64, leases []string) ([]LeaseRead, error) {
	type row struct {
		Name       string
		Generation int64
		Timeline   int64
		Settled    int64
		Partitions []int
		Epochs     []int64
		Moving     []bool
	}
	rows, err := all[row](ctx, c, c.statements.Read, session, leases)
	reads := make([]LeaseRead, len(rows))
	for i, r := range rows {
		reads[i] = LeaseRead{r.Name, r.Generation, r.Timeline, r.Settled, make([]Owned, len(r.Partitions))}
		for j := range r.Partitions {
			reads[i].Owned[j] = Owned{r.Partitions[j], r.Epochs[j], r.Moving[j]}
		}
	}
	return reads, err
}

// Evict takes away the sessions that expired before cutoff (the database's clock, microseconds since 1970) and whose TTL
// is at most watched.
func (c *Conn) Evict(ctx context.Context, cutoff int64, watched time.Duration, run Run) (Evicted, error) {
	type row struct {
		IDs, Asked []string
		CheckDueIn int64
		Unwatched  int64
	}
	got, err := one[row](ctx, c, c.statements.Evict, cutoff, watched.Microseconds(),
		run.Timeline, run.Started, run.Mark, c.lockWait)
	return Evicted{got.IDs, got.Asked, micros(got.CheckDueIn), micros(got.Unwatched)}, err
}

// Claim takes the planning of those leases that ask for it, and returns them. One that a join or a release has locked is
// tried again a few times; who holds it that long is planning it.
func (c *Conn) Claim(ctx context.Context, leases []string) ([]string, error) {
	var claimed []string
	for attempt := 1; ; attempt++ {
		got, err := one[struct{ Claimed, Locked []string }](ctx, c, c.statements.Claim, leases, c.lockWait)
		claimed = append(claimed, got.Claimed...)
		if err != nil || len(got.Locked) == 0 || attempt == 4 {
			return claimed, err
		}
		leases = got.Locked
		pause(ctx, rand.N(10*time.Millisecond))
	}
}

// Plan reads what a plan of the leases needs, by name, with all leases that share members with them.
func (c *Conn) Plan(ctx context.Context, leases []string) ([]LeasePlan, error) {
	type row struct {
		Name              string
		Generation        int64
		Sessions          []int64
		IDs               []string
		Incarnations      []int64
		Weights           []int
		Owners, Targets   []int64
		OwnerIDs, HomeIDs []string
	}
	rows, err := all[row](ctx, c, c.statements.Plan, leases)
	plans := make([]LeasePlan, len(rows))
	for i, r := range rows {
		plans[i] = LeasePlan{r.Name, r.Generation, make([]Member, len(r.Sessions)), r.Owners, r.Targets, r.OwnerIDs, r.HomeIDs}
		for j := range r.Sessions {
			plans[i].Members[j] = Member{r.Sessions[j], r.IDs[j], r.Incarnations[j], r.Weights[j]}
		}
	}
	return plans, err
}

// Apply brings a plan into force if all its leases are as they were read, or the first part of one that is too long.
func (c *Conn) Apply(ctx context.Context, plan []LeasePlan, moves []Move) (Applied, error) {
	names, generations := make([]string, len(plan)), make([]int64, len(plan))
	for i, p := range plan {
		names[i], generations[i] = p.Name, p.Generation
	}
	more := len(moves) > maxMoves
	moves = moves[:min(len(moves), maxMoves)]
	leases, partitions, targets := make([]string, len(moves)), make([]int, len(moves)), make([]int64, len(moves))
	for i, m := range moves {
		leases[i], partitions[i], targets[i] = m.Lease, m.Partition, m.Target
	}
	type row struct {
		Applied                bool
		Asked, Given, LeftOver int
		Notified               *string
	}
	got, err := notifying[row](ctx, c, c.statements.Apply,
		names, generations, leases, partitions, targets, c.lockWait, more)
	return Applied{got.Applied, got.Asked, got.Given, got.LeftOver, more && got.Applied}, err
}

// Release gives up partitions and leaves leases.
func (c *Conn) Release(ctx context.Context, session int64, releases []Release, leaving []string) (Released, error) {
	leases, partitions, epochs := make([]string, len(releases)), make([]int, len(releases)), make([]int64, len(releases))
	for i, r := range releases {
		leases[i], partitions[i], epochs[i] = r.Lease, r.Partition, r.Epoch
	}
	type row struct {
		ReleasedLeases     []string
		ReleasedPartitions []int
		Owners, Epochs     []int64
		BusyLeases         []string
		BusyPartitions     []int
		LeftLeases, Asking []string
		Notified           *string
	}
	got, err := notifying[row](ctx, c, c.statements.Release, session, leases, partitions, epochs, leaving, c.lockWait)
	if err != nil {
		return Released{}, err
	}
	released := Released{Left: got.LeftLeases, Asking: got.Asking}
	for i, lease := range got.ReleasedLeases {
		released.Released = append(released.Released,
			Handed{lease, got.ReleasedPartitions[i], got.Owners[i], got.Epochs[i]})
	}
	for i, lease := range got.BusyLeases {
		released.Busy = append(released.Busy, Release{Lease: lease, Partition: got.BusyPartitions[i]})
	}
	return released, nil
}

// Wait waits for a notification, and reports whether it concerns the session. The connection outlives the end of ctx.
func (c *Conn) Wait(ctx context.Context, session int64) (bool, error) {
	n, err := c.conn.WaitForNotification(context.WithValue(ctx, waiting{}, true))
	if err != nil {
		return false, err
	}
	if n.Channel == c.channel && n.Payload == "all" {
		pause(ctx, rand.N(100*time.Millisecond)) // not all of them at the same instant
		return true, nil
	}
	return n.Channel == c.channel &&
		slices.Contains(strings.Split(n.Payload, ","), strconv.FormatInt(session, 10)), nil
}

// pause waits, at most to the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// Closed reports whether the connection is of no more use.
func (c *Conn) Closed() bool { return c.conn.IsClosed() }

// Close ends the connection; it waits a moment for the server to hear of it.
func (c *Conn) Close() {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	_ = c.conn.Close(ctx) // whatever it says, the connection is gone
	c.line.close()
}

// Every statement goes as one message of the simple protocol: no pooler can tear it apart, and no lock waits for the
// second half of a message.
func query(ctx context.Context, c *Conn, statement string, args []any) (pgx.Rows, error) {
	return c.conn.Query(ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
}

func all[T any](ctx context.Context, c *Conn, statement string, args ...any) ([]T, error) {
	rows, err := query(ctx, c, statement, args)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

func one[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	rows, err := query(ctx, c, statement, args)
	if err != nil {
		var none T
		return none, err
	}
	return pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[T])
}

// maybe returns nil where there is no row.
func maybe[T any](ctx context.Context, c *Conn, statement string, args ...any) (*T, error) {
	got, err := all[T](ctx, c, statement, args...)
	if err != nil || len(got) == 0 {
		return nil, err
	}
	return &got[0], nil
}

func (c *Conn) exec(ctx context.Context, statement string, args ...any) error {
	rows, err := query(ctx, c, statement, args)
	if err != nil {
		return err
	}
	rows.Close()
	return rows.Err()
}

// notifying runs a statement whose last parameter is the channel to notify, and once more without where the
// notification is what failed: it only makes things faster.
func notifying[T any](ctx context.Context, c *Conn, statement string, args ...any) (T, error) {
	got, err := one[T](ctx, c, statement, append(slices.Clone(args), c.channel)...)
	switch Code(err) {
	case "54000", "22023", "55000": // the queue is full, the payload too long, notifications are not to be had
		return one[T](ctx, c, statement, append(args, "")...)
	}
	return got, err
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Code returns the SQLSTATE of an error of the server, else nothing.
func Code(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

// Transient reports whether a statement that failed so may well succeed when it is repeated: the connection, a lock, a
// resource or the server's state was in the way, and not what was asked.
func Transient(err error) bool {
	code := Code(err)
	if code == "" {
		return true
	}
	switch code[:2] {
	case "08", "40", "53", "55", "57", "58", "XX":
		return true
	}
	return code == codeReadOnly
}

const codeReadOnly = "25006"

// Denied reports whether the role lacks a right.
func Denied(err error) bool { return Code(err) == "42501" }

// ReadOnly reports whether the server refused to write, as a standby does.
func ReadOnly(err error) bool { return Code(err) == codeReadOnly }

// version is a schema's version, and the oldest code that it serves.
type version struct{ Version, MinCode int }

// Version is the schema version that this code was written for.
const Version = 1

// A SchemaError tells that the schema does not fit.
type SchemaError struct {
	Text   string
	TooNew bool // else a migration can mend it
}

func (e *SchemaError) Error() string { return e.Text }

// Fits checks whether this code can run on the schema.
func (c *Conn) Fits(ctx context.Context) error { return fits(ctx, c.conn, c.channel) }

// Migrate makes the schema fit, if it does not already.
func (c *Conn) Migrate(ctx context.Context) error { return Migrate(ctx, c.conn, c.channel) }

func fits(ctx context.Context, conn *pgx.Conn, schema string) error {
	rows, err := conn.Query(ctx, "SELECT version, min_code FROM "+pgx.Identifier{schema, "schema_version"}.Sanitize(),
		pgx.QueryExecModeSimpleProtocol)
	var v version
	if err == nil {
		v, err = pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[version])
	}
	switch code := Code(err); {
	case code == "3F000" || code == "42P01" || errors.Is(err, pgx.ErrNoRows):
		return &SchemaError{Text: fmt.Sprintf("schema %q is missing in this database", schema)}
	case err != nil:
		return fmt.Errorf("read version of schema %q: %w", schema, err)
	case v.Version < Version:
		return &SchemaError{Text: fmt.Sprintf("schema %q has version %d, this code needs %d", schema, v.Version, Version)}
	case v.MinCode > Version:
		return &SchemaError{TooNew: true, Text: fmt.Sprintf(
			"schema %q has version %d, which serves code for version %d and later, this is for %d",
			schema, v.Version, v.MinCode, Version)}
	}
	return nil
}

// Migrate makes the schema fit, if it does not already: one message, hence one transaction, under a lock that racing
// migrations wait for.
func Migrate(ctx context.Context, conn *pgx.Conn, schema string) error {
	err := fits(ctx, conn, schema)
	if misfit := (*SchemaError)(nil); !errors.As(err, &misfit) || misfit.TooNew {
		return err
	}
	ddl := "SELECT pg_advisory_xact_lock(7358216409153); SET LOCAL client_min_messages = warning;\n" + sql.For(schema).Schema
	_, err = conn.PgConn().Exec(ctx, ddl).ReadAll()
	switch {
	case Code(err) == "3F000":
		return &SchemaError{Text: fmt.Sprintf("schema %q is missing in this database: permission denied to create it", schema)}
	case err != nil:
		return fmt.Errorf("create schema %q: %w", schema, err)
	}
	return fits(ctx, conn, schema)
}

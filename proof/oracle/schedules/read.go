//go:build unix

// Package schedules is the oracle of schedules and jobs. It compares what should have run with the
// history in the database, and with what the handlers did, inside of transactions and outside of
// the database. [Read] reads all that, and [Ledger.Check] returns the violations.
package schedules

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/schedule"
)

// A Ledger holds what should have run, the history, and what the handlers did.
type Ledger struct {
	// A standby was promoted that may have missed commits; the calls are known anyway.
	Promoted  bool
	Stepped   bool // the database's clock was stepped, so its times have no order
	schedules map[string]Scheduled
	orders    map[int64][]order // by job, in the order in which they took it
	names     map[string]bool   // of all orders
	history   map[string][]entry
	jobs      map[int64][]entry
	living    map[int64]bool // jobs that have not ended
	effects   []effect       // in the order in which they began
	calls     []faults.Call  // in the order in which they began

	problems []string
	// Calls that began while another process owned their key: their process had stood still.
	zombies int
	// The maximum number of runs at one time, by kind.
	atOnce map[string]int
}

// An order is the order of a job.
type order struct {
	Name, Kind string
	Job        *int64 // null: its unique key was taken
}

// An entry is an entry of the history, which is in the order of writing.
type entry struct {
	Name         string
	Job          *int64
	Since, Until time.Time
	Ticks        int64
	Outcome      schedule.Outcome
	Error        string
	Attempts     int
	Epoch        *int64
	Started      *time.Time
	Ended        time.Time
}

// is reports whether the outcome is one of these.
func (e entry) is(outcomes ...schedule.Outcome) bool { return slices.Contains(outcomes, e.Outcome) }

// ran reports whether the handler was called.
func (e entry) ran() bool {
	return e.is(schedule.OutcomeSucceeded, schedule.OutcomeFailed, schedule.OutcomeUnknown)
}

// An effect is what a handler wrote in its transaction.
type effect struct {
	Name, Key, Worker string
	Partition         int
	Epoch             int64
	Job               int64 // 0: the effect of a tick
	Order             string
	At, Began         time.Time
	Whole             bool
	Committed         time.Time
}

const (
	historyRows = `
		SELECT name, job, since, until, ticks, outcome, coalesce(error, ''), attempts, epoch, started_at, ended_at
		FROM pgleases.history ORDER BY id`
	effectRows = `
		SELECT name, key, worker, partition, epoch, job, made_for,
		       at, began, ended IS NOT NULL, pg_xact_commit_timestamp(xmin)
		FROM ticks ORDER BY began, n`
)

// Read reads the tables, and the calls that the workers wrote to a directory.
func Read(ctx context.Context, db Querier, dir string) (*Ledger, error) {
	all, err := ReadSchedules(ctx, db)
	if err != nil {
		return nil, err
	}
	l := &Ledger{
		schedules: all, orders: make(map[int64][]order), names: make(map[string]bool),
		history: make(map[string][]entry), jobs: make(map[int64][]entry), living: make(map[int64]bool),
	}
	orders, err := structs[order](ctx, db, "SELECT name, kind, job FROM orders ORDER BY n")
	if err != nil {
		return nil, err
	}
	for _, o := range orders {
		l.names[o.Name] = true
		if o.Job != nil {
			l.orders[*o.Job] = append(l.orders[*o.Job], o)
		}
	}
	entries, err := structs[entry](ctx, db, historyRows)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Job != nil {
			l.jobs[*e.Job] = append(l.jobs[*e.Job], e)
		} else {
			l.history[e.Name] = append(l.history[e.Name], e)
		}
	}
	rows, _ := db.Query(ctx, "SELECT id FROM pgleases.jobs") // CollectRows returns its error
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return nil, err
	}
	for _, id := range ids {
		l.living[id] = true
	}
	l.effects, err = structs[effect](ctx, db, effectRows)
	if err != nil {
		return nil, err
	}
	l.calls, err = faults.Calls(dir)
	slices.SortFunc(l.calls, func(a, b faults.Call) int { return cmp.Compare(a.Began, b.Began) })
	return l, err
}

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}

func structs[T any](ctx context.Context, db Querier, query string) ([]T, error) {
	rows, _ := db.Query(ctx, query) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// A Scheduled is a schedule in the database, beside what it should be.
type Scheduled struct {
	faults.Schedule
	Anchor, Cursor time.Time
}

// Ticks returns the expected ticks after an instant, up to another, computed without package
// schedule.
func (s Scheduled) Ticks(after, until time.Time) (ticks []time.Time) {
	at := s.First(s.Anchor)
	n := after.Sub(at) / s.Every
	if n > 0 {
		at = at.Add(n * s.Every)
	}
	for ; !at.After(until); at = at.Add(s.Every) {
		if at.After(after) {
			ticks = append(ticks, at)
		}
	}
	return ticks
}

// ReadSchedules reads what the database knows of the workers' schedules, by name.
func ReadSchedules(ctx context.Context, db Querier) (map[string]Scheduled, error) {
	all := make(map[string]Scheduled)
	for _, s := range faults.Schedules() {
		all[s.Name] = Scheduled{Schedule: s}
	}
	rows, _ := db.Query(ctx, "SELECT name, anchor, cursor FROM pgleases.schedules") // ForEachRow returns its error
	var name string
	var anchor, cursor time.Time
	_, err := pgx.ForEachRow(rows, []any{&name, &anchor, &cursor}, func() error {
		s := all[name]
		s.Anchor, s.Cursor = anchor, cursor
		all[name] = s
		return nil
	})
	// Schedules that are not created yet.
	maps.DeleteFunc(all, func(_ string, s Scheduled) bool { return s.Anchor.IsZero() })
	return all, err
}

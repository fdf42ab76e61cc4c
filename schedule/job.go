package schedule

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
)

// This file puts jobs: what is to run once.

// Jobs enqueues jobs of one kind. A Kind has its methods, too. All methods are safe for concurrent
// use.
//
// A job runs as a tick of a schedule does: in a transaction with its entry in the history, under
// the guard of its key's partition, with the WithMaxAttempts and WithMaxCrashes of its kind. It has
// one outcome: succeeded, failed, unknown or canceled. A process that runs the group polls for jobs
// once a second, and at once after a notification. A transaction that enqueues a job may send one,
// with NOTIFY: so PostgreSQL does not let you prepare it for a two-phase commit.
type Jobs[Args any] struct {
	scheduler *Scheduler
	name      string
	check     func() error // what is wrong with the kind
}

// An Enqueuer enqueues jobs for a group from a process that does not run the group.
type Enqueuer struct{ scheduler *Scheduler }

// NewEnqueuer returns an Enqueuer for a group. The options are WithSchema, and WithPartitions for a
// group that has never run; any other is an error. NewEnqueuer sends no statement. It does not
// close the pool.
func NewEnqueuer(pool *pgxpool.Pool, group string, opts ...Option) (*Enqueuer, error) {
	o, err := onlyOptions("NewEnqueuer", opts, "WithSchema", "WithPartitions")
	switch {
	case err != nil:
		return nil, err
	case pool == nil:
		return nil, errors.New("schedule: new enqueuer: pool is nil")
	}
	if err := checkGroup(group); err != nil {
		return nil, err
	}
	s := &Scheduler{options: o, times: defaultTimings}
	s.db = newDB(pool, group, o, &s.times)
	return &Enqueuer{s}, nil
}

// JobsOf returns Jobs for a kind that another process registers; Args must be as there.
func JobsOf[Args any](e *Enqueuer, kind string) *Jobs[Args] {
	return &Jobs[Args]{e.scheduler, kind, func() error { return checkName("kind", kind) }}
}

// A JobOption sets something of a job.
type JobOption func(*newJob)

// A newJob is a job as it is enqueued.
type newJob struct {
	Key       string          `json:"key"`
	Kind      string          `json:"kind"`
	Trigger   Trigger         `json:"trigger"`
	UniqueKey *string         `json:"unique_key"`
	Args      json.RawMessage `json:"args"`
	Priority  int             `json:"priority"`
	At        *time.Time      `json:"at"`
	InMicro   *int64          `json:"in_us"`

	onConflict OnConflict
}

// WithDelay makes a job run after d, by the database's clock. The default is 0; it is not negative.
func WithDelay(d time.Duration) JobOption {
	return func(j *newJob) {
		micro := d.Microseconds()
		j.InMicro = &micro
	}
}

// WithTime makes a job run at an instant, in whole microseconds, or now, if that has passed.
func WithTime(t time.Time) JobOption {
	t = t.UTC().Truncate(time.Microsecond) // the database would round, and the last instant of the year 9999 up into a year that JSON has not
	return func(j *newJob) { j.At = &t }
}

// WithPriority sets which jobs begin first of those that are due in a process: those of the highest
// priority. The default is 1; valid values are 0 to 3. Schedules have 1.
func WithPriority(n int) JobOption {
	return func(j *newJob) { j.Priority = n }
}

// WithJobKey sets the key under which runs never overlap, over all schedules and jobs of the group
// with that key. The default is the key of WithUnique, or else a random one.
func WithJobKey(key string) JobOption {
	return func(j *newJob) { j.Key = key }
}

// OnConflict says what becomes of a job whose unique key another job has that has not ended.
type OnConflict int

const (
	Reject  OnConflict = iota // it is refused, with ErrExists
	Ignore                    // the other stays as it is; its id is returned
	Replace                   // the other takes over arguments, key, time and priority, and loses its attempts. If it runs just now, it is run again
)

func (c OnConflict) String() string {
	switch c {
	case Ignore:
		return "ignore"
	case Replace:
		return "replace"
	}
	return "reject"
}

// WithUnique sets the unique key of a job: at most one live job of a kind and group has it.
func WithUnique(key string, conflict OnConflict) JobOption {
	return func(j *newJob) { j.UniqueKey, j.onConflict = &key, conflict }
}

// Enqueue enqueues a job, and returns its ID. Without options it is due now. The errors: a bad
// option, ErrExists, the database's.
func (k *Jobs[Args]) Enqueue(ctx context.Context, args Args, opts ...JobOption) (id int64, err error) {
	return first(k.enqueue(ctx, k.scheduler.ownTx(ctx), []Args{args}, opts))
}

// EnqueueTx is Enqueue in a transaction of the caller's: the job exists once that is committed.
// ErrExists leaves the transaction as it was. It waits for another transaction that enqueued the
// same unique key, and a job that is replaced cannot end until the transaction does: call it as
// late as you can.
func (k *Jobs[Args]) EnqueueTx(ctx context.Context, tx pgx.Tx, args Args, opts ...JobOption) (id int64, err error) {
	return first(k.enqueue(ctx, callersTx(tx), []Args{args}, opts))
}

// EnqueueMany enqueues a job for each of some arguments, all or none, in one statement, and returns
// their IDs, in the same order. The options hold for each; WithUnique is not allowed.
func (k *Jobs[Args]) EnqueueMany(ctx context.Context, args []Args, opts ...JobOption) (ids []int64, err error) {
	return k.enqueue(ctx, k.scheduler.ownTx(ctx), args, opts)
}

// EnqueueManyTx is EnqueueMany in a transaction of the caller's.
func (k *Jobs[Args]) EnqueueManyTx(ctx context.Context, tx pgx.Tx, args []Args, opts ...JobOption) (ids []int64, err error) {
	return k.enqueue(ctx, callersTx(tx), args, opts)
}

func first(ids []int64, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// inTx runs a function in some transaction.
type inTx func(func(pgx.Tx) error) error

// ownTx is a transaction of its own, after which this process polls.
func (s *Scheduler) ownTx(ctx context.Context) inTx {
	return func(f func(pgx.Tx) error) error {
		err := s.db.inTx(ctx, f)
		if p := s.planner.Load(); p != nil && err == nil {
			p.pollSoon()
		}
		return err
	}
}

func callersTx(tx pgx.Tx) inTx {
	return func(f func(pgx.Tx) error) error {
		if tx == nil {
			return errors.New("transaction is nil")
		}
		return store.Advised(f(tx))
	}
}

// enqueue enqueues jobs in a transaction.
func (k *Jobs[Args]) enqueue(ctx context.Context, in inTx, args []Args, opts []JobOption) (ids []int64, err error) {
	conflict, rows, err := k.rows(args, opts)
	if err == nil && len(rows) > 0 {
		err = in(func(tx pgx.Tx) error {
			ids, err = k.scheduler.db.sendEnqueue(ctx, tx, rows, conflict.String())
			if err == nil && len(ids) == 0 {
				err = ErrExists
			}
			return err
		})
	}
	if err != nil {
		return nil, fmt.Errorf("schedule: enqueue job of kind %q: %w", k.name, err)
	}
	return ids, nil
}

// rows are the jobs as the caller wants them.
func (k *Jobs[Args]) rows(args []Args, opts []JobOption) (conflict OnConflict, rows []newJob, err error) {
	if err := k.check(); err != nil {
		return 0, nil, err
	}
	for _, a := range args {
		j := newJob{Kind: k.name, Trigger: TriggerJob, Priority: 1}
		for _, opt := range opts {
			if opt == nil {
				return 0, nil, errors.New("option is nil")
			}
			opt(&j)
		}
		if j.Args, err = writtenArgs(a); err != nil {
			return 0, nil, err
		}
		if err := j.check(len(args)); err != nil {
			return 0, nil, err
		}
		switch {
		case j.Key != "":
		case j.UniqueKey != nil:
			j.Key = *j.UniqueKey // so that one that is replaced does not run beside the one before
		default:
			j.Key = rand.Text()
		}
		rows = append(rows, j)
		conflict = j.onConflict
	}
	return conflict, rows, nil
}

func (j *newJob) check(together int) error {
	in, at := time.Duration(*cmp.Or(j.InMicro, new(int64)))*time.Microsecond, *cmp.Or(j.At, &processStart)
	return cmp.Or(
		wrong(j.Priority < 0 || j.Priority >= priorities, "priority %d is out of range: 0 to %d", j.Priority, priorities-1),
		wrong(j.InMicro != nil && j.At != nil, "WithDelay and WithTime are both given: give one"),
		wrong(in < 0, "a delay of %v is negative", in),
		wrong(at.Year() < 1 || at.Year() > 9999 || at.IsZero(), "the time %v is out of range: after the year 1, before 10000", at),
		wrong(j.UniqueKey != nil && together > 1, "WithUnique is for one job: put each with Enqueue"),
		wrong(j.onConflict < Reject || j.onConflict > Replace, "OnConflict(%d) is none of Reject, Ignore and Replace", j.onConflict),
		checkName("unique key", *cmp.Or(j.UniqueKey, &j.Kind)),
		checkName("key", cmp.Or(j.Key, j.Kind)),
	)
}

// A Job is what is known of a job.
type Job struct {
	ID       int64     `json:"id"`
	Name     string    `json:"name"` // its unique key, or empty; of Trigger, Backfill and RetryTick the name of the schedule
	Kind     string    `json:"kind"`
	Outcome  Outcome   `json:"outcome"`  // empty: it has not ended
	At       time.Time `json:"at"`       // the time for which it was enqueued
	Attempts int       `json:"attempts"` // that failed; of a job that has ended, all
	Error    string    `json:"error"`    // of the last attempt that failed; empty if the job succeeded
	// What follows is of a job that has not ended.
	Key       string          `json:"key"`
	Trigger   Trigger         `json:"trigger"`
	Args      json.RawMessage `json:"args,omitempty"`
	Priority  int             `json:"priority"`
	Partition int             `json:"partition"` // of the lease schedule/GROUP, by the key
	Owner     string          `json:"owner"`     // the client ID of its owner, which runs the job; empty: none
	State     State           `json:"state"`
	Why       string          `json:"why"`          // why it is in this state, as far as that is known
	Due       time.Time       `json:"due,omitzero"` // when its owner runs it next; zero: never
	Late      time.Duration   `json:"late_ns"`      // how long it has waited, run included; 0: it is not due
	Crashes   int             `json:"crashes"`      // as of Schedule
	// What follows is of a job that has ended.
	Epoch     int64     `json:"epoch"`               // under which it ran last; 0: it did not
	StartedAt time.Time `json:"started_at,omitzero"` // zero: it did not
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

// Job returns a job of the group, or its outcome. It returns ErrNotFound if neither exists.
func (s *Scheduler) Job(ctx context.Context, id int64) (Job, error) {
	r, err := s.db.sendJob(ctx, s.db.pool, id)
	if err == nil && r == nil {
		err = ErrNotFound
	}
	if err != nil {
		return Job{}, fmt.Errorf("schedule: job %d of group %q: %w", id, s.db.group, store.Advised(err))
	}
	return *r, nil
}

// A JobFilter says which jobs Jobs returns. What is empty means all.
type JobFilter struct {
	Kind   string
	Prefix string // of their names
	State  State
	After  int64 // only IDs after this one
}

// Jobs returns the jobs of the group that have not ended, in the order in which they were enqueued,
// page by page: not all of one moment. Of those that are due, run or are blocked it finds 1,000 at
// most; for any other filter it reads all jobs, even if the filter wants few. An error ends it.
func (s *Scheduler) Jobs(ctx context.Context, filter JobFilter) iter.Seq2[Job, error] {
	return pages(fmt.Sprintf("list jobs of group %q", s.db.group), filter.After, func(after int64) ([]*Job, error) {
		switch filter.State {
		case "", StatePlanned, StateDue, StateRunning, StateRetrying, StateBlocked:
			return s.db.sendJobs(ctx, s.db.pool, filter, after)
		}
		return nil, fmt.Errorf("%q is none of the states", filter.State)
	}, func(j *Job) (Job, int64) { return *j, j.ID })
}

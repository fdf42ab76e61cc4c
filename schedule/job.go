package schedule

import (
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

// Jobs puts jobs of one kind. A [Kind] has its methods, too. All methods are safe for concurrent use.
//
// A job is run as a tick of a schedule is: in a transaction with its entry in the history, under the guard of its key's partition, with its
// kind's Retry and Crashes. It has one fate: done, dead, lost or cancelled. A process that runs the group looks for jobs once a second, and
// at once when it is told of one that is due before that. A transaction that puts one may tell of it, with NOTIFY: so PostgreSQL does not
// let it be prepared for a two-phase commit.
type Jobs[Args any] struct {
	scheduler *Scheduler
	name      string
	check     func() error // what is wrong with the kind
}

// An Enqueuer puts jobs for a group from a process that runs none of it.
type Enqueuer struct{ scheduler *Scheduler }

// NewEnqueuer returns an Enqueuer for a group. The options are WithSchema, and WithPartitions for a group that nobody has run yet; any
// other is an error. It asks the database nothing. The pool is not closed.
func NewEnqueuer(pool *pgxpool.Pool, group string, opts ...Option) (*Enqueuer, error) {
	o, err := newOptions(opts)
	for _, name := range o.given {
		if err == nil && name != "WithSchema" && name != "WithPartitions" {
			err = fmt.Errorf("schedule: %s means nothing to NewEnqueuer: only WithSchema and WithPartitions do", name)
		}
	}
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

// JobsOf returns what puts jobs of a kind, which another process knows; Args are to be as there.
func JobsOf[Args any](e *Enqueuer, kind string) *Jobs[Args] {
	return &Jobs[Args]{e.scheduler, kind, func() error { return checkName("kind", kind) }}
}

// A JobOption says more about a job: In, At, Priority, Unique and Key are ones.
type JobOption interface{ setJob(*newJob) }

type jobOption func(*newJob)

func (f jobOption) setJob(j *newJob) { f(j) }

// A newJob is a job as it is put.
type newJob struct {
	Key       string          `json:"key"`
	Kind      string          `json:"kind"`
	Name      *string         `json:"name"` // null: the unique key
	Trigger   Trigger         `json:"trigger"`
	Since     *time.Time      `json:"begins"`
	UniqueKey *string         `json:"unique_key"`
	Args      json.RawMessage `json:"args"`
	Priority  Priority        `json:"priority"`
	At        *time.Time      `json:"at"`
	InMicro   *int64          `json:"in_us"`
	Quiet     bool            `json:"quiet,omitempty"` // of the first: nobody else needs to be told of them

	taken Taken
}

// In has a job run after d, by the database's clock; 0 or more, default 0.
func In(d time.Duration) JobOption {
	return jobOption(func(j *newJob) {
		micro := d.Microseconds()
		j.InMicro = &micro
	})
}

// At has a job run at an instant, in whole microseconds, or, where that has passed, now.
func At(t time.Time) JobOption {
	t = t.UTC().Truncate(time.Microsecond) // the database would round, and the last instant of the year 9999 up into a year that JSON has not
	return jobOption(func(j *newJob) { j.At = &t })
}

// Priority is from 0 to 3, default 1: of the jobs that are due in a process, those of the highest begin first. Schedules have 1.
type Priority int

func (n Priority) setJob(j *newJob) { j.Priority = n }
func (k Key) setJob(j *newJob)      { j.Key = string(k) }

// Taken says what becomes of a job whose unique key is taken by a job that has not ended.
type Taken int

const (
	Raise   Taken = iota // it is refused, with ErrExists
	Ignore               // the other stays as it is; its id is returned
	Replace              // the other takes over arguments, key, time and priority, and loses its attempts. Where it runs just now, it is run again
)

// Unique has at most one living job of a kind and group have this key.
func Unique(key string, taken Taken) JobOption {
	return jobOption(func(j *newJob) { j.UniqueKey, j.taken = &key, taken })
}

// Enqueue puts a job, and returns its id. Without options it is due now. The errors: a bad option, ErrExists, the database's.
func (k *Jobs[Args]) Enqueue(ctx context.Context, args Args, opts ...JobOption) (id int64, err error) {
	return first(k.enqueue(ctx, k.scheduler.ownTx(ctx), k.scheduler.owns, []Args{args}, opts))
}

// EnqueueTx is Enqueue in a transaction of the caller's: the job is there once that is committed. ErrExists leaves the transaction as it
// was. A unique key of a transaction that is under way is waited for, and a job that is replaced cannot end until the transaction does:
// call it as late as can be.
func (k *Jobs[Args]) EnqueueTx(ctx context.Context, tx pgx.Tx, args Args, opts ...JobOption) (id int64, err error) {
	return first(k.enqueue(ctx, callersTx(tx), nil, []Args{args}, opts))
}

// EnqueueMany puts a job for each of some arguments, all or none, in one statement, and returns their ids, in the same order. The options
// hold for each; Unique is not among them.
func (k *Jobs[Args]) EnqueueMany(ctx context.Context, args []Args, opts ...JobOption) (ids []int64, err error) {
	return k.enqueue(ctx, k.scheduler.ownTx(ctx), k.scheduler.owns, args, opts)
}

// EnqueueManyTx is EnqueueMany in a transaction of the caller's.
func (k *Jobs[Args]) EnqueueManyTx(ctx context.Context, tx pgx.Tx, args []Args, opts ...JobOption) (ids []int64, err error) {
	return k.enqueue(ctx, callersTx(tx), nil, args, opts)
}

func first(ids []int64, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// inTx runs a function in some transaction.
type inTx func(func(pgx.Tx) error) error

// ownTx is a transaction of its own, after which this process looks for what was put.
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
		return f(tx)
	}
}

// owns reports whether this process owns what is put: then it looks, and nobody else needs to be told.
func (s *Scheduler) owns(rows []newJob) bool {
	p := s.planner.Load()
	if p == nil {
		return false
	}
	var partitions []int
	for _, j := range rows {
		partitions = append(partitions, p.lease.PartitionFor(j.Key))
	}
	return p.owned.haveAll(partitions)
}

// enqueue puts jobs in a transaction. Where quiet says so of them, nobody else is told; nil: it never does.
func (k *Jobs[Args]) enqueue(ctx context.Context, in inTx, quiet func([]newJob) bool, args []Args, opts []JobOption) (ids []int64, err error) {
	taken, rows, err := k.rows(args, opts)
	if err == nil && len(rows) > 0 {
		rows[0].Quiet = quiet != nil && quiet(rows)
		err = in(func(tx pgx.Tx) error {
			ids, err = k.scheduler.db.sendEnqueue(ctx, tx, rows, taken.String())
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
func (k *Jobs[Args]) rows(args []Args, opts []JobOption) (taken Taken, rows []newJob, err error) {
	if err := k.check(); err != nil {
		return 0, nil, err
	}
	for _, a := range args {
		j := newJob{Kind: k.name, Trigger: TriggerJob, Priority: 1}
		for _, opt := range opts {
			if opt == nil {
				return 0, nil, errors.New("option is nil")
			}
			opt.setJob(&j)
		}
		if j.Args, err = writtenArgs(a); err != nil {
			return 0, nil, err
		}
		if err := j.checkJob(len(args)); err != nil {
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
		taken = j.taken
	}
	return taken, rows, nil
}

func (j *newJob) checkJob(together int) error {
	switch {
	case j.Priority < 0 || j.Priority >= priorities:
		return fmt.Errorf("priority %d is out of range: 0 to %d", j.Priority, priorities-1)
	case j.InMicro != nil && j.At != nil:
		return errors.New("In and At are both given: give one")
	case j.InMicro != nil && *j.InMicro < 0:
		return fmt.Errorf("in %v is negative", time.Duration(*j.InMicro)*time.Microsecond)
	case j.At != nil && (j.At.Year() < 1 || j.At.Year() > 9999 || j.At.IsZero()):
		return fmt.Errorf("the time %v is out of range: after the year 1, before 10000", *j.At)
	case j.UniqueKey != nil && together > 1:
		return errors.New("Unique is for one job: put each with Enqueue")
	case j.taken < Raise || j.taken > Replace:
		return fmt.Errorf("Taken(%d) is none of Raise, Ignore and Replace", j.taken)
	case j.UniqueKey != nil:
		if err := checkName("unique key", *j.UniqueKey); err != nil {
			return err
		}
	}
	if j.Key == "" {
		return nil
	}
	return checkName("key", j.Key)
}

// A Job is what is known of a job.
type Job struct {
	ID       int64     `json:"id"`
	Name     string    `json:"name"` // its Unique key, or empty; of Trigger, Backfill and RetryTick the name of the schedule
	Kind     string    `json:"kind"`
	Fate     Fate      `json:"fate"`     // empty: it has not ended
	At       time.Time `json:"at"`       // the time that it was put for
	Attempts int       `json:"attempts"` // that have failed; of one that has ended, all
	Error    string    `json:"error"`    // of the last attempt that failed; of one that is done it is empty
	// What follows is of a job that has not ended.
	Key     string          `json:"key"`
	Trigger Trigger         `json:"trigger"`
	Args    json.RawMessage `json:"args,omitempty"`
	State   State           `json:"state"`
	Due     time.Time       `json:"due,omitzero"` // when its owner looks at it next; zero: never
	Waits   string          `json:"waits"`        // why the process that owns it cannot run it; empty: nothing is known against it
	// What follows is of a job that has.
	Epoch     int64     `json:"epoch"`               // under which it ran last; 0: it did not
	StartedAt time.Time `json:"started_at,omitzero"` // zero: it did not
	EndedAt   time.Time `json:"ended_at,omitzero"`
}

// Job returns a job of the group, or what became of it. ErrNotFound where there is neither.
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

// A State is what a job does that has not ended.
type State string

// The states.
const (
	StatePlanned State = "planned" // it is not due
	StateDue     State = "due"     // it is to begin now
	StateRuns    State = "runs"
	StateRetries State = "retries" // it failed, and is tried again when it is due
	StateWaits   State = "waits"   // the process that owns it cannot run it
)

// A JobFilter says which jobs Jobs returns. What is empty means all.
type JobFilter struct {
	Kind   string
	Prefix string // of their names
	State  State
}

// Jobs returns the jobs of the group that have not ended, in the order in which they were put, page by page: not all of one moment. All of
// them are passed over, also where few are wanted. An error ends it.
func (s *Scheduler) Jobs(ctx context.Context, filter JobFilter) iter.Seq2[Job, error] {
	return pages(fmt.Sprintf("list jobs of group %q", s.db.group), int64(0), func(after int64) ([]*Job, error) {
		switch filter.State {
		case "", StatePlanned, StateDue, StateRuns, StateRetries, StateWaits:
			return s.db.sendJobs(ctx, s.db.pool, filter, after)
		}
		return nil, fmt.Errorf("%q is none of the states", filter.State)
	}, func(j *Job) (Job, int64) { return *j, j.ID })
}

func (t Taken) String() string {
	switch t {
	case Ignore:
		return "ignore"
	case Replace:
		return "replace"
	}
	return "raise"
}

// jobID is what a handler is told of a job.
func (r *record) jobID() int64 {
	if r.Job {
		return r.ID
	}
	return 0
}

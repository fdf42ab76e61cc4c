package schedule

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// This file enqueues jobs: runs that happen once.

// Jobs enqueues jobs of one kind. A Kind has its methods, too. All methods are safe for concurrent
// use.
//
// A job runs as a tick of a schedule does. It runs in a transaction with its entry in the history,
// under the guard of its key's partition, with the WithMaxAttempts and WithMaxCrashes of its kind.
// Its outcome is succeeded, failed, unknown or canceled. A process that runs the group polls for
// jobs once a second, and at once after a notification. A transaction that enqueues a job may send
// a notification with NOTIFY, and PostgreSQL then refuses PREPARE TRANSACTION for it.
//
// Jobs of one key run one at a time, but not always in the order of their calls. When the key is
// free, the next is the job that is due, has the highest priority and became due first. A job
// becomes due when its Enqueue statement began, or at its WithDelay or WithTime. A job that waits
// for a retry or a Snooze becomes due again later, so others of its key begin before it. A job
// whose transaction commits late begins after those that committed before.
type Jobs[Args any] struct {
	scheduler *Scheduler
	name      string
	check     func() error // returns an error if the kind is invalid
}

// An Enqueuer enqueues jobs for a group, in a process that need not run the group.
type Enqueuer struct{ scheduler *Scheduler }

// NewEnqueuer returns an Enqueuer for a group. The options are WithSchema, and WithPartitions for a
// group that has never run. Any other is an error. NewEnqueuer sends no statement, so it does not
// check the names. Jobs of a misspelled group wait forever, and pgleases doctor warns that no
// process runs the group. NewEnqueuer does not close the pool.
func NewEnqueuer(pool *pgxpool.Pool, group string, opts ...Option) (*Enqueuer, error) {
	o, err := onlyOptions("NewEnqueuer", opts, "WithSchema", "WithPartitions")
	err = cmp.Or(err, wrong(pool == nil, "schedule: new enqueuer: pool is nil"), checkGroup(group))
	if err != nil {
		return nil, err
	}
	s := &Scheduler{options: o, times: defaultTimings}
	s.db = newDB(pool, group, o, &s.times)
	return &Enqueuer{s}, nil
}

// JobsOf returns Jobs for a kind that another process registers. Args must be the type used there.
// Jobs of a misspelled kind are blocked.
func JobsOf[Args any](e *Enqueuer, kind string) *Jobs[Args] {
	return &Jobs[Args]{e.scheduler, kind, func() error { return checkName("kind", kind) }}
}

// A JobOption sets an option of a job.
type JobOption func(*newJob)

// A newJob has what the jobs that one call enqueues have in common.
type newJob struct {
	Key       string          `json:"key"` // empty: each has a random key
	Kind      string          `json:"kind"`
	Trigger   Trigger         `json:"trigger"`
	UniqueKey *string         `json:"unique_key"`
	Args      json.RawMessage `json:"args"` // of a job with a unique key, which is alone
	Priority  int             `json:"priority"`
	At        *time.Time      `json:"at"`
	InMicro   *int64          `json:"in_us"`

	onConflict OnConflict
}

// WithDelay makes a job due after d, by the database's clock. The default is 0; a negative d is an
// error.
func WithDelay(d time.Duration) JobOption {
	return func(j *newJob) {
		micro := d.Microseconds()
		j.InMicro = &micro
	}
}

// WithTime makes a job due at an instant, truncated to microseconds, or at once if that has passed.
// The default is now. WithTime and WithDelay exclude each other.
func WithTime(t time.Time) JobOption {
	// the database would round up, and a time of the year 10000 has no JSON
	t = t.UTC().Truncate(time.Microsecond)
	return func(j *newJob) { j.At = &t }
}

// WithPriority sets the priority of a job. Of the jobs and schedules that are due in a process,
// those of the highest priority begin first. The default is 1. Valid values are 0 to 3. Schedules
// have 1.
func WithPriority(n int) JobOption { return func(j *newJob) { j.Priority = n } }

// WithJobKey sets the key of a job. Runs of one key do not overlap, over all schedules and jobs of
// the group, with the exception that WithKey names. The default is the key of WithUnique, or
// otherwise a random key.
func WithJobKey(key string) JobOption { return func(j *newJob) { j.Key = key } }

// OnConflict says what to do if a live job, that is one without an outcome, has the unique key of
// the new job.
type OnConflict int

const (
	OnConflictReject OnConflict = iota // return ErrExists
	OnConflictIgnore                   // keep the existing job unchanged, and return its ID
	// give the existing job the arguments, key, time and priority, and reset its attempts; if it is
	// running, it runs again
	OnConflictReplace
)

func (c OnConflict) String() string {
	if c < OnConflictReject || c > OnConflictReplace {
		return fmt.Sprintf("OnConflict(%d)", int(c))
	}
	return [...]string{"reject", "ignore", "replace"}[c]
}

// WithUnique sets the unique key of a job. At most one live job of a group and kind has it. It is
// also the job's name, so operators can recognize it.
func WithUnique(key string, conflict OnConflict) JobOption {
	return func(j *newJob) { j.UniqueKey, j.onConflict = &key, conflict }
}

// Enqueue enqueues a job, and returns its ID. Without options it is due now. It returns an error
// for an invalid option, ErrExists, or an error of the database.
func (k *Jobs[Args]) Enqueue(ctx context.Context, args Args, opts ...JobOption) (id int64, err error) {
	return first(k.enqueue(ctx, k.scheduler.ownTx(), []Args{args}, opts))
}

// EnqueueTx is Enqueue in the caller's transaction. The job exists once that is committed.
// ErrExists leaves the transaction usable. EnqueueTx waits for any other transaction that enqueued
// the same unique key. A job that it replaces cannot end before the transaction does, so call it as
// late as you can.
func (k *Jobs[Args]) EnqueueTx(ctx context.Context, tx pgx.Tx, args Args, opts ...JobOption) (id int64, err error) {
	return first(k.enqueue(ctx, callersTx(tx), []Args{args}, opts))
}

// EnqueueMany enqueues one job for each element of args, all or none, in one statement. It returns
// their IDs, in the same order. Each job gets the options; WithUnique is not allowed.
func (k *Jobs[Args]) EnqueueMany(ctx context.Context, args []Args, opts ...JobOption) (ids []int64, err error) {
	return k.enqueue(ctx, k.scheduler.ownTx(), args, opts)
}

// EnqueueManyTx is EnqueueMany in the caller's transaction.
func (k *Jobs[Args]) EnqueueManyTx(
	ctx context.Context, tx pgx.Tx, args []Args, opts ...JobOption,
) (ids []int64, err error) {
	return k.enqueue(ctx, callersTx(tx), args, opts)
}

func first(ids []int64, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return ids[0], nil
}

// inTx runs a function in a transaction.
type inTx func(context.Context, func(context.Context, pgx.Tx) error) error

// ownTx returns an inTx that begins its own transaction, after which this process polls.
func (s *Scheduler) ownTx() inTx {
	return func(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
		err := s.db.inTx(ctx, f)
		p := s.planner.Load()
		if p != nil && err == nil {
			p.pollSoon()
		}
		return err
	}
}

func callersTx(tx pgx.Tx) inTx {
	return func(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
		if tx == nil {
			return errors.New("transaction is nil")
		}
		return store.Advised(f(ctx, tx))
	}
}

// enqueue enqueues jobs in a transaction.
func (k *Jobs[Args]) enqueue(ctx context.Context, in inTx, args []Args, opts []JobOption) (ids []int64, err error) {
	job, err := k.newJob(len(args), opts)
	texts := make([]string, len(args))
	for i := 0; i < len(args) && err == nil; i++ {
		texts[i], err = writtenArgs(args[i])
	}
	if err == nil && len(args) > 0 {
		err = in(ctx, func(ctx context.Context, tx pgx.Tx) error {
			ids, err = k.scheduler.db.enqueue(ctx, tx, job, texts)
			return err
		})
	}
	if store.Undefined(err) {
		err = fmt.Errorf("%w; run pgleases migrate --schedules, or start a process of the group first", err)
	}
	if err != nil {
		return nil, wrap.Errorf("schedule: enqueue job of kind %q: %w", k.name, err)
	}
	return ids, nil
}

// enqueue enqueues a job for each element of args; with a unique key, there is one.
func (d *db) enqueue(ctx context.Context, tx pgx.Tx, job newJob, args []string) (ids []int64, err error) {
	if job.UniqueKey == nil {
		return d.sendEnqueueMany(ctx, tx, job, args)
	}
	job.Args = json.RawMessage(args[0])
	ids = make([]int64, 1)
	switch job.onConflict {
	case OnConflictIgnore:
		ids[0], err = d.sendEnqueueOrKeep(ctx, tx, job)
	case OnConflictReplace:
		ids[0], err = d.sendEnqueueOrReplace(ctx, tx, job)
	case OnConflictReject:
		ids, err = d.sendEnqueue(ctx, tx, job)
		if err == nil && len(ids) == 0 {
			err = ErrExists
		}
	}
	return ids, err
}

// newJob returns what n jobs have in common.
func (k *Jobs[Args]) newJob(n int, opts []JobOption) (job newJob, err error) {
	if err := k.check(); err != nil {
		return job, err
	}
	job = newJob{Kind: k.name, Trigger: TriggerJob, Priority: 1}
	for _, opt := range opts {
		if opt == nil {
			return job, errors.New("option is nil")
		}
		opt(&job)
	}
	err = job.check(n)
	if job.Key == "" && job.UniqueKey != nil {
		job.Key = *job.UniqueKey // so a replaced job does not run beside the job before
	}
	return job, err
}

// marks returns for each of n jobs a random UUID, and the hash of the job's key, which decides its
// partition.
func (j *newJob) marks(n int) (nonces []string, hashes []int64) {
	const size = 16
	random := make([]byte, n*size)
	_, _ = rand.Read(random) // it never returns an error
	nonces, hashes = make([]string, n), make([]int64, n)
	for i := range n {
		nonces[i] = hex.EncodeToString(random[i*size : (i+1)*size])
		hashes[i] = store.KeyHash(cmp.Or(j.Key, nonces[i]))
	}
	return nonces, hashes
}

func (j *newJob) check(together int) error {
	in, at := time.Duration(*cmp.Or(j.InMicro, new(int64)))*time.Microsecond, *cmp.Or(j.At, &processStart)
	return cmp.Or(
		wrong(
			j.Priority < 0 || j.Priority >= priorities,
			"priority %d is out of range: 0 to %d", j.Priority, priorities-1,
		),
		wrong(j.InMicro != nil && j.At != nil, "WithDelay and WithTime exclude each other"),
		wrong(in < 0, "a delay of %v is negative", in),
		wrong(
			at.Year() < 1 || at.Year() > 9999 || at.IsZero(),
			"the time %v is out of range: after the year 1, before 10000", at,
		),
		wrong(j.UniqueKey != nil && together > 1, "WithUnique is for one job: call Enqueue for each"),
		wrong(j.onConflict < OnConflictReject || j.onConflict > OnConflictReplace,
			"%v is not OnConflictReject, OnConflictIgnore or OnConflictReplace", j.onConflict),
		checkName("unique key", *cmp.Or(j.UniqueKey, &j.Kind)),
		checkName("key", cmp.Or(j.Key, j.Kind)),
	)
}

// A Job is the state of a job, or its outcome.
type Job struct {
	ID int64 `json:"id"`
	// Its unique key, or empty; of Trigger, Backfill and RetryTick: the name of the schedule
	Name    string  `json:"name"`
	Kind    string  `json:"kind"`
	Outcome Outcome `json:"outcome"` // empty: the job has not ended
	// The time of WithTime or WithDelay; by default when it was enqueued
	At       time.Time `json:"at"`
	Attempts int       `json:"attempts"` // failed attempts; after the end: all attempts
	Error    string    `json:"error"`    // of the last failed attempt; empty if the job succeeded
	// When the run under way began, if this role can see that; after the end: the last run. Zero:
	// no run
	StartedAt time.Time `json:"started_at,omitzero"`
	// The job that it runs again, if it was returned by Job; 0: none, or a tick
	RetryOf int64 `json:"retry_of,omitzero"`
	// The following fields are set until the job has succeeded: if it did not, Retry needs them. The
	// JSON leaves out zeros.
	Key      string          `json:"key,omitzero"`
	Args     json.RawMessage `json:"args,omitempty"`
	Priority int             `json:"priority,omitzero"`
	// The following fields are set until the job has ended.
	Trigger   Trigger `json:"trigger,omitzero"`
	Partition int     `json:"partition,omitzero"` // of the lease schedule/GROUP, by the key
	// Client ID of the process that runs it; empty: its partition has no owner
	Owner string    `json:"owner,omitzero"`
	State State     `json:"state,omitzero"`
	Why   string    `json:"why,omitzero"` // the reason for State, if it is known
	Due   time.Time `json:"due,omitzero"` // when its owner runs it next; zero: never
	// How long it has been blocked or due, run included; 0: not due
	Late    time.Duration `json:"late_ns,omitzero"`
	Crashes int           `json:"crashes,omitzero"` // as in Schedule
	// The following fields are set when the job has ended.
	Epoch   int64     `json:"epoch,omitzero"` // of its last run; 0: it never ran
	EndedAt time.Time `json:"ended_at,omitzero"`
	Retried int64     `json:"retried,omitzero"` // the job that runs it again; 0: not retried
}

// Job returns a job of the group, or its outcome. It returns ErrNotFound if the group has neither.
func (s *Scheduler) Job(ctx context.Context, id int64) (Job, error) {
	r, err := asked(ctx, s.db, func(ctx context.Context, q querier) (*Job, error) { return s.db.sendJob(ctx, q, id) })
	if err == nil && r == nil {
		err = ErrNotFound
	}
	if err != nil {
		return Job{}, wrap.Errorf("schedule: job %d of group %q: %w", id, s.db.group, store.Advised(err))
	}
	return *r, nil
}

// A JobFilter selects the jobs that Jobs returns. An empty field selects all.
type JobFilter struct {
	Kind   string
	Prefix string // of the names
	State  State
	After  int64 // only IDs after this one
}

// Jobs returns the live jobs of the group by ID, which is the order of enqueueing. It reads page by
// page, so they are not of one moment. Of jobs that are due, running or blocked it returns 1,000 at
// most. For any other filter it reads all jobs, however few match. An error ends the iteration.
func (s *Scheduler) Jobs(ctx context.Context, filter JobFilter) iter.Seq2[Job, error] {
	return pages(fmt.Sprintf("list jobs of group %q", s.db.group), filter.After, func(after int64) ([]Job, error) {
		switch filter.State {
		case "", StatePlanned, StateDue, StateRunning, StateRetrying, StateBlocked:
			return asked(ctx, s.db, func(ctx context.Context, q querier) ([]Job, error) {
				return s.db.sendJobs(ctx, q, filter, after)
			})
		}
		return nil, fmt.Errorf("%q is not the state of a job", filter.State)
	}, func(j Job) int64 { return j.ID })
}

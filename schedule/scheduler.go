package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// A Scheduler is one process's part in a group of schedules: the processes that Run it share the
// schedules of the group. All methods are safe for concurrent use.
type Scheduler struct {
	client   *pgleases.Client // nil: see Manage
	stage    *seam.Stage      // the time of a test; nil: the time is the server's
	db       *db
	options  options
	log      *slog.Logger
	times    timings
	registry registry
	counts   counts

	planner atomic.Pointer[planner] // of Run; nil: it is not under way
}

// timings are the same in all processes, but for tests.
type timings struct {
	poll        time.Duration // how often it is asked what is due
	pollPause   time.Duration // how long it waits between two polls, however many jobs are enqueued
	pollLimit   time.Duration // how long that may take
	sweep       time.Duration // how often also for what has been due for long
	silence     time.Duration // how long no other notification is sent after one
	clockDoubt  time.Duration // how long a step of the database's clock is doubted
	suspectHold time.Duration // how long others wait for a crash suspect
	overrun     time.Duration // how long a handler may go on after the end of its context until that is logged
	answer      time.Duration // how long the database is given for an answer
	lockWait    time.Duration // how long a statement of ours waits for a lock
	trim        time.Duration // how often the history is trimmed
	declare     time.Duration // how often it is noted what the code declares
}

var defaultTimings = timings{
	poll: pollEvery, pollPause: pollPause, pollLimit: pollLimit, sweep: sweepEvery, silence: silenceAfter, clockDoubt: clockDoubt, suspectHold: suspectHold,
	overrun: overrun, answer: closing, lockWait: lockWait, trim: trimEvery, declare: declareEvery,
}

// leaseOf is what stands before a group's name in that of its lease.
const leaseOf = "schedule/"

func checkGroup(group string) error {
	return cmp.Or(checkName("group", group), checkName("lease of the group", leaseOf+group))
}

// New returns a scheduler for a group, whose name has 1 to 246 bytes of UTF-8 without NUL. Client
// and pool must lead to one database; New closes neither. It creates or migrates the tables, unless
// WithoutMigration is given. ctx covers this call only.
//
// The errors: a bad option, the database's, pgleases.ErrSchema.
func New(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, group string, opts ...Option) (*Scheduler, error) {
	o, err := newOptions(opts)
	switch {
	case err != nil:
		return nil, err
	case o.gave("WithReason"):
		return nil, errors.New("schedule: WithReason means nothing to New: it is for Manage")
	case client == nil || pool == nil:
		return nil, errors.New("schedule: new scheduler: client or pool is nil")
	}
	return newScheduler(ctx, client, pool, group, o)
}

func newScheduler(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, group string, o options) (s *Scheduler, err error) {
	size := int(pool.Config().MaxConns)
	switch {
	case o.maxRunning == 0:
		o.maxRunning = max(1, size/2)
	case o.maxRunning >= size:
		return nil, fmt.Errorf(
			"schedule: at most %d runs at once need a pool of more than %d connections, not %d: see WithMaxRunning", o.maxRunning,
			o.maxRunning, size,
		)
	}
	if err := checkGroup(group); err != nil {
		return nil, err
	}
	if client != nil {
		err = store.OpenError(ctx, "schedule", "new scheduler", o.schema, pgleases.ErrSchema, bridge.Engine(client).Reaches(ctx, pool, o.schema))
	}
	switch {
	case err != nil:
	case o.noMigration:
		err = withConn(ctx, pool, "new scheduler", o.schema, part.Fits)
	default:
		err = Migrate(ctx, pool, WithSchema(o.schema))
	}
	if err != nil {
		return nil, err
	}
	s = &Scheduler{client: client, options: o, log: o.logger.With(slog.String("group", group)), times: defaultTimings, registry: newRegistry()}
	s.db = newDB(pool, group, o, &s.times)
	return s, nil
}

// Run stores what was added, and runs schedules of the group until ctx, the client or the lease
// ends. Then it lets runs end, see WithDrainTimeout, and leaves. It returns the cause. The group's
// lease is "schedule/" and its name. A Scheduler runs once, and a client runs one of a group at a
// time.
//
// If this process does not know a schedule's kind, arguments or zone, or only another version of
// the code declares the schedule, it is blocked until a process knows it, and is not late for that
// time.
func (s *Scheduler) Run(ctx context.Context) error {
	again, err := s.registry.start()
	switch {
	case err != nil:
		return err
	case s.stage != nil:
		return fmt.Errorf("schedule: run group %q: %w", s.db.group, s.stage.Wait(ctx))
	case s.client == nil:
		return fmt.Errorf("schedule: run group %q: this Scheduler has no client: make it with New", s.db.group)
	case again:
		return fmt.Errorf("schedule: run group %q: it was run already", s.db.group)
	}
	mine := membership{s.client, s.db.group}
	if _, taken := running.LoadOrStore(mine, s); taken {
		return fmt.Errorf("schedule: run group %q: another Scheduler of this client runs it", s.db.group)
	}
	defer running.Delete(mine)
	fits, err := s.putDeclared(ctx) // before it joins: its partitions would wait for it
	if err != nil {
		return fmt.Errorf("schedule: run group %q: %w", s.db.group, err)
	}
	lease, err := s.client.Lease(ctx, leaseOf+s.db.group, s.options.partitions)
	if err != nil {
		return fmt.Errorf("schedule: run group %q: %w", s.db.group, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = lease.Leave(ctx) // on an error the partitions leave when the client does
	}()
	if err = s.join(ctx); err == nil && !fits { // the lease has been created again since
		_, err = s.putDeclared(ctx)
	}
	if err != nil {
		return fmt.Errorf("schedule: run group %q: %w", s.db.group, err)
	}
	ended := ctx
	defer context.AfterFunc(ended, func() { _ = lease.Leave(ended) })() // at once: each partition goes when its own runs have ended
	p := newPlanner(s, lease)
	stop := p.start(ctx)
	defer stop()
	var keeping sync.WaitGroup
	defer keeping.Wait()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	keeping.Go(func() { s.keepDeclared(ctx) })
	s.planner.Store(p)
	defer s.planner.Store(nil)
	err = lease.Run(ctx, p.serve)
	if ctx.Err() != nil && errors.Is(err, pgleases.ErrClosed) { // as it left for that
		err = fmt.Errorf("schedule: run group %q: %w", s.db.group, context.Cause(ctx))
	}
	return err
}

// A membership is a client's in a group. One Scheduler at a time has it: it ends with its Run.
type membership struct {
	client *pgleases.Client
	group  string
}

var running sync.Map // of *Scheduler by its membership

// mostRunning is how many handlers run at once. Groups that run on a pool and leave that to its size
// share it.
func (s *Scheduler) mostRunning() int {
	if s.options.gave("WithMaxRunning") {
		return s.options.maxRunning
	}
	groups := 0
	running.Range(func(_, of any) bool {
		if other := of.(*Scheduler); other.db.pool == s.db.pool && !other.options.gave("WithMaxRunning") {
			groups++
		}
		return true
	})
	return max(1, s.options.maxRunning/max(1, groups))
}

// lockWait bounds how long a statement of ours waits for a lock.
const lockWait = 5 * time.Second

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
	"github.com/pgleases/pgleases/internal/listen"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Scheduler is one process of a group. The processes that call Run share the schedules and jobs
// of the group. All methods are safe for concurrent use.
type Scheduler struct {
	client   *pgleases.Client // nil for Manage
	stage    *bridge.Stage    // the clock of a test; nil: the server's clock counts
	db       *db
	options  options
	log      *slog.Logger
	times    timings
	registry registry
	counts   counts

	planner atomic.Pointer[planner] // of Run; nil: Run is not under way
}

// timings are the same in all processes, except in tests.
type timings struct {
	Poll      time.Duration // between two polls
	PollPause time.Duration // at least, between two polls, however many jobs are enqueued; not for gained partitions
	PollLimit time.Duration // at most, for a poll
	// between two polls that return everything that is due, also rows that were committed late
	Sweep       time.Duration
	Silence     time.Duration // after a notification no other is sent for this long
	ClockDoubt  time.Duration // until a step of the database's clock is trusted
	SuspectHold time.Duration // at most, that other runs wait for a crash suspect
	Try         time.Duration // at most, that runs of a kind wait for one that tries in an outage
	// from the end of a handler's context until the log says that it still runs
	Overrun  time.Duration
	Look     time.Duration // between two looks whether the transaction of a handler still exists
	Answer   time.Duration // at most, for an answer of the database
	LockWait time.Duration // at most, that a statement of this package waits for a lock
	Trim     time.Duration // between two trims of the history
	// between two records of the declared schedules, of which the database writes one a day
	Declare time.Duration
}

var defaultTimings = timings{
	Poll: time.Second, PollPause: 10 * time.Millisecond, PollLimit: 5 * time.Second, Sweep: time.Minute,
	Silence: listen.Silence, ClockDoubt: time.Minute, SuspectHold: 5 * time.Second, Try: time.Minute,
	Overrun: 10 * time.Second, Look: 5 * time.Second, Answer: statementLimit, LockWait: 5 * time.Second,
	Trim: time.Minute, Declare: time.Hour,
}

// leaseOf is the prefix of a lease's name, before the name of its group.
const leaseOf = "schedule/"

func checkGroup(group string) error {
	return cmp.Or(checkName("group", group), checkName("lease of the group", leaseOf+group))
}

// New returns a Scheduler for a group. The group's name has 1 to 246 bytes of UTF-8 without NUL.
// Client and pool must connect to one database; New closes neither. It creates or migrates the
// tables, unless WithoutMigration is given. ctx covers this call only.
//
// New returns an error for an invalid option, pgleases.ErrSchema, or an error of the database.
func New(
	ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, group string, opts ...Option,
) (*Scheduler, error) {
	o, err := newOptions(opts)
	err = errors.Join(
		err,
		wrong(o.gave("WithReason"), "schedule: new scheduler: WithReason is an option of Manage only"),
		wrong(client == nil || pool == nil, "schedule: new scheduler: client or pool is nil"),
		checkGroup(group),
	)
	if err != nil {
		return nil, err
	}
	return newScheduler(ctx, client, pool, group, o)
}

func newScheduler(
	ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, group string, o options,
) (s *Scheduler, err error) {
	size := int(pool.Config().MaxConns)
	if o.maxRunning >= size {
		return nil, fmt.Errorf(
			"schedule: at most %d runs at once need a pool of more than %d connections, not %d: see WithMaxRunning",
			o.maxRunning, o.maxRunning, size,
		)
	}
	if err := checkGroup(group); err != nil {
		return nil, err
	}
	if client != nil {
		err = bridge.Engine(client).Reaches(ctx, pool, o.schema)
		err = bridge.OpenError(ctx, "schedule", "new scheduler", o.schema, err)
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
	s = &Scheduler{
		client: client, options: o, log: o.logger.With(slog.String("group", group)),
		times: defaultTimings, registry: newRegistry(),
	}
	s.db = newDB(pool, group, o, &s.times)
	s.db.log = s.log
	if client != nil {
		s.db.line = &bridge.Engine(client).Line
	}
	return s, nil
}

// Group returns the name of the group.
func (s *Scheduler) Group() string { return s.db.group }

// Run stores the schedules that Add declared, and runs schedules and jobs of the group. It does so
// until ctx, the client or the lease ends, or until it finds the pool closed. Then it waits for its
// runs, whose contexts end after WithDrainTimeout, leaves the lease, and returns the cause. The
// name of the group's lease is "schedule/" and the name of the group. A Scheduler runs once, and a
// client runs one Scheduler of a group at a time.
//
// A schedule is blocked while its owner does not know its kind, arguments or zone, or runs code
// that does not declare it. Blocked time does not count as lateness.
func (s *Scheduler) Run(ctx context.Context) error {
	again, err := s.registry.start()
	switch {
	case err != nil:
		return err
	case s.stage != nil:
		err = s.stage.Wait(ctx)
	case s.client == nil:
		err = errors.New("this Scheduler has no client: create it with New")
	case again:
		err = errors.New("it was run already")
	default:
		err = s.run(ctx)
	}
	return wrap.Errorf("schedule: run group %q: %w", s.db.group, err)
}

// run joins the lease of the group, and runs what is due in its partitions.
func (s *Scheduler) run(ctx context.Context) error {
	mine := membership{s.client, s.db.group}
	if _, taken := running.LoadOrStore(mine, s); taken {
		return errors.New("another Scheduler of this client runs it")
	}
	defer running.Delete(mine)
	defer logqueue.Flush(s.log)     // the process may end next
	fits, err := s.putDeclared(ctx) // before it joins, because its partitions would wait
	if err != nil {
		return err
	}
	lease, err := s.client.Lease(ctx, leaseOf+s.db.group, s.options.partitions)
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = lease.Leave(ctx) // on an error the partitions leave when the client does
	}()
	err = s.join(ctx)
	if err == nil && !fits { // the lease has been created again since
		_, err = s.putDeclared(ctx)
	}
	if err != nil {
		return err
	}
	life, end := context.WithCancelCause(ctx)
	defer end(nil)
	// at once: each partition moves when its own runs have ended
	defer context.AfterFunc(life, func() { _ = lease.Leave(life) })()
	share := s.share()
	defer share.Leave()
	p := newPlanner(s, lease, share, end)
	stop := p.start(life)
	defer stop()
	declaring, cancel := context.WithCancel(life)
	var keeping sync.WaitGroup
	keeping.Go(func() { s.keepDeclared(declaring, lease) })
	defer keeping.Wait()
	defer cancel()
	s.planner.Store(p)
	defer s.planner.Store(nil)
	if crowded, handlers, places := share.Crowded(); crowded {
		s.log.Info(
			"schedule: handlers take turns, the pool is small", slog.Int("handlers", handlers),
			slog.Int("at_once", places),
		)
	}
	err = lease.Run(life, p.serve)
	if life.Err() != nil && errors.Is(err, pgleases.ErrClosed) { // because of the Leave above
		err = context.Cause(life)
	}
	return err
}

// share counts the Run on its pool.
func (s *Scheduler) share() *worker.Share {
	if s.options.gave("WithMaxRunning") {
		return worker.JoinWith(s.db.pool, s.options.maxRunning)
	}
	return worker.Join(s.db.pool)
}

// A membership is a client's in a group. One Scheduler has it at a time, until its Run ends.
type membership struct {
	client *pgleases.Client
	group  string
}

var running sync.Map // of *Scheduler by its membership

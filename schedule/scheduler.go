package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// A Scheduler is one process's part in a group of schedules: those of the group run in the processes that Run it. All methods are safe for
// concurrent use.
type Scheduler struct {
	client     *pgleases.Client // nil: see Manage
	stage      *seam.Stage      // the time of a test; nil: the time is the server's
	pool       *pgxpool.Pool
	group      string
	options    options
	statements statements
	log        *slog.Logger
	doubted    time.Duration // how long a step of the database's clock is doubted
	lookEvery  time.Duration // how often it is looked what is due
	lookLimit  time.Duration // and how long that may take
	tellEvery  time.Duration // how long it is not told again that something is put
	answers    time.Duration // how long the database is given for an answer
	heeds      time.Duration // how long a handler may go on after the end of its context until that is logged
	suspects   time.Duration // how long others wait for what may kill the process
	sweepEvery time.Duration // and how often also what has been for long
	trimEvery  time.Duration // how often the history is trimmed
	lockWait   time.Duration // how long a statement of ours waits for a lock

	declareEvery time.Duration // how often it is said what the code declares

	groups  *atomic.Int32           // how many share the pool, from Run on; nil: WithMaxRunning was given
	planner atomic.Pointer[planner] // of Run; nil: it is not under way
	counts  counts

	mu       sync.Mutex // guards what follows
	running  bool       // a Run is under way, or was
	kinds    map[string]*kind
	broken   []error            // of registrations
	declared map[string]*record // what the code declares
	told     map[string]bool    // kinds that are not registered, of which that was logged
}

// leaseOf is what stands before a group's name in that of its lease.
const leaseOf = "schedule/"

func checkGroup(group string) error {
	return cmp.Or(checkName("group", group), checkName("lease of the group", leaseOf+group))
}

// New returns a scheduler for a group, whose name has 1 to 246 bytes of UTF-8 without NUL. Client and pool have to lead to one database; neither is closed. The tables
// are made or migrated where that is needed, unless WithoutMigration is given. ctx covers this call only.
//
// The errors: a bad option, the database's, pgleases.ErrSchema.
func New(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool, group string, opts ...Option) (*Scheduler, error) {
	o, err := newOptions(opts)
	switch {
	case err != nil:
		return nil, err
	case slices.Contains(o.given, "WithReason"):
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
		err = store.OpenError(ctx, "schedule", "new scheduler", o.schema, pgleases.ErrSchema, seam.LocksOf(client).Reaches(ctx, pool, o.schema))
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
		client: client, pool: pool, group: group, options: o, statements: statementsFor(o.schema), log: o.logger.With(slog.String("group", group)), doubted: doubted, lookEvery: lookEvery, lookLimit: lookLimit, tellEvery: tellEvery, answers: closing, heeds: heeds, suspects: suspects, sweepEvery: sweepEvery, trimEvery: trimEvery, lockWait: lockWait, declareEvery: declareEvery,
		kinds: make(map[string]*kind), declared: make(map[string]*record), told: make(map[string]bool),
	}
	return s, nil
}

// register takes a kind.
func (s *Scheduler) register(k *kind, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds[k.name] != nil {
		err = errors.Join(err, errors.New("there is one of this name already"))
	}
	if err != nil {
		s.broken = append(s.broken, fmt.Errorf("schedule: register kind %q: %w", k.name, err))
		return
	}
	s.kinds[k.name] = k
}

// registered returns what is wrong with a kind.
func (s *Scheduler) registered(k *kind) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.kinds[k.name] != k {
		return errors.Join(s.broken...)
	}
	return nil
}

// kind returns the kind of a name; nil: this process does not know it.
func (s *Scheduler) kind(name string) *kind {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.kinds[name]
}

// strange logs, once for each kind, that something of a kind that is not registered here has waited for longer than a deploy may take to
// start a process that knows it.
func (s *Scheduler) strange(it item, r *record) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if r.WaitsSince == nil || r.Clock.Sub(*r.WaitsSince) < unknown || s.told[r.Kind] {
		return
	}
	s.told[r.Kind] = true
	s.logOf(it).Warn(
		"schedule: waits, as its kind is not registered in this process", slog.String("name", r.Name),
		slog.Time("since", *r.WaitsSince), slog.Any("registered", slices.Sorted(maps.Keys(s.kinds))),
	)
}

// declares reports whether this process's code declares a schedule.
func (s *Scheduler) declares(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.declared[name] != nil
}

// logOf is the log for what has to do with a schedule.
func (s *Scheduler) logOf(it item) *slog.Logger {
	return s.log.With(slog.String("key", it.Key), slog.String("kind", it.Kind), slog.Int("partition", it.Partition))
}

func (s *Scheduler) declare(r *record) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.running:
		return errors.New("Run has begun: add before it, or put")
	case s.declared[r.Name] != nil:
		return errors.New("it was added already")
	}
	s.declared[r.Name] = r
	return nil
}

// Run puts what was added, and runs schedules of the group until ctx, the client or the lease ends; then it lets runs end, see WithDrain,
// and leaves. It returns the cause. The group's lease is "schedule/" and its name. A Scheduler is run once, and one at a time of a client
// and a group.
//
// A schedule whose kind, arguments or zone this process does not know, or that another version of the code declares, is left: it waits for a process
// that does, and for what that takes it is not late.
func (s *Scheduler) Run(ctx context.Context) error {
	s.mu.Lock()
	err := errors.Join(s.broken...)
	again := s.running
	s.running = true
	s.mu.Unlock()
	switch {
	case err != nil:
		return err
	case s.stage != nil:
		return fmt.Errorf("schedule: run group %q: %w", s.group, s.stage.Wait(ctx))
	case s.client == nil:
		return fmt.Errorf("schedule: run group %q: this Scheduler has no client: make it with New", s.group)
	case again:
		return fmt.Errorf("schedule: run group %q: it was run already", s.group)
	}
	mine := membership{s.client, s.group}
	if _, taken := memberships.LoadOrStore(mine, nil); taken {
		return fmt.Errorf("schedule: run group %q: another Scheduler of this client runs it", s.group)
	}
	defer memberships.Delete(mine)
	if !slices.Contains(s.options.given, "WithMaxRunning") {
		var end func()
		s.groups, end = shared.begin(s.pool)
		defer end()
	}
	fits, err := s.putDeclared(ctx) // before it joins: its partitions would wait for it
	if err != nil {
		return fmt.Errorf("schedule: run group %q: %w", s.group, err)
	}
	lease, err := s.client.Lease(ctx, leaseOf+s.group, s.options.partitions)
	if err != nil {
		return fmt.Errorf("schedule: run group %q: %w", s.group, err)
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = lease.Leave(ctx) // an error is that it could not be told: the partitions leave when the client does
	}()
	if err = s.join(ctx); err == nil && !fits { // the lease has been made anew since
		_, err = s.putDeclared(ctx)
	}
	if err != nil {
		return fmt.Errorf("schedule: run group %q: %w", s.group, err)
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
		err = fmt.Errorf("schedule: run group %q: %w", s.group, context.Cause(ctx))
	}
	return err
}

// A sharing is of a pool by the groups that run on it and leave to its size how many handlers run at once.
type sharing struct {
	mu    sync.Mutex
	pools map[*pgxpool.Pool]*atomic.Int32 // how many groups
}

var shared = sharing{pools: make(map[*pgxpool.Pool]*atomic.Int32)}

// begin counts a group until end is called.
func (s *sharing) begin(pool *pgxpool.Pool) (groups *atomic.Int32, end func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	groups = s.pools[pool]
	if groups == nil {
		groups = new(atomic.Int32)
		s.pools[pool] = groups
	}
	groups.Add(1)
	return groups, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if groups.Add(-1) == 0 {
			delete(s.pools, pool)
		}
	}
}

// mostRunning is how many handlers run at once.
func (s *Scheduler) mostRunning() int {
	if s.groups == nil {
		return s.options.maxRunning
	}
	return max(1, s.options.maxRunning/int(s.groups.Load()))
}

// A membership is a client's in a group. One Scheduler at a time has it: it ends with its Run.
type membership struct {
	client *pgleases.Client
	group  string
}

var memberships sync.Map // of those that are taken

// lockWait bounds how long a statement of ours waits for a lock.
const lockWait = 5 * time.Second

// inTx runs f in a transaction of its own, again where the database broke it off.
func (s *Scheduler) inTx(ctx context.Context, f func(pgx.Tx) error) error {
	return s.repeat(ctx, maxConflicts, conflict, func() error { return s.inOneTx(ctx, f) })
}

func (s *Scheduler) inOneTx(ctx context.Context, f func(pgx.Tx) error) error {
	return store.Advised(pgx.BeginTxFunc(ctx, s.pool, readCommitted, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", s.lockWait.Milliseconds())); err != nil {
			return err
		}
		return f(tx)
	}))
}

var readCommitted = pgx.TxOptions{IsoLevel: pgx.ReadCommitted, AccessMode: pgx.ReadWrite}

//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest/pooler"
	"github.com/pgleases/pgleases/schedule"
)

// A Schedule is a schedule that workers with Config.Schedules run each second, or each minute.
type Schedule struct {
	Name, Kind string
	Rule       schedule.Rule
	Options    []schedule.ScheduleOption
	Every      time.Duration // the time between two ticks
	// The first tick of a schedule with this anchor, computed without package schedule.
	First func(anchor time.Time) time.Time
	Never []schedule.Outcome // the outcomes that no tick of it may have
}

// The kinds of handlers.
const (
	quick   = "quick"   // writes, and sometimes enqueues a job
	slow    = "slow"    // writes, and then continues for a while in the same transaction
	fails   = "fails"   // writes, and fails if FailsAt says so
	ordered = "ordered" // writes, and does what its order says
	mailed  = "mailed"  // runs at least once
	paid    = "paid"    // runs at most once, and fails if FailsAt says so
	scarce  = "scarce"  // is slow and has a limit; its first attempt fails if FailsAt says so
	phoned  = "phoned"  // runs at least once, and has a limit
)

// group is the workers' group of schedules.
const group = "proof"

// Outside reports whether the effects of a kind are outside the database (see Calls), and whether
// the kind runs at most once.
func Outside(kind string) (outside, atMostOnce bool) {
	return kind == mailed || kind == phoned || kind == paid, kind == paid
}

// Limits is the maximum number of concurrent runs of a kind, over all processes. Other kinds have
// no limit.
var Limits = map[string]int{scarce: 2, phoned: 2}

// FailsAt reports whether a run of kind fails returns an error at this tick.
func FailsAt(tick time.Time) bool { return tick.Unix()%5 == 0 }

// SchedulesTable is the table that the handlers write to. It has no constraint against a second row
// for a tick.
const SchedulesTable = `CREATE TABLE ticks (
    n bigint GENERATED ALWAYS AS IDENTITY,
    name text NOT NULL,
    key text NOT NULL,
    at timestamptz NOT NULL,
    worker text NOT NULL,
    partition int NOT NULL,
    epoch bigint NOT NULL,
    job bigint NOT NULL,
    made_for text NOT NULL,
    began timestamptz NOT NULL DEFAULT clock_timestamp(),
    ended timestamptz
)`

// Schedules returns the schedules of these kinds, or of all kinds if kinds is empty: some for each
// policy.
func Schedules(kinds ...string) []Schedule {
	return slices.DeleteFunc(allSchedules(), func(s Schedule) bool {
		return len(kinds) > 0 && !slices.Contains(kinds, s.Kind)
	})
}

// allSchedules returns three schedules for each policy, that run each second, and one that runs each
// minute.
func allSchedules() (all []Schedule) {
	const (
		missed   = schedule.OutcomeMissed
		skipped  = schedule.OutcomeSkipped
		canceled = schedule.OutcomeCanceled
		lost     = schedule.OutcomeUnknown
	)
	never := func(outcomes ...schedule.Outcome) []schedule.Outcome { return outcomes }
	add := func(name, kind string, never []schedule.Outcome, opts ...schedule.ScheduleOption) {
		for n := range 3 {
			all = append(all, Schedule{
				Name:    fmt.Sprintf("%s-%d", name, n),
				Kind:    kind,
				Rule:    schedule.Every(time.Second),
				Options: opts,
				Every:   time.Second,
				First:   func(anchor time.Time) time.Time { return anchor.Add(time.Second) },
				Never:   never,
			})
		}
	}
	catchUp := schedule.WithMissed(schedule.MissedAll)
	buffer := schedule.WithOverlap(schedule.OverlapBuffer)
	add("latest", quick, never(canceled, lost))
	add("none", quick, never(canceled, lost),
		schedule.WithMissed(schedule.MissedNone), schedule.WithGrace(2*time.Second))
	add("all", quick, never(canceled, lost, missed), catchUp)
	add("jittered", slow, never(canceled, lost), schedule.WithJitter(400*time.Millisecond))
	add("together", slow, never(canceled, lost), schedule.WithKey("one"))
	add("buffered", slow, never(canceled, lost, missed, skipped), catchUp, buffer)
	add("failing", fails, never(canceled, lost, missed, skipped), catchUp, buffer)
	add("mail", mailed, never(canceled, lost, missed, skipped), catchUp, buffer)
	add("scarce", scarce, never(canceled, lost, missed, skipped), catchUp, buffer)
	add("phone", phoned, never(canceled, lost, missed, skipped), catchUp, buffer)
	add("pay", paid, never(canceled, missed, skipped), catchUp, buffer)
	return append(all, Schedule{
		Name:    "minute",
		Kind:    slow,
		Rule:    schedule.Cron("* * * * *", "Asia/Kathmandu"),
		Options: []schedule.ScheduleOption{catchUp},
		Every:   time.Minute,
		First:   func(anchor time.Time) time.Time { return anchor.Truncate(time.Minute).Add(time.Minute) },
		Never:   never(canceled, lost, missed),
	})
}

// runSchedules runs schedules with a client until stop is called. stop waits for their end.
func runSchedules(config Config, client *pgleases.Client, log *slog.Logger) (stop func() error, err error) {
	if !config.Schedules {
		return func() error { return nil }, nil
	}
	notes, err := openCalls(config.Log)
	if err != nil {
		return nil, err
	}
	end, err := repeatedly(config, client, atOnce+2, log, func(ctx context.Context, pool *pgxpool.Pool) error {
		s, err := schedule.New(ctx, client, pool, group,
			schedule.WithPartitions(config.Partitions),
			schedule.WithMaxRunning(atOnce),
			schedule.WithDrainTimeout(config.TTL),
			schedule.WithLogger(log),
			schedule.WithoutMigration(),
		)
		if err != nil {
			return err
		}
		r := runner{Config: config, scheduler: s, pool: pool, notes: notes}
		return r.run(ctx)
	})
	if err != nil {
		return nil, errors.Join(err, notes.file.Close())
	}
	return func() error { return errors.Join(end(), notes.file.Close()) }, nil
}

// repeatedly runs what may end whenever the database is not available, with a pool of its own,
// until stop is called. stop waits for its end, and returns an error that no fault explains.
func repeatedly(
	config Config, client *pgleases.Client, conns int32, log *slog.Logger,
	run func(context.Context, *pgxpool.Pool) error,
) (stop func() error, err error) {
	pool, err := config.pool(conns)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	var broken error
	wait.Go(func() {
		for ctx.Err() == nil && client.Err() == nil {
			err := run(ctx, pool)
			log.Info("faults: a run ended", slog.Any("error", err))
			if errors.Is(err, errMisused) {
				broken = err
				return
			}
			pause(ctx, 50*time.Millisecond)
		}
	})
	return func() error { cancel(); wait.Wait(); pool.Close(); return broken }, nil
}

// pool returns a pool of connections to the worker's database.
func (c Config) pool(conns int32) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(c.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = conns
	config.ConnConfig.DefaultQueryExecMode = pooled
	if c.Pooled {
		config.BeforeConnect = pooler.WithoutCancels
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

// atOnce is the maximum number of concurrent runs of one worker.
const atOnce = 6

// errMisused is an error that no fault explains.
var errMisused = errors.New("faults: schedules are used in a wrong way")

// A runner is a worker's part in the schedules, with one Scheduler.
type runner struct {
	Config
	scheduler *schedule.Scheduler
	pool      *pgxpool.Pool
	notes     *calls
	kinds     map[string]*schedule.Kind[string]
}

// run runs the schedules, and the application that operates them, until the Scheduler ends.
func (w *runner) run(ctx context.Context) error {
	w.register()
	all := Schedules(w.Kinds...)
	for _, s := range all {
		if err := w.kinds[s.Kind].Add(s.Name, "", s.Rule, s.Options...); err != nil {
			return fmt.Errorf("%w: %w", errMisused, err)
		}
	}
	app := application{scheduler: w.scheduler, schedules: all, kinds: w.kinds, pool: w.pool}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	if w.Orders {
		wait.Go(func() { app.work(ctx) })
	}
	defer wait.Wait()
	defer cancel()
	return w.scheduler.Run(ctx)
}

// MaxAttempts is the maximum number of attempts of an order.
const MaxAttempts = 5

// register registers the kinds. They have timeouts, because a run that was frozen may still exist
// when the next owner has begun.
func (w *runner) register() {
	once := []schedule.KindOption{
		schedule.WithTimeout(5 * w.TTL),
		schedule.WithIdleTimeout(3 * w.TTL),
	}
	backoff := schedule.Backoff(50*time.Millisecond, 200*time.Millisecond)
	retry := append(slices.Clip(once), schedule.WithMaxAttempts(MaxAttempts, backoff))
	s := w.scheduler
	w.kinds = map[string]*schedule.Kind[string]{
		quick:   schedule.InTx(s, quick, w.handles(quick), once...),
		slow:    schedule.InTx(s, slow, w.handles(slow), once...),
		fails:   schedule.InTx(s, fails, w.handles(fails), once...),
		ordered: schedule.InTx(s, ordered, w.handles(ordered), retry...),
		scarce:  schedule.InTx(s, scarce, w.handles(scarce), limited(scarce, retry)...),
		mailed:  schedule.AtLeastOnce(s, mailed, w.calls(mailed, w.TTL/4), retry...),
		phoned:  schedule.AtLeastOnce(s, phoned, w.calls(phoned, w.TTL/2), limited(phoned, retry)...),
		paid:    schedule.AtMostOnce(s, paid, w.calls(paid, w.TTL), once...),
	}
}

// limited returns the options of a kind that has a limit, with that limit.
func limited(kind string, opts []schedule.KindOption) []schedule.KindOption {
	return append(slices.Clip(opts), schedule.WithMaxConcurrent(Limits[kind]))
}

// handles returns the handler of a kind that writes in its transaction.
func (w *runner) handles(kind string) func(context.Context, pgx.Tx, schedule.Run[string]) error {
	return func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
		return w.handle(ctx, kind, tx, r)
	}
}

// calls returns the handler of a kind that calls something outside, which takes a time up to most.
func (w *runner) calls(kind string, most time.Duration) func(context.Context, schedule.Run[string]) error {
	return func(ctx context.Context, r schedule.Run[string]) error {
		call := Call{
			Worker:      w.ID,
			Kind:        kind,
			Idempotency: r.IdempotencyKey(),
			Name:        r.Name,
			Key:         r.Key,
			Job:         r.Job,
			Order:       r.Args,
			At:          r.At,
			Attempt:     r.Attempt,
			Partition:   r.Partition,
			Epoch:       r.Epoch,
		}
		return w.notes.work(ctx, call, most, func() error { return outcome(kind, r, time.Now()) })
	}
}

const insertTick = `
	INSERT INTO ticks (name, key, at, worker, partition, epoch, job, made_for)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
	RETURNING n, began`

// handle does what a run of a kind does in its transaction.
func (w *runner) handle(ctx context.Context, kind string, tx pgx.Tx, r schedule.Run[string]) error {
	var n int64
	var began time.Time
	row := tx.QueryRow(ctx, insertTick, r.Name, r.Key, r.At, w.ID, r.Partition, r.Epoch, r.Job, r.Args)
	if err := row.Scan(&n, &began); err != nil {
		return err
	}
	var long time.Duration
	if kind == slow || kind == scarce || What(r.Args) == Long {
		long = w.TTL / 2
	}
	if long > 0 && !pause(ctx, rand.N(long)) {
		return context.Cause(ctx)
	}
	if err := outcome(kind, r, began); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, "UPDATE ticks SET ended = clock_timestamp() WHERE n = $1", n)
	enqueues := kind == quick && w.Orders && r.Job == 0 && r.At.Unix()%15 == 0
	if err != nil || !enqueues {
		return err
	}
	name := fmt.Sprintf("%s-%s-%d", Plain, r.Name, r.At.UnixMicro())
	_, err = putOrder(ctx, tx, &w.kinds[ordered].Jobs, name, ordered)
	return err
}

// outcome returns the result of a run that began at this time of the database's clock.
func outcome(kind string, r schedule.Run[string], began time.Time) error {
	what := What(r.Args)
	bad := r.Job == 0 && FailsAt(r.At)
	failsFirst := what == Flaky || kind == scarce && bad
	failsAlways := (kind == fails || kind == paid) && bad
	switch {
	case failsFirst && r.Attempt == 1, failsAlways:
		return errors.New("it fails")
	case what == Wrong:
		return schedule.Discard(errors.New("it is wrong"))
	case what == Snoozed && began.Before(r.At.Add(SnoozedFor)):
		return schedule.Snooze(r.At.Add(SnoozedFor).Sub(began))
	}
	return nil
}

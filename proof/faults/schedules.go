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
const SchedulesTable = `CREATE TABLE ticks (n bigint GENERATED ALWAYS AS IDENTITY, name text NOT NULL, key text NOT NULL, at timestamptz NOT NULL, worker text NOT NULL,
    partition int NOT NULL, epoch bigint NOT NULL, job bigint NOT NULL, made_for text NOT NULL, began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)`

// Schedules returns the schedules of these kinds, or of all kinds if kinds is empty: some for each
// policy.
func Schedules(kinds ...string) []Schedule {
	return slices.DeleteFunc(allSchedules(), func(s Schedule) bool { return len(kinds) > 0 && !slices.Contains(kinds, s.Kind) })
}

func allSchedules() (all []Schedule) {
	second := func(anchor time.Time) time.Time { return anchor.Add(time.Second) }
	add := func(name, kind string, never []schedule.Outcome, opts ...schedule.ScheduleOption) {
		for n := range 3 {
			all = append(all, Schedule{fmt.Sprintf("%s-%d", name, n), kind, schedule.Every(time.Second), opts, time.Second, second, never})
		}
	}
	const missed, skipped, canceled, lost = schedule.OutcomeMissed, schedule.OutcomeSkipped, schedule.OutcomeCanceled, schedule.OutcomeUnknown
	add("latest", quick, []schedule.Outcome{canceled, lost})
	add("none", quick, []schedule.Outcome{canceled, lost}, schedule.WithMissed(schedule.MissedNone), schedule.WithGrace(2*time.Second))
	add("all", quick, []schedule.Outcome{canceled, lost, missed}, schedule.WithMissed(schedule.MissedAll))
	add("jittered", slow, []schedule.Outcome{canceled, lost}, schedule.WithJitter(400*time.Millisecond))
	add("together", slow, []schedule.Outcome{canceled, lost}, schedule.WithKey("one"))
	for _, each := range [][2]string{{"buffered", slow}, {"failing", fails}, {"mail", mailed}, {"scarce", scarce}, {"phone", phoned}} {
		add(each[0], each[1], []schedule.Outcome{canceled, lost, missed, skipped}, schedule.WithMissed(schedule.MissedAll), schedule.WithOverlap(schedule.OverlapBuffer))
	}
	add("pay", paid, []schedule.Outcome{canceled, missed, skipped}, schedule.WithMissed(schedule.MissedAll), schedule.WithOverlap(schedule.OverlapBuffer))
	return append(all, Schedule{"minute", slow, schedule.Cron("* * * * *", "Asia/Kathmandu"), []schedule.ScheduleOption{schedule.WithMissed(schedule.MissedAll)}, time.Minute,
		func(anchor time.Time) time.Time { return anchor.Truncate(time.Minute).Add(time.Minute) }, []schedule.Outcome{canceled, lost, missed}})
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
		return runScheduler(ctx, config, client, pool, notes, log)
	})
	if err != nil {
		return nil, errors.Join(err, notes.file.Close())
	}
	return func() error { return errors.Join(end(), notes.file.Close()) }, nil
}

// repeatedly runs what may end whenever the database is not available, with a pool of its own,
// until stop is called. stop waits for its end, and returns an error that no fault explains.
func repeatedly(config Config, client *pgleases.Client, conns int32, log *slog.Logger, run func(context.Context, *pgxpool.Pool) error) (stop func() error, err error) {
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

func runScheduler(ctx context.Context, config Config, client *pgleases.Client, pool *pgxpool.Pool, notes *calls, log *slog.Logger) error {
	s, err := schedule.New(ctx, client, pool, group, schedule.WithPartitions(config.Partitions), schedule.WithMaxRunning(atOnce), schedule.WithDrainTimeout(config.TTL),
		schedule.WithLogger(log), schedule.WithoutMigration())
	if err != nil {
		return err
	}
	kinds := make(map[string]*schedule.Kind[string])
	// Timeouts: a run that was frozen may still exist when the next owner has begun.
	limits := []schedule.KindOption{schedule.WithTimeout(5 * config.TTL), schedule.WithIdleTimeout(3 * config.TTL)}
	retry := append(slices.Clip(limits), schedule.WithMaxAttempts(MaxAttempts, schedule.Backoff(50*time.Millisecond, 200*time.Millisecond)))
	limited := func(kind string, opts []schedule.KindOption) []schedule.KindOption {
		if n, ok := Limits[kind]; ok {
			return append(slices.Clip(opts), schedule.WithMaxConcurrent(n))
		}
		return opts
	}
	for kind, opts := range map[string][]schedule.KindOption{quick: limits, slow: limits, fails: limits, ordered: retry, scarce: retry} {
		kinds[kind] = schedule.InTx(s, kind, func(ctx context.Context, tx pgx.Tx, r schedule.Run[string]) error {
			return handle(ctx, config, kinds, kind, tx, r)
		}, limited(kind, opts)...)
	}
	call := func(kind string, most time.Duration) func(context.Context, schedule.Run[string]) error {
		return func(ctx context.Context, r schedule.Run[string]) error {
			return notes.work(ctx, Call{
				Worker: config.ID, Kind: kind, Idempotency: r.IdempotencyKey(), Name: r.Name, Key: r.Key, Job: r.Job, Order: r.Args, At: r.At, Attempt: r.Attempt,
				Partition: r.Partition, Epoch: r.Epoch,
			}, most, func() error { return outcome(kind, r, time.Now()) })
		}
	}
	kinds[mailed] = schedule.AtLeastOnce(s, mailed, call(mailed, config.TTL/4), retry...)
	kinds[phoned] = schedule.AtLeastOnce(s, phoned, call(phoned, config.TTL/2), limited(phoned, retry)...)
	kinds[paid] = schedule.AtMostOnce(s, paid, call(paid, config.TTL), limits...)
	for _, all := range Schedules(config.Kinds...) {
		if err := kinds[all.Kind].Add(all.Name, "", all.Rule, all.Options...); err != nil {
			return fmt.Errorf("%w: %w", errMisused, err)
		}
	}
	app := application{scheduler: s, schedules: Schedules(config.Kinds...), kinds: kinds, pool: pool}
	ctx, cancel := context.WithCancel(ctx)
	var wait sync.WaitGroup
	if config.Orders {
		wait.Go(func() { app.work(ctx) })
	}
	defer wait.Wait()
	defer cancel()
	return s.Run(ctx)
}

// MaxAttempts is the maximum number of attempts of an order.
const MaxAttempts = 5

func handle(ctx context.Context, config Config, kinds map[string]*schedule.Kind[string], kind string, tx pgx.Tx, r schedule.Run[string]) error {
	var n int64
	var began time.Time
	err := tx.QueryRow(ctx, "INSERT INTO ticks (name, key, at, worker, partition, epoch, job, made_for) VALUES ($1, $2, $3, $4, $5, $6, $7, $8) RETURNING n, began",
		r.Name, r.Key, r.At, config.ID, r.Partition, r.Epoch, r.Job, r.Args).Scan(&n, &began)
	if err != nil {
		return err
	}
	long := map[string]time.Duration{slow: config.TTL / 2, scarce: config.TTL / 2}[kind]
	if What(r.Args) == Long {
		long = config.TTL / 2
	}
	if long > 0 && !pause(ctx, rand.N(long)) {
		return context.Cause(ctx)
	}
	if err := outcome(kind, r, began); err != nil {
		return err
	}
	if _, err = tx.Exec(
		ctx, "UPDATE ticks SET ended = clock_timestamp() WHERE n = $1", n,
	); err != nil || kind != quick || !config.Orders || r.Job != 0 || r.At.Unix()%15 != 0 {
		return err
	}
	_, err = putOrder(ctx, tx, &kinds[ordered].Jobs, fmt.Sprintf("%s-%s-%d", Plain, r.Name, r.At.UnixMicro()), ordered)
	return err
}

// outcome returns the result of a run that began at this time of the database's clock.
func outcome(kind string, r schedule.Run[string], began time.Time) error {
	switch what := What(r.Args); {
	case (what == Flaky || kind == scarce && r.Job == 0 && FailsAt(r.At)) && r.Attempt == 1, (kind == fails || kind == paid) && r.Job == 0 && FailsAt(r.At):
		return errors.New("it fails")
	case what == Wrong:
		return schedule.Discard(errors.New("it is wrong"))
	case what == Snoozed && began.Before(r.At.Add(SnoozedFor)):
		return schedule.Snooze(r.At.Add(SnoozedFor).Sub(began))
	}
	return nil
}

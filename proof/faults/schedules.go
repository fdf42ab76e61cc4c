//go:build unix && !version1

package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

// A Schedule is what workers with Config.Schedules run each second, or each minute.
type Schedule struct {
	Name, Kind string
	Rule       schedule.Rule
	Options    []schedule.ScheduleOption
	Every      time.Duration                    // between two ticks
	First      func(anchor time.Time) time.Time // the first tick of one that was made at the anchor, told without package schedule
	Never      []schedule.Fate                  // what no tick of it may become
}

// The kinds of handlers.
const (
	quick = "quick" // writes
	slow  = "slow"  // writes, and is in the midst of it for a while
	fails = "fails" // writes, and fails where FailsAt says
)

// FailsAt reports whether a run of kind fails fails.
func FailsAt(tick time.Time) bool { return tick.Unix()%5 == 0 }

// SchedulesTable is what the handlers write to. Nothing in it keeps a tick from being written twice.
const SchedulesTable = `CREATE TABLE ticks (n bigint GENERATED ALWAYS AS IDENTITY, name text NOT NULL, key text NOT NULL, at timestamptz NOT NULL, worker text NOT NULL,
    partition int NOT NULL, epoch bigint NOT NULL, began timestamptz NOT NULL DEFAULT clock_timestamp(), ended timestamptz)`

// Schedules are the schedules: of each choice some.
func Schedules() (all []Schedule) {
	second := func(anchor time.Time) time.Time { return anchor.Add(time.Second) }
	add := func(name, kind string, never []schedule.Fate, opts ...schedule.ScheduleOption) {
		for n := range 3 {
			all = append(all, Schedule{fmt.Sprintf("%s-%d", name, n), kind, schedule.Every(time.Second), opts, time.Second, second, never})
		}
	}
	const missed, skipped, cancelled = schedule.FateMissed, schedule.FateSkipped, schedule.FateCancelled
	add("latest", quick, []schedule.Fate{cancelled})
	add("none", quick, []schedule.Fate{cancelled}, schedule.MissedNone, schedule.Grace(2*time.Second))
	add("all", quick, []schedule.Fate{cancelled, missed}, schedule.MissedAll)
	add("buffered", slow, []schedule.Fate{cancelled, missed, skipped}, schedule.MissedAll, schedule.OverlapBuffer)
	add("jittered", slow, []schedule.Fate{cancelled}, schedule.Jitter(400*time.Millisecond))
	add("together", slow, []schedule.Fate{cancelled}, schedule.Key("one"))
	add("failing", fails, []schedule.Fate{cancelled, missed, skipped}, schedule.MissedAll, schedule.OverlapBuffer)
	return append(all, Schedule{"minute", slow, schedule.Cron("* * * * *", "Asia/Kathmandu"), []schedule.ScheduleOption{schedule.MissedAll}, time.Minute,
		func(anchor time.Time) time.Time { return anchor.Truncate(time.Minute).Add(time.Minute) }, []schedule.Fate{cancelled, missed}})
}

// runSchedules runs schedules with a client until what it returns is called, which waits for the end of that.
func runSchedules(config Config, client *pgleases.Client, log *slog.Logger) (stop func() error, err error) {
	if !config.Schedules {
		return func() error { return nil }, nil
	}
	running, err := pgxpool.ParseConfig(config.URL)
	if err != nil {
		return nil, err
	}
	running.MaxConns = 3
	running.ConnConfig.DefaultQueryExecMode = pooled
	if config.Pooled {
		running.BeforeConnect = withoutCancels
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), running)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	var broken error
	wait.Go(func() {
		for ctx.Err() == nil && client.Err() == nil {
			err := runScheduler(ctx, config, client, pool, log)
			log.Info("faults: the scheduler ended", slog.Any("error", err))
			if errors.Is(err, errMisused) {
				broken = err
				return
			}
			pause(ctx, 50*time.Millisecond) // the database was away when it started
		}
	})
	return func() error { cancel(); wait.Wait(); pool.Close(); return broken }, nil
}

// errMisused is an error that no fault explains.
var errMisused = errors.New("faults: schedules are used in a wrong way")

func runScheduler(ctx context.Context, config Config, client *pgleases.Client, pool *pgxpool.Pool, log *slog.Logger) error {
	s, err := schedule.New(ctx, client, pool, "proof", schedule.WithPartitions(config.Partitions), schedule.WithMaxRunning(2), schedule.WithDrain(config.TTL),
		schedule.WithLogger(log), schedule.WithoutMigration())
	if err != nil {
		return err
	}
	kinds := make(map[string]*schedule.Kind[struct{}])
	for _, kind := range []string{quick, slow, fails} {
		kinds[kind] = schedule.InTx(s, kind, func(ctx context.Context, tx pgx.Tx, r schedule.Run[struct{}]) error {
			return handle(ctx, config, kind, tx, r)
		}, schedule.Timeout(5*config.TTL), schedule.Idle(3*config.TTL)) // what is frozen in a run is there when the next owner has begun
	}
	for _, all := range Schedules() {
		if err := kinds[all.Kind].Add(all.Name, struct{}{}, all.Rule, all.Options...); err != nil {
			return fmt.Errorf("%w: %w", errMisused, err)
		}
	}
	return s.Run(ctx)
}

func handle(ctx context.Context, config Config, kind string, tx pgx.Tx, r schedule.Run[struct{}]) error {
	var n int64
	err := tx.QueryRow(ctx, "INSERT INTO ticks (name, key, at, worker, partition, epoch) VALUES ($1, $2, $3, $4, $5, $6) RETURNING n",
		r.Name, r.Key, r.At, config.ID, r.Partition, r.Epoch).Scan(&n)
	if err != nil {
		return err
	}
	if kind == slow && !pause(ctx, rand.N(config.TTL/2)) {
		return context.Cause(ctx)
	}
	if kind == fails && FailsAt(r.At) {
		return errors.New("it fails")
	}
	_, err = tx.Exec(ctx, "UPDATE ticks SET ended = clock_timestamp() WHERE n = $1", n)
	return err
}

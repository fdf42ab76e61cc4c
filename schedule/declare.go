package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
)

// This file stores the schedules that the code declares when Run begins, and records from time to
// time that the code still declares them.

// together is how many schedules one transaction stores: few, because processes that start at once
// wait for each other there, and runs wait for them.
const together = 20

// maxStarts is how many attempts storing the declared schedules has while the database fails: for
// 10 s.
const maxStarts = 12

// recent is how old the last record may be when a process starts, so that it need not write
// another.
const recent = 24 * time.Hour

// restoreAgain is the time between two attempts to store the declared schedules on another server,
// each of which lasts for up to 10 s.
const restoreAgain = time.Minute

// putDeclared stores the declared schedules that differ, in the order of the names, as all
// processes do. It returns false, and stores none, if the lease has another number of partitions
// than WithPartitions. Then joining is refused.
func (s *Scheduler) putDeclared(ctx context.Context) (fits bool, err error) {
	_, rows := s.registry.declarations()
	var have map[string]*scheduleRow
	var partitions int
	err = s.starting(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		have, partitions, err = s.db.sendDeclared(ctx, tx, rows)
		return err
	})
	if err != nil || partitions > 0 && partitions != s.options.partitions {
		return false, err
	}
	rows = slices.DeleteFunc(rows, func(r *scheduleRow) bool { return r.stands(have[r.Name]) })
	for few := range slices.Chunk(rows, together) {
		err := s.starting(ctx, func(ctx context.Context, tx pgx.Tx) error { return s.eachOf(ctx, tx, few, s.put) })
		if err != nil {
			return false, err
		}
	}
	return true, nil
}

// restore stores the declared schedules that another server lacks, and the number of partitions. It
// edits no schedule that is there: during a deploy, the old code would edit what the new code has
// declared.
func (s *Scheduler) restore(ctx context.Context) error {
	if err := s.join(ctx); err != nil {
		return err
	}
	_, rows := s.registry.declarations()
	var partitions int
	err := s.starting(ctx, func(ctx context.Context, tx pgx.Tx) (err error) {
		_, partitions, err = s.db.sendDeclared(ctx, tx, nil)
		return err
	})
	if err == nil && partitions > 0 && partitions != s.options.partitions {
		err = errors.New("the group has another number of partitions there")
	}
	if err != nil {
		return err
	}
	for few := range slices.Chunk(rows, together) {
		err := s.starting(ctx, func(ctx context.Context, tx pgx.Tx) error {
			return s.eachOf(ctx, tx, few, s.putMissing)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// join stores the number of partitions.
func (s *Scheduler) join(ctx context.Context) error {
	return s.starting(ctx, func(ctx context.Context, tx pgx.Tx) error { return s.db.sendJoin(ctx, tx) })
}

// starting runs f in a transaction, and repeats it. f writes the same each time, so a lost answer
// does no harm.
func (s *Scheduler) starting(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return s.db.repeat(ctx, maxStarts, passing, func() error { return s.db.inOneTx(ctx, f) })
}

// stands reports whether storing the declared schedule would have no effect.
func (r *scheduleRow) stands(have *scheduleRow) bool {
	if have == nil || have.ill != nil || !alike(r, have) || have.Clock.Sub(have.Registered) >= recent {
		return false
	}
	rule, err := Parse(r.Rule)
	if err != nil {
		return false // put returns the error
	}
	due := have.next(rule)
	return (due == nil) == (have.Due == nil) && (due == nil || due.Equal(*have.Due))
}

// A putting stores a schedule, or leaves it as it is.
type putting func(context.Context, pgx.Tx, *scheduleRow, Rule) error

func (s *Scheduler) eachOf(ctx context.Context, tx pgx.Tx, rows []*scheduleRow, put putting) error {
	for _, r := range rows {
		rule, err := Parse(r.Rule)
		if err == nil {
			err = put(ctx, tx, r, rule)
		}
		switch {
		case errors.Is(err, errUnknownRule): // it is blocked until a process knows the rule; others are stored
			s.log.Warn(
				"schedule: declaration not stored, old rule unknown here", slog.String("name", r.Name),
				slog.Any("error", err),
			)
		case isUnreadable(err): // it stays as it is
			s.log.Warn(
				"schedule: declaration not stored, row unreadable", slog.String("name", r.Name),
				slog.Any("error", err),
			)
		case err != nil:
			return fmt.Errorf("put schedule %q: %w", r.Name, err)
		}
	}
	return nil
}

// keepDeclared records from time to time that the code declares its schedules, until ctx ends. When
// another server serves the group, it stores those that are missing: a server that lost commits in
// a failover, or a restored backup, may lack them.
func (s *Scheduler) keepDeclared(ctx context.Context, lease *pgleases.Lease) {
	names, _ := s.registry.declarations()
	var unstored, unnoted logqueue.Condition
	server := bridge.LeaseNews(lease).Server
	for {
		news := s.awaitNews(ctx, lease, server)
		if ctx.Err() != nil {
			return
		}
		if news.Server != server {
			err := handlers.Call(func() error { return s.restore(ctx) }) // a tracer or a hook of the pool may panic
			if ctx.Err() != nil {
				return
			}
			s.saidStored(&unstored, err)
			if err != nil {
				store.Pause(ctx, restoreAgain)
				continue
			}
			server = news.Server
		}
		if len(names) == 0 {
			continue
		}
		err := s.db.briefly(ctx, func(ctx context.Context, tx pgx.Tx) error { return s.db.sendDeclare(ctx, tx, names) })
		if ctx.Err() == nil {
			s.saidNoted(&unnoted, err)
		}
	}
}

// saidStored logs that the declarations cannot be stored on another server, and when they are.
func (s *Scheduler) saidStored(fails *logqueue.Condition, err error) {
	fails.Tried(err, func() {
		s.log.Warn("schedule: declarations not stored on another server, retried", slog.Any("error", err))
	}, func(lasted time.Duration) {
		s.log.Info("schedule: declarations stored on another server", slog.Duration("for", lasted))
	})
}

// saidNoted logs that the declarations cannot be noted, and when they are.
func (s *Scheduler) saidNoted(fails *logqueue.Condition, err error) {
	fails.Tried(err, func() {
		s.log.Warn("schedule: declarations not noted, retried each hour", slog.Any("error", err))
	}, func(lasted time.Duration) {
		s.log.Info("schedule: declarations noted again", slog.Duration("for", lasted))
	})
}

// awaitNews returns the news of the lease when they name another server, or when declarations are
// to be noted again.
func (s *Scheduler) awaitNews(ctx context.Context, lease *pgleases.Lease, server int64) *engine.News {
	due := time.NewTimer(s.times.Declare)
	defer due.Stop()
	for {
		news := bridge.LeaseNews(lease)
		if news.Server != server {
			return news
		}
		select {
		case <-news.Next:
		case <-due.C:
			return news
		case <-ctx.Done():
			return news
		}
	}
}

package schedule

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
)

// This file puts what the code declares, when Run begins, and says from time to time that it still does.

// together is how many schedules are put in one transaction: few, as processes that start at once wait for each other there, and runs for them.
const together = 20

// maxStarts is how often what the code declares is put where the database cannot do it now: for ten seconds.
const maxStarts = 12

// declareEvery is how often it is said that what the code declares is declared. The database notes it once a day.
const declareEvery = time.Hour

// putDeclared puts what the code declares, in the order of the names, as all processes do.
func (s *Scheduler) putDeclared(ctx context.Context) error {
	s.mu.Lock()
	var rows []*record
	for _, r := range s.declared {
		rows = append(rows, r)
	}
	s.mu.Unlock()
	slices.SortFunc(rows, func(a, b *record) int { return strings.Compare(a.Name, b.Name) })
	put := func(f func(pgx.Tx) error) error { // writes the same each time: so a lost answer does no harm
		return s.repeat(ctx, maxStarts, store.Transient, func() error { return s.inOneTx(ctx, f) })
	}
	if err := put(func(tx pgx.Tx) error { return s.sendJoin(ctx, tx) }); err != nil {
		return err
	}
	for few := range slices.Chunk(rows, together) {
		if err := put(func(tx pgx.Tx) error { return s.putFew(ctx, tx, few) }); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scheduler) putFew(ctx context.Context, tx pgx.Tx, rows []*record) error {
	for _, r := range rows {
		rule, err := Parse(r.Rule)
		if err == nil {
			err = s.put(ctx, tx, r, rule)
		}
		switch {
		case errors.Is(err, errUntold): // it waits for a process that knows it, and stops nobody
			s.log.Warn("schedule: not put: its rule until now is not known here", slog.String("name", r.Name), slog.Any("error", err))
		case err != nil:
			return fmt.Errorf("put schedule %q: %w", r.Name, err)
		}
	}
	return nil
}

// keepDeclared says that the code declares what it does, until ctx ends.
func (s *Scheduler) keepDeclared(ctx context.Context) {
	s.mu.Lock()
	names := slices.Sorted(maps.Keys(s.declared))
	s.mu.Unlock()
	failing := false
	for len(names) > 0 {
		select {
		case <-time.After(s.declareEvery):
		case <-ctx.Done():
			return
		}
		err := s.within(ctx, func(ctx context.Context) error {
			return s.inTx(ctx, func(tx pgx.Tx) error { return s.sendDeclare(ctx, tx, names) })
		})
		if err != nil && !failing && ctx.Err() == nil {
			s.log.Warn("schedule: cannot note what the code declares, again each hour", slog.Any("error", err))
		}
		failing = err != nil
	}
}

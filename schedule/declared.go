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
	if err := s.followZones(ctx, put); err != nil {
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

// keepDeclared says that the code declares what it does, until ctx ends: else that is disabled after a while; and enables it where it was.
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
		if err == nil {
			err = s.enable(ctx, names)
		}
		if err != nil && !failing && ctx.Err() == nil {
			s.log.Warn("schedule: cannot note what the code declares, again each hour", slog.Any("error", err))
		}
		failing = err != nil
	}
}

// enable puts what is disabled although this process declares it: it stood still for a week, or the database's clock was wrong.
func (s *Scheduler) enable(ctx context.Context, names []string) (err error) {
	var disabled []string
	err = s.within(ctx, func(ctx context.Context) error {
		disabled, err = s.sendDisabled(ctx, s.pool, names)
		return err
	})
	if err != nil {
		return err
	}
	var rows []*record
	s.mu.Lock()
	for _, name := range disabled {
		rows = append(rows, s.declared[name])
	}
	s.mu.Unlock()
	for few := range slices.Chunk(rows, together) {
		put := func(ctx context.Context) error {
			return s.inTx(ctx, func(tx pgx.Tx) error { return s.putFew(ctx, tx, few) })
		}
		if err := s.within(ctx, put); err != nil {
			return err
		}
	}
	return nil
}

// followZones tells anew when schedules are due whose zone's data here is not that by which it was told before: that was of the past, or of
// another host. Ticks that were later by that are due now, or would be late. Declared ones are put after this anyway.
func (s *Scheduler) followZones(ctx context.Context, put func(func(pgx.Tx) error) error) error {
	var zones map[string]string
	err := put(func(tx pgx.Tx) (err error) {
		zones, err = s.sendZones(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	for zone, before := range zones {
		_, data := Cron("* * * * *", zone).zone()
		if data == before || data == "" { // empty: it is not known here
			continue
		}
		if err := s.followZone(ctx, put, zone); err != nil {
			return fmt.Errorf("follow the changed data of zone %q: %w", zone, err)
		}
		if err := put(func(tx pgx.Tx) error { return s.sendFollow(ctx, tx, zone, data) }); err != nil {
			return err
		}
	}
	return nil
}

func (s *Scheduler) followZone(ctx context.Context, put func(func(pgx.Tx) error) error, zone string) error {
	moved := 0
	for after, more := "", true; more; {
		rows, err := s.sendZoned(ctx, s.pool, zone, after, page)
		if err != nil {
			return err
		}
		var names []string
		for _, r := range rows {
			if _, moves := r.retold(); moves {
				names = append(names, r.Name)
			}
			after = r.Name
		}
		more = len(rows) == page
		moved += len(names)
		for few := range slices.Chunk(names, together) {
			if err := put(func(tx pgx.Tx) error { return s.retell(ctx, tx, few) }); err != nil {
				return err
			}
		}
	}
	s.log.Info("schedule: the data of a zone has changed: its schedules are due by the new", slog.String("zone", zone), slog.Int("moved", moved))
	return nil
}

// retell tells anew when schedules are due.
func (s *Scheduler) retell(ctx context.Context, tx pgx.Tx, names []string) error {
	for _, name := range names {
		_, r, err := s.sendGet(ctx, tx, name, true)
		if err != nil {
			return err
		}
		if r == nil {
			continue // it was deleted meanwhile
		}
		if due, moves := r.retold(); moves {
			r.Due = due
			if _, err := s.sendPut(ctx, tx, r, nil); err != nil {
				return err
			}
		}
	}
	return nil
}

// retold returns when a schedule is due by the zone data here, and whether that is to be written down: not while it waits or is tried again.
func (r *record) retold() (due *time.Time, moves bool) {
	rule, err := Parse(r.Rule)
	if err != nil || r.Due == nil || r.Waits != nil || r.Trying != nil || !r.Due.After(r.Clock) {
		return nil, false
	}
	due = r.next(rule)
	return due, due == nil || !due.Equal(*r.Due)
}

package schedule_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/schedule"
)

const week = 7 * 24 * time.Hour

// What no process has declared for a week is disabled: it is listed, stays, and runs again when a process starts that declares it. Nothing runs for the time in between.
func TestWhatNoProcessDeclaresForAWeekIsDisabled(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	with := func(names ...string) *worker {
		w := newWorker(db, schedule.WithRetention(0, 0))
		books := schedule.InTx(w.Scheduler, "books", effect)
		for _, name := range names {
			ok(t, books.Add(name, args{}, hourly, schedule.MissedAll))
		}
		return w.run()
	}
	w := with("dropped", "kept").has("kept")
	dropped, kept := newLedger(db, "dropped"), newLedger(db, "kept")
	w.close()

	var log lines
	older := newWorker(db, log.option(), schedule.WithRetention(0, 0))
	books := schedule.InTx(older.Scheduler, "books", effect)
	ok(t, books.Add("kept", args{}, hourly, schedule.MissedAll))
	older.SweepEvery(50 * time.Millisecond)
	older.run()
	get := func() schedule.Schedule {
		s, err := older.Get(t.Context(), "dropped")
		ok(t, err)
		return s
	}
	db.setClock(midnight.Add(week - time.Hour))
	until(t, "it waits", func() bool { return strings.Contains(get().Waits, "another version") })
	kept.settled(older.Scheduler)
	expect(t, get().DisabledAt, time.Time{}, "when it was disabled, before a week has passed")
	db.setClock(midnight.Add(week + time.Hour))
	until(t, "it is disabled", func() bool { return !get().DisabledAt.IsZero() })
	expect(t, get().DisabledAt.UTC(), midnight.Add(week+time.Hour), "when it was disabled")
	expect(t, get().Due, time.Time{}, "when it is due")
	if why := get().Waits; !strings.Contains(why, "no process has declared it for a week") {
		t.Errorf("it waits, as %q", why)
	}
	expect(t, log.count("disabled, as no process"), 1, "lines that tell of it")
	kept.settled(older.Scheduler)
	older.close()

	other := with("kept") // takes over what waits, but for what is disabled
	db.setClock(midnight.Add(week + 3*time.Hour))
	kept.settled(other.Scheduler)
	db.looked()
	if get().DisabledAt.IsZero() {
		t.Error("it is enabled without a process that declares it")
	}
	expect(t, one[int64](db, "SELECT count(*) FROM pgleases.history WHERE name = 'dropped'"), 0, "fates of what is disabled")
	other.close()

	again := with("dropped", "kept")
	until(t, "it is enabled", func() bool { return get().DisabledAt.IsZero() && get().Waits == "" })
	dropped.settled(again.Scheduler).expectFates(fates{schedule.FateCancelled: 7*24 + 3})
	db.setClock(midnight.Add(week + 4*time.Hour))
	dropped.settled(again.Scheduler).expectFates(fates{schedule.FateCancelled: 7*24 + 3, schedule.FateDone: 1})
}

// A process that runs for long says each day what it declares: where its owner is another, that is not disabled. After an outage of all, it is not either.
func TestWhatARunningProcessDeclaresIsNotDisabled(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	start := func() *worker {
		w := newWorker(db, schedule.WithRetention(0, 0))
		ok(t, schedule.InTx(w.Scheduler, "books", effect).Add("close", args{}, hourly))
		w.DeclareEvery(10 * time.Millisecond)
		return w.run()
	}
	registered := func() time.Time {
		return one[time.Time](db, "SELECT registered FROM pgleases.schedules").UTC()
	}
	w := start().has("close")
	l := newLedger(db, "close")
	db.setClock(midnight.Add(23 * time.Hour))
	l.settled(w.Scheduler)
	db.looked()
	expect(t, registered(), midnight, "when it was declared, within a day")
	now := midnight
	for range 9 {
		now = now.Add(25 * time.Hour)
		db.setClock(now)
		until(t, "it says that it declares it", func() bool { return registered().Equal(now) })
	}
	l.settled(w.Scheduler)
	w.close()
	db.setClock(now.Add(2 * week)) // all were away
	w = start()
	l.settled(w.Scheduler)
	expect(t, l.fates()[schedule.FateCancelled], 0, "ticks that were cancelled")
	s, err := w.Get(t.Context(), "close")
	ok(t, err)
	expect(t, s.DisabledAt, time.Time{}, "when it was disabled")
}

// A process stood still for more than a week, and another, whose code does not declare it, has disabled what the first declares: the first enables it without a start.
func TestAProcessThatGoesOnEnablesWhatItDeclares(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	frozen := newWorker(db, schedule.WithRetention(0, 0))
	ok(t, schedule.InTx(frozen.Scheduler, "books", effect).Add("close", args{}, hourly))
	frozen.DeclareEvery(10 * time.Millisecond)
	frozen.run().has("close")
	l := newLedger(db, "close")
	db.looked()
	db.exec(fmt.Sprintf("UPDATE pgleases.schedules SET disabled_at = '%s', due = 'infinity', waits = 'it is disabled'", midnight.Format(time.RFC3339)))
	until(t, "it is enabled", func() bool {
		s, err := frozen.Get(t.Context(), "close")
		ok(t, err)
		return s.DisabledAt.IsZero()
	})
	db.setClock(midnight.Add(time.Hour))
	l.settled(frozen.Scheduler).expectFates(fates{schedule.FateDone: 1})
}

// Two versions of the code that start in turn declare other things: that is told. A new version that replaces an old one is not.
func TestVersionsThatTakeTurnsAreTold(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	var log lines
	const told = "as it was before another version"
	for i, step := range []struct{ n, told int }{{1, 0}, {1, 0}, {2, 0}, {2, 0}, {3, 0}, {2, 1}, {2, 1}, {3, 2}, {4, 2}, {5, 2}} {
		w := newWorker(db, log.option())
		ok(t, schedule.InTx(w.Scheduler, "books", effect).Add("close", args{step.n}, hourly))
		w.run()
		until(t, "it is declared", func() bool {
			return one[bool](db, "SELECT EXISTS (SELECT FROM pgleases.schedules WHERE args = $1)", fmt.Sprintf(`{"N": %d}`, step.n))
		})
		w.close()
		expect(t, log.count(told), step.told, fmt.Sprintf("lines that tell of it after start %d", i))
	}
}

// The clocks of a place were to be set forward at noon of 10 March, and then they are not; or the other way round. Processes with new zone data follow them at once,
// whatever those with the old wrote down: what is due earlier now is not late, and no local time comes twice.
func TestZoneDataThatChange(t *testing.T) {
	t.Parallel()
	forward := time.Date(2026, 3, 10, 0, 0, 0, 0, time.UTC)
	at := func(day, hour int) time.Time { return time.Date(2026, 3, day, hour, 0, 0, 0, time.UTC) }
	summer := schedule.MakeZone("Test/Summer", []time.Time{forward}, 0, time.Hour)
	winter := schedule.MakeZone("Test/Winter", nil, 0)
	for _, c := range []struct {
		name          string
		before, after *time.Location
		last          time.Time // the tick before the new data
		due, next     time.Time // by the old, and by the new
		then          time.Time // the one after
	}{
		{"summer time is abolished", summer, winter, at(9, 12), at(10, 11), at(10, 12), at(11, 12)},
		{"summer time is decreed", winter, summer, at(9, 12), at(10, 12), at(10, 11), at(11, 11)},
		{"summer time is abolished when it has begun", summer, winter, at(10, 11), at(11, 11), at(11, 12), at(12, 12)},
		{"summer time is decreed when it should have begun", winter, summer, at(10, 12), at(11, 12), at(11, 11), at(12, 11)},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			zone := "Test/" + strings.ReplaceAll(c.name, " ", "_")
			noon := func() schedule.Rule { return schedule.Cron("0 12 * * *", zone) }
			grace := []schedule.ScheduleOption{schedule.MissedNone, schedule.Grace(time.Minute)}
			schedule.SetZone(zone, c.before)
			db.setClock(c.last.Add(-time.Hour))
			start := func() *worker {
				w := newWorker(db)
				ok(t, schedule.InTx(w.Scheduler, "books", effect).Add("declared", args{}, noon(), grace...))
				return w.run().has("declared")
			}
			w := start()
			ok(t, schedule.InTx(newWorker(db).Scheduler, "books", effect).Put(t.Context(), "put", args{}, noon(), grace...))
			runs := func(tick time.Time) {
				t.Helper()
				db.setClock(tick)
				for _, name := range []string{"declared", "put"} {
					until(t, fmt.Sprintf("%s runs at %v", name, tick), func() bool {
						return one[int64](db, "SELECT count(*) FROM public.effects WHERE name = $1 AND at = $2", name, tick) == 1
					})
				}
			}
			due := func(want time.Time) {
				t.Helper()
				for _, name := range []string{"declared", "put"} {
					until(t, fmt.Sprintf("%s is due at %v", name, want), func() bool {
						s, err := w.Get(t.Context(), name)
						ok(t, err)
						return s.Due.Equal(want)
					})
				}
			}
			runs(c.last)
			due(c.due)
			w.close()
			schedule.SetZone(zone, c.after)
			w = start()
			due(c.next)
			runs(c.next)
			runs(c.then)
			expect(t, one[int64](db, "SELECT count(*) FROM public.effects"), 6, "runs")
			expect(t, one[int64](db, "SELECT count(*) FROM pgleases.history WHERE fate <> 'done'"), 0, "ticks that were not run")
			// Nothing more is told anew with the same data.
			before := one[string](db, "SELECT max(xmin::text::bigint)::text FROM pgleases.schedules WHERE name = 'put'")
			w.close()
			w = start()
			until(t, "it has started", func() bool { return one[int64](db, "SELECT count(*) FROM pgleases.members") == 1 })
			expect(t, one[string](db, "SELECT max(xmin::text::bigint)::text FROM pgleases.schedules WHERE name = 'put'"), before, "the transaction that wrote it last")
		})
	}
}

package schedule

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func TestMissedTicksAreRunAsThePolicySays(t *testing.T) {
	t.Parallel()
	const minutely, hourly = "* * * * *", "0 * * * *"
	const today = "2026-06-01 "
	on := func(clock string) time.Time {
		if !strings.Contains(clock, "-") {
			clock = today + clock
		}
		return at(t, clock)
	}
	clocks := func(ticks ...Tick) string { return strings.ReplaceAll(strings.Join(instants(ticks), ", "), today, "") }
	for _, test := range []struct {
		what, rule, last, now string
		missed                Missed
		grace                 time.Duration
		run                   string
		count                 int64
		misses                string // the first and the latest
	}{
		{what: "none", rule: minutely, last: "12:00:00", now: "12:00:59"},
		{what: "one, just now", rule: minutely, last: "12:00:00", now: "12:01:00", run: "12:01"},
		{what: "one, just now, where none are made up for", rule: minutely, last: "12:00:00", now: "12:01:00",
			missed: MissedNone, run: "12:01"},
		{what: "an hour of minutes, the latest", rule: minutely, last: "12:00:00", now: "13:00:30",
			run: "13:00", count: 59, misses: "12:01, 12:59"},
		{what: "an hour of minutes, none", rule: minutely, last: "12:00:00", now: "13:00:30",
			missed: MissedNone, run: "13:00", count: 59, misses: "12:01, 12:59"},
		{what: "an hour ago, the latest", rule: hourly, last: "11:00:00", now: "12:59:59", run: "12:00"},
		{what: "a minute ago, none", rule: hourly, last: "11:00:00", now: "12:01:00", missed: MissedNone, run: "12:00"},
		{what: "more than a minute ago, none", rule: hourly, last: "11:00:00", now: "12:01:01",
			missed: MissedNone, count: 1, misses: "12:00, 12:00"},
		{what: "within the grace, none", rule: hourly, last: "11:00:00", now: "12:10:00",
			missed: MissedNone, grace: 10 * time.Minute, run: "12:00"},
		{what: "within the grace, the latest", rule: hourly, last: "09:00:00", now: "12:10:00",
			grace: 10 * time.Minute, run: "12:00", count: 2, misses: "10:00, 11:00"},
		{what: "past the grace, the latest", rule: hourly, last: "09:00:00", now: "12:10:01",
			grace: 10 * time.Minute, count: 3, misses: "10:00, 12:00"},
		{what: "within the grace, all", rule: hourly, last: "08:00:00", now: "12:10:00",
			missed: MissedAll, grace: 3 * time.Hour, run: "10:00, 11:00, 12:00", count: 1, misses: "09:00, 09:00"},
		{what: "all", rule: hourly, last: "08:00:00", now: "11:00:00", missed: MissedAll, run: "09:00, 10:00, 11:00"},
		{what: "of intervals, all", rule: "@every 1h", last: "08:00:00", now: "10:00:00",
			missed: MissedAll, run: "08:07, 09:07"},
		{what: "of intervals, the latest", rule: "@every 1h", last: "08:07:00", now: "10:07:00",
			run: "10:07", count: 1, misses: "09:07, 09:07"},
		{what: "a clock that was set back", rule: minutely, last: "12:00:00", now: "11:00:00", missed: MissedAll},
		{what: "a clock that was set back, of intervals", rule: "@every 1h", last: "12:00:00", now: "11:00:00",
			missed: MissedAll},
		{what: "the night of a repeated hour", rule: "CRON_TZ=Europe/Berlin 30 2 * * *",
			last: "2026-10-25 00:30:00", now: "2026-10-25 01:30:30", missed: MissedAll},
		{what: "a rare tick", rule: "0 0 29 2 */7",
			last: "2004-02-29 00:00:00", now: "2032-02-28 23:59:59", missed: MissedAll},
	} {
		last := Tick{At: on(test.last)}
		due := parsed(t, test.rule).ticksDue(on("00:07:00"), last, on(test.now), test.missed, test.grace)
		if got := clocks(due.Run...); got != test.run {
			t.Errorf("%s: runs %q, want %q", test.what, got, test.run)
		}
		if due.Missed.Count != test.count {
			t.Errorf("%s: misses %d, want %d", test.what, due.Missed.Count, test.count)
		}
		want := test.misses
		if test.count == 0 {
			want = clocks(Tick{}, Tick{})
		}
		if got := clocks(due.Missed.First, due.Missed.Last); got != want {
			t.Errorf("%s: misses %q, want %q", test.what, got, want)
		}
	}
}

// Whatever is done at some instants, each tick up to the last of these is run or missed, once, in order.
func TestEachTickIsRunOrMissedOnce(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r, anchor, from := drawRule(t), drawInstant(t, "anchor"), drawInstant(t, "from")
		missed := rapid.SampledFrom([]Missed{MissedLatest, MissedNone, MissedAll}).Draw(t, "policy")
		grace := time.Duration(rapid.Int64Range(0, int64(30*24*time.Hour)).Draw(t, "grace"))
		now, last, outcomes := from, Tick{At: from}, int64(0)
		for range 10 {
			now = now.Add(time.Duration(rapid.Int64Range(0, int64(20*24*time.Hour)).Draw(t, "later")))
			due := r.ticksDue(anchor, last, now, missed, grace)
			if n := due.Missed.Count; n > 0 {
				if first, _ := r.Next(anchor, last); first != due.Missed.First {
					t.Fatalf("the first is %v, not %v", first, due.Missed.First)
				}
				outcomes, last = outcomes+n, due.Missed.Last
			}
			for _, tick := range due.Run {
				if next, _ := r.Next(anchor, last); next != tick {
					t.Fatalf("after %v comes %v, but %v is run", last, next, tick)
				}
				if grace > 0 && now.Sub(tick.At) > grace {
					t.Fatalf("at %v the tick of %v is run", now, tick.At)
				}
				outcomes, last = outcomes+1, tick
			}
			if next, ok := r.Next(anchor, last); ok && !next.At.After(now) {
				t.Fatalf("at %v, %v has no outcome", now, next)
			}
			if len(due.Run) > 100 || missed != MissedAll && len(due.Run) > 1 {
				t.Fatalf("%d are run", len(due.Run))
			}
		}
		if want := r.ticksPassed(anchor, Tick{At: from}, now).Count; outcomes != want {
			t.Fatalf("%d of %d have an outcome", outcomes, want)
		}
	})
}

func TestAnyNumberOfMissedTicksTakesBoundedWork(t *testing.T) {
	t.Parallel()
	now := at(t, "2026-06-01 12:00:00")
	for _, rule := range []string{
		"@every 1s", "@every 1m", "* * * * *",
		"CRON_TZ=America/New_York * * * * *", "CRON_TZ=Europe/Berlin * 0-22 * * *",
	} {
		for _, ticks := range []int64{100_001, 100_000_000} {
			r := parsed(t, rule)
			interval := time.Minute
			if r.every > 0 {
				interval = r.every
			}
			last := now
			for r.ticksPassed(now, Tick{At: last}, now).Count < ticks {
				// The rules with 23 hours and with changes of clocks need some more.
				last = last.Add(-interval * time.Duration(ticks/100))
			}
			began := time.Now()
			due := r.ticksDue(now, Tick{At: last}, now, MissedAll, 0)
			took := time.Since(began)
			if n := due.Missed.Count; n < ticks-100 || n > ticks+ticks/20 || len(due.Run) != 100 {
				t.Errorf("%s: %d are missed, and %d are run", rule, n, len(due.Run))
			}
			if due.Run[99].At != now {
				t.Errorf("%s: the last that is run is %v", rule, due.Run[99])
			}
			if took > 20*time.Second { // a loop over the ticks takes minutes
				t.Errorf("%s: it took %v", rule, took)
			}
			t.Logf("%s, %d ticks: %v", rule, due.Missed.Count, took)
		}
	}
}

func TestJitterIsTheSameEverywhereAndSpread(t *testing.T) {
	t.Parallel()
	tick := at(t, "2026-06-01 12:00:00")
	if got := jitter("close", tick, 0); got != tick {
		t.Errorf("none shifts to %v", got)
	}
	// A change of these would move what other processes have computed.
	for _, test := range []struct {
		name string
		tick time.Time
		want string
	}{
		{"close", tick, "46.439439s"}, {"close", tick.Add(time.Hour), "5.024722s"}, {"open", tick, "20.134366s"},
	} {
		if got := jitter(test.name, test.tick.Local(), time.Minute).Sub(test.tick).String(); got != test.want {
			t.Errorf("%q at %v is shifted by %s, not %s", test.name, test.tick, got, test.want)
		}
	}
	const n, slots = 10000, 10
	var counts [slots]int
	for i := range n {
		shift := jitter(fmt.Sprint("job ", i), tick, time.Minute).Sub(tick)
		if shift < 0 || shift >= time.Minute || shift%time.Microsecond != 0 {
			t.Fatalf("the shift is %v", shift)
		}
		counts[shift*slots/time.Minute]++
	}
	if slices.Min(counts[:]) < n/slots*8/10 || slices.Max(counts[:]) > n/slots*12/10 {
		t.Errorf("10000 schedules are spread over the minute as %v", counts)
	}
}

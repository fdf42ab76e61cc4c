package main

import (
	"slices"
	"testing"
	"time"
)

func mustParse(t *testing.T, text string) schedule {
	t.Helper()
	s, err := parse(text)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// at reads an instant of 2026, in UTC unless it says otherwise.
func at(t *testing.T, text string) time.Time {
	t.Helper()
	instant, err := time.Parse("2006-01-02 15:04:05Z07:00", "2026-"+text+"Z")
	if err != nil {
		t.Fatal(err)
	}
	return instant
}

func ats(t *testing.T, texts ...string) []time.Time {
	t.Helper()
	instants := make([]time.Time, len(texts))
	for i, text := range texts {
		instants[i] = at(t, text)
	}
	return instants
}

// ticks returns the ticks after from, up to to.
func ticks(s schedule, from, to time.Time) []time.Time {
	var all []time.Time
	for tick := s.next(from); !tick.IsZero() && !tick.After(to); tick = s.next(tick) {
		all = append(all, tick)
	}
	return all
}

func TestTicksAreThoseOfUnix(t *testing.T) {
	for _, test := range []struct {
		schedule, from, to string
		want               []string
	}{
		{"*/20 * * * *", "06-01 12:00:00", "06-01 13:00:00", []string{"06-01 12:20:00", "06-01 12:40:00", "06-01 13:00:00"}},
		{"*/20 * * * * *", "06-01 12:00:01", "06-01 12:01:00", []string{"06-01 12:00:20", "06-01 12:00:40", "06-01 12:01:00"}},
		// The first of the month, and Mondays; not only Mondays that are the first.
		{"0 6 1 * MON", "06-29 06:00:00", "07-13 06:00:00", []string{"07-01 06:00:00", "07-06 06:00:00", "07-13 06:00:00"}},
		// Where one of them is any day, the other one alone says.
		{"0 6 * * MON", "06-29 06:00:00", "07-13 06:00:00", []string{"07-06 06:00:00", "07-13 06:00:00"}},
		{"0 6 1 * *", "06-29 06:00:00", "08-01 06:00:00", []string{"07-01 06:00:00", "08-01 06:00:00"}},
		{"0 0 30 2 *", "01-01 00:00:00", "12-31 00:00:00", nil},
	} {
		got := ticks(mustParse(t, test.schedule), at(t, test.from), at(t, test.to))
		if want := ats(t, test.want...); !slices.Equal(got, want) {
			t.Errorf("%s from %s: %v, want %v", test.schedule, test.from, got, want)
		}
	}
}

func TestTicksDoNotDependOnTheZoneOfTheProcess(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	for _, zone := range []string{"America/New_York", "Asia/Kathmandu", "Europe/Berlin"} {
		time.Local = location(t, zone)
		s := mustParse(t, "30 1 * * *")
		from := at(t, "10-24 12:00:00").Local()
		if got := s.next(from); got != at(t, "10-25 01:30:00") { // in Berlin this is the second 2:30
			t.Errorf("in %s the next tick is %v", zone, got)
		}
	}
}

func location(t *testing.T, name string) *time.Location {
	t.Helper()
	l, err := time.LoadLocation(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// In 2026 the clocks of Berlin are set from 2:00 to 3:00 on March 29th at 1:00 UTC, and from 3:00 to 2:00 on October 25th at
// 1:00 UTC; those of New York go back from 2:00 to 1:00 on November 1st at 6:00 UTC.
func TestChangeOfDaylightSavingTimeRunsOnce(t *testing.T) {
	for _, test := range []struct {
		schedule, from, to string
		want               []string
	}{
		// There is no 2:30, and then there are two.
		{"CRON_TZ=Europe/Berlin 30 2 * * *", "03-27 12:00:00", "03-30 12:00:00",
			[]string{"03-28 01:30:00", "03-29 01:30:00", "03-30 00:30:00"}},
		{"CRON_TZ=Europe/Berlin 30 2 * * *", "10-23 12:00:00", "10-26 12:00:00",
			[]string{"10-24 00:30:00", "10-25 00:30:00", "10-26 01:30:00"}},
		{"CRON_TZ=Europe/Berlin 0 2 * * *", "10-24 12:00:00", "10-26 12:00:00",
			[]string{"10-25 00:00:00", "10-26 01:00:00"}},
		{"CRON_TZ=America/New_York 30 1 * * *", "10-30 12:00:00", "11-02 12:00:00",
			[]string{"10-31 05:30:00", "11-01 05:30:00", "11-02 06:30:00"}},
		// The hour after the repeated one is an hour like any other.
		{"CRON_TZ=Europe/Berlin 0 3 * * *", "10-24 12:00:00", "10-26 12:00:00",
			[]string{"10-25 02:00:00", "10-26 02:00:00"}},
		// What goes on in every hour goes on in both.
		{"CRON_TZ=Europe/Berlin */30 * * * *", "10-24 23:30:00", "10-25 02:00:00",
			[]string{"10-25 00:00:00", "10-25 00:30:00", "10-25 01:00:00", "10-25 01:30:00", "10-25 02:00:00"}},
		{"CRON_TZ=Europe/Berlin */30 * * * *", "03-29 00:00:00", "03-29 02:00:00",
			[]string{"03-29 00:30:00", "03-29 01:00:00", "03-29 01:30:00", "03-29 02:00:00"}},
		// UTC knows of nothing.
		{"30 2 * * *", "10-24 12:00:00", "10-26 12:00:00", []string{"10-25 02:30:00", "10-26 02:30:00"}},
	} {
		got := ticks(mustParse(t, test.schedule), at(t, test.from), at(t, test.to))
		if want := ats(t, test.want...); !slices.Equal(got, want) {
			t.Errorf("%s from %s: %v, want %v", test.schedule, test.from, got, want)
		}
	}
}

func TestMissedTicks(t *testing.T) {
	for _, test := range []struct {
		what, schedule, last, now string
		all                       bool
		run                       []string
		skipped                   int
		first, lastSkipped        string
	}{
		{what: "none", schedule: "* * * * *", last: "06-01 12:00:00", now: "06-01 12:00:59"},
		{what: "one, just now", schedule: "* * * * *", last: "06-01 12:00:00", now: "06-01 12:01:00",
			run: []string{"06-01 12:01:00"}},
		{what: "some, of which the latest is run", schedule: "*/10 * * * * *", last: "06-01 12:00:00", now: "06-01 12:00:35",
			run: []string{"06-01 12:00:30"}, skipped: 2, first: "06-01 12:00:10", lastSkipped: "06-01 12:00:20"},
		{what: "some, which are all run", schedule: "*/10 * * * * *", last: "06-01 12:00:00", now: "06-01 12:00:35", all: true,
			run: []string{"06-01 12:00:10", "06-01 12:00:20", "06-01 12:00:30"}},
		{what: "one a minute ago", schedule: "0 * * * *", last: "06-01 11:00:00", now: "06-01 12:01:00",
			run: []string{"06-01 12:00:00"}},
		{what: "one more than a minute ago", schedule: "0 * * * *", last: "06-01 11:00:00", now: "06-01 12:01:01",
			skipped: 1, first: "06-01 12:00:00", lastSkipped: "06-01 12:00:00"},
		{what: "a day of hours", schedule: "0 * * * *", last: "06-01 12:00:00", now: "06-02 12:00:30",
			run: []string{"06-02 12:00:00"}, skipped: 23, first: "06-01 13:00:00", lastSkipped: "06-02 11:00:00"},
		{what: "a day of hours, all of which would be run", schedule: "0 * * * *", last: "06-01 12:00:00", now: "06-02 12:00:30",
			all: true, run: []string{"06-02 12:00:00"}, skipped: 23, first: "06-01 13:00:00", lastSkipped: "06-02 11:00:00"},
		{what: "those within the grace", schedule: "*/30 * * * * *", last: "06-01 12:00:00", now: "06-01 12:02:30", all: true,
			run:     []string{"06-01 12:01:30", "06-01 12:02:00", "06-01 12:02:30"},
			skipped: 2, first: "06-01 12:00:30", lastSkipped: "06-01 12:01:00"},
		{what: "a clock that was set back", schedule: "* * * * *", last: "06-01 12:00:00", now: "06-01 11:00:00"},
		{what: "the night of a repeated hour", schedule: "CRON_TZ=Europe/Berlin 30 2 * * *",
			last: "10-25 00:30:00", now: "10-25 01:30:30"},
	} {
		last, now := at(t, test.last), at(t, test.now)
		b := mustParse(t, test.schedule).missed(last, now, test.all)
		if want := ats(t, test.run...); !slices.Equal(b.run, want) {
			t.Errorf("%s: runs %v, want %v", test.what, b.run, want)
		}
		if b.skipped != test.skipped {
			t.Errorf("%s: skips %d, want %d", test.what, b.skipped, test.skipped)
		}
		if test.skipped > 0 && (b.first != at(t, test.first) || b.last != at(t, test.lastSkipped)) {
			t.Errorf("%s: skips %v to %v, want %s to %s", test.what, b.first, b.last, test.first, test.lastSkipped)
		}
	}
}

func TestBadSchedulesAreRefused(t *testing.T) {
	for _, text := range []string{"", "* * * *", "60 * * * *", "* * * * * * *", "CRON_TZ=Nowhere/AtAll * * * * *", "@daily", "@every 5s"} {
		if s, err := parse(text); err == nil {
			t.Errorf("%q: %v, want an error", text, s)
		}
	}
}

func TestTimetableIsValid(t *testing.T) {
	names := make(map[string]bool)
	for _, job := range timetable() {
		mustParse(t, job.Schedule)
		if names[job.Name] {
			t.Errorf("two jobs are called %q", job.Name)
		}
		names[job.Name] = true
	}
}

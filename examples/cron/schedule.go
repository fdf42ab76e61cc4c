package main

import (
	"fmt"
	"math/bits"
	"time"

	cron "github.com/netresearch/go-cron"
)

// grace is how long after its instant a tick is still run. Longer than a take-over lasts, or each would lose ticks.
const grace = time.Minute

// The five fields of Unix, in which a day is one of the month or one of the week where both are given, and seconds before
// them where there are six. CRON_TZ=Europe/Berlin in front has them read on the clocks of a place, else they are UTC.
var parser = cron.MustNewParser(cron.SecondOptional | cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.DowOrDom)

// A schedule tells the ticks of a job. A tick is an instant, the same for all processes wherever they run.
type schedule struct{ spec *cron.SpecSchedule }

func parse(text string) (schedule, error) {
	parsed, err := parser.Parse(text)
	if err != nil {
		return schedule{}, fmt.Errorf("schedule %q: %w", text, err)
	}
	spec, ok := parsed.(*cron.SpecSchedule)
	if !ok {
		return schedule{}, fmt.Errorf("schedule %q has no fixed ticks", text)
	}
	if spec.Location == time.Local { // none was given
		spec.Location = time.UTC
	}
	return schedule{spec}, nil
}

// next returns the first tick after t; the zero time where there is none.
func (s schedule) next(t time.Time) time.Time {
	for {
		t = s.spec.Next(t.UTC())
		if t.IsZero() || s.hourly() || !repeated(t.In(s.spec.Location)) {
			return t
		}
	}
}

// hourly reports whether the schedule has ticks in every hour.
func (s schedule) hourly() bool { return bits.OnesCount64(s.spec.Hour&(1<<24-1)) == 24 }

// repeated reports whether the clocks of the place show a time that they showed before, as they were set back since. A job at
// 2:30 runs once in such a night, at the first 2:30; one of every ten minutes runs on in both hours.
func repeated(t time.Time) bool {
	changed, _ := t.ZoneBounds()
	if changed.IsZero() {
		return false
	}
	_, before := changed.Add(-time.Second).Zone()
	_, now := t.Zone()
	return t.Sub(changed) < time.Duration(before-now)*time.Second
}

// A backlog is the ticks of a job that have passed and were not run.
type backlog struct {
	run []time.Time // to be run now, oldest first

	skipped     int       // not to be run any more
	first, last time.Time // of these
}

// missed returns the ticks after last, up to now. Those within the grace are run, all or the latest only.
func (s schedule) missed(last, now time.Time, all bool) backlog {
	var b backlog
	for tick := s.next(last); !tick.IsZero() && !tick.After(now); tick = s.next(tick) {
		b.run = append(b.run, tick)
		if now.Sub(b.run[0]) > grace || !all && len(b.run) > 1 {
			b.skip()
		}
	}
	return b
}

// skip gives up the oldest tick.
func (b *backlog) skip() {
	b.last, b.run = b.run[0], b.run[1:]
	if b.skipped == 0 {
		b.first = b.last
	}
	b.skipped++
}

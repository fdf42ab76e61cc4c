package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Rule says when a schedule ticks. Cron, Every and Parse return rules. A Rule is immutable, and
// safe for concurrent use. Two rules are equal if their texts are equal. A rule with invalid input
// has no ticks, and Err returns the error.
type Rule struct {
	text  string
	every time.Duration // of Every
	clock *clock        // of Cron
	err   error
}

// A Tick is one instant of a rule, and its local time.
type Tick struct {
	At time.Time // in UTC
	// Local is At in the zone of the rule; in UTC for Every. Methods that take a Tick read only the
	// date and time of Local, not its location. A database may store it as timestamp without time
	// zone.
	Local time.Time
}

// Every returns a rule that ticks at anchor + k*d, in elapsed time, so changes of clocks do not
// move its ticks. d is at least 1 s, less than 24 h, and in whole microseconds, the unit of the
// database. For a day or more use Cron.
func Every(d time.Duration) Rule {
	r := Rule{text: everyPrefix + d.String(), every: d}
	switch {
	case d < time.Second:
		r.err = fmt.Errorf("schedule: Every(%v): the interval must be at least 1s", d)
	case d >= 24*time.Hour:
		r.err = fmt.Errorf("schedule: Every(%v): the interval must be below 24h: "+
			"Every counts elapsed time, so a day or more would drift against local clocks when they change; "+
			"use Cron, for example Cron(\"0 2 * * *\", \"Europe/Berlin\") for each day at 2:00", d)
	case d%time.Microsecond != 0:
		r.err = fmt.Errorf("schedule: Every(%v): the interval must be whole microseconds", d)
	}
	return r
}

const (
	everyPrefix = "@every "
	zonePrefix  = "CRON_TZ="
)

// Parse returns the rule of a text: the result of String, or a cron expression alone, whose zone is
// UTC. Its error is that of Rule.Err.
func Parse(text string) (Rule, error) {
	if interval, ok := strings.CutPrefix(text, everyPrefix); ok {
		d, err := time.ParseDuration(interval)
		if err != nil {
			err = fmt.Errorf("schedule: %q: %q is not a duration; use for example 90s or 1h30m", text, interval)
			return Rule{text: text, err: err}, err
		}
		r := Every(d)
		return r, r.err
	}
	zone, expression := "UTC", text
	if zoned, ok := strings.CutPrefix(text, zonePrefix); ok {
		zone, expression, _ = strings.Cut(zoned, " ")
	}
	r := Cron(expression, zone)
	return r, r.err
}

// String returns the text of the rule, for Parse: "CRON_TZ=Europe/Berlin 0 2 * * *", or "@every
// 15m0s".
func (r Rule) String() string { return r.text }

// Err returns why the rule is invalid; nil if it is valid.
func (r Rule) Err() error {
	if r.text == "" {
		return errors.New("schedule: the rule is empty; use Cron or Every")
	}
	return r.err
}

// Next returns the first tick after after; false if the rule is invalid. It uses the instant of
// after, and its Local if that is not zero. The new tick has a later local time, even if the zone
// data has changed since, or differs from that of the host that computed after. (A rule that
// follows elapsed time does not need Local, because it repeats an hour anyway.) To begin at an
// instant t, or after a change of the rule, pass Tick{At: t}.
//
// Every uses the anchor, and k may be negative; Cron ignores it.
func (r Rule) Next(anchor time.Time, after Tick) (Tick, bool) {
	switch {
	case r.Err() != nil:
		return Tick{}, false
	case r.clock != nil:
		at, ok := r.clock.next(after.At.Unix(), mark(after))
		if !ok {
			return Tick{}, false
		}
		return r.clock.tick(at), true
	default:
		return r.elapsed(anchor, r.intervals(anchor, after.At)+1), true
	}
}

// Preview returns the next n ticks after after, or fewer if the rule has fewer. See Next for after
// and anchor.
func (r Rule) Preview(anchor time.Time, after Tick, n int) []Tick {
	var ticks []Tick
	for len(ticks) < n {
		next, ok := r.Next(anchor, after)
		if !ok {
			break
		}
		ticks = append(ticks, next)
		after = next
	}
	return ticks
}

// previous returns the last tick after after, up to an instant.
func (r Rule) previous(anchor time.Time, after Tick, until time.Time) (Tick, bool) {
	switch {
	case r.Err() != nil:
		return Tick{}, false
	case r.clock != nil:
		at, ok := r.clock.previous(after.At.Unix(), until.Unix(), mark(after))
		if !ok {
			return Tick{}, false
		}
		return r.clock.tick(at), true
	default:
		tick := r.elapsed(anchor, r.intervals(anchor, until))
		return tick, tick.At.After(after.At)
	}
}

// count returns how many ticks follow after, up to an instant.
func (r Rule) count(anchor time.Time, after Tick, until time.Time) int64 {
	if r.clock != nil {
		return r.clock.count(after.At.Unix(), until.Unix(), mark(after))
	}
	return r.intervals(anchor, until) - r.intervals(anchor, after.At)
}

// zone returns the zone of the rule.
func (r Rule) zone() *time.Location {
	if r.clock != nil {
		return r.clock.location
	}
	return time.UTC
}

// intervals returns how many whole intervals have passed from the anchor until an instant. Before
// the anchor it is negative.
func (r Rule) intervals(anchor, until time.Time) int64 {
	passed, d := until.UnixMicro()-anchor.UnixMicro(), r.every.Microseconds()
	k := passed / d
	if passed%d < 0 {
		k--
	}
	return k
}

// elapsed returns the tick of Every that is k intervals after the anchor.
func (r Rule) elapsed(anchor time.Time, k int64) Tick {
	at := time.UnixMicro(anchor.UnixMicro() + k*r.every.Microseconds()).UTC()
	return Tick{At: at, Local: at}
}

package schedule

import (
	"errors"
	"fmt"
	"strings"
	"time"
)

// A Rule says when a schedule ticks. Cron, Every and Parse return rules. A rule never changes, and
// is safe for concurrent use. Two rules are equal if their texts are. A rule that was made from bad
// input has no ticks, and Err returns what is wrong.
type Rule struct {
	text  string
	every time.Duration // of Every
	clock *clock        // of Cron
	err   error
}

// A Tick is one instant of a rule, and how the clocks of its zone show it.
type Tick struct {
	At time.Time // in UTC
	// Local is At as the clocks of the rule's zone show it; in UTC for Every. Of a tick that you pass,
	// only what the clock shows counts, not the location; a database may store it in a timestamp
	// without time zone.
	Local time.Time
}

// Every returns a rule that ticks each d of elapsed time: the ticks are anchor + k*d, and no change
// of any clock moves them. d is at least 1s, less than 24h, and whole microseconds, the unit of the
// database. For a day or more see Cron.
func Every(d time.Duration) Rule {
	r := Rule{text: everyPrefix + d.String(), every: d}
	switch {
	case d < time.Second:
		r.err = fmt.Errorf("schedule: Every(%v): the interval must be at least 1s", d)
	case d >= 24*time.Hour:
		r.err = fmt.Errorf("schedule: Every(%v): the interval must be below 24h: Every counts elapsed time, so that a day or more would drift against "+
			"local clocks when they change; use Cron, such as Cron(\"0 2 * * *\", \"Europe/Berlin\") for each day at 2:00", d)
	case d%time.Microsecond != 0:
		r.err = fmt.Errorf("schedule: Every(%v): the interval must be whole microseconds", d)
	}
	return r
}

const (
	everyPrefix = "@every "
	zonePrefix  = "CRON_TZ="
)

// Parse returns the rule of a text: of what String returned, or of a cron expression alone, which
// is in UTC.
func Parse(text string) (Rule, error) {
	if interval, ok := strings.CutPrefix(text, everyPrefix); ok {
		d, err := time.ParseDuration(interval)
		if err != nil {
			err = fmt.Errorf("schedule: %q: %q is not a duration; it must be such as 90s or 1h30m", text, interval)
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

// Err returns what is wrong with the rule; nil if it can be used.
func (r Rule) Err() error {
	if r.text == "" {
		return errors.New("schedule: the rule is empty; make one with Cron or Every")
	}
	return r.err
}

// Next returns the first tick after another; false if there is none, for example for 30 February.
// Next uses the instant of after, and its Local if that is not zero: the clocks of the new tick
// show a later time, even if the zone data has changed since, or differs from that of the host that
// computed after. (A rule that names all 24 hours of the day does not need that, because it repeats
// an hour anyway.) To begin at any instant t, give Tick{At: t}; so too after a change of the rule.
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

// Preview returns the next n ticks after another, fewer if there are no more. See Next for after
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

// previous returns the last tick after another, up to an instant.
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

// count returns how many ticks there are after another, up to an instant.
func (r Rule) count(anchor time.Time, after Tick, until time.Time) int64 {
	if r.clock != nil {
		return r.clock.count(after.At.Unix(), until.Unix(), mark(after))
	}
	return r.intervals(anchor, until) - r.intervals(anchor, after.At)
}

// zone returns the zone whose clocks the rule follows.
func (r Rule) zone() *time.Location {
	if r.clock != nil {
		return r.clock.location
	}
	return time.UTC
}

// intervals returns how many whole intervals have passed from the anchor until an instant, negative
// before it.
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

package schedule

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"time"

	cron "github.com/netresearch/go-cron"
)

// Cron returns a rule that ticks when the clocks of a zone show a time that matches an expression.
// The expression has five fields: minute, hour, day of the month, month, day of the week (0 and 7
// are Sunday). Each is *, or a list of values, ranges and steps, for example 5, 1-5, MON-FRI, */15,
// 8-18/2. A range may wrap around, for example 22-2. If both days are given, a day that matches
// either matches, as in POSIX: 0 6 1 * MON is the first of the month, and each Monday. @yearly,
// @monthly, @weekly, @daily and @hourly are expressions too. The zone is a name of the zone
// database, for example Europe/Berlin or UTC.
//
// If clocks are set forward, the times that they leave out have one tick together, at the instant
// of the change. If clocks are set back, a time that comes twice has a tick the first time only.
// Rules that name all 24 hours follow elapsed hours: times that are left out have no tick, and
// repeated hours tick twice.
func Cron(expression, zone string) Rule {
	expression = strings.Join(strings.Fields(expression), " ")
	r := Rule{text: zonePrefix + zone + " " + expression}
	spec, err := parse(expression)
	if err != nil {
		r.err = fmt.Errorf("schedule: cron expression %q: %w", expression, err)
		return r
	}
	location, err := loadZone(zone)
	if err != nil {
		r.err = fmt.Errorf("schedule: cron expression %q: zone %q: %w; use a name of the zone database, for example Europe/Berlin or UTC",
			expression, zone, err)
		return r
	}
	r.clock = newClock(spec, location)
	return r
}

var parser = cron.MustNewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// fields has the fields of an expression, in order.
var fields = [5]struct {
	name, want string
	form       *regexp.Regexp
}{
	{"minute", "0 to 59", form("")},
	{"hour", "0 to 23", form("")},
	{"day of the month", "1 to 31", form("")},
	{"month", "1 to 12 or JAN to DEC", form("jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec")},
	{"day of the week", "0 to 7 or SUN to SAT", form("sun|mon|tue|wed|thu|fri|sat")},
}

// form returns the syntax of an element of a field's list. names are the allowed names.
func form(names string) *regexp.Regexp {
	value := `(?:\d{1,2})`
	if names != "" {
		value = `(?:\d{1,2}|` + names + `)`
	}
	return regexp.MustCompile(`^(?i:(?:\*|` + value + `(?:-` + value + `)?)(?:/\d{1,2})?)$`)
}

// parse parses an expression. The parser alone accepts some expressions without a meaning, for
// example "*-5" or ",", and its errors name no field.
func parse(expression string) (*cron.SpecSchedule, error) {
	words := strings.Fields(expression)
	switch {
	case strings.HasPrefix(expression, "@every"):
		return nil, errors.New("it is an interval; use Every")
	case strings.Contains(expression, "TZ="):
		return nil, errors.New("it has a zone; pass the zone as the second argument")
	case strings.HasPrefix(expression, "@"): // a descriptor
	case len(words) != len(fields):
		return nil, fmt.Errorf("it has %d fields; want 5: minute, hour, day of the month, month, day of the week (for seconds, use Every)", len(words))
	default:
		for i, word := range words {
			if err := checkField(i, word); err != nil {
				return nil, fmt.Errorf("field %d, the %s, is %q: %w; want %s, as in *, 5, 1-5, */2, 1-5/2, or a list of these",
					i+1, fields[i].name, word, err, fields[i].want)
			}
		}
	}
	parsed, err := parser.Parse(expression)
	if err != nil {
		return nil, fmt.Errorf("%w; want five fields, or @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly", err)
	}
	spec := parsed.(*cron.SpecSchedule) // another type is returned for intervals only
	if len(words) == len(fields) {
		for i, days := range map[int]*uint64{2: &spec.Dom, 4: &spec.Dow} {
			if words[i] != "*" { // the parser treats */1 and 5,* as *
				*days &^= star
			}
		}
	}
	return spec, nil
}

func checkField(i int, word string) error {
	for element := range strings.SplitSeq(word, ",") {
		if !fields[i].form.MatchString(element) {
			return fmt.Errorf("%q is not a value, a range or a step", element)
		}
	}
	alone := []string{"*", "*", "*", "*", "*"}
	alone[i] = word
	if _, err := parser.Parse(strings.Join(alone, " ")); err != nil {
		return err
	}
	if i == len(fields)-1 {
		return checkDays(word)
	}
	return nil
}

// checkDays refuses steps across the end of a week, for example FRI-MON/2, because the parser has
// eight days in that week.
func checkDays(word string) error {
	number := func(day string) int {
		if n, err := strconv.Atoi(day); err == nil {
			return n
		}
		return strings.Index("sunmontuewedthufrisat", strings.ToLower(day)) / 3
	}
	for element := range strings.SplitSeq(word, ",") {
		days, _, stepped := strings.Cut(element, "/")
		first, last, ranged := strings.Cut(days, "-")
		if stepped && ranged && number(first) > number(last) {
			return fmt.Errorf("%q has steps from one week into the next; list the days", element)
		}
	}
	return nil
}

// A clock computes the ticks of a cron expression, in seconds: instants in Unix time, and local
// times as the Unix time of the instant at which UTC shows the same. It loops over days and over
// changes of the clocks, never over ticks.
type clock struct {
	// one bit for each value; the highest bit of dom and dow means *
	minute, hour, dom, month, dow uint64
	hourly                        bool // all 24 hours are named
	location                      *time.Location
}

func newClock(spec *cron.SpecSchedule, location *time.Location) *clock {
	const allHours = 1<<24 - 1
	return &clock{
		minute: spec.Minute &^ star, hour: spec.Hour &^ star, dom: spec.Dom, month: spec.Month, dow: spec.Dow,
		hourly: spec.Hour&^star == allHours, location: location,
	}
}

const (
	day   = 24 * 60 * 60
	star  = 1 << 63
	never = math.MinInt64
	// apart is more than any difference between the clocks of a zone and UTC, or between two of its
	// offsets.
	apart = 2 * day
	// rarest is more than the days between any two consecutive ticks, for example from 29 February
	// 2096 to 29 February 2104.
	rarest = 8*366 + 1
)

// ceil returns the first matching local time at or after shown.
func (c *clock) ceil(shown int64) (int64, bool) {
	date, second := divide(shown, day)
	minute := (second + 59) / 60
	for range rarest {
		if c.isDay(date) {
			if hour := minute / 60; hour < 24 {
				if m := c.minute >> (minute % 60) << (minute % 60); c.hour>>hour&1 == 1 && m != 0 {
					return date*day + hour*3600 + int64(bits.TrailingZeros64(m))*60, true
				}
				if h := c.hour >> (hour + 1) << (hour + 1); h != 0 {
					return date*day + int64(bits.TrailingZeros64(h))*3600 + int64(bits.TrailingZeros64(c.minute))*60, true
				}
			}
		}
		date, minute = date+1, 0
	}
	return 0, false
}

// floor returns the last matching local time at or before shown.
func (c *clock) floor(shown int64) (int64, bool) {
	date, second := divide(shown, day)
	minute := second / 60
	for range rarest {
		if c.isDay(date) {
			hour := minute / 60
			if m := c.minute & (2<<(minute%60) - 1); c.hour>>hour&1 == 1 && m != 0 {
				return date*day + hour*3600 + int64(bits.Len64(m)-1)*60, true
			}
			if h := c.hour & (1<<hour - 1); h != 0 {
				return date*day + int64(bits.Len64(h)-1)*3600 + int64(bits.Len64(c.minute)-1)*60, true
			}
		}
		date, minute = date-1, 24*60-1
	}
	return 0, false
}

func (c *clock) matches(shown int64) bool {
	found, ok := c.ceil(shown)
	return ok && found == shown
}

// between returns how many local times match, from from on and before to.
func (c *clock) between(from, to int64) (n int64) {
	if from >= to {
		return 0
	}
	first, begin := divide(from, day)
	last, end := divide(to, day)
	for date := first; date <= last; date++ {
		if c.isDay(date) {
			n += c.inDay(day)
		}
	}
	if c.isDay(first) {
		n -= c.inDay(begin)
	}
	if c.isDay(last) {
		n -= c.inDay(day) - c.inDay(end)
	}
	return n
}

// inDay returns how many times of a matching day match before a second of the day.
func (c *clock) inDay(second int64) int64 {
	minute := (second + 59) / 60
	hour := minute / 60
	n := bits.OnesCount64(c.hour&(1<<hour-1)) * bits.OnesCount64(c.minute)
	if c.hour>>hour&1 == 1 {
		n += bits.OnesCount64(c.minute & (1<<(minute%60) - 1))
	}
	return int64(n)
}

func (c *clock) isDay(date int64) bool {
	t := time.Unix(date*day, 0).UTC()
	_, month, dayOfMonth := t.Date()
	ofMonth, ofWeek := c.dom>>dayOfMonth&1 == 1, c.dow>>t.Weekday()&1 == 1
	switch {
	case c.month>>month&1 == 0:
		return false
	case c.dom&star != 0 || c.dow&star != 0:
		return ofMonth && ofWeek
	default:
		return ofMonth || ofWeek
	}
}

// divide divides, and rounds down.
func divide(a, b int64) (quotient, remainder int64) {
	quotient, remainder = a/b, a%b
	if remainder < 0 {
		quotient, remainder = quotient-1, remainder+b
	}
	return quotient, remainder
}

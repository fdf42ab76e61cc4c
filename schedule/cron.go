package schedule

import (
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/wrap"
)

// Cron returns a rule that ticks when the clocks of a zone show a time that matches an expression.
// The expression has five fields: minute, hour, day of the month, month, day of the week (0 and 7
// are Sunday). Each is *, or a list of values, ranges and steps, for example 5, 1-5, MON-FRI, */15,
// 8-18/2. A range may wrap around, for example 22-2. A step is at most the number of the field's
// values, so */60 is valid for minutes, and */90 is not. @yearly, @monthly, @weekly, @daily and
// @hourly are expressions too. The zone is a name of the zone database, for example Europe/Berlin
// or UTC.
//
// If both days are given, a day that matches either matches, as in cron: 0 6 1 * MON ticks on the
// first of the month, and on each Monday. If one of the two begins with *, a day must match both:
// 0 6 */2 * MON ticks on Mondays that are odd days of the month.
//
// If clocks are set forward, the times that they leave out have one tick together, at the instant
// of the change. If clocks are set back, a time that comes twice has a tick the first time only.
// Rules that name all 24 hours, or whose minutes begin with *, follow elapsed time instead: times
// that are left out have no tick, and repeated hours tick twice.
//
// Err returns an error for an expression that is not valid, and for one that never ticks, such as
// 0 0 31 2 *.
func Cron(expression, zone string) Rule {
	expression = strings.Join(strings.Fields(expression), " ")
	r := Rule{text: zonePrefix + zone + " " + expression}
	clock, err := parse(expression)
	if err != nil {
		r.err = wrap.Errorf("schedule: cron expression %q: %w", expression, err)
		return r
	}
	location, err := loadZone(zone)
	if err != nil {
		r.err = wrap.Errorf("schedule: cron expression %q: zone %q: %w; "+
			"use a name of the zone database, for example Europe/Berlin or UTC", expression, zone, err)
		return r
	}
	clock.location = location
	r.clock = clock
	return r
}

// The five fields of an expression, in order.
var fields = [5]field{
	{name: "minute", first: 0, last: 59, size: 60, want: "0 to 59"},
	{name: "hour", first: 0, last: 23, size: 24, want: "0 to 23"},
	{name: "day of the month", first: 1, last: 31, size: 31, want: "1 to 31"},
	{
		name: "month", first: 1, last: 12, size: 12, want: "1 to 12 or JAN to DEC",
		names: []string{"jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"},
	},
	{
		name: "day of the week", first: 0, last: 7, size: 7, want: "0 to 7 or SUN to SAT",
		names: []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"},
	},
}

// descriptors are short names of expressions.
var descriptors = map[string]string{
	"@yearly":   "0 0 1 1 *",
	"@annually": "0 0 1 1 *",
	"@monthly":  "0 0 1 * *",
	"@weekly":   "0 0 * * 0",
	"@daily":    "0 0 * * *",
	"@midnight": "0 0 * * *",
	"@hourly":   "0 * * * *",
}

// maxExpression limits the length of an expression, in bytes, because its text is stored and
// logged.
const maxExpression = 1024

// parse parses an expression.
func parse(expression string) (*clock, error) {
	switch {
	case len(expression) > maxExpression:
		return nil, fmt.Errorf("it is too long: %d bytes; want at most %d", len(expression), maxExpression)
	case strings.HasPrefix(expression, "@every"):
		return nil, errors.New("it is an interval; use Every")
	case strings.Contains(expression, "TZ="):
		return nil, errors.New("it has a zone; pass the zone as the second argument")
	case strings.HasPrefix(expression, "@"):
		meaning, ok := descriptors[expression]
		if !ok {
			return nil, errors.New("it is unknown; " +
				"want five fields, or @yearly, @annually, @monthly, @weekly, @daily, @midnight or @hourly")
		}
		expression = meaning
	}
	words := strings.Fields(expression)
	if len(words) != len(fields) {
		return nil, fmt.Errorf("it has %d fields; "+
			"want 5: minute, hour, day of the month, month, day of the week (for seconds, use Every)", len(words))
	}
	var sets [5]uint64
	for i, word := range words {
		set, err := fields[i].parse(word)
		if err != nil {
			return nil, fmt.Errorf(
				"field %d, the %s, is %q: %w; want %s, as in *, 5, 1-5, */2, 1-5/2, or a list of these",
				i+1, fields[i].name, word, err, fields[i].want,
			)
		}
		sets[i] = set
	}
	begins := func(field int) bool { return strings.HasPrefix(words[field], "*") }
	c := &clock{
		minute: sets[0], hour: sets[1], dom: sets[2], month: sets[3], dow: sets[4],
		bothDays: begins(2) || begins(4),
		elapsed:  sets[1] == allHours || begins(0),
	}
	if !c.ticks() {
		return nil, fmt.Errorf("it never ticks: no month of field 4, %q, has a day of field 3, %q", words[3], words[2])
	}
	return c, nil
}

// A field describes one of the five fields.
type field struct {
	name, want  string
	first, last int      // the least and the greatest value that users may write
	size        int      // how many values differ: 7 is Sunday too
	names       []string // of the values from first on
}

// parse returns the values that a field names, one bit for each.
func (f field) parse(text string) (uint64, error) {
	var set uint64
	for element := range strings.SplitSeq(text, ",") {
		values, err := f.parseElement(element)
		if err != nil {
			return 0, err
		}
		set |= values
	}
	return set, nil
}

// parseElement parses one element of a list: *, a, a-b, */s, a/s or a-b/s.
func (f field) parseElement(element string) (uint64, error) {
	values, stepText, stepped := strings.Cut(element, "/")
	first, last, err := f.parseRange(values, stepped)
	if err != nil {
		return 0, err
	}
	step := 1
	if stepped {
		step, err = f.parseStep(stepText)
		if err != nil {
			return 0, err
		}
	}
	var set uint64
	for value := first; value <= last; value += step {
		set |= 1 << (f.first + (value-f.first)%f.size)
	}
	return set, nil
}

// parseRange parses *, a or a-b. A range that wraps around has a last value beyond that of the
// field.
func (f field) parseRange(text string, stepped bool) (first, last int, err error) {
	if text == "*" {
		return f.first, f.last, nil
	}
	firstText, lastText, ranged := strings.Cut(text, "-")
	first, err = f.parseValue(firstText)
	switch {
	case err != nil:
		return 0, 0, err
	case !ranged && stepped: // 20/10 means from 20 on
		return first, f.last, nil
	case !ranged:
		return first, first, nil
	}
	last, err = f.parseValue(lastText)
	if err != nil {
		return 0, 0, err
	}
	if last < first {
		last += f.size
	}
	return first, last, nil
}

// parseValue parses a number or a name.
func (f field) parseValue(text string) (int, error) {
	i := slices.Index(f.names, strings.ToLower(text))
	if i >= 0 {
		return f.first + i, nil
	}
	value, err := parseNumber(text)
	switch {
	case err != nil:
		return 0, err
	case value < f.first || value > f.last:
		return 0, fmt.Errorf("%s is out of range", text)
	}
	return value, nil
}

// parseStep parses what follows a slash. A step that is larger than the field is refused, because
// such an expression does not do what it seems to say: */90 would tick once an hour.
func (f field) parseStep(text string) (int, error) {
	step, err := parseNumber(text)
	switch {
	case err != nil:
		return 0, err
	case step == 0:
		return 0, errors.New("a step must be positive")
	case step > f.size:
		return 0, fmt.Errorf("a step of %s is more than the %d values of the field "+
			"(for longer intervals, list the values, or use Every)", text, f.size)
	}
	return step, nil
}

// parseNumber parses digits.
func parseNumber(text string) (int, error) {
	isDigit := func(r rune) bool { return '0' <= r && r <= '9' }
	if text == "" || strings.TrimFunc(text, isDigit) != "" {
		return 0, fmt.Errorf("%q is not a number, a range or a step", text)
	}
	value, err := strconv.Atoi(text)
	if err != nil {
		return math.MaxInt, nil // more digits than an int has: out of each range
	}
	return value, nil
}

// A clock computes the ticks of a cron expression, in seconds: instants in Unix time, and local
// times as the Unix time of the instant at which UTC shows the same. It loops over days and over
// changes of the clocks, never over ticks.
type clock struct {
	minute, hour, dom, month, dow uint64 // one bit for each value
	// bothDays says that a date must match dom and dow. Otherwise it must match one of them.
	bothDays bool
	// elapsed says that ticks follow elapsed time when the clocks change.
	elapsed  bool
	location *time.Location
}

const allHours = 1<<24 - 1

// ticks reports whether there is a date that matches. Each date of the calendar falls on each day
// of the week in some year, 29 February too.
func (c *clock) ticks() bool {
	if !c.bothDays {
		return true
	}
	for month, days := range [...]int{1: 31, 29, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31} {
		if c.month>>month&1 == 1 && c.dom&(2<<days-1) != 0 {
			return true
		}
	}
	return false
}

const (
	day   = 24 * 60 * 60
	never = math.MinInt64
	// apart is more than any difference between the clocks of a zone and UTC, or between two of its
	// offsets.
	apart = 2 * day
	// rarest is more than the days between any two dates that match. 29 February falls on a given day
	// of the week after 28 years, or 40 years over the end of most centuries.
	rarest = 40*366 + 1
)

// ceil returns the first matching local time at or after shown.
func (c *clock) ceil(shown int64) (int64, bool) {
	date, second := divide(shown, day)
	minute := (second + 59) / 60
	for range rarest {
		if c.isDay(date) {
			hour := minute / 60
			minutes := c.minute >> (minute % 60) << (minute % 60) // from minute on
			if hour < 24 && c.hour>>hour&1 == 1 && minutes != 0 {
				return date*day + hour*3600 + int64(bits.TrailingZeros64(minutes))*60, true
			}
			hours := c.hour >> (hour + 1) << (hour + 1) // after hour
			if hour < 24 && hours != 0 {
				first := int64(bits.TrailingZeros64(c.minute))
				return date*day + int64(bits.TrailingZeros64(hours))*3600 + first*60, true
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
			minutes := c.minute & (2<<(minute%60) - 1) // up to minute
			if c.hour>>hour&1 == 1 && minutes != 0 {
				return date*day + hour*3600 + int64(bits.Len64(minutes)-1)*60, true
			}
			hours := c.hour & (1<<hour - 1) // before hour
			if hours != 0 {
				return date*day + int64(bits.Len64(hours)-1)*3600 + int64(bits.Len64(c.minute)-1)*60, true
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
	case c.bothDays:
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

package schedule

import (
	"archive/zip"
	"encoding/binary"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgleases/pgleases/internal/testkit"
)

var everyZone = flag.Bool("every-zone", false,
	"compare with the oracle all zones of Go's zone database, from 1880 on; takes minutes")

// The oracle is slow and obvious: it reads a clock minute for minute, and remembers all that it has shown. It shares nothing with the
// implementation, not even the parser or what package time knows of changes of the clocks.
type oracle struct {
	fields   [5]map[int]bool
	bothDays bool // a day must match both of its fields
	elapsed  bool // left out times have no tick, and repeated ones have two
}

func newOracle(expression string) oracle {
	names := map[string]int{"MON": 1, "TUE": 2, "THU": 4, "SAT": 6, "SUN": 0, "JAN": 1, "MAR": 3, "DEC": 12}
	number := func(text string) int {
		if n, ok := names[strings.ToUpper(text)]; ok {
			return n
		}
		n, err := strconv.Atoi(text)
		if err != nil {
			panic(err)
		}
		return n
	}
	var o oracle
	words := strings.Fields(expression)
	for i, limits := range [5][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}} {
		o.fields[i] = make(map[int]bool)
		for _, element := range strings.Split(words[i], ",") {
			values, step, stepped := strings.Cut(element, "/")
			first, last, ranged := strings.Cut(values, "-")
			from, to, by := limits[0], limits[1], 1
			if first != "*" {
				from = number(first)
				if ranged {
					to = number(last)
				} else if !stepped {
					to = from
				}
			}
			if stepped {
				by = number(step)
			}
			for n, steps := from, 0; ; n, steps = n+1, steps+1 {
				if n > limits[1] || i == 4 && from > to && n == 7 {
					n = limits[0] // it wraps around, and Sunday counts once
				}
				if steps%by == 0 {
					o.fields[i][n] = true
				}
				if n == to {
					break
				}
			}
		}
	}
	o.fields[4][0] = o.fields[4][0] || o.fields[4][7]
	o.bothDays = words[2][0] == '*' || words[4][0] == '*'
	o.elapsed = words[0][0] == '*' || len(o.fields[1]) == 24
	return o
}

func (o oracle) names(clock time.Time) bool {
	ofDay := o.fields[0][clock.Minute()] && o.fields[1][clock.Hour()]
	if clock.Second() != 0 || !ofDay || !o.fields[3][int(clock.Month())] {
		return false
	}
	ofMonth, ofWeek := o.fields[2][clock.Day()], o.fields[4][int(clock.Weekday())]
	if o.bothDays {
		return ofMonth && ofWeek
	}
	return ofMonth || ofWeek
}

// isPossible reports whether a date matches at all.
func (o oracle) isPossible() bool {
	for date := time.Date(2024, 1, 1, 0, 0, 0, 0, time.UTC); date.Year() == 2024; date = date.AddDate(0, 0, 1) {
		if o.fields[3][int(date.Month())] && o.fields[2][date.Day()] {
			return true
		}
	}
	return !o.bothDays
}

// ticks returns the ticks of all expressions from an instant on, before another.
func ticks(oracles []oracle, location *time.Location, from, to time.Time, step time.Duration) [][]time.Time {
	all := make([][]time.Time, len(oracles))
	handled := make(map[int64]bool) // what the clock has shown or left out
	var before time.Time
	for instant := from; instant.Before(to); instant = instant.Add(step) {
		clock := reading(instant.In(location))
		first := !handled[clock.Unix()]
		handled[clock.Unix()] = true
		var leftOut []time.Time
		if !before.IsZero() {
			for c := before.Add(step); c.Before(clock); c = c.Add(step) {
				if !handled[c.Unix()] {
					leftOut = append(leftOut, c)
					handled[c.Unix()] = true
				}
			}
		}
		before = clock
		for i, o := range oracles {
			tick := o.names(clock)
			if !o.elapsed {
				tick = tick && first || slices.ContainsFunc(leftOut, o.names)
			}
			if tick {
				all[i] = append(all[i], instant)
			}
		}
	}
	return all
}

// reading returns what a clock shows, as the time at which UTC shows it.
func reading(clock time.Time) time.Time {
	_, seconds := clock.Zone()
	return clock.UTC().Truncate(time.Second).Add(time.Duration(seconds) * time.Second)
}

// changes returns the instants at which the clocks of a zone change.
func changes(location *time.Location, from, to time.Time) (all []time.Time) {
	offset := func(t time.Time) int {
		_, seconds := t.In(location).Zone()
		return seconds
	}
	for t := from; t.Before(to); t = t.Add(time.Hour) {
		before, after := t, t.Add(time.Hour)
		if offset(before) == offset(after) {
			continue
		}
		for after.Sub(before) > time.Second {
			if middle := before.Add(after.Sub(before) / 2).Truncate(time.Second); offset(middle) == offset(after) {
				after = middle
			} else {
				before = middle
			}
		}
		all = append(all, after)
	}
	return all
}

// Expressions that name what clocks leave out and repeat, at midnight, at 1, 2 and 3, in half hours, for whole days.
var hardExpressions = []string{
	"0 0 * * *", "30 0 * * *", "0 1 * * *", "30 1 * * *", "0 2 * * *", "30 2 * * *", "0 3 * * *",
	"59 23 * * *", "1 0 * * *",
	"*/30 1-2 * * *", "15,45 0-3 * * *", "*/20 0-4 * * SUN", "0 2 1 * MON", "0 0 1 * *", "30 12 30 12 *",
	"5 0-22 * * *", "7 */2 * * *", "*/15 0-6 * * *", "*/40,7 2 * * *", "0 0 31 DEC *",
	"0 0-3,21-23 * MAR-DEC *", "0 22-2/2 * * *", "30 1 */2 * THU", "0 0 1-7 * */7",
	"* * * * *", "0 * * * *", "15,45 * * * *", "20 * 1-7 * 0", "20 * * * 6", "40 * 31 10 *",
}

type hardZone struct {
	name     string
	from, to int
}

// Zones that change at midnight, by half an hour, by two hours, four times a year, by a whole day, for good, or to another zone's time; with years
// in which they do.
var hardZones = []hardZone{
	{"America/Santiago", 2018, 2024},
	{"Africa/Cairo", 2010, 2014},
	{"America/Havana", 2011, 2014},
	{"Asia/Beirut", 2022, 2024},
	{"Australia/Lord_Howe", 2023, 2025},
	{"America/New_York", 2025, 2027},
	{"Europe/Berlin", 2025, 2027},
	{"Antarctica/Troll", 2025, 2027},
	{"Pacific/Apia", 2010, 2013},
	{"Africa/Casablanca", 2017, 2020},
	{"Asia/Pyongyang", 2015, 2019},
	{"America/Caracas", 2007, 2017},
	{"Europe/Volgograd", 2018, 2021},
	{"America/Metlakatla", 2015, 2020},
	{"America/Ciudad_Juarez", 2022, 2024},
	{"America/Indiana/Winamac", 2006, 2008},
}

func TestCronTicksMatchOracle(t *testing.T) {
	t.Parallel()
	year := func(n int) time.Time { return time.Date(n, 1, 1, 0, 0, 0, 0, time.UTC) }
	test := func(name string, location *time.Location, from, to time.Time) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			all := changes(location, from, to)
			if !*everyZone {
				if len(all) == 0 {
					t.Fatal("its clocks do not change")
				}
				// From 2039 on, zone data have a rule instead of a list.
				all = append(all, changes(location, year(2039), year(2041))...)
			}
			// Nothing changes in 2041, but package time returns ends of years.
			for _, change := range testkit.Some(append(all, year(2041))...) {
				compare(t, location, change, hardExpressions)
			}
			t.Logf("%d changes", len(all))
		})
	}
	zones := goZones(t)
	if *everyZone {
		for name, location := range zones {
			test(name, location, year(1880), year(2041))
		}
		return
	}
	for _, zone := range hardZones {
		test(zone.name, zones[zone.name], year(zone.from), year(zone.to))
	}
}

// compare compares two days before and after an instant; where it takes looking at each second, some hours, unless the change is large.
func compare(t rapid.TB, location *time.Location, change time.Time, expressions []string) {
	t.Helper()
	offset := func(instant time.Time) time.Duration {
		_, seconds := instant.In(location).Zone()
		return time.Duration(seconds) * time.Second
	}
	reach, step := 48*time.Hour, time.Minute
	first, end := change.Add(-2*reach).Truncate(time.Minute), change.Add(reach)
	for instant := first; instant.Before(end); instant = instant.Add(time.Hour) {
		if offset(instant)%time.Minute != 0 { // before there were zones
			step = time.Second
		}
	}
	if step == time.Second && (offset(change)-offset(change.Add(-time.Second))).Abs() < time.Hour {
		reach = 3 * time.Hour
	}
	from, to := change.Add(-reach).Truncate(time.Minute), change.Add(reach).Truncate(time.Minute)
	oracles := make([]oracle, len(expressions))
	for i, expression := range expressions {
		oracles[i] = newOracle(expression)
	}
	for i, all := range ticks(oracles, location, from.Add(-reach), to, step) {
		first, _ := slices.BinarySearchFunc(all, from, time.Time.Compare)
		want := all[first:]
		r := ruleIn(t, expressions[i], location)
		if got := following(r, from, to); !slices.Equal(got, want) {
			t.Fatalf("%s in %v around %v: %s", expressions[i], location, change, difference(got, want))
		}
		if got := preceding(r, from, to); !slices.Equal(got, want) {
			t.Fatalf("%s in %v around %v, backwards: %s", expressions[i], location, change, difference(got, want))
		}
		random := rand.New(rand.NewPCG(uint64(change.Unix()), uint64(i)))
		some := func() time.Time { return from.Add(time.Duration(random.Int64N(int64(2 * reach)))) }
		for range 5 {
			a, b := some(), some()
			var between []time.Time
			for _, tick := range want {
				if tick.After(a) && !tick.After(b) {
					between = append(between, tick)
				}
			}
			got := r.ticksPassed(time.Time{}, Tick{At: a}, b)
			var expected tickCount
			if n := len(between); n > 0 {
				expected = tickCount{int64(n), r.clock.tick(between[0].Unix()), r.clock.tick(between[n-1].Unix())}
			}
			if got != expected {
				t.Fatalf("%s in %v after %v up to %v: %v, want %v", expressions[i], location, a, b, got, expected)
			}
		}
	}
}

// difference returns the first of two lists' ticks that is in only one of them.
func difference(got, want []time.Time) string {
	for i, tick := range want {
		if i == len(got) || got[i].After(tick) {
			return fmt.Sprintf("no tick at %v", tick)
		}
		if got[i].Before(tick) {
			return fmt.Sprintf("a tick at %v", got[i])
		}
	}
	return fmt.Sprintf("a tick at %v", got[len(want)])
}

func ruleIn(t rapid.TB, expression string, location *time.Location) Rule {
	t.Helper()
	c := testkit.Must(parse(expression))(t)
	c.location = location
	return Rule{text: expression, clock: c}
}

// following returns the ticks from an instant on, before another, each found from the one before.
func following(r Rule, from, to time.Time) (all []time.Time) {
	tick, ok := r.Next(time.Time{}, Tick{At: from.Add(-1)})
	for ok && tick.At.Before(to) {
		all = append(all, tick.At)
		tick, ok = r.Next(time.Time{}, tick)
	}
	return all
}

// preceding finds the same from the end.
func preceding(r Rule, from, to time.Time) (all []time.Time) {
	after := Tick{At: from.Add(-1)}
	tick, ok := r.previous(time.Time{}, after, to.Add(-1))
	for ok {
		all = append(all, tick.At)
		tick, ok = r.previous(time.Time{}, after, tick.At.Add(-1))
	}
	slices.Reverse(all)
	return all
}

func zone(t rapid.TB, name string) *time.Location {
	t.Helper()
	return testkit.Must(time.LoadLocation(name))(t)
}

// goZones returns the zones that come with Go, those that are the same once, and those of hardZones.
func goZones(t *testing.T) map[string]*time.Location {
	t.Helper()
	root := testkit.Must(exec.CommandContext(t.Context(), "go", "env", "GOROOT").Output())(t)
	name := filepath.Join(strings.TrimSpace(string(root)), "lib", "time", "zoneinfo.zip")
	files := testkit.Must(zip.OpenReader(name))(t)
	defer files.Close()
	zones, known := make(map[string]*time.Location), make(map[string]bool)
	for _, file := range files.File {
		if strings.HasSuffix(file.Name, "/") {
			continue
		}
		content := testkit.Must(file.Open())(t)
		data := testkit.Must(io.ReadAll(content))(t)
		isHard := slices.ContainsFunc(hardZones, func(z hardZone) bool { return z.name == file.Name })
		if known[string(data)] && !isHard {
			continue
		}
		known[string(data)] = true
		zones[file.Name] = testkit.Must(time.LoadLocationFromTZData(file.Name, data))(t)
	}
	if len(zones) < 300 {
		t.Fatalf("only %d zones", len(zones))
	}
	return zones
}

// No zone has done yet what these do: changes of up to a day forward and back, within minutes.
func TestCronTicksMatchOracleInWildZones(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		expressions := rapid.SliceOfN(rapid.Custom(drawExpression), 5, 5).Draw(t, "expressions")
		location := drawZone(t, "zone")
		compare(t, location, start.Add(24*time.Hour), expressions)
	})
}

// A zone's data is changed by laws, and hosts get to know of it one after the other.
func TestLocalTimesRiseThoughHostsDifferInTheirZoneData(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		expression := rapid.Custom(drawExpression).Draw(t, "expression")
		hosts := make([]Rule, 3)
		for i := range hosts {
			hosts[i] = ruleIn(t, expression, drawZone(t, fmt.Sprint("zone ", i)))
		}
		last := Tick{At: start.Add(-24 * time.Hour)}
		for range 50 {
			host := rapid.SampledFrom(hosts).Draw(t, "host")
			next, ok := host.Next(time.Time{}, last)
			if !ok {
				return
			}
			if !next.At.After(last.At) {
				t.Fatalf("%v comes after %v", next, last)
			}
			if !host.clock.elapsed && !last.Local.IsZero() && !reading(next.Local).After(reading(last.Local)) {
				t.Fatalf("the clocks show %v, after %v", next.Local, last.Local)
			}
			due := host.ticksDue(time.Time{}, last, next.At, MissedAll, 0)
			if len(due.Run) != 1 || due.Run[0] != next || due.Missed.Count != 0 {
				t.Fatalf("after %v, %v is next, and %v is due then", last, next, due)
			}
			last = next
			last.Local = reading(last.Local) // as a database has it that keeps no zone
		}
	})
}

func drawExpression(t *rapid.T) string {
	possible := func(text string) bool { return newOracle(text).isPossible() }
	return rapid.Custom(drawFields).Filter(possible).Draw(t, "expression")
}

func drawFields(t *rapid.T) string {
	words := make([]string, 5)
	for i, limits := range [5][2]int{{0, 59}, {0, 23}, {1, 31}, {1, 12}, {0, 7}} {
		value := rapid.IntRange(limits[0], limits[1])
		words[i] = rapid.OneOf(
			rapid.Just("*"), rapid.Just("*"),
			rapid.Custom(func(t *rapid.T) string { return fmt.Sprint(value.Draw(t, "value")) }),
			rapid.Custom(func(t *rapid.T) string {
				values := rapid.SliceOfNDistinct(value, 2, 4, rapid.ID[int]).Draw(t, "values")
				return strings.Trim(strings.ReplaceAll(fmt.Sprint(values), " ", ","), "[]")
			}),
			rapid.Custom(func(t *rapid.T) string {
				a, b := value.Draw(t, "first"), value.Draw(t, "last")
				if step := rapid.IntRange(0, 5).Draw(t, "step of range"); step > 0 {
					return fmt.Sprintf("%d-%d/%d", a, b, step)
				}
				return fmt.Sprintf("%d-%d", a, b)
			}),
			rapid.Custom(func(t *rapid.T) string {
				return fmt.Sprintf("%d/%d", value.Draw(t, "from"), rapid.IntRange(1, 7).Draw(t, "step"))
			}),
			rapid.Custom(func(t *rapid.T) string { return fmt.Sprintf("*/%d", rapid.IntRange(2, 5).Draw(t, "step")) }),
		).Draw(t, "field")
	}
	return strings.Join(words, " ")
}

// start is in another year than the present: package time goes by the rule for all of a span around the present, also before the last change.
var start = time.Date(2013, 2, 26, 0, 0, 0, 0, time.UTC)

// drawZone draws a zone whose clocks change some times in the days after start, by a list, and by a rule for the time after the last change of
// the list.
func drawZone(t *rapid.T, name string) *time.Location {
	quarters := rapid.IntRange(-12*4, 14*4)
	offsets := []int{quarters.Draw(t, "offset") * 15 * 60}
	var at []int64
	instant := start
	for range rapid.IntRange(0, 4).Draw(t, "changes") {
		instant = instant.Add(time.Duration(rapid.IntRange(1, 2000).Draw(t, "minutes")) * time.Minute)
		at = append(at, instant.Unix())
		offsets = append(offsets, quarters.Draw(t, "offset")*15*60)
	}
	rule := ""
	if rapid.Bool().Draw(t, "rule") {
		hours := rapid.IntRange(-12, 12)
		date, hour := rapid.IntRange(56, 63), rapid.IntRange(0, 23) // J57 is 26 February
		rule = fmt.Sprintf("XXX%dYYY%d,J%d/%d,J%d/%d",
			hours.Draw(t, "standard"), hours.Draw(t, "summer"),
			date.Draw(t, "first date"), hour.Draw(t, "first hour"),
			date.Draw(t, "last date"), hour.Draw(t, "last hour"))
	}
	return testkit.Must(zoneOf(name, at, offsets, rule))(t)
}

// zoneOf makes a zone whose clocks change at instants, from one offset to the next, and then by a rule.
func zoneOf(name string, at []int64, offsets []int, rule string) (*time.Location, error) {
	// The format of RFC 9636, version 2: an empty block of version 1, and then all.
	header := append([]byte("TZif2"), make([]byte, 15)...)
	data := append(slices.Clone(header), make([]byte, 6*4)...)
	data = append(data, header...)
	for _, n := range []int{0, 0, 0, len(at), len(offsets), 4} {
		data = binary.BigEndian.AppendUint32(data, uint32(n))
	}
	for _, instant := range at {
		data = binary.BigEndian.AppendUint64(data, uint64(instant))
	}
	for i := range at {
		data = append(data, byte(i+1))
	}
	for _, offset := range offsets {
		data = append(binary.BigEndian.AppendUint32(data, uint32(offset)), 0, 0)
	}
	return time.LoadLocationFromTZData(name, append(data, "XXX\x00\n"+rule+"\n"...))
}

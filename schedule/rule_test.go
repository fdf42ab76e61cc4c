package schedule

import (
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/pgleases/pgleases/internal/testkit"
)

// at reads an instant: 2026-06-01 12:00:00 in UTC, or with an offset, such as 2026-06-01 12:00:00+02:00.
func at(t rapid.TB, text string) time.Time {
	t.Helper()
	for _, form := range []string{"2006-01-02 15:04:05", "2006-01-02 15:04:05Z07:00"} {
		if instant, err := time.Parse(form, text); err == nil {
			return instant.UTC()
		}
	}
	t.Fatalf("%q is not an instant", text)
	return time.Time{}
}

// instants returns what the ticks are in UTC, with seconds where they have some.
func instants(ticks []Tick) (texts []string) {
	for _, tick := range ticks {
		texts = append(texts, strings.TrimSuffix(tick.At.Format("2006-01-02 15:04:05.999999"), ":00"))
	}
	return texts
}

func TestCronTicksAsTheClocksShow(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		expression, after string
		want              []string
	}{
		{"*/20 * * * *", "2026-06-01 12:00:00", []string{"2026-06-01 12:20", "2026-06-01 12:40", "2026-06-01 13:00"}},
		{"*/20 * * * *", "2026-06-01 11:59:59", []string{"2026-06-01 12:00", "2026-06-01 12:20"}},
		{"5,10-12 8-18/4 * * *", "2026-06-01 12:11:30",
			[]string{"2026-06-01 12:12", "2026-06-01 16:05", "2026-06-01 16:10"}},
		{"0 22-2/2 * * *", "2026-06-01 12:00:00",
			[]string{"2026-06-01 22:00", "2026-06-02 00:00", "2026-06-02 02:00", "2026-06-02 22:00"}},
		{"0 0 31 * *", "2026-03-31 00:00:00", []string{"2026-05-31 00:00", "2026-07-31 00:00"}},
		{"0 0 1 nov-jan *", "2026-06-01 00:00:00",
			[]string{"2026-11-01 00:00", "2026-12-01 00:00", "2027-01-01 00:00", "2027-11-01 00:00"}},
		// The first of the month, and Mondays; not only Mondays that are the first.
		{"0 6 1 * MON", "2026-06-29 06:00:00", []string{"2026-07-01 06:00", "2026-07-06 06:00", "2026-07-13 06:00"}},
		// A field that begins with * restricts the other one, as in cron.
		{"0 6 */1 * MON", "2026-06-29 06:00:00", []string{"2026-07-06 06:00", "2026-07-13 06:00"}},
		{"0 6 */2 * MON", "2026-06-29 06:00:00", []string{"2026-07-13 06:00", "2026-07-27 06:00", "2026-08-03 06:00"}},
		{"0 6 */31,1-7 * MON", "2026-06-29 06:00:00",
			[]string{"2026-07-06 06:00", "2026-08-03 06:00", "2026-09-07 06:00"}},
		{"0 6 1-7 * */7", "2026-06-29 06:00:00", []string{"2026-07-05 06:00", "2026-08-02 06:00"}},
		{"0 6 1 * 3,*", "2026-06-29 06:00:00", []string{"2026-06-30 06:00", "2026-07-01 06:00", "2026-07-02 06:00"}},
		{"0 6 * * MON", "2026-06-29 06:00:00", []string{"2026-07-06 06:00", "2026-07-13 06:00"}},
		{"0 6 1 * *", "2026-06-29 06:00:00", []string{"2026-07-01 06:00", "2026-08-01 06:00"}},
		{"0 6 * * 7", "2026-06-29 06:00:00", []string{"2026-07-05 06:00", "2026-07-12 06:00"}},
		{"0 6 * * 0", "2026-06-29 06:00:00", []string{"2026-07-05 06:00", "2026-07-12 06:00"}},
		{"0 6 * * fri-Mon", "2026-06-29 06:00:00", []string{
			"2026-07-03 06:00", "2026-07-04 06:00", "2026-07-05 06:00", "2026-07-06 06:00", "2026-07-10 06:00",
		}},
		{"0 6 * * MON-FRI/2", "2026-06-29 06:00:00",
			[]string{"2026-07-01 06:00", "2026-07-03 06:00", "2026-07-06 06:00"}},
		{"0 6 * * fri-mon/2", "2026-06-29 06:00:00",
			[]string{"2026-07-03 06:00", "2026-07-05 06:00", "2026-07-10 06:00"}},
		{"0 6 * * THU,tHu", "2026-06-29 06:00:00", []string{"2026-07-02 06:00", "2026-07-09 06:00"}},
		{"*/60 */24 * * *", "2026-06-29 06:00:00", []string{"2026-06-30 00:00", "2026-07-01 00:00"}},
		{"10-12/3 12 1/31 * *", "2026-06-29 06:00:00", []string{"2026-07-01 12:10", "2026-08-01 12:10"}},
		{"007 12 * * *", "2026-06-29 06:00:00", []string{"2026-06-29 12:07"}},
		{"@hourly", "2026-06-29 06:00:00", []string{"2026-06-29 07:00", "2026-06-29 08:00"}},
		{"@daily", "2026-06-29 06:00:00", []string{"2026-06-30 00:00", "2026-07-01 00:00"}},
		{"@midnight", "2026-06-29 06:00:00", []string{"2026-06-30 00:00", "2026-07-01 00:00"}},
		{"@weekly", "2026-06-29 06:00:00", []string{"2026-07-05 00:00", "2026-07-12 00:00"}},
		{"@monthly", "2026-06-29 06:00:00", []string{"2026-07-01 00:00", "2026-08-01 00:00"}},
		{"@yearly", "2026-06-29 06:00:00", []string{"2027-01-01 00:00", "2028-01-01 00:00"}},
		{"@annually", "2026-06-29 06:00:00", []string{"2027-01-01 00:00", "2028-01-01 00:00"}},
		// 2100 is no leap year.
		{"0 0 29 2 *", "2092-06-01 00:00:00", []string{"2096-02-29 00:00", "2104-02-29 00:00", "2108-02-29 00:00"}},
		// Before 1970 and far from now.
		{"30 12 * * *", "0001-01-01 00:00:00", []string{"0001-01-01 12:30", "0001-01-02 12:30"}},
		{"30 12 1 1 *", "9998-06-01 00:00:00", []string{"9999-01-01 12:30"}},
		// The longest time between two ticks: 29 February falls on a Sunday after 28 or 40 years.
		{"0 0 29 2 */7", "2026-01-01 00:00:00",
			[]string{"2032-02-29 00:00", "2060-02-29 00:00", "2088-02-29 00:00", "2128-02-29 00:00"}},
		// No month has such a day, but Mondays.
		{"0 0 30 2 MON", "2026-01-01 00:00:00", []string{"2026-02-02 00:00", "2026-02-09 00:00"}},
	} {
		r := Cron(test.expression, "UTC")
		if err := r.Err(); err != nil {
			t.Error(err)
			continue
		}
		got := r.Preview(time.Time{}, Tick{At: at(t, test.after)}, max(1, len(test.want)))
		if !slices.Equal(instants(got), test.want) {
			t.Errorf("%s after %s: %q, want %q", test.expression, test.after, instants(got), test.want)
		}
	}
}

func TestTicksInUTCAndZone(t *testing.T) {
	local := time.Local
	t.Cleanup(func() { time.Local = local })
	for _, name := range []string{"America/New_York", "Asia/Kathmandu", "UTC"} {
		time.Local = zone(t, name)
		noon := at(t, "2026-06-01 12:00:00")
		tick, ok := Cron("30 1 * * *", "Europe/Berlin").Next(time.Time{}, Tick{At: noon.Local()})
		want := Tick{At: at(t, "2026-06-01 23:30:00"), Local: at(t, "2026-06-01 23:30:00").In(zone(t, "Europe/Berlin"))}
		if !ok || tick.At != want.At || tick.Local.Format(time.RFC1123Z) != want.Local.Format(time.RFC1123Z) {
			t.Errorf("in %s the next tick is %v", name, tick)
		}
	}
}

func TestEveryCountsElapsedTimeFromItsAnchor(t *testing.T) {
	t.Parallel()
	const quarter, anchor = 15 * time.Minute, "2026-06-01 12:01:07"
	for _, test := range []struct {
		d             time.Duration
		anchor, after string
		want          []string
	}{
		{quarter, anchor, "2026-06-01 12:01:07", []string{"2026-06-01 12:16:07", "2026-06-01 12:31:07"}},
		{quarter, anchor, "2026-06-01 12:16:06", []string{"2026-06-01 12:16:07", "2026-06-01 12:31:07"}},
		{quarter, anchor, "2026-06-01 12:16:07", []string{"2026-06-01 12:31:07"}},
		{quarter, anchor, "2026-06-01 11:59:00", []string{"2026-06-01 12:01:07", "2026-06-01 12:16:07"}},
		{quarter, anchor, "2026-06-01 11:46:07", []string{"2026-06-01 12:01:07"}},
		{quarter, anchor, "2026-06-01 11:46:06", []string{"2026-06-01 11:46:07"}},
		{1500 * time.Millisecond, "2026-06-01 12:00:00", "2026-06-01 12:00:02",
			[]string{"2026-06-01 12:00:03", "2026-06-01 12:00:04.5"}},
		{time.Second, "0001-01-01 00:00:00", "9998-06-01 12:00:00", []string{"9998-06-01 12:00:01"}},
		// The clocks of nearly all places change in between.
		{23 * time.Hour, "2026-03-28 00:00:00", "2026-03-28 00:00:00",
			[]string{"2026-03-28 23:00", "2026-03-29 22:00"}},
	} {
		r := Every(test.d)
		if err := r.Err(); err != nil {
			t.Error(err)
			continue
		}
		got := r.Preview(at(t, test.anchor), Tick{At: at(t, test.after)}, len(test.want))
		if !slices.Equal(instants(got), test.want) {
			t.Errorf("each %v from %s, after %s: %q, want %q",
				test.d, test.anchor, test.after, instants(got), test.want)
		}
		for _, tick := range got {
			if tick.Local != tick.At {
				t.Errorf("%v has another local time", tick)
			}
		}
	}
}

func TestInvalidRuleErrors(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		rule Rule
		want []string
	}{
		{Rule{}, []string{"empty", "Cron or Every"}},
		{Every(0), []string{"Every(0s)", "at least 1s"}},
		{Every(-time.Hour), []string{"Every(-1h0m0s)", "at least 1s"}},
		{Every(time.Second - 1), []string{"Every(999.999999ms)", "at least 1s"}},
		{Every(time.Second + 1), []string{"Every(1.000000001s)", "whole microseconds"}},
		{Every(24 * time.Hour), []string{"Every(24h0m0s)", "below 24h", "elapsed time", "drift", "use Cron"}},
		{Cron("", "UTC"), []string{`""`, "0 fields; want 5"}},
		{Cron("* * * *", "UTC"), []string{`"* * * *"`, "4 fields; want 5: minute, hour"}},
		{Cron("0 * * * * *", "UTC"), []string{`"0 * * * * *"`, "6 fields; want 5", "for seconds, use Every"}},
		{Cron("60 * * * *", "UTC"),
			[]string{`"60 * * * *"`, `field 1, the minute, is "60"`, "60 is out of range", "want 0 to 59"}},
		{Cron("0 24 * * *", "UTC"), []string{`field 2, the hour, is "24"`, "want 0 to 23"}},
		{Cron("0 0 0 * *", "UTC"),
			[]string{`field 3, the day of the month, is "0"`, "0 is out of range", "want 1 to 31"}},
		{Cron("0 0 L * *", "UTC"), []string{`field 3, the day of the month, is "L"`}},
		{Cron("0 0 ? * *", "UTC"), []string{`field 3, the day of the month, is "?"`, "as in *,"}},
		{Cron("0 0 * foo *", "UTC"),
			[]string{`field 4, the month, is "foo"`, `"foo" is not a number`, "1 to 12 or JAN to DEC"}},
		{Cron("0 0 * 0-3 *", "UTC"), []string{`field 4, the month, is "0-3"`, "1 to 12"}},
		{Cron("0 0 * * JAN", "UTC"), []string{`field 5, the day of the week, is "JAN"`, "0 to 7 or SUN to SAT"}},
		{Cron("0 0 * * 8", "UTC"), []string{`field 5, the day of the week, is "8"`}},
		{Cron("0 0 * * MON#1", "UTC"), []string{`field 5, the day of the week, is "MON#1"`}},
		{Cron("0 0 * * MONDAY", "UTC"), []string{`"MONDAY" is not a number`, "SUN to SAT"}},
		{Cron("70/5 * * * *", "UTC"), []string{`field 1, the minute, is "70/5"`, "70 is out of range"}},
		{Cron("0 61/1 * * *", "UTC"), []string{`field 2, the hour, is "61/1"`, "61 is out of range"}},
		{Cron("0 0 40-5 * *", "UTC"), []string{`field 3, the day of the month, is "40-5"`, "40 is out of range"}},
		{Cron("75-10 * * * *", "UTC"), []string{`field 1, the minute, is "75-10"`, "75 is out of range"}},
		{Cron("0 0 30 2 *", "UTC"), []string{`"0 0 30 2 *"`, "never ticks", `field 4, "2"`, `field 3, "30"`}},
		{Cron("0 0 31 APR,6,9,11 *", "UTC"), []string{"never ticks", `"APR,6,9,11"`}},
		{Cron("0 0 30 2 */2", "UTC"), []string{"never ticks"}},
		{Cron("*/0 * * * *", "UTC"), []string{`field 1, the minute, is "*/0"`, "a step must be positive"}},
		{Cron("*/90 * * * *", "UTC"),
			[]string{`field 1, the minute, is "*/90"`, "a step of 90 is more than the 60 values", "use Every"}},
		{Cron("0 */25 * * *", "UTC"), []string{`field 2, the hour, is "*/25"`, "more than the 24 values"}},
		{Cron("0 0 * * */8", "UTC"), []string{`field 5, the day of the week, is "*/8"`, "more than the 7 values"}},
		{Cron("*/ * * * *", "UTC"), []string{`"" is not a number, a range or a step`}},
		{Cron("*-5 * * * *", "UTC"), []string{`"*" is not a number, a range or a step`}},
		{Cron("1,,2 * * * *", "UTC"), []string{`field 1, the minute, is "1,,2": "" is not`}},
		{Cron("1-2-3 * * * *", "UTC"), []string{`"2-3" is not`}},
		{Cron("+1 * * * *", "UTC"), []string{`"+1" is not`}},
		{Cron("99999999999999999999 * * * *", "UTC"), []string{`field 1, the minute, is "99999999999999999999"`}},
		{Cron(strings.Repeat("1,", 1000)+"1 * * * *", "UTC"), []string{"too long: 2009 bytes", "at most 1024"}},
		{Cron("@reboot", "UTC"), []string{`"@reboot"`, "@daily"}},
		{Cron("@Daily", "UTC"), []string{`"@Daily"`, "@daily"}},
		{Cron("@every 5s", "UTC"), []string{`"@every 5s"`, "use Every"}},
		{Cron("CRON_TZ=UTC 0 0 * * *", "UTC"),
			[]string{`"CRON_TZ=UTC 0 0 * * *"`, "has a zone; pass the zone as the second argument"}},
		{Cron("TZ=UTC @daily", "UTC"), []string{"has a zone; pass the zone as the second argument"}},
		{Cron("0 0 * * *", "Nowhere/AtAll"), []string{
			`"0 0 * * *"`, `zone "Nowhere/AtAll"`, "unknown time zone", "Europe/Berlin or UTC", "time/tzdata",
		}},
		{Cron("0 0 * * *", ""), []string{`zone ""`, "differs between hosts", "Europe/Berlin or UTC"}},
		{Cron("0 0 * * *", "Local"), []string{`zone "Local"`, "differs between hosts"}},
		{Cron("0 0 * * *", "localtime"), []string{`zone "localtime"`, "differs between hosts"}},
		{Cron("0 0 * * *", "./Posixrules"), []string{"differs between hosts"}},
		{Cron("0 0 * * *", "right/Europe/Berlin"), []string{"counts leap seconds"}},
		{Cron("0 0 * * *", "../../etc/passwd"), []string{`zone "../../etc/passwd"`}},
	} {
		err := test.rule.Err()
		if err == nil {
			t.Errorf("%v is not refused", test.rule)
			continue
		}
		for _, want := range append(test.want, "schedule: ") {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("the error of %v is %q, without %q", test.rule, err, want)
			}
		}
		now := at(t, "2026-06-01 12:00:00")
		next, ok := test.rule.Next(now, Tick{At: now})
		due := test.rule.ticksDue(now, Tick{At: now}, now.AddDate(1, 0, 0), MissedAll, 0)
		if ok || next != (Tick{}) || len(due.Run) != 0 || due.Missed.Count != 0 {
			t.Errorf("%v has ticks: %v, %v", test.rule, next, due)
		}
		again, err := Parse(test.rule.String())
		if err == nil || again.Err() == nil || again.Err().Error() != err.Error() {
			t.Errorf("%q is parsed: %v", test.rule.String(), again)
		}
	}
}

func TestRuleTextIsStored(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ got, want string }{ // a change of these makes stored rules new ones
		{Cron("0 2 * * *", "Europe/Berlin").String(), "CRON_TZ=Europe/Berlin 0 2 * * *"},
		{Cron("  0\t2 *  * * ", "UTC").String(), "CRON_TZ=UTC 0 2 * * *"},
		{Cron("@daily", "UTC").String(), "CRON_TZ=UTC @daily"},
		{Every(90 * time.Second).String(), "@every 1m30s"},
		{parsed(t, "0 2 * * *").String(), "CRON_TZ=UTC 0 2 * * *"},
		{parsed(t, "@every 90s").String(), "@every 1m30s"},
	} {
		if test.got != test.want {
			t.Errorf("it is %q, not %q", test.got, test.want)
		}
	}
	for text, want := range map[string]string{
		"@every": "use Every", "@every day": `"day" is not a duration`, "CRON_TZ=UTC": "0 fields",
	} {
		if r, err := Parse(text); err == nil || r.Err() == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, %v", text, r, err)
		}
	}
}

func parsed(t rapid.TB, text string) Rule {
	t.Helper()
	return testkit.Must(Parse(text))(t)
}

func drawRule(t *rapid.T) Rule {
	if rapid.Bool().Draw(t, "interval") {
		return Every(time.Duration(rapid.Int64Range(1e6, 24*3600*1e6-1).Draw(t, "microseconds")) * time.Microsecond)
	}
	names := rapid.SampledFrom([]string{"@hourly", "@daily", "@weekly", "@monthly", "@yearly"})
	expression := rapid.OneOf(rapid.Custom(drawExpression), names)
	return Cron(expression.Draw(t, "expression"), rapid.SampledFrom(hardZones).Draw(t, "zone").name)
}

func drawInstant(t *rapid.T, name string) time.Time {
	return time.UnixMicro(rapid.Int64Range(-1e15, 4e15).Draw(t, name)).UTC()
}

func TestNextRisesAndSkipsNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		r := drawRule(t)
		again := parsed(t, r.String())
		if again.String() != r.String() {
			t.Fatalf("%q becomes %q", r, again)
		}
		anchor, from := drawInstant(t, "anchor"), drawInstant(t, "from")
		ticks := r.Preview(anchor, Tick{At: from}, 30)
		last := Tick{At: from}
		for _, tick := range ticks {
			next, ok := again.Next(anchor, last)
			if !ok || next != tick {
				t.Fatalf("after %v comes %v, in the preview %v", last, next, tick)
			}
			if !tick.At.After(last.At) || !tick.Local.Equal(tick.At) || tick.At.Location() != time.UTC {
				t.Fatalf("after %v comes %v", last, tick)
			}
			for range 3 { // whenever it is read in between
				pause := int64(tick.At.Sub(last.At))
				between := last.At.Add(time.Duration(rapid.Int64Range(0, pause-1).Draw(t, "between")))
				if next, ok := r.Next(anchor, Tick{At: between}); !ok || next != tick {
					t.Fatalf("after %v comes %v, after %v comes %v", last, tick, between, next)
				}
			}
			last = tick
		}
		if last.At.Equal(from) {
			return
		}
		passed := r.ticksPassed(anchor, Tick{At: from}, last.At)
		if want := (tickCount{int64(len(ticks)), ticks[0], last}); passed != want {
			t.Fatalf("passed are %v, not %v", passed, want)
		}
	})
}

func FuzzParse(f *testing.F) {
	for _, text := range []string{
		"0 2 * * *", "CRON_TZ=Europe/Berlin 0 2 1-31/2 FEB-DEC MON,7", "@every 1m30s",
		"CRON_TZ=UTC @daily", "CRON_TZ= ,", "0 0 29 2 *",
	} {
		f.Add(text, int64(1767225600))
	}
	f.Fuzz(func(t *testing.T, text string, seconds int64) {
		r, err := Parse(text)
		if (err == nil) != (r.Err() == nil) {
			t.Fatalf("%q: %v, %v", text, err, r.Err())
		}
		if err != nil {
			return
		}
		if again := parsed(t, r.String()); again.String() != r.String() {
			t.Errorf("%q becomes %q", r, again)
		}
		from := time.Unix(seconds%(1<<36), 0)
		last := Tick{At: from}
		for _, tick := range r.Preview(time.Time{}, last, 10) {
			if !tick.At.After(last.At) {
				t.Errorf("%s: after %v comes %v", text, last, tick)
			}
			last = tick
		}
	})
}

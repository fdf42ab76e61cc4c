package schedule

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

// tableRow matches a row of the page's table: a rule, its zone, the local times from and to, and the
// ticks between them.
var tableRow = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (\\S+) \\| " + minute + " \\| " + minute + " \\| (.*) \\|$")

const minute = `(\d{4}-\d\d-\d\d \d\d:\d\d)`

func TestTableOfSchedulePage(t *testing.T) {
	t.Parallel()
	page := testkit.Must(os.ReadFile("../docs/schedule.md"))(t)
	rows := tableRow.FindAllStringSubmatch(strings.ReplaceAll(string(page), "\r\n", "\n"), -1)
	for _, r := range rows {
		local := func(text string) time.Time {
			return testkit.Must(time.ParseInLocation("2006-01-02 15:04", text, zone(t, r[2])))(t)
		}
		rule := Cron(r[1], r[2])
		testkit.OK(t, rule.Err())
		var ticks []string
		tick, ok := rule.Next(time.Time{}, Tick{At: local(r[3]).Add(-1)})
		for ok && !tick.At.After(local(r[4])) {
			ticks = append(ticks, tick.Local.Format("02 15:04 -0700"))
			tick, ok = rule.Next(time.Time{}, tick)
		}
		if want := strings.Join(ticks, ", "); r[5] != want {
			t.Errorf("%s in %s from %s to %s: the page shows %q, not %q", r[1], r[2], r[3], r[4], r[5], want)
		}
	}
	if len(rows) < 6 {
		t.Errorf("the page has only %d rows", len(rows))
	}
}

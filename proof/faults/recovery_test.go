//go:build unix

package faults

import (
	"maps"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/oracle"
)

func TestRecoveriesNameTheNearestFault(t *testing.T) {
	at := func(seconds int) oracle.Instant { return oracle.Instant(time.Duration(seconds) * time.Second) }
	gap := func(from, to int) oracle.Gap {
		before := oracle.Interval{Client: "a.1", Partition: 3, Last: at(from)}
		return oracle.Gap{Before: before, After: oracle.Interval{Client: "b.2", Partition: 3, First: at(to)}}
	}
	incidents := []Incident{
		{At: at(10), Worker: "a.1", Fault: "kill"},
		{At: at(11), Worker: "b.2", Fault: "pause"},
		{At: at(13), Worker: "b.2", Fault: "pause", Over: true},
		{At: at(100), Fault: "frozen server"},
		{At: at(105), Fault: "frozen server", Over: true},
		{At: at(106), Text: "an event"},
	}
	for _, test := range []struct {
		from, to int
		cause    string
		late     int
	}{
		{10, 12, "kill", 0},
		{10, 20, "kill", 1},
		{12, 13, "pause", 0},
		{50, 51, handoff, 0},
		// 5 s frozen, 1 s for another watch, 2 TTL, 1 s for a loaded machine.
		{101, 109, "frozen server", 0},
		{101, 111, "frozen server", 1},
	} {
		worst, late := Recoveries([]oracle.Gap{gap(test.from, test.to)}, incidents, time.Second)
		want := map[string]time.Duration{test.cause: time.Duration(test.to-test.from) * time.Second}
		if !maps.Equal(worst, want) || len(late) != test.late {
			t.Errorf("from %d to %d: %v, late %v; want %v", test.from, test.to, worst, late, want)
		}
	}
}

package oracle

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

func TestCheckReportsWhatIsCertain(t *testing.T) {
	for _, test := range []struct {
		name      string
		intervals []Interval
		want      string // the beginnings of the violations
	}{
		{"one after the other", []Interval{held("a", 1, 10, 20), held("b", 2, 21, 30)}, ""},
		{"overlap", []Interval{held("a", 1, 10, 20), held("b", 2, 19, 30)}, "epoch falls, overlap"},
		{"overlap, whatever the order", []Interval{held("b", 2, 19, 30), held("a", 1, 10, 20)}, "epoch falls, overlap"},
		{"one within the other", []Interval{held("a", 1, 10, 50), held("b", 2, 20, 30)}, "epoch falls, overlap"},
		{"overlap with one that began long ago",
			[]Interval{held("a", 1, 10, 50), held("a", 2, 60, 70), held("b", 3, 65, 66)}, "epoch falls, overlap"},
		{"a single read within another's interval",
			[]Interval{held("a", 1, 10, 50), held("b", 2, 30, 29)}, "epoch falls, overlap"},
		{"a single read across another's end", []Interval{held("a", 1, 10, 20), held("b", 2, 25, 15)}, ""},
		{"a single read across another's beginning", []Interval{held("b", 1, 15, 5), held("a", 2, 10, 20)}, ""},
		{"two single reads", []Interval{held("a", 1, 20, 10), held("b", 2, 20, 10)}, ""},
		{"a client with itself", []Interval{held("a", 1, 10, 20), held("a", 2, 21, 30)}, ""},
		{"overlap, epochs not known", []Interval{held("a", 0, 10, 20), held("b", 0, 19, 30)}, "overlap"},
		{"epoch repeats with another", []Interval{held("a", 1, 10, 20), held("b", 1, 21, 30)}, "epoch repeats"},
		{"epoch repeats with the same", []Interval{held("a", 1, 10, 20), held("a", 1, 21, 30)}, "epoch repeats"},
		{"epoch falls", []Interval{held("a", 2, 10, 20), held("b", 1, 21, 30)}, "epoch falls"},
		{"epoch falls after a while",
			[]Interval{held("a", 2, 10, 20), held("b", 3, 21, 30), held("c", 1, 31, 40)}, "epoch falls"},
		{"an old epoch read late, by one read that was stopped",
			[]Interval{held("a", 1, 40, 5), held("b", 2, 20, 30)}, ""},
		{"epochs not known", []Interval{held("a", 0, 10, 20), held("b", 0, 21, 30)}, ""},
		{"two that share", []Interval{shared("a", 1, 10, 20), shared("b", 2, 15, 30)}, ""},
		{"two that share, of which the first one saw it last",
			[]Interval{shared("a", 1, 16, 20), shared("b", 2, 15, 30)}, ""},
		{"one that shares, and one that does not",
			[]Interval{shared("a", 1, 10, 20), held("b", 2, 15, 30)}, "epoch falls, overlap"},
		{"one that does not share behind two that do",
			[]Interval{shared("a", 1, 10, 20), shared("b", 2, 12, 18), held("c", 3, 19, 30)}, "epoch falls, overlap"},
		{"epoch falls below one that is shared",
			[]Interval{shared("a", 2, 10, 20), held("b", 1, 21, 30)}, "epoch falls"},
		{"epoch of a share falls",
			[]Interval{held("a", 2, 10, 20), shared("b", 3, 21, 30), shared("c", 1, 31, 40)}, "epoch falls"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var logs []Log
			for _, i := range test.intervals {
				logs = append(logs, Log{Client: i.Client, Intervals: []Interval{i}})
			}
			report := Check(logs)
			var got []string
			for _, v := range report.Violations {
				words := strings.Fields(v)
				if words[0] == "epoch" {
					words[0] += " " + strings.TrimSuffix(words[1], ":")
				}
				got = append(got, words[0])
			}
			if strings.Join(got, ", ") != test.want {
				t.Errorf("got %q, want %q: %v", got, test.want, report.Err())
			}
		})
	}
}

func held(client string, epoch int64, first, last Instant) Interval {
	return Interval{Client: client, Partition: 7, Epoch: epoch, First: first, Last: last}
}

func shared(client string, token int64, first, last Instant) Interval {
	i := held(client, token, first, last)
	i.Shared = true
	return i
}

func TestCheckFindsTheGaps(t *testing.T) {
	report := Check([]Log{
		{Intervals: []Interval{held("a", 1, 10, 100), held("a", 3, 130, 200)}},
		{Intervals: []Interval{
			held("b", 2, 105, 110),
			{"b", 8, 1, false, 10, 20, false},
			{"b", 8, 2, false, 25, 30, false},
		}},
	})
	if len(report.Gaps) != 3 {
		t.Fatalf("%v", report)
	}
	second, third := report.Gaps[1], report.Gaps[2]
	epochs := second.Before.Epoch == 2 && second.After.Epoch == 3
	if second.Length() != 20 || !epochs || third.Length() != 5 {
		t.Errorf("%v", report)
	}
}

func TestALogThatWasNotBegunIsEmpty(t *testing.T) {
	path := filepath.Join(t.TempDir(), "client.log")
	for _, text := range []string{"", "short"} {
		if text != "" {
			testkit.OK(t, os.WriteFile(path, []byte(text), 0o600))
		}
		log, err := Read(path)
		if err != nil || log.Client != "client" || len(log.Intervals) > 0 {
			t.Errorf("%+v, %v", log, err)
		}
	}
}

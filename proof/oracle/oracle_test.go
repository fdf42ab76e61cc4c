package oracle

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
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
		{"a single read within another's interval", []Interval{held("a", 1, 10, 50), held("b", 2, 30, 29)}, "epoch falls, overlap"},
		{"a single read across another's end", []Interval{held("a", 1, 10, 20), held("b", 2, 25, 15)}, ""},
		{"a single read across another's beginning", []Interval{held("b", 1, 15, 5), held("a", 2, 10, 20)}, ""},
		{"two single reads", []Interval{held("a", 1, 20, 10), held("b", 2, 20, 10)}, ""},
		{"a client with itself", []Interval{held("a", 1, 10, 20), held("a", 2, 21, 30)}, ""},
		{"overlap, epochs not known", []Interval{held("a", 0, 10, 20), held("b", 0, 19, 30)}, "overlap"},
		{"epoch repeats with another", []Interval{held("a", 1, 10, 20), held("b", 1, 21, 30)}, "epoch repeats"},
		{"epoch repeats with the same", []Interval{held("a", 1, 10, 20), held("a", 1, 21, 30)}, "epoch repeats"},
		{"epoch falls", []Interval{held("a", 2, 10, 20), held("b", 1, 21, 30)}, "epoch falls"},
		{"epoch falls after a while", []Interval{held("a", 2, 10, 20), held("b", 3, 21, 30), held("c", 1, 31, 40)}, "epoch falls"},
		{"an old epoch read late, by one read that was stopped", []Interval{held("a", 1, 40, 5), held("b", 2, 20, 30)}, ""},
		{"epochs not known", []Interval{held("a", 0, 10, 20), held("b", 0, 21, 30)}, ""},
		{"two that share", []Interval{shared("a", 1, 10, 20), shared("b", 2, 15, 30)}, ""},
		{"two that share, of which the first one saw it last", []Interval{shared("a", 1, 16, 20), shared("b", 2, 15, 30)}, ""},
		{"one that shares, and one that does not", []Interval{shared("a", 1, 10, 20), held("b", 2, 15, 30)}, "epoch falls, overlap"},
		{"one that does not share behind two that do", []Interval{shared("a", 1, 10, 20), shared("b", 2, 12, 18), held("c", 3, 19, 30)}, "epoch falls, overlap"},
		{"epoch falls below one that is shared", []Interval{shared("a", 2, 10, 20), held("b", 1, 21, 30)}, "epoch falls"},
		{"epoch of a share falls", []Interval{held("a", 2, 10, 20), shared("b", 3, 21, 30), shared("c", 1, 31, 40)}, "epoch falls"},
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

// The recorded interval is within the true one: not before the first answer that the lock is held,
// and not after the last question with that answer.
func TestAKeeperWritesHowLongALockWasHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.locks")
	keeper := testkit.Must(CreateKeeper(path))(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	var began, ended, over Instant
	for _, err := range []error{
		keeper.Keep(ctx, 3, 7, true, func() bool { // ends because the lock is lost
			switch asked++; asked {
			case 1:
				began = Now()
			case 5:
				ended = Now()
			}
			return asked < 6
		}),
		keeper.Keep(ctx, 4, 8, false, func() bool { // ends because the holder wants to
			if over = Now(); asked == 10 {
				cancel()
			}
			asked++
			return true
		}),
		keeper.Keep(t.Context(), 5, 9, false, func() bool { return false }), // was never held
		keeper.Close(),
	} {
		testkit.OK(t, err)
	}
	log := testkit.Must(Read(path))(t)
	if len(log.Intervals) != 2 || log.Client != "a" {
		t.Fatalf("%+v", log)
	}
	first, second := log.Intervals[0], log.Intervals[1]
	if first.Partition != 3 || first.Epoch != 7 || !first.Shared || first.First < began || first.Last > ended || first.Last < first.First || first.Open {
		t.Errorf("%+v, asked from %d to %d", first, began, ended)
	}
	if second.Partition != 4 || second.Epoch != 8 || second.Shared || second.First < ended || second.Last > over || second.Open {
		t.Errorf("%+v, asked until %d", second, over)
	}
}

func TestCheckFindsTheGaps(t *testing.T) {
	report := Check([]Log{
		{Intervals: []Interval{held("a", 1, 10, 100), held("a", 3, 130, 200)}},
		{Intervals: []Interval{held("b", 2, 105, 110), {"b", 8, 1, false, 10, 20, false}, {"b", 8, 2, false, 25, 30, false}}},
	})
	if len(report.Gaps) != 3 || report.Gaps[1].Length() != 20 || report.Gaps[1].Before.Epoch != 2 || report.Gaps[1].After.Epoch != 3 || report.Gaps[2].Length() != 5 {
		t.Errorf("%v", report)
	}
}

// fakeLease is a Lease with settable values. Only one goroutine at a time changes and reads it.
type fakeLease struct {
	values   func() []int
	changed  chan struct{}
	deadline time.Time
}

func (l *fakeLease) Values() []int            { return l.values() }
func (l *fakeLease) Changed() <-chan struct{} { return l.changed }
func (l *fakeLease) TrustDeadline() time.Time { return l.deadline }
func (l *fakeLease) Partition(n int) (pgleases.Partition, bool) {
	return pgleases.Partition{Number: n, Epoch: 5}, true
}

func record(t *testing.T, lease Lease, ctx context.Context) Log {
	t.Helper()
	path := filepath.Join(t.TempDir(), "client.log")
	r := testkit.Must(Create(path))(t)
	defer r.Close()
	testkit.OK(t, r.Watch(ctx, lease))
	return testkit.Must(Read(path))(t)
}

func TestLogHoldsWhatWasRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{})
	first, second := []int{3, 4}, []int{4, 9}
	reads := 0
	began := Now()
	log := record(t, &fakeLease{
		changed: changed, deadline: time.Now().Add(time.Hour),
		values: func() []int {
			switch reads++; {
			case reads <= 100:
				return first
			case reads == 1000:
				cancel()
			}
			return second
		},
	}, ctx)
	if log.Client != "client" || log.Reads < 1000 || log.Stale != 0 || log.Began < began || log.Last > Now() {
		t.Errorf("%+v", log)
	}
	if !slices.Equal(log.Held(), second) {
		t.Errorf("held at last: %v", log.Held())
	}
	var got [][2]int64
	for _, i := range log.Intervals {
		got = append(got, [2]int64{int64(i.Partition), i.Epoch})
		if i.Open != (i.Partition != 3) || i.Last < i.First || i.First < began {
			t.Errorf("%+v", i)
		}
	}
	if !slices.Equal(got, [][2]int64{{3, 5}, {4, 5}, {9, 5}}) {
		t.Errorf("%v", got)
	}
	if report := Check([]Log{log}); report.Err() != nil || report.Reads != log.Reads {
		t.Errorf("%v: %v", report, report.Err())
	}
}

func TestAReadPastTheTrustDeadlineCounts(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	lease := &fakeLease{changed: make(chan struct{})}
	values, reads := []int{1}, 0
	lease.values = func() []int {
		if reads++; reads == 3*burst {
			cancel()
		}
		return values
	}
	if log := record(t, lease, ctx); log.Stale < burst || Check([]Log{log}).Err() == nil {
		t.Errorf("%d of %d reads are stale", log.Stale, log.Reads)
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

func TestUnreportedLossCountsOnce(t *testing.T) {
	known := make(chan struct{})
	close(known)
	r := &Recorder{losses: []loss{{make(chan struct{}), endsWithin}, {known, endsWithin}}}
	for range endsWithin/step - 1 {
		r.checked = 0 // long ago, as if the process was stopped; that counts as one step
		if r.checkLosses(); r.untold != 0 {
			t.Fatal("too soon")
		}
	}
	for range 10 {
		r.checked = 0
		r.checkLosses()
	}
	if r.untold != 1 {
		t.Errorf("%d losses were not reported", r.untold)
	}
	if report := Check([]Log{{Untold: r.untold}}); report.Err() == nil {
		t.Error("it is no violation")
	}
}

package leases

import (
	"context"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/proof/oracle"
)

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

func record(t *testing.T, lease Lease, ctx context.Context) oracle.Log {
	t.Helper()
	path := filepath.Join(t.TempDir(), "client.log")
	r := testkit.Must(Create(path))(t)
	defer r.Close()
	testkit.OK(t, r.Watch(ctx, lease))
	return testkit.Must(oracle.Read(path))(t)
}

func TestLogHoldsWhatWasRead(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	changed := make(chan struct{})
	first, second := []int{3, 4}, []int{4, 9}
	reads := 0
	began := oracle.Now()
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
	if log.Client != "client" || log.Reads < 1000 || log.Stale != 0 || log.Began < began || log.Last > oracle.Now() {
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
	if report := oracle.Check([]oracle.Log{log}); report.Err() != nil || report.Reads != log.Reads {
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
	if log := record(t, lease, ctx); log.Stale < burst || oracle.Check([]oracle.Log{log}).Err() == nil {
		t.Errorf("%d of %d reads are stale", log.Stale, log.Reads)
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
	if report := oracle.Check([]oracle.Log{{Untold: r.untold}}); report.Err() == nil {
		t.Error("it is no violation")
	}
}

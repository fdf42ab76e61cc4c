package schedule

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A crash that was counted before the arguments were parsed is taken back if they cannot be parsed.
func TestUnreadableArgsCountNoCrash(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 1, 0, 0, 0, time.UTC)
	before := now.Add(-time.Hour)
	k, unreadable := &kind{name: "books"}, errors.New("unreadable")
	for _, of := range []runnable{
		&scheduleRow{row: row{Rule: "@every 1h0m0s", Clock: now}, Anchor: before, Cursor: before},
		&jobRow{row: row{Clock: now}, At: now},
	} {
		r := of.common()
		first := of.decide(k, false, 7, nil)
		if first.run == nil || first.BlockedReason != nil {
			t.Fatalf("what is suspected is not to be run: %+v", first)
		}
		first.note(r, 7, true)
		if first.Trying.Crashes != 1 {
			t.Fatalf("%d crashes", first.Trying.Crashes)
		}
		r.Trying = first.Trying
		second := of.decide(k, false, 7, unreadable)
		if second.run != nil || second.BlockedReason == nil || second.Trying != nil {
			t.Errorf("it is %+v, and its run is noted as under way", second)
		}
		for _, tried := range []trial{
			{Crashes: 2},
			{Crashes: 1, Called: 5, Run: "a call"},
			{Crashes: 1, Attempts: 1, Again: now},
		} {
			want := tried
			want.Crashes--
			tried.Epoch = 7
			r.Trying = &tried
			second := of.decide(k, false, 7, unreadable)
			if second.BlockedReason == nil || second.Trying == nil || *second.Trying != want {
				t.Errorf("what was %+v is %+v", tried, second.Trying)
			}
		}
	}
}

// An extra run is blocked in a process that does not know its schedule's zone, as its schedule is.
func TestExtraRunWithoutZoneIsBlocked(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 1, 0, 0, 0, time.UTC)
	r := &jobRow{row: row{Clock: now, Rule: "CRON_TZ=Mars/Olympus 0 * * * *"}, At: now}
	d := r.decide(&kind{name: "books"}, false, 7, nil)
	if d.run != nil || d.BlockedReason == nil || !strings.Contains(*d.BlockedReason, "Mars/Olympus") {
		t.Errorf("it is %+v", d)
	}
}

// After an outage each schedule catches up at once, because the delayed times of its ticks have
// passed too.
func TestJitterSpreadsNoCatchUp(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 4, 31, 0, 0, time.UTC) // half an hour and a minute after the last tick
	// With the second jitter, some run the tick before.
	for _, d := range []time.Duration{30 * time.Minute, 59 * time.Minute} {
		for i := range 20 {
			r := &scheduleRow{
				row:    row{Name: fmt.Sprint("close ", i), Rule: "@every 1h0m0s", Clock: now},
				Policy: policy{Jitter: d},
				Anchor: now.Truncate(time.Hour), Cursor: now.Truncate(time.Hour).Add(-10 * time.Hour),
			}
			if r.decide(&kind{name: "books"}, false, 7, nil).run == nil {
				t.Errorf("with a jitter of %v schedule %d does not begin at once", d, i)
			}
		}
	}
}

// What is retried without a limit is retried every 2 s, however often it has failed.
func TestTheHundredthTryComesNoSoonerThanTheTenth(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		fails := func() error { return errors.New("no") }
		if err := new(db).repeat(t.Context(), 100, func(error) bool { return true }, fails); err == nil {
			t.Error("it has succeeded")
		}
		if took := time.Since(began); took < 180*time.Second || took > 200*time.Second {
			t.Errorf("a hundred tries have taken %v", took)
		}
	})
}

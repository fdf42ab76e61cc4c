package schedule

import (
	"encoding/json"
	"errors"
	"testing"
	"time"
)

// What was charged before its arguments were read, and cannot be read, has killed nothing.
func TestWhatCannotBeReadIsNotChargedWithACrash(t *testing.T) {
	t.Parallel()
	now := time.Date(2026, 3, 2, 1, 0, 0, 0, time.UTC)
	k := &kind{name: "books", parse: func(json.RawMessage) error { return errors.New("unreadable") }}
	for _, r := range []*record{{Rule: "@every 1h0m0s", Anchor: now.Add(-time.Hour), Cursor: now.Add(-time.Hour), Clock: now}, {Job: true, At: now, Clock: now}} {
		first := r.decide(k, false, 7, true)
		if first.run == nil || first.Waits != nil {
			t.Fatalf("what is suspected is not to be run: %+v", first)
		}
		first.charge(r, 7, true)
		if first.Trying.Crashes != 1 {
			t.Fatalf("%d crashes", first.Trying.Crashes)
		}
		r.Trying = first.Trying
		second := r.decide(k, false, 7, false)
		if second.run != nil || second.Waits == nil || second.Trying.Crashes != 0 || second.Trying.Epoch != 0 {
			t.Errorf("it is %+v", second)
		}
		r.Trying = second.Trying
		if third := r.decide(k, false, 8, false); third.Trying.Crashes != 0 {
			t.Errorf("then it is %+v", third)
		}
	}
}

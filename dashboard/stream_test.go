package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// A colour stays with its client while others come and go, and comes back with it.
func TestAClientKeepsItsColour(t *testing.T) {
	t.Parallel()
	slots := make(map[string]int)
	look := func(ids ...string) {
		var clients []admin.Client
		for _, id := range ids {
			clients = append(clients, admin.Client{ID: id})
		}
		assignSlots(slots, clients)
	}
	for i, step := range []struct {
		living []string
		want   map[string]int
	}{
		{[]string{"a", "b", "c"}, map[string]int{"a": 0, "b": 1, "c": 2}},
		{[]string{"a", "c"}, map[string]int{"a": 0, "b": 1, "c": 2}},
		{[]string{"0", "a", "b", "c"}, map[string]int{"0": 3, "a": 0, "b": 1, "c": 2}}, // b was not taken from
		{[]string{"0", "c", "c"}, map[string]int{"0": 3, "a": 0, "b": 1, "c": 2}},
		{[]string{"0", "c", "d"}, map[string]int{"0": 3, "b": 1, "c": 2, "d": 0}}, // the lowest that is free
		{[]string{"a", "c"}, map[string]int{"0": 3, "a": 0, "b": 1, "c": 2}},      // d has gone, and a takes it
	} {
		look(step.living...)
		if i == 5 {
			delete(step.want, "b")
			delete(slots, "b")
		}
		if !maps.Equal(slots, step.want) {
			t.Errorf("step %d: %v, want %v", i, slots, step.want)
		}
	}
}

// Who is slow gets the latest of each topic, and nothing else.
func TestASlowViewerSkipsToTheLatest(t *testing.T) {
	t.Parallel()
	h := newHub(nil, 1)
	ctx, cancel := context.WithCancel(t.Context())
	publish := func(of topic, content any) {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.publish(ctx, of, content)
	}
	var sent [topics]int
	expect := func(want string) <-chan struct{} {
		t.Helper()
		news, changed := h.newer(&sent)
		if got := strings.ReplaceAll(string(news), "\n", "|"); got != want {
			t.Errorf("got %q, want %q", got, want)
		}
		return changed
	}
	changed := expect("")
	for i := range 5 {
		publish(leases, i)
		publish(ages, []int{i})
	}
	select {
	case <-changed:
	default:
		t.Error("it was not told that there is something newer")
	}
	expect("event: leases|data: 4||event: ages|data: [4]||")
	publish(ages, []int{7})
	publish(leases, 4) // as before
	changed = expect("event: ages|data: [7]||")
	publish(leases, 4)
	cancel()
	publish(leases, 5) // by one that was to end
	select {
	case <-changed:
		t.Error("it was told of nothing new")
	default:
	}
	expect("")
}

// A look that failed makes what is shown stale at once, and so does one that hangs, after a while. The next look ends it.
func TestAFailedLookAndOneThatHangsAreStale(t *testing.T) {
	t.Parallel()
	h := newHub(nil, 1)
	expect := func(step string, want bool, failure string) {
		t.Helper()
		var s shownStatus
		if err := json.Unmarshal(h.texts[status].json, &s); err != nil {
			t.Fatal(err)
		}
		if !s.Seen || s.Stale != want || s.Failure != failure {
			t.Errorf("%s: %+v, want stale %t, failure %q", step, s, want, failure)
		}
	}
	later := time.Now().Add(time.Hour) // so that nothing is old, however slow this test is
	h.saw(t.Context(), &admin.Snapshot{}, later)
	expect("a look", false, "")
	h.failed(t.Context(), errors.New("the cable is cut"))
	expect("one that failed", true, "the cable is cut")
	h.saw(t.Context(), &admin.Snapshot{}, later)
	expect("the next", false, "")
	h.saw(t.Context(), &admin.Snapshot{}, time.Now().Add(-old-time.Second))
	expect("one that was long ago", true, "")
}

// However long the server takes for it, it counts for a twentieth of the time at most.
func TestALongCountIsFollowedByALongRest(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{0: counted, 250 * time.Millisecond: counted, time.Second: 20 * time.Second} {
		if got := rest(took); got != want {
			t.Errorf("after %v it rests for %v, want %v", took, got, want)
		}
	}
}

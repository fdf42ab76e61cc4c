package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A client keeps its color while others come and go, and has it again after it returns.
func TestAClientKeepsItsColor(t *testing.T) {
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
		live []string
		want map[string]int
	}{
		{[]string{"a", "b", "c"}, map[string]int{"a": 0, "b": 1, "c": 2}},
		{[]string{"a", "c"}, map[string]int{"a": 0, "b": 1, "c": 2}},
		{[]string{"0", "a", "b", "c"}, map[string]int{"0": 3, "a": 0, "b": 1, "c": 2}}, // b was not taken from
		{[]string{"0", "c", "c"}, map[string]int{"0": 3, "a": 0, "b": 1, "c": 2}},
		{[]string{"0", "c", "d"}, map[string]int{"0": 3, "b": 1, "c": 2, "d": 0}}, // the lowest that is free
		{[]string{"a", "c"}, map[string]int{"0": 3, "a": 0, "b": 1, "c": 2}},      // d has gone, and a takes it
	} {
		look(step.live...)
		if i == 5 {
			delete(step.want, "b")
			delete(slots, "b")
		}
		if !maps.Equal(slots, step.want) {
			t.Errorf("step %d: %v, want %v", i, slots, step.want)
		}
	}
}

// A page receives the parts that differ from its own, and of the leases only changed ones, even
// after a restart of the server.
func TestAPollIsSentOnlyWhatDiffers(t *testing.T) {
	t.Parallel()
	lease := func(name string, generation int64) admin.Lease {
		return admin.Lease{Name: name, Generation: generation}
	}
	look := func(h *hub, all ...admin.Lease) *hub {
		h.saw(t.Context(), &admin.Snapshot{Leases: all, Clients: []admin.Client{{ID: "one"}}}, time.Now())
		return h
	}
	versions := make(url.Values)
	shown := make(map[string]int64)
	poll := func(step string, h *hub, names, changed, others string) {
		t.Helper()
		var answer struct {
			Status shownStatus
			Parts  map[string]struct {
				Version string
				Content json.RawMessage
			}
		}
		testkit.OK(t, json.Unmarshal(bytes.Join(h.answer(versions), nil), &answer))
		var told struct {
			Names   []string
			Changed []admin.Lease
		}
		var gotChanged, gotOthers []string
		for name, p := range answer.Parts {
			versions.Set(name, p.Version)
			if name != "leases" {
				gotOthers = append(gotOthers, name)
				continue
			}
			testkit.OK(t, json.Unmarshal(p.Content, &told))
			for _, l := range told.Changed {
				gotChanged, shown[l.Name] = append(gotChanged, l.Name), l.Generation
			}
		}
		slices.Sort(gotOthers)
		got := [3]string{strings.Join(told.Names, " "), strings.Join(gotChanged, " "), strings.Join(gotOthers, " ")}
		if got != [3]string{names, changed, others} {
			t.Errorf("%s: names, changed leases and other parts are %q", step, got)
		}
	}
	poll("before a look", newHub(nil, defaultTimes), "", "", "")
	h := look(newHub(nil, defaultTimes), lease("a", 1), lease("b", 1), lease("c", 1))
	poll("the first", h, "a b c", "a b c", "ages clients overrides")
	poll("the same", look(h, lease("a", 1), lease("b", 1), lease("c", 1)), "", "", "")
	poll("one has changed", look(h, lease("a", 1), lease("b", 2), lease("c", 1)), "a b c", "b", "")
	look(h, lease("a", 1), lease("b", 3), lease("c", 1), lease("d", 1))
	h = look(h, lease("b", 4), lease("c", 1), lease("d", 1))
	poll("one was dropped, one is new, one has changed twice", h, "b c d", "b d", "")
	h = look(newHub(nil, defaultTimes), lease("b", 4), lease("c", 1), lease("d", 1))
	poll("the same of another process", h, "", "", "")
	for i := range int64(maxBefore + 1) {
		look(h, lease("b", 4), lease("c", 2+i), lease("d", 1))
	}
	poll("from a version long ago", h, "b c d", "b c d", "")
	poll("before a look of another process", newHub(nil, defaultTimes), "", "", "")
	other := look(newHub(nil, defaultTimes), lease("b", 4), lease("c", 7))
	poll("from a version that it does not know", other, "b c", "b c", "")
	poll("no lease is left", look(h), "", "", "")
	if shown["b"] != 4 || shown["c"] != 7 {
		t.Errorf("shown is %v", shown)
	}
	ended, end := context.WithCancel(t.Context())
	end()
	h.publish(ended, overrides, "by loops that have ended")
	poll("the end of the loops", h, "", "", "")
}

// After a failed read, the data is stale at once, and after a read that hangs, a little later. The
// next read ends that.
func TestAFailedLookAndOneThatHangsAreStale(t *testing.T) {
	t.Parallel()
	h := newHub(nil, defaultTimes)
	expect := func(step string, want bool, failure string) {
		t.Helper()
		s := h.status()
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

// Reads of the groups take at most 5 % of the time, even on a slow server.
func TestALongCountIsFollowedByALongRest(t *testing.T) {
	t.Parallel()
	for took, want := range map[time.Duration]time.Duration{
		0:                      counted,
		250 * time.Millisecond: counted,
		time.Second:            20 * time.Second,
	} {
		if got := rest(took); got != want {
			t.Errorf("after %v it rests for %v, want %v", took, got, want)
		}
	}
}

package dashboard

import (
	"context"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/admin"
)

func TestChangesAreWhatDiffersBetweenTwoLooks(t *testing.T) {
	t.Parallel()
	holding := func(session int64, id string, rs ...admin.Range) admin.Holding {
		h := admin.Holding{OwnerSession: session, Owner: id, LastOwner: id, Partitions: rs}
		if session > 90 { // it was taken out
			h.Owner = ""
		}
		return h
	}
	before := &admin.Snapshot{
		Clients: []admin.Client{{Session: 1, ID: "a"}, {Session: 2, ID: "b"}, {Session: 3, ID: "c", Dead: true}, {Session: 4, ID: "d"}, {Session: 5, ID: "e"}},
		Leases: []admin.Lease{
			{Name: "gone", Partitions: 1},
			{Name: "same", Partitions: 4, Generation: 1, Holdings: []admin.Holding{holding(1, "a", admin.Range{First: 0, Last: 3})}},
			{Name: "work", Partitions: 8, Generation: 1, Holdings: []admin.Holding{
				holding(1, "a", admin.Range{First: 0, Last: 3}), holding(2, "b", admin.Range{First: 4, Last: 6}), {Partitions: admin.Ranges{{First: 7, Last: 7}}, LastOwner: "z"}}},
			{Name: "larger", Partitions: 2, Generation: 9, Holdings: []admin.Holding{holding(1, "a", admin.Range{First: 0, Last: 1})}},
		},
	}
	after := &admin.Snapshot{
		Clients: []admin.Client{{Session: 1, ID: "a"}, {Session: 3, ID: "c"}, {Session: 4, ID: "d", Dead: true}, {Session: 5, ID: "e", Superseded: true}, {Session: 6, ID: "f"}},
		Leases: []admin.Lease{
			before.Leases[1],
			{Name: "work", Partitions: 8, Generation: 2, Holdings: []admin.Holding{
				holding(1, "a", admin.Range{First: 0, Last: 0}, admin.Range{First: 2, Last: 2}, admin.Range{First: 4, Last: 4}, admin.Range{First: 7, Last: 7}),
				holding(6, "f", admin.Range{First: 1, Last: 1}, admin.Range{First: 3, Last: 3}), holding(99, "x", admin.Range{First: 5, Last: 5}), {Partitions: admin.Ranges{{First: 6, Last: 6}}, LastOwner: "b"}}},
			{Name: "larger", Partitions: 3, Generation: 9, Holdings: []admin.Holding{holding(1, "a", admin.Range{First: 0, Last: 2})}},
			{Name: "new", Partitions: 1, Generation: 1},
		},
	}
	var got []string
	for _, c := range difference(before, after) {
		got = append(got, strings.TrimRight(fmt.Sprintf("%s %s%s %s>%s %v", c.What, c.Client, c.Lease, c.From, c.To, c.Partitions), " >-"))
	}
	want := []string{"heard c", "silent d", "superseded e", "came f", "left b",
		"moved work a>f 1,3", "moved work b>a 4", "moved work b>x 5", "moved work b> 6", "moved work >a 7",
		"dropped larger", "made larger", "moved larger >a 0-2", "made new", "dropped gone"}
	// A change of generation makes it look; without one nothing can have moved.
	want = append(want[:12], append([]string{"moved larger >a 0-2"}, want[13:]...)...)
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("got  %s\nwant %s", strings.Join(got, "; "), strings.Join(want, "; "))
	}
	if again := difference(after, after); len(again) > 0 {
		t.Errorf("nothing differs, and yet %v", again)
	}
}

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

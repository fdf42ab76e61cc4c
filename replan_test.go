package pgleases

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/store"
)

// read is what a plan reads of a lease.
type read struct{ store.LeaseSnapshot }

// leaseOf returns a lease with so many partitions without owners.
func leaseOf(name string, partitions int, members ...store.Member) read {
	return read{store.LeaseSnapshot{
		Name: name, Generation: 1, Members: members,
		Owners: make([]int64, partitions), Targets: make([]int64, partitions),
		OwnerIDs: make([]string, partitions), PreferredIDs: make([]string, partitions),
	}}
}

// owned makes a session own partitions, with itself as their target.
func (r read) owned(session int64, id string, partitions ...int) read {
	for _, n := range partitions {
		r.Owners[n], r.OwnerIDs[n] = session, id
	}
	return r.meant(session, partitions...)
}

// meant makes partitions move to a session.
func (r read) meant(session int64, partitions ...int) read {
	for _, n := range partitions {
		r.Targets[n] = session
	}
	return r
}

func member(session int64, id string, incarnation int64, weight int) store.Member {
	return store.Member{Session: session, ID: id, Incarnation: incarnation, Revoked: incarnation < 0, Weight: weight}
}

func drained(m store.Member) store.Member  { m.Drained = true; return m }
func cordoned(m store.Member) store.Member { m.Cordoned = true; return m }
func paused(r read) read                   { r.Paused = true; return r }
func pinned(r read, partition int, to string) read {
	if r.Pins == nil {
		r.Pins = make(map[int]string)
	}
	r.Pins[partition] = to
	return r
}
func frozen(r read) read   { r.Frozen = true; return r }
func settling(r read) read { r.Settling = true; return r }

func limited(m store.Member, most int) store.Member { m.MaxPartitions = most; return m }

// The plan of one lease, as "partition>session"; sessions that are not members have ended.
func TestReplan(t *testing.T) {
	t.Parallel()
	a, b, c := member(1, "a", 1, 1), member(2, "b", 1, 1), member(3, "c", 1, 1)
	newer := member(4, "a", 2, 1)
	for _, test := range []struct {
		name  string
		lease read
		moves string
	}{
		{"what is as it should be stays", leaseOf("x", 4, a, b).owned(1, "a", 0, 1).owned(2, "b", 2, 3), ""},
		{"orphans go to their target, also where that stays",
			leaseOf("x", 4, b).owned(2, "b", 2, 3).owned(1, "a", 0, 1).meant(2, 0, 1), "0>2 1>2"},
		{"a partition without an owner is given, even if the target stays",
			leaseOf("x", 2, b).owned(2, "b", 0).meant(2, 1), "1>2"},
		{"a restarted client gets its own",
			leaseOf("x", 6, a, member(5, "b", 2, 1), c).owned(1, "a", 0, 3).owned(2, "b", 1, 4).owned(3, "c", 2, 5),
			"1>5 4>5"},
		{"what an older process owns goes to the newer",
			leaseOf("x", 4, a, newer, b).owned(1, "a", 0, 1).owned(2, "b", 2, 3), "0>4 1>4"},
		{"an ID is one member, of its newest process", leaseOf("x", 4, a, newer, b).owned(2, "b", 2, 3), "0>4 1>4"},
		{"the newer process's weight counts",
			leaseOf("x", 4, a, member(4, "a", 2, 0), b).owned(1, "a", 0, 1).owned(2, "b", 2, 3), "0>2 1>2"},
		{"a member of weight zero is drained",
			leaseOf("x", 4, member(1, "a", 1, 0), b).owned(1, "a", 0, 1).owned(2, "b", 2, 3), "0>2 1>2"},
		{"weights of zero take from all, the crashed too",
			leaseOf("x", 3, member(1, "a", 1, 0), member(2, "b", 1, 0)).owned(1, "a", 0).owned(9, "c", 1), "0>0 1>0"},
		{"what was taken from all is not asked for twice",
			leaseOf("x", 3, member(1, "a", 1, 0), member(2, "b", 1, 0)).owned(1, "a", 0).meant(0, 0), ""},
		{"what is on its way is kept", leaseOf("x", 4, a, b).owned(1, "a", 0, 1, 2, 3).meant(2, 2, 3), ""},
		{"a partition on its way to a crashed one is taken back",
			leaseOf("x", 2, a).owned(1, "a", 0, 1).meant(9, 1), "1>1"},
		{"a revoked session gets nothing, and keeps nothing",
			leaseOf("x", 2, member(1, "a", -1, 1), b).owned(1, "a", 0), "0>2 1>2"},
		{"the newer process of a revoked one counts",
			leaseOf("x", 2, member(1, "a", -1, 1), newer).owned(1, "a", 0), "0>4 1>4"},
		{"a drained member is asked for all", leaseOf("x", 2, drained(a), b).owned(1, "a", 0, 1), "0>2 1>2"},
		{"of a paused lease all are asked", paused(leaseOf("x", 2, a, b).owned(1, "a", 0).owned(9, "c", 1)), "0>0 1>0"},
		{"a paused lease is not frozen", frozen(paused(leaseOf("x", 1, a).owned(1, "a", 0))), "0>0"},
		{"of a frozen lease what has no owner moves, and what is on its way is called off",
			frozen(leaseOf("x", 4, a, b).owned(1, "a", 0, 1, 2).meant(2, 2)), "2>1 3>2"},
		{"of a frozen lease what is on its way from a drained owner goes on",
			frozen(leaseOf("x", 3, drained(a), b, c).owned(1, "a", 0, 1).owned(2, "b", 2).meant(3, 0, 1)), ""},
		{"a frozen lease's drained owner gives", frozen(leaseOf("x", 2, drained(a), b).owned(1, "a", 0, 1)), "0>2 1>2"},
		{"a cordoned member keeps what it has", leaseOf("x", 4, cordoned(a), b, c).owned(1, "a", 0, 1, 2), "3>2"},
		{"a pinned partition goes to its client, and the rest is shared without it",
			pinned(leaseOf("x", 5, a, b).owned(1, "a", 0, 1).owned(2, "b", 2, 3, 4), 2, "a"), "2>1"},
		{"a pin to who does not work, or is no member, is none",
			pinned(pinned(leaseOf("x", 4, a, drained(b), c).owned(1, "a", 0, 1).owned(3, "c", 2, 3), 0, "b"), 1, "d"),
			""},
		{"a pin goes before a cordon",
			pinned(leaseOf("x", 2, cordoned(a), b).owned(1, "a", 0).owned(2, "b", 1), 1, "a"), "1>1"},
		{"a freeze goes before a pin",
			frozen(pinned(leaseOf("x", 3, a, b).owned(1, "a", 0).owned(2, "b", 1), 1, "a")), "2>1"},
		{"of a frozen lease what has no owner goes where it is pinned",
			frozen(pinned(leaseOf("x", 3, a, b).owned(1, "a", 0, 1), 2, "a")), "2>1"},
		{"while a lease settles what has no owner moves, and what is on its way is called off",
			settling(leaseOf("x", 4, a, b).owned(1, "a", 0, 1, 2).meant(2, 2)), "2>1 3>2"},
		{"while a lease settles a new member waits",
			settling(leaseOf("x", 4, a, b, c).owned(1, "a", 0, 1).owned(2, "b", 2, 3)), ""},
		{"while a lease settles who leaves gives to the newest",
			settling(leaseOf("x", 6, drained(a), b, c).owned(1, "a", 0, 1, 2).owned(2, "b", 3, 4, 5)), "0>3 1>3 2>3"},
		{"while a lease settles a newer process gets what the older has",
			settling(leaseOf("x", 4, a, newer, b).owned(1, "a", 0, 1, 2)), "0>4 1>4 2>4 3>2"},
		{"a pin goes before the delay",
			settling(pinned(leaseOf("x", 3, a, b).owned(1, "a", 0).owned(2, "b", 1), 1, "a")), "1>1 2>2"},
		{"a freeze goes before the delay",
			frozen(settling(pinned(leaseOf("x", 2, a, b).owned(1, "a", 0).owned(2, "b", 1), 1, "a"))), ""},
		{"a member above its ceiling is asked for its highest numbers",
			leaseOf("x", 4, limited(a, 1), limited(b, 1)).owned(1, "a", 0, 1, 2).owned(2, "b", 3), "1>0 2>0"},
		{"what a crashed member had has no owner if the others are at their ceilings",
			leaseOf("x", 4, limited(a, 2), limited(b, 1)).owned(9, "c", 0, 1, 2).owned(2, "b", 3), "0>1 1>1 2>0"},
		{"what has no owner because of ceilings is not written again",
			leaseOf("x", 2, limited(a, 1)).owned(1, "a", 0), ""},
		{"a pin passes the ceiling", pinned(leaseOf("x", 3, limited(a, 1)).owned(1, "a", 0), 2, "a"), "0>0 2>1"},
		{"a restarted client keeps its new ceiling, also while the lease settles",
			settling(leaseOf("x", 3, a, limited(newer, 2), b).owned(1, "a", 0, 1, 2)), "0>4 1>4 2>2"},
		{"a cordoned member that is drained keeps nothing",
			leaseOf("x", 2, cordoned(drained(a)), b).owned(1, "a", 0, 1), "0>2 1>2"},
		{"without members only what is owned moves", leaseOf("x", 2).owned(1, "a", 0), "0>0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var moves []string
			for _, m := range replan([]store.LeaseSnapshot{test.lease.LeaseSnapshot}) {
				moves = append(moves, fmt.Sprintf("%d>%d", m.Partition, m.Target))
			}
			if got := strings.Join(moves, " "); got != test.moves {
				t.Errorf("moves %q, not %q", got, test.moves)
			}
		})
	}
}

// awaiting makes a lease wait for a client that went away at a generation.
func awaiting(r read, id string, generation int64) read {
	r.Awaited = append(r.Awaited, store.Awaited{ID: id, Weight: 1, Generation: generation})
	return r
}

// last sets who was the last to own partitions that have no owner.
func last(r read, id string, partitions ...int) read {
	for _, n := range partitions {
		r.OwnerIDs[n] = id
	}
	return r
}

func joinedAt(m store.Member, generation int64) store.Member { m.Joined = generation; return m }

// Clients a and b share a lease of 6 with c, which is awaited since generation 7.
func TestReplanWaits(t *testing.T) {
	t.Parallel()
	a, b := joinedAt(member(1, "a", 1, 1), 1), joinedAt(member(2, "b", 1, 1), 2)
	leaving, back := joinedAt(member(3, "c", 1, 0), 3), joinedAt(member(4, "c", 2, 1), 8)
	of := func(members ...store.Member) read {
		return awaiting(leaseOf("x", 6, members...).owned(1, "a", 0, 1).owned(2, "b", 2, 3), "c", 7)
	}
	for _, test := range []struct {
		name  string
		lease read
		moves string
	}{
		{"for one that has gone", last(of(a, b), "c", 4, 5), ""},
		{"for one that was evicted, whose rows are cleared", of(a, b).owned(9, "c", 4, 5), "4>0 5>0"},
		{"for one that leaves, and keeps what it has", last(of(a, b, leaving).owned(3, "c", 4), "c", 5), ""},
		{"not with what goes to another already", last(of(a, b, leaving).owned(3, "c", 4).meant(1, 4), "c", 5), ""},
		{"not with what a live owner was to hand to it",
			last(of(a, b, leaving).owned(1, "a", 5).meant(3, 2), "c", 4), "2>2"},
		{"until it is back", last(of(a, b, back), "c", 4, 5), "4>4 5>4"},
		{"until it is back, also with what its older process has",
			of(a, b, leaving, back).owned(3, "c", 4, 5), "4>4 5>4"},
		{"not with what others had", last(last(of(a, b), "c", 4), "d", 5), "5>1"},
		{"not for one that came back with weight 0",
			last(of(a, b, joinedAt(member(4, "c", 2, 0), 8)), "c", 4, 5), "4>1 5>2"},
		{"not for one of whom all was pinned elsewhere", pinned(last(of(a, b), "c", 4, 5), 4, "a"), "4>1"},
		{"and what is pinned to it is elsewhere meanwhile", pinned(last(of(a, b), "c", 4, 5), 0, "c"), ""},
		{"also while the lease settles", settling(last(of(a, b), "c", 4, 5)), ""},
		{"also while the lease is frozen", frozen(last(of(a, b), "c", 4, 5)), ""},
		{"with cordoned members, which get the rest", last(last(of(cordoned(a), cordoned(b)), "c", 4), "d", 5), "5>1"},
		{"not while the lease is paused", paused(last(of(a, b), "c", 4, 5)), "0>0 1>0 2>0 3>0"},
		{"for all, of which none is left", awaiting(leaseOf("x", 2).owned(9, "c", 0, 1), "c", 7), "0>0 1>0"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var moves []string
			read := []store.LeaseSnapshot{test.lease.LeaseSnapshot}
			for _, m := range replan(read) {
				moves = append(moves, fmt.Sprintf("%d>%d", m.Partition, m.Target))
			}
			if got := strings.Join(moves, " "); got != test.moves {
				t.Errorf("moves %q, not %q", got, test.moves)
			}
			if len(read[0].Unowned) > 0 {
				t.Errorf("%v count as without an owner because of ceilings", read[0].Unowned)
			}
		})
	}
}

func TestReplanSetsWhatHasNoOwner(t *testing.T) {
	t.Parallel()
	a, b := limited(member(1, "a", 1, 1), 2), limited(member(2, "b", 1, 1), 1)
	for _, test := range []struct {
		name    string
		lease   read
		unowned string
	}{
		{"enough room", leaseOf("x", 3, a, b), "[]"},
		{"too little room", leaseOf("x", 6, a, b).owned(1, "a", 4), "[2 3 5]"},
		{"a paused lease", paused(leaseOf("x", 6, a, b)), "[]"},
		{"a lease without members", leaseOf("x", 6), "[]"},
		{"a lease whose members are drained", leaseOf("x", 6, drained(a), drained(b)), "[]"},
		{"a lease of which one member is drained", leaseOf("x", 3, a, drained(b)), "[2]"},
	} {
		test.lease.Unowned = []int{5} // of an earlier plan
		read := []store.LeaseSnapshot{test.lease.LeaseSnapshot}
		replan(read)
		if got := fmt.Sprint(read[0].Unowned); got != test.unowned {
			t.Errorf("%s: %s have no owner, not %s", test.name, got, test.unowned)
		}
	}
}

func TestReplanPlansLeasesTogether(t *testing.T) {
	t.Parallel()
	var leases []store.LeaseSnapshot
	for _, name := range []string{"u", "v", "x", "y"} {
		leases = append(leases, leaseOf(name, 1, member(1, "a", 1, 1), member(3, "b", 1, 1)).LeaseSnapshot)
	}
	count := make(map[int64]int)
	for _, m := range replan(leases) {
		count[m.Target]++
	}
	if count[1] != 2 || count[3] != 2 {
		t.Errorf("partitions by session: %v", count)
	}
}

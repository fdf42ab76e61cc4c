package pgleases

import (
	"slices"
	"testing"

	"github.com/pgleases/pgleases/internal/store"
)

// planOf builds what a plan reads of a lease: nobody owns anything yet.
func planOf(name string, partitions int, members ...store.Member) store.LeasePlan {
	return store.LeasePlan{
		Name: name, Generation: 1, Members: members,
		Owners: make([]int64, partitions), Targets: make([]int64, partitions),
		OwnerIDs: make([]string, partitions), HomeIDs: make([]string, partitions),
	}
}

// owned has a session own partitions, with itself as their target.
func owned(p store.LeasePlan, session int64, id string, partitions ...int) {
	for _, n := range partitions {
		p.Owners[n], p.Targets[n], p.OwnerIDs[n] = session, session, id
	}
}

func member(session int64, id string, incarnation int64, weight int) store.Member {
	return store.Member{Session: session, ID: id, Incarnation: incarnation, Weight: weight}
}

func targets(moves []store.Move) map[int]int64 {
	to := make(map[int]int64)
	for _, m := range moves {
		to[m.Partition] = m.Target
	}
	return to
}

func TestReplanLeavesAloneWhatIsAsItShallBe(t *testing.T) {
	t.Parallel()
	p := planOf("x", 4, member(1, "a", 1, 1), member(2, "b", 1, 1))
	owned(p, 1, "a", 0, 1)
	owned(p, 2, "b", 2, 3)
	if moves := replan([]store.LeasePlan{p}); len(moves) != 0 {
		t.Errorf("moves %v", moves)
	}
}

func TestReplanGivesOrphansToTheirTargetAlsoWhereThatStays(t *testing.T) {
	t.Parallel()
	p := planOf("x", 4, member(2, "b", 1, 1))
	owned(p, 2, "b", 2, 3)
	owned(p, 1, "a", 0, 1) // session 1 is dead
	p.Targets[0], p.Targets[1] = 2, 2
	moves := replan([]store.LeasePlan{p})
	if want := []store.Move{{Lease: "x", Partition: 0, Target: 2}, {Lease: "x", Partition: 1, Target: 2}}; !slices.Equal(moves, want) {
		t.Errorf("moves %v, not %v", moves, want)
	}
}

func TestReplanGivesWhatNobodyOwnsAlsoWhereTheTargetStays(t *testing.T) {
	t.Parallel()
	p := planOf("x", 2, member(2, "b", 1, 1))
	owned(p, 2, "b", 0)
	p.Targets[1] = 2 // half a hand-over
	if moves, want := replan([]store.LeasePlan{p}), []store.Move{{Lease: "x", Partition: 1, Target: 2}}; !slices.Equal(moves, want) {
		t.Errorf("moves %v, not %v", moves, want)
	}
}

func TestReplanGivesARestartedClientItsOwn(t *testing.T) {
	t.Parallel()
	p := planOf("x", 6, member(1, "a", 1, 1), member(5, "b", 2, 1), member(3, "c", 1, 1))
	owned(p, 1, "a", 0, 3)
	owned(p, 2, "b", 1, 4) // its first session is dead
	owned(p, 3, "c", 2, 5)
	got := targets(replan([]store.LeasePlan{p}))
	if len(got) != 2 || got[1] != 5 || got[4] != 5 {
		t.Errorf("targets %v: 1 and 4 shall go to session 5", got)
	}
}

func TestReplanMovesWhatAnOlderProcessOwnsToTheNewer(t *testing.T) {
	t.Parallel()
	p := planOf("x", 4, member(1, "a", 1, 1), member(4, "a", 2, 1), member(3, "b", 1, 1))
	owned(p, 1, "a", 0, 1)
	owned(p, 3, "b", 2, 3)
	got := targets(replan([]store.LeasePlan{p}))
	if len(got) != 2 || got[0] != 4 || got[1] != 4 {
		t.Errorf("targets %v: 0 and 1 shall go to session 4", got)
	}
}

func TestReplanCountsOneMemberPerID(t *testing.T) {
	t.Parallel()
	p := planOf("x", 4, member(1, "a", 1, 1), member(4, "a", 2, 1), member(3, "b", 1, 1))
	count := make(map[int64]int)
	for _, m := range replan([]store.LeasePlan{p}) {
		count[m.Target]++
	}
	if count[1] != 0 || count[4] != 2 || count[3] != 2 {
		t.Errorf("partitions by session: %v", count)
	}
}

func TestReplanTakesTheWeightOfTheNewerProcess(t *testing.T) {
	t.Parallel()
	p := planOf("x", 4, member(1, "a", 1, 1), member(4, "a", 2, 0), member(3, "b", 1, 1))
	owned(p, 1, "a", 0, 1)
	owned(p, 3, "b", 2, 3)
	got := targets(replan([]store.LeasePlan{p}))
	if len(got) != 2 || got[0] != 3 || got[1] != 3 {
		t.Errorf("targets %v: 0 and 1 shall go to session 3", got)
	}
}

func TestReplanDrainsAMemberOfWeightZero(t *testing.T) {
	t.Parallel()
	p := planOf("x", 4, member(1, "a", 1, 0), member(3, "b", 1, 1))
	owned(p, 1, "a", 0, 1)
	owned(p, 3, "b", 2, 3)
	got := targets(replan([]store.LeasePlan{p}))
	if len(got) != 2 || got[0] != 3 || got[1] != 3 {
		t.Errorf("targets %v: 0 and 1 shall go to session 3", got)
	}
}

func TestReplanWithAllWeightsZeroTakesFromAllAndAsksForNothingTwice(t *testing.T) {
	t.Parallel()
	p := planOf("x", 3, member(1, "a", 1, 0), member(3, "b", 1, 0))
	owned(p, 1, "a", 0)
	owned(p, 2, "c", 1) // dead
	moves := replan([]store.LeasePlan{p})
	want := []store.Move{{Lease: "x", Partition: 0}, {Lease: "x", Partition: 1}}
	if !slices.Equal(moves, want) {
		t.Errorf("moves %v, not %v", moves, want)
	}
	p.Targets[0], p.Owners[1], p.Targets[1] = 0, 0, 0
	if moves := replan([]store.LeasePlan{p}); len(moves) != 0 {
		t.Errorf("moves %v once more", moves)
	}
}

func TestReplanKeepsWhatIsOnItsWay(t *testing.T) {
	t.Parallel()
	p := planOf("x", 4, member(1, "a", 1, 1), member(3, "b", 1, 1))
	owned(p, 1, "a", 0, 1, 2, 3)
	p.Targets[2], p.Targets[3] = 3, 3 // asked for already
	if moves := replan([]store.LeasePlan{p}); len(moves) != 0 {
		t.Errorf("moves %v", moves)
	}
}

func TestReplanTakesBackWhatIsOnItsWayToADeadOne(t *testing.T) {
	t.Parallel()
	p := planOf("x", 2, member(1, "a", 1, 1))
	owned(p, 1, "a", 0, 1)
	p.Targets[1] = 9
	if moves, want := replan([]store.LeasePlan{p}), []store.Move{{Lease: "x", Partition: 1, Target: 1}}; !slices.Equal(moves, want) {
		t.Errorf("moves %v, not %v", moves, want)
	}
}

func TestReplanWithoutMembersMovesOnlyWhatIsOwned(t *testing.T) {
	t.Parallel()
	p := planOf("x", 2)
	owned(p, 1, "a", 0)
	if moves, want := replan([]store.LeasePlan{p}), []store.Move{{Lease: "x", Partition: 0}}; !slices.Equal(moves, want) {
		t.Errorf("moves %v, not %v", moves, want)
	}
}

func TestReplanPlansLeasesTogether(t *testing.T) {
	t.Parallel()
	var read []store.LeasePlan
	for _, name := range []string{"u", "v", "x", "y"} {
		read = append(read, planOf(name, 1, member(1, "a", 1, 1), member(3, "b", 1, 1)))
	}
	count := make(map[int64]int)
	for _, m := range replan(read) {
		count[m.Target]++
	}
	if count[1] != 2 || count[3] != 2 {
		t.Errorf("partitions by session: %v", count)
	}
}

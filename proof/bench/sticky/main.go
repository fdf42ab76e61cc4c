// Command sticky times the sticky balancer of franz-go on the scenes of BenchmarkPlan, and prints nanoseconds for one plan:
//
//	sticky PARTITIONS MEMBERS empty|one-returns 200ms|1x
package main

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const topic = "work"

var sticky = kgo.StickyBalancer()

func main() {
	ns, err := run(os.Args[1:])
	if err != nil {
		fmt.Fprintln(os.Stderr, "sticky:", err)
		os.Exit(1)
	}
	fmt.Println(ns)
}

func run(args []string) (int64, error) {
	if len(args) != 4 {
		return 0, fmt.Errorf("%d arguments, not 4", len(args))
	}
	partitions, err := strconv.Atoi(args[0])
	if err != nil {
		return 0, err
	}
	members, err := strconv.Atoi(args[1])
	if err != nil {
		return 0, err
	}
	owner, err := scene(args[2], partitions, members)
	if err != nil {
		return 0, err
	}
	span := time.Duration(0) // once
	if args[3] != "1x" {
		if span, err = time.ParseDuration(args[3]); err != nil {
			return 0, err
		}
	}
	return measure(partitions, members, owner, span)
}

// scene returns the member that owns a partition; -1: nobody.
func scene(name string, partitions, members int) (func(partition int) int, error) {
	share := partitions / members
	switch name {
	case "empty":
		return func(int) int { return -1 }, nil
	case "one-returns":
		return func(p int) int {
			if owner := p / share; owner != 3 {
				return owner
			}
			return p % 3
		}, nil
	}
	return nil, fmt.Errorf("no scene %q", name)
}

// measure returns the median time of a plan.
func measure(partitions, members int, owner func(int) int, span time.Duration) (int64, error) {
	owned := make([][]int32, members)
	for p := range partitions {
		if m := owner(p); m >= 0 {
			owned[m] = append(owned[m], int32(p))
		}
	}
	group := make([]kmsg.JoinGroupResponseMember, members)
	for m := range group {
		group[m] = groupMember(m, owned[m])
	}
	topics := map[string]int32{topic: int32(partitions)}
	var took []int64
	for began := time.Now(); len(took) == 0 || time.Since(began) < span; {
		balancer, _, err := sticky.MemberBalancer(group)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		plan, err := balancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(topics)
		took = append(took, time.Since(start).Nanoseconds())
		if err != nil {
			return 0, err
		}
		if got := len(plan.IntoSyncAssignment()); got != members {
			return 0, fmt.Errorf("a plan for %d members, not %d", got, members)
		}
	}
	slices.Sort(took)
	return took[len(took)/2], nil
}

// groupMember is a member as it tells the balancer of itself, with what it owns.
func groupMember(m int, owned []int32) kmsg.JoinGroupResponseMember {
	current := map[string][]int32{}
	if len(owned) > 0 {
		current[topic] = owned
	}
	member := kmsg.NewJoinGroupResponseMember()
	member.MemberID = fmt.Sprintf("member-%06d", m)
	member.ProtocolMetadata = sticky.JoinGroupMetadata([]string{topic}, current, 1)
	return member
}

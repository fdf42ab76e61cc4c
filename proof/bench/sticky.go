package main

import (
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const topic = "work"

var sticky = kgo.StickyBalancer()

// stickyTime returns the median of how long the sticky balancer of franz-go takes for a plan of a scene, in nanoseconds. It
// plans for that long, and once at the least.
func stickyTime(partitions, members int, name string, span time.Duration) (float64, error) {
	owner, err := scene(name, partitions, members)
	if err != nil {
		return 0, err
	}
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
	var took []float64
	for began := time.Now(); len(took) == 0 || time.Since(began) < span; {
		balancer, _, err := sticky.MemberBalancer(group)
		if err != nil {
			return 0, err
		}
		start := time.Now()
		plan, err := balancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(topics)
		took = append(took, float64(time.Since(start)))
		if err != nil {
			return 0, err
		}
		if got := len(plan.IntoSyncAssignment()); got != members {
			return 0, fmt.Errorf("a plan for %d members, not %d", got, members)
		}
	}
	return median(took), nil
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

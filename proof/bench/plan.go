package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// planScenes are cases of BenchmarkPlan.
var planScenes = []struct {
	name, what string
	owner      func(partition, share int) int // -1: no owner
}{
	{"empty", "nothing is owned yet", func(int, int) int { return -1 }},
	{"one-returns", "one of the members owns nothing yet", func(p, share int) int {
		if owner := p / share; owner != 3 {
			return owner
		}
		return p % 3
	}},
}

// measurePlans compares a plan with the sticky balancer of franz-go, and with sorting as many
// numbers. The plan is not exported, so its benchmark runs as a program.
func measurePlans(ctx context.Context, l *lab, out *part) {
	folder := must(os.MkdirTemp("", "pgleases-bench-"))
	defer os.RemoveAll(folder)
	root := must(exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/pgleases/pgleases").Output())
	program := filepath.Join(folder, "plan")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
	build.Dir = strings.TrimSpace(string(root))
	if text, err := build.CombinedOutput(); err != nil {
		check(fmt.Errorf("%w: %s", err, text))
	}
	sizes := []struct{ partitions, members int }{{1000, 100}, {10_000, 1000}, {100_000, 1000}}
	if l.quick {
		sizes = sizes[:1]
	}
	span := time.Duration(l.pick(1, 200)) * time.Millisecond
	for _, size := range sizes {
		for _, scene := range planScenes {
			took := l.alternate(3, side{"", nanoseconds, func() float64 {
				return benchmark(ctx, program, span, fmt.Sprintf("1x%dx%d$/^%s", size.partitions, size.members, scene.name))
			}}, side{"franz-go's sticky balancer", nanoseconds, func() float64 {
				return sticky(size.partitions, size.members, scene.owner, span)
			}}, side{"`slices.Sort` of as many ints", nanoseconds, func() float64 { return sorting(size.partitions) }})
			what := fmt.Sprintf("%s partitions, %s members: %s", grouped(size.partitions), grouped(size.members), scene.what)
			out.compare(what, took[0], took[1:]...).
				goal("<= 20 ms, and faster than franz-go", median(took[0].values) <= 20e6 && took[0].over(took[1]) < 1)
		}
	}
	out.note("franz-go balances a topic of as many partitions. The time to decode its members' messages does not count.")
}

var benchmarkLine = regexp.MustCompile(`(?m)^BenchmarkPlan/\S+\s+\d+\s+([\d.]+) ns/op`)

func benchmark(ctx context.Context, program string, span time.Duration, name string) float64 {
	text, err := exec.CommandContext(ctx, program, "-test.run=NONE", "-test.benchtime="+span.String(), "-test.bench=^BenchmarkPlan$/^"+name+"$").CombinedOutput()
	found := benchmarkLine.FindSubmatch(text)
	if err != nil || found == nil {
		check(fmt.Errorf("benchmark of the plan: %v: %s", err, text))
	}
	return must(strconv.ParseFloat(string(found[1]), 64))
}

// sorting returns the time to sort n random numbers, in nanoseconds.
func sorting(n int) float64 {
	numbers, took := make([]int, n), make([]float64, 5)
	for i := range took {
		for j := range numbers {
			numbers[j] = rand.Int()
		}
		began := time.Now()
		slices.Sort(numbers)
		took[i] = float64(time.Since(began))
	}
	return median(took)
}

// sticky returns the time of a plan by the sticky balancer of franz-go, in nanoseconds: the median
// over the span.
func sticky(partitions, members int, owner func(partition, share int) int, span time.Duration) float64 {
	const topic = "work"
	owned := make([][]int32, members)
	for p := range partitions {
		if m := owner(p, partitions/members); m >= 0 {
			owned[m] = append(owned[m], int32(p))
		}
	}
	kafka := kgo.StickyBalancer()
	group := make([]kmsg.JoinGroupResponseMember, members)
	for m := range group {
		current := map[string][]int32{}
		if len(owned[m]) > 0 {
			current[topic] = owned[m]
		}
		group[m] = kmsg.NewJoinGroupResponseMember()
		group[m].MemberID = fmt.Sprintf("member-%06d", m)
		group[m].ProtocolMetadata = kafka.JoinGroupMetadata([]string{topic}, current, 1)
	}
	var took []float64
	for began := time.Now(); len(took) == 0 || time.Since(began) < span; {
		balancer, _, err := kafka.MemberBalancer(group)
		check(err)
		start := time.Now()
		plan := must(balancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(map[string]int32{topic: int32(partitions)}))
		took = append(took, float64(time.Since(start)))
		if got := len(plan.IntoSyncAssignment()); got != members {
			check(fmt.Errorf("a plan for %d members, not %d", got, members))
		}
	}
	return median(took)
}

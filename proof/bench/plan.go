package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// measurePlans compares a plan with the sticky balancer of franz-go, for a new member. The plan is
// not exported, so its benchmark runs as a program.
func measurePlans(ctx context.Context, l *lab, out *part) {
	folder := must(os.MkdirTemp("", "pgleases-bench-"))
	defer os.RemoveAll(folder)
	list := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/pgleases/pgleases")
	program := filepath.Join(folder, "plan")
	build := exec.CommandContext(ctx, "go", "test", "-c", "-o", program, ".")
	build.Dir = strings.TrimSpace(string(must(list.Output())))
	if text, err := build.CombinedOutput(); err != nil {
		check(fmt.Errorf("%w: %s", err, text))
	}
	sizes := []struct{ partitions, members int }{{1000, 100}, {100_000, 1000}}
	if l.quick {
		sizes = sizes[:1]
	}
	span := time.Duration(l.pick(1, 200)) * time.Millisecond
	for _, size := range sizes {
		took := l.alternate(3, side{"", nanoseconds, func() float64 {
			return benchmark(ctx, program, span, fmt.Sprintf("1x%dx%d$/^one-returns", size.partitions, size.members))
		}}, side{"franz-go", nanoseconds, func() float64 { return sticky(size.partitions, size.members, span) }})
		what := fmt.Sprintf("%s partitions, %s members, one of them new",
			grouped(size.partitions), grouped(size.members))
		r := out.compare(what, took[0], took[1])
		r.goal("<= 20 ms, and faster", median(took[0].values) <= 20e6 && r.times < 1)
	}
	out.note("The figures beside ours are those of franz-go's sticky balancer, for a topic of as many partitions.")
}

var benchmarkLine = regexp.MustCompile(`(?m)^BenchmarkPlan/\S+\s+\d+\s+([\d.]+) ns/op`)

func benchmark(ctx context.Context, program string, span time.Duration, name string) float64 {
	text, err := exec.CommandContext(ctx, program,
		"-test.run=NONE", "-test.benchtime="+span.String(), "-test.bench=^BenchmarkPlan$/^"+name+"$").CombinedOutput()
	found := benchmarkLine.FindSubmatch(text)
	if err != nil || found == nil {
		check(fmt.Errorf("benchmark of the plan: %v: %s", err, text))
	}
	return must(strconv.ParseFloat(string(found[1]), 64))
}

// sticky returns the time of a plan by the sticky balancer of franz-go, in nanoseconds: the median
// over the span.
func sticky(partitions, members int, span time.Duration) float64 {
	const topic = "work"
	owned := make([][]int32, members)
	for p := range partitions {
		m := p * members / partitions
		if m == 3 { // as in BenchmarkPlan, it owns nothing yet
			m = p % 3
		}
		owned[m] = append(owned[m], int32(p))
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
	topics := map[string]int32{topic: int32(partitions)}
	var took []float64
	for began := time.Now(); len(took) == 0 || time.Since(began) < span; {
		balancer, _, err := kafka.MemberBalancer(group)
		check(err)
		start := time.Now()
		plan := must(balancer.(kgo.GroupMemberBalancerOrError).BalanceOrError(topics))
		took = append(took, float64(time.Since(start)))
		got := len(plan.IntoSyncAssignment())
		if got != members {
			check(fmt.Errorf("a plan for %d members, not %d", got, members))
		}
	}
	return median(took)
}

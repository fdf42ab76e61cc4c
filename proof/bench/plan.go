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
)

type planSize struct{ partitions, members int }

var planSizes = []planSize{{1000, 100}, {10_000, 1000}, {100_000, 1000}}

// planScenes are scenes of BenchmarkPlan, which sticky.go builds too.
var planScenes = []struct{ name, what string }{
	{"empty", "nothing is owned yet"},
	{"one-returns", "one of the members owns nothing yet"},
}

// measurePlans compares the plan with the sticky balancer of franz-go and with sorting as many numbers. The plan is not
// exported: its benchmark is run as a program.
func measurePlans(ctx context.Context, l *lab, out *part) error {
	folder, err := os.MkdirTemp("", "pgleases-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	p := &planners{program: filepath.Join(folder, "plan"), rounds: l.pick(1, 3), span: 200 * time.Millisecond}
	if l.quick {
		p.span = 0
	}
	if err := p.build(ctx); err != nil {
		return err
	}
	sizes := planSizes
	if l.quick {
		sizes = sizes[:1]
	}
	for _, size := range sizes {
		for _, scene := range planScenes {
			if err := p.compare(ctx, out, size.partitions, size.members, scene.name, scene.what); err != nil {
				return err
			}
		}
	}
	out.note("Medians of %d rounds, in turns. franz-go balances a topic of as many partitions; what it needs to decode of its members' messages is not counted.", p.rounds)
	return nil
}

type planners struct {
	program string        // has BenchmarkPlan
	rounds  int           // of each scene
	span    time.Duration // of one round; 0: one plan
}

// build builds the tests of the library, which are in another module.
func (p *planners) build(ctx context.Context) error {
	root, err := goCommand(ctx, "", "list", "-m", "-f", "{{.Dir}}", "github.com/pgleases/pgleases")
	if err != nil {
		return err
	}
	_, err = goCommand(ctx, root, "test", "-c", "-o", p.program, ".")
	return err
}

func goCommand(ctx context.Context, dir string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go %s: %w: %s", args[0], err, text)
	}
	return strings.TrimSpace(string(text)), nil
}

func (p *planners) compare(ctx context.Context, out *part, partitions, members int, scene, what string) error {
	var own, rival, sorting []float64
	for range p.rounds {
		ns, err := p.plan(ctx, partitions, members, scene)
		if err != nil {
			return err
		}
		own = append(own, ns)
		if ns, err = stickyTime(partitions, members, scene, p.span); err != nil {
			return err
		}
		rival = append(rival, ns)
		sorting = append(sorting, sortTime(partitions))
	}
	r := row{
		what:   fmt.Sprintf("%s partitions, %s members: %s", grouped(partitions), grouped(members), what),
		figure: duration(time.Duration(median(own))),
		floors: []floor{
			{"`slices.Sort` of as many ints", duration(time.Duration(median(sorting))), times(median(ratios(own, sorting)))},
			{"franz-go's sticky balancer", duration(time.Duration(median(rival))), times(median(ratios(own, rival)))},
		},
	}
	faster := median(ratios(own, rival)) < 1
	if partitions == 100_000 {
		r.goal, r.met = "<= 20 ms, and faster than franz-go", judge(median(own) <= 20e6 && faster)
	} else {
		r.goal, r.met = "faster than franz-go", judge(faster)
	}
	out.add(r)
	return nil
}

var benchmarkLine = regexp.MustCompile(`(?m)^BenchmarkPlan/\S+\s+\d+\s+([\d.]+) ns/op`)

// plan runs one benchmark of the plan, and returns nanoseconds.
func (p *planners) plan(ctx context.Context, partitions, members int, scene string) (float64, error) {
	span := "1x"
	if p.span > 0 {
		span = p.span.String()
	}
	cmd := exec.CommandContext(ctx, p.program, "-test.run=NONE", "-test.benchtime="+span,
		fmt.Sprintf("-test.bench=^BenchmarkPlan$/^1x%dx%d$/^%s$", partitions, members, scene))
	text, err := cmd.CombinedOutput()
	found := benchmarkLine.FindSubmatch(text)
	if err != nil || found == nil {
		return 0, fmt.Errorf("benchmark of the plan: %v: %s", err, text)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

// sortTime returns how long sorting so many random numbers takes, in nanoseconds.
func sortTime(n int) float64 {
	random := rand.New(rand.NewPCG(1, 2))
	numbers, took := make([]int, n), make([]float64, 5)
	for i := range took {
		for j := range numbers {
			numbers[j] = random.Int()
		}
		began := time.Now()
		slices.Sort(numbers)
		took[i] = float64(time.Since(began))
	}
	return median(took)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"
)

type planSize struct{ partitions, members int }

var planSizes = []planSize{{1000, 100}, {10_000, 1000}, {100_000, 1000}}

// planScenes are scenes of BenchmarkPlan and of package sticky, which builds the same.
var planScenes = []struct{ name, what string }{
	{"empty", "nothing is owned yet"},
	{"one-returns", "one of the members owns nothing yet"},
}

// measurePlans compares the plan with the sticky balancer of franz-go and with sorting as many numbers. The plan is not
// exported: its benchmark is run as a program, and so is the balancer, which is in a module of its own.
func measurePlans(ctx context.Context, l *lab, out *part) error {
	folder, err := os.MkdirTemp("", "pgleases-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	p := &planners{folder: folder, rounds: l.pick(1, 3), span: "200ms"}
	if l.quick {
		p.span = "1x"
	}
	if err := p.build(ctx); err != nil {
		return err
	}
	if p.noRival != nil {
		out.skip("the sticky balancer of franz-go", p.noRival.Error())
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
	folder  string
	rounds  int
	span    string // of one benchmark
	noRival error
}

func (p *planners) program(name string) string {
	if runtime.GOOS == "windows" {
		name += ".exe"
	}
	return filepath.Join(p.folder, name)
}

// build builds both programs. A rival that cannot be had is no error.
func (p *planners) build(ctx context.Context) error {
	root, err := moduleRoot(ctx)
	if err != nil {
		return err
	}
	if err := goCommand(ctx, root, "test", "-c", "-o", p.program("plan"), "."); err != nil {
		return err
	}
	p.noRival = goCommand(ctx, filepath.Join(root, "internal", "bench", "sticky"), "build", "-o", p.program("sticky"), ".")
	return ctx.Err()
}

func moduleRoot(ctx context.Context) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMOD").Output()
	if err != nil {
		return "", err
	}
	root := filepath.Dir(strings.TrimSpace(string(out)))
	if root == "." {
		return "", errors.New("run it inside the module")
	}
	return root, nil
}

func goCommand(ctx context.Context, dir string, args ...string) error {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = dir
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go %s: %w: %s", args[0], err, strings.TrimSpace(string(text)))
	}
	return nil
}

func (p *planners) compare(ctx context.Context, out *part, partitions, members int, scene, what string) error {
	var own, rival, sorting []float64
	for range p.rounds {
		ns, err := p.plan(ctx, partitions, members, scene)
		if err != nil {
			return err
		}
		own = append(own, ns)
		if p.noRival == nil {
			if ns, err = p.sticky(ctx, partitions, members, scene); err != nil {
				return err
			}
			rival = append(rival, ns)
		}
		sorting = append(sorting, sortTime(partitions))
	}
	r := row{
		what:   fmt.Sprintf("%s partitions, %s members: %s", grouped(partitions), grouped(members), what),
		figure: duration(time.Duration(median(own))),
		floors: []floor{{"`slices.Sort` of as many ints", duration(time.Duration(median(sorting))), times(median(ratios(own, sorting)))}},
	}
	faster := true
	if p.noRival == nil {
		faster = median(ratios(own, rival)) < 1
		r.floors = append(r.floors, floor{"franz-go's sticky balancer", duration(time.Duration(median(rival))), times(median(ratios(own, rival)))})
	}
	if partitions == 100_000 {
		r.goal, r.met = "<= 20 ms, and faster than franz-go", judge(median(own) <= 20e6 && faster)
	} else {
		r.goal, r.met = "faster than franz-go", judge(faster)
	}
	if p.noRival != nil {
		r.met = unknown
	}
	out.add(r)
	return nil
}

var benchmarkLine = regexp.MustCompile(`(?m)^BenchmarkPlan/\S+\s+\d+\s+([\d.]+) ns/op`)

// plan runs one benchmark of the plan, and returns nanoseconds.
func (p *planners) plan(ctx context.Context, partitions, members int, scene string) (float64, error) {
	cmd := exec.CommandContext(ctx, p.program("plan"), "-test.run=NONE", "-test.benchtime="+p.span,
		fmt.Sprintf("-test.bench=^BenchmarkPlan$/^1x%dx%d$/^%s$", partitions, members, scene))
	text, err := cmd.CombinedOutput()
	found := benchmarkLine.FindSubmatch(text)
	if err != nil || found == nil {
		return 0, fmt.Errorf("benchmark of the plan: %v: %s", err, text)
	}
	return strconv.ParseFloat(string(found[1]), 64)
}

// sticky runs franz-go's balancer, and returns nanoseconds.
func (p *planners) sticky(ctx context.Context, partitions, members int, scene string) (float64, error) {
	text, err := exec.CommandContext(ctx, p.program("sticky"),
		strconv.Itoa(partitions), strconv.Itoa(members), scene, p.span).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("sticky: %w: %s", err, text)
	}
	return strconv.ParseFloat(strings.TrimSpace(string(text)), 64)
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

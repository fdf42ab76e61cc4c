package main

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
)

// measureDeploy replaces all clients of a lease, one after the other, and observes each partition
// from outside.
func measureDeploy(ctx context.Context, l *lab, out *part) {
	clients, partitions := l.pick(3, 20), l.pick(64, 1024)
	replace := func(settle func(*group)) func(*group, int) {
		return func(g *group, i int) {
			g.add(ctx, fmt.Sprintf("new-%02d", i))
			settle(g)
			g.remove(0)
			settle(g)
		}
	}
	restart := func(settle func(*group)) func(*group, int) {
		return func(g *group, _ int) {
			id := g.members[0].id
			g.remove(0)
			g.add(ctx, id)
			settle(g)
		}
	}
	even := func(g *group) { g.settle(ctx) }
	covered := func(g *group) { g.covered(ctx, partitions); g.atRest(ctx) }
	delay, grace := pgleases.WithRebalanceDelay(deployDelay), pgleases.WithRestartGrace(time.Minute)
	for _, deploy := range []struct {
		what    string
		least   float64 // moves per partition
		why     string
		most    float64 // the goal for them; 0: there is no goal
		options []pgleases.LeaseOption
		one     func(g *group, i int) // replaces a client
	}{
		{"a new client joins, an old one closes", 1, "each has to move once", 0, nil, replace(even)},
		{"each client closes and restarts", 2, "away, and back", 0, nil, restart(even)},
		{"a new client joins, an old one closes, with `WithRebalanceDelay`", 1, "each has to move once", 1.05,
			[]pgleases.LeaseOption{delay}, replace(covered)},
		{"each client closes and restarts, with `WithRestartGrace`", 0, "each comes back to its client", 0.05,
			[]pgleases.LeaseOption{grace}, restart(covered)},
	} {
		g := l.newGroup(ctx, l.durable, 0, partitions, 0, nil)
		g.options = deploy.options
		for i := range clients {
			g.add(ctx, fmt.Sprintf("client-%02d", i))
		}
		g.settle(ctx)
		o := observe(g)
		began := time.Now()
		for i := range clients {
			deploy.one(g, i)
		}
		g.settle(ctx)
		took := time.Since(began)
		close(o.done)
		o.wait.Wait()
		o.report(out, deploy.what, deploy.least, deploy.why, deploy.most, took)
		g.end()
	}
	out.note("%d clients share %s partitions, with the default TTL and no handoff delay. "+
		"The next client is replaced when shares are even, or with an option when all partitions are owned. "+
		"The rebalance delay is %d s, and the restart grace 1 min.",
		clients, grouped(partitions), int(deployDelay.Seconds()))
}

// deployDelay is longer than the replacement of one client takes.
const deployDelay = 10 * time.Second

// An observer reads what clients own, again and again.
type observer struct {
	done       chan struct{}
	wait       sync.WaitGroup
	partitions []observed
	readings   int
}

// observed holds what the observer saw of a partition.
type observed struct {
	owner   *member
	moves   int
	reading int       // the last reading with an owner
	until   time.Time // the time of that reading
	without time.Duration
	longest time.Duration
}

func observe(g *group) *observer {
	o := &observer{done: make(chan struct{}), partitions: make([]observed, g.partitions)}
	o.read(g.everybody(), time.Now())
	o.wait.Go(func() {
		again := time.NewTicker(time.Millisecond)
		defer again.Stop()
		for {
			select {
			case <-again.C:
			case <-o.done:
				return
			}
			o.read(g.everybody(), time.Now())
		}
	})
	return o
}

// read records the owner of each partition.
func (o *observer) read(members []*member, now time.Time) {
	o.readings++
	for _, m := range members {
		for _, p := range m.Values() {
			of := &o.partitions[p]
			if of.owner != nil && (of.owner != m || of.reading < o.readings-1) {
				gap := now.Sub(of.until)
				of.without, of.longest = of.without+gap, max(of.longest, gap)
			}
			if of.owner != nil && of.owner.id != m.id {
				of.moves++
			}
			of.owner = m
			of.reading = o.readings
			of.until = now
		}
	}
}

func (o *observer) report(out *part, what string, least float64, why string, most float64, took time.Duration) {
	var moves, without, gaps []float64
	for _, of := range o.partitions {
		moves = append(moves, float64(of.moves))
		without, gaps = append(without, float64(of.without)), append(gaps, float64(of.longest))
	}
	mean := func(of []float64) float64 {
		sum := 0.0
		for _, x := range of {
			sum += x
		}
		return sum / float64(len(of))
	}
	n := mean(moves)
	ratio := ""
	if least > 0 {
		ratio = significant(n/least) + "x"
	}
	moved := out.figure(what+": moves of a partition", fmt.Sprintf("%.2f, at most %v", n, slices.Max(moves))).
		than(why, fmt.Sprintf("%.2f", least), ratio)
	if most > 0 {
		moved.goal(fmt.Sprintf("<= %.2f", most), n <= most)
	}
	out.figure(what+": time without an owner", fmt.Sprintf("%s, at most %s; longest gap %s",
		nanoseconds(mean(without)), nanoseconds(slices.Max(without)), nanoseconds(slices.Max(gaps)))).
		than("the whole deploy", duration(took), percent(mean(without)/float64(took)))
}

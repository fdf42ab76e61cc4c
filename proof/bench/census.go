package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// A census counts what members own, at every change. All methods are safe for concurrent use.
type census struct {
	// mu guards the rest.
	mu      sync.Mutex
	owned   map[*member]int
	changed chan struct{} // closed at the next change
	at      time.Time     // of the last change
}

func newCensus() *census {
	return &census{owned: make(map[*member]int), changed: make(chan struct{})}
}

// watch counts a member in until its client ends. It has no hand-off delay, so reading Values changes nothing.
func (c *census) watch(m *member) {
	c.set(m, len(m.Values()), true)
	go func() {
		for {
			changed := m.Changed()
			c.set(m, len(m.Values()), true)
			select {
			case <-changed:
			case <-m.client.Done():
			}
			select {
			case <-m.client.Done():
				c.set(m, 0, false)
				return
			default:
			}
		}
	}()
}

func (c *census) set(m *member, owns int, counts bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, counted := c.owned[m]
	if counted == counts && before == owns {
		return
	}
	if counts {
		c.owned[m] = owns
	} else {
		delete(c.owned, m)
	}
	c.at = time.Now()
	close(c.changed)
	c.changed = make(chan struct{})
}

// now returns what is owned by each member, and since when it is so.
func (c *census) now() ([]int, time.Time, <-chan struct{}) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Collect(maps.Values(c.owned)), c.at, c.changed
}

// patience bounds what a measurement waits for; errLate tells that it was not enough.
const patience = time.Minute

var errLate = errors.New("not in time")

// until waits until what is owned satisfies holds, and returns since when it does.
func (c *census) until(ctx context.Context, what string, holds func(owned []int) bool) (time.Time, error) {
	late := time.NewTimer(patience)
	defer late.Stop()
	for {
		owned, at, changed := c.now()
		if holds(owned) {
			return at, nil
		}
		select {
		case <-changed:
		case <-late.C:
			return at, fmt.Errorf("%w: %s, within %v; owned are %v", errLate, what, patience, owned)
		case <-ctx.Done():
			return at, context.Cause(ctx)
		}
	}
}

// balanced says that so many members own all of so many partitions, in even shares.
func balanced(members, partitions int) func([]int) bool {
	return func(owned []int) bool {
		return len(owned) == members && total(owned) == partitions && slices.Max(owned)-slices.Min(owned) <= 1
	}
}

// covered says that all of so many partitions are owned.
func covered(partitions int) func([]int) bool {
	return func(owned []int) bool { return total(owned) == partitions }
}

func total(of []int) int {
	sum := 0
	for _, n := range of {
		sum += n
	}
	return sum
}

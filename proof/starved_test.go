//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// Processes that run for 10 ms in every 100 ms, as with a tenth of a processor, start, are killed,
// and lose their connections.
func TestStarvedProcessesKeepOneOwner(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		span := 40 * time.Second
		if brief() {
			span = 15 * time.Second
		}
		e := attack(t, rand.Uint64(), span, direct(t), nil, func(f *faults.Fleet) {
			f.Faults = only(f.Faults, "join", "kill", "restart", "twin", "freeze", "cut", "reset")
			f.Starve()
		})
		covered(t, e, 20, 10_000)
	})
}

// Three clients have a thousand goroutines each, which read and write under Guard while partitions
// move. Some of them write like zombies, which the guard must refuse.
func TestThousandsOfGoroutinesKeepOneOwner(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		each := 1000
		if brief() {
			each = 200
		}
		began := time.Now()
		m := newMovingOf(t, direct(t), each)
		until(t, "partitions have moved under writes", func() bool {
			return m.effects.Written.Load() >= 500 && m.gained() >= 50
		})
		writes, took, zombies := m.stop(t), time.Since(began).Round(time.Millisecond), m.effects.Zombies.Load()
		t.Logf("%d goroutines, in %v: %d guarded writes, %d refused, %d to zombies; gains: %d",
			3*each, took, writes, m.effects.Refused.Load(), zombies, m.gains)
		tally.Checked(t, "goroutines", 3*each)
		if zombies == 0 {
			t.Missed(began, time.Since(began), "no zombie has tried to write")
		}
	})
}

// Five hundred clients wait for one partition. Whoever owns it closes, ten times, and at the end all
// of them close at once.
func TestManyClientsOfOnePartition(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		number := 500
		if brief() {
			number = 100
		}
		clients, leases := openedTogether(t, number)
		names := make(map[string]*pgleases.Lease)
		for i, l := range leases {
			names[clients[i].ID()] = l
		}
		logs := watchedEvery(t, 50*time.Millisecond, names)
		owner, last := nextOwner(t, leases, 0)
		var took []time.Duration
		for range 10 {
			began := time.Now()
			shut(t, clients[owner])
			owner, last = nextOwner(t, leases, last)
			took = append(took, time.Since(began))
			tally.Fault(t, "close")
		}
		began := time.Now()
		errs := together(number, func(i int) error {
			if clients[i].Err() != nil {
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			return clients[i].Close(ctx)
		})
		t.Logf("%d clients of one partition: the next owned it after %s; all closed at once in %v",
			number, figures(took), time.Since(began))
		if report := verify(t, logs()); report.Reads < 10_000 {
			t.Missed(began, patience, "only %d reads: the test covered too little", report.Reads)
		}
		if err := errors.Join(errs...); err != nil {
			t.Missed(began, patience, "not all closed: %v", err)
		}
	})
}

// nextOwner waits until one of the leases owns partition 0 under a higher epoch than the last, and
// returns which.
func nextOwner(t *timeguard.Try, leases []*pgleases.Lease, last int64) (owner int, epoch int64) {
	t.Helper()
	until(t, "a client owns the partition", func() bool {
		for i, l := range leases {
			p, owns := l.Partition(0)
			if owns && p.Epoch > last {
				owner, epoch = i, p.Epoch
				return true
			}
		}
		return false
	})
	return owner, epoch
}

// openedTogether opens clients of one server, and joins a lease with one partition.
func openedTogether(t *timeguard.Try, number int) (clients []*pgleases.Client, leases []*pgleases.Lease) {
	t.Helper()
	settings := map[string]string{"max_connections": fmt.Sprint(number + 20)}
	url := pgserver.Private(t, pgserver.WithSettings(settings)).URL()
	clients, leases = make([]*pgleases.Client, number), make([]*pgleases.Lease, number)
	log := quietly(t)
	began := time.Now()
	const openers = 8 // more would time out together
	errs := together(openers, func(first int) (err error) {
		for i := first; i < number && err == nil; i += openers {
			clients[i], leases[i], err = openedOne(t, url, fmt.Sprintf("client-%03d", i), log)
		}
		return err
	})
	t.Cleanup(func() {
		together(number, func(i int) error {
			if clients[i] == nil || clients[i].Err() != nil {
				return nil
			}
			ctx, cancel := context.WithTimeout(context.Background(), time.Second)
			defer cancel()
			return clients[i].Close(ctx)
		})
	})
	if err := errors.Join(errs...); err != nil {
		t.Missed(began, patience, "not all clients were opened: %v", err)
	}
	t.Logf("%d clients have joined after %v", number, time.Since(began))
	return clients, leases
}

// openedOne opens a client that joins the lease. It tries again while the machine is late.
func openedOne(
	t *timeguard.Try, url, id string, log pgleases.Option,
) (c *pgleases.Client, l *pgleases.Lease, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for c == nil && ctx.Err() == nil {
		c, err = pgleases.Open(ctx, url, pgleases.WithClientID(id), log)
	}
	if err == nil {
		l, err = c.Lease(ctx, "one", 1, pgleases.WithHandoffDelay(0))
	}
	return c, l, err
}

// together calls a function for each number, and returns the errors.
func together(number int, f func(i int) error) []error {
	errs := make([]error, number)
	var wait sync.WaitGroup
	for i := range number {
		wait.Go(func() { errs[i] = f(i) })
	}
	wait.Wait()
	return errs
}

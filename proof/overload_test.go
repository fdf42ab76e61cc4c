//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// Callers of one lock give up after 0 to 400 ms, and processes that only use the processor make all
// of them late for a while. Two seconds after the machine is free again, as many callers get the
// lock as before. In a queue of the database, requests of those that gave up would stand before the
// others, who then give up too, and so on. No other test runs beside this one, which would make it
// late.
func TestLocksRecoverFromAnOverload(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		const measured, overload, recovery = 3 * time.Second, 4 * time.Second, 2 * time.Second
		c := newCallers(t, 5)
		c.start(t, 1)
		alone := c.during(measured / 3)
		c.start(t, 59)
		time.Sleep(time.Second) // the others begin
		before := c.during(measured)
		end := busy(t, 6)
		tally.Fault(t, "overload of the processors")
		meanwhile := c.during(overload)
		end()
		free := time.Now()
		time.Sleep(recovery) // what is allowed for the recovery
		after := c.during(measured)
		c.stop()
		tally.Checked(t, "acquisitions", c.acquired.Load())
		if least := min(before, after); least < alone/20 { // no machine is so late
			t.Errorf("%.0f acquisitions a second, and %.0f of a caller alone: nearly all callers give up", least, alone)
		}
		if after < 0.8*before {
			t.Missed(free, recovery, "%.0f acquisitions a second from 2 s after the overload on, before it %.0f",
				after, before)
		}
		t.Logf("acquisitions a second: %.0f of a caller alone, %.0f before, %.0f during the overload, "+
			"%.0f from 2 s after it on (%.2fx); gave up: %d",
			alone, before, meanwhile, after, after/before, c.gaveUp.Load())
	})
}

// Callers take one lock again and again.
type callers struct {
	locks            []*lock.Locks // of each client
	acquired, gaveUp atomic.Int64

	ctx     context.Context
	stop    func()
	running sync.WaitGroup
}

// newCallers opens a number of clients, each with a pool of its own.
func newCallers(t *timeguard.Try, clients int) *callers {
	t.Helper()
	c := &callers{}
	url := pgserver.Private(t, pgserver.WithSettings(map[string]string{"max_connections": "200"})).URL()
	for i := range clients {
		pool := testkit.Pool(t, url, size(20))
		client := newClient(t, pool, pgleases.WithClientID(fmt.Sprint("client-", i)), quietly(t))
		c.locks = append(c.locks, lock.New(client, pool))
	}
	ctx, cancel := context.WithCancel(context.Background())
	c.ctx, c.stop = ctx, func() { cancel(); c.running.Wait() }
	t.Cleanup(c.stop)
	return c
}

// start starts a number of further callers.
func (c *callers) start(t *timeguard.Try, number int) {
	for i := range number {
		c.running.Go(func() {
			for c.ctx.Err() == nil {
				if err := c.turn(c.ctx, c.locks[i%len(c.locks)]); err != nil {
					t.Error(err)
				}
			}
		})
	}
}

// turn takes the lock once, or gives up.
func (c *callers) turn(ctx context.Context, locks *lock.Locks) error {
	patient, cancel := context.WithTimeout(ctx, rand.N(400*time.Millisecond))
	defer cancel()
	held, err := locks.Acquire(patient, "overloaded")
	if err != nil {
		if c.gaveUp.Add(1); patient.Err() != nil {
			return nil
		}
		return err
	}
	c.acquired.Add(1)
	pause(ctx, time.Millisecond)
	err = held.Release(context.WithoutCancel(ctx))
	if err != nil && !errors.Is(err, lock.ErrLost) { // trust may end in the overload
		return err
	}
	return nil
}

// during returns how many callers a second got the lock during a time.
func (c *callers) during(span time.Duration) float64 {
	before, began := c.acquired.Load(), time.Now()
	time.Sleep(span)
	return float64(c.acquired.Load()-before) / time.Since(began).Seconds()
}

// busy starts processes that only use the processor, until the function that it returns is called.
func busy(t *timeguard.Try, number int) (end func()) {
	t.Helper()
	var all []*exec.Cmd
	end = sync.OnceFunc(func() {
		for _, cmd := range all {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	t.Cleanup(end)
	for range number {
		cmd := exec.Command("sh", "-c", "while :; do :; done")
		testkit.OK(t, cmd.Start())
		all = append(all, cmd)
	}
	return end
}

package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
)

// balances is the state of one partition.
type balances map[string]int64

// A board has the states of all partitions that this process owns, for requests.
type board struct {
	mu     sync.Mutex // guards states, and what is in them
	states map[stateKey]balances
}

type stateKey struct {
	partition int
	epoch     int64
}

// show makes a loaded state visible to requests, until hide is called.
func (b *board) show(p pgleases.Partition, loaded balances) (hide func()) {
	key := stateKey{p.Number, p.Epoch}
	b.mu.Lock()
	b.states[key] = loaded
	b.mu.Unlock()
	return func() {
		b.mu.Lock()
		delete(b.states, key)
		b.mu.Unlock()
	}
}

var (
	errNotMine  = errors.New("this process does not own the customer, or is giving it up")
	errTryAgain = errors.New("this customer is being loaded or moved: try again")
)

// with calls f with the state that a customer is in. Requests call it, and f must be short, because
// other requests wait meanwhile.
func (b *board) with(ctx context.Context, lease *pgleases.Lease, customer string, f func(balances)) error {
	hold := lease.Hold(ctx) // the partition stays here until Release
	defer hold.Release()
	p, owned := hold.Partition(lease.PartitionFor(customer))
	if !owned {
		return errNotMine
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	state, visible := b.states[stateKey{p.Number, p.Epoch}]
	if !visible {
		return errTryAgain
	}
	f(state)
	return nil
}

// loaded returns how many partitions this process owns, and of how many of them the state is visible.
func (b *board) loaded(lease *pgleases.Lease) (owned, visible int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for n := range lease.NumPartitions() {
		p, isOwned := lease.Partition(n) // unlike Values, this delays no handoff
		_, isVisible := b.states[stateKey{p.Number, p.Epoch}]
		if isOwned {
			owned++
		}
		if isOwned && isVisible {
			visible++
		}
	}
	return owned, visible
}

// ready is the probe for readiness. It waits for the first partitions that this process owns to be
// loaded. A process that owns none is ready, because otherwise a rollout would wait for it, while it
// waits for the rollout to end an older process.
func (b *board) ready(client *pgleases.Client, lease *pgleases.Lease) http.HandlerFunc {
	var once atomic.Bool
	joined := health.Readiness(client)
	return func(w http.ResponseWriter, r *http.Request) {
		if !once.Load() {
			owned, visible := b.loaded(lease)
			if visible < owned {
				http.Error(w, "partitions are being loaded", http.StatusServiceUnavailable)
				return
			}
			once.Store(owned > 0)
		}
		joined.ServeHTTP(w, r)
	}
}

// copyOf copies a state, so that it can be written while requests go on.
func (b *board) copyOf(state balances) balances {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(state)
}

// runBoard keeps the states of the partitions that this process owns on the board, until ctx ends. It
// flushes them in each interval, and when they must move. flush writes a whole state under Guard.
func runBoard(ctx context.Context, lease *pgleases.Lease, b *board, interval time.Duration,
	load func(context.Context, pgleases.Partition) (balances, error),
	flush func(context.Context, pgleases.Partition, balances) error) error {
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		state, err := load(ctx, p)
		if err != nil {
			return err
		}
		hide := b.show(p, state)
		defer hide() // also if the partition is lost
		for wait(ctx, interval) {
			err = flush(p.Context(), p, b.copyOf(state))
			if lost(p, err) {
				return err
			}
		}
		hide() // no request changes the state any more
		for {
			err = flush(p.Context(), p, state)
			if err == nil || lost(p, err) {
				return err
			}
			wait(p.Context(), time.Second) // Run does not call again after ctx has ended, so try it here
		}
	})
}

// wait waits for a duration or the end of ctx, and reports whether ctx goes on.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// lost logs an error, and reports whether another process may own the partition now.
func lost(p pgleases.Partition, err error) bool {
	if err == nil {
		return false
	}
	log.Printf("partition %d: %v", p.Number, err)
	return errors.Is(err, pgleases.ErrNotOwner) || p.Context().Err() != nil
}

func Example_stateForRequests() {
	x := begin()
	defer x.end()
	client := x.client()
	lease, err := client.Lease(x.ctx, "totals", 16)
	x.Check(err)
	ada := lease.PartitionFor("ada")
	b := &board{states: make(map[stateKey]balances)}
	release := make(chan struct{})
	load := func(context.Context, pgleases.Partition) (balances, error) {
		<-release
		return balances{"ada": 7}, nil
	}
	stored, failed := make(chan int64, 1000), false // what was flushed; only ada's goroutine writes
	flush := func(_ context.Context, p pgleases.Partition, state balances) error {
		if p.Number != ada {
			return nil
		}
		if x.ctx.Err() != nil && !failed { // the first of the last flushes
			failed = true
			return errors.New("the database is away")
		}
		stored <- state["ada"]
		return nil
	}
	log.SetOutput(io.Discard)
	defer log.SetOutput(os.Stderr)
	ended := make(chan error, 1)
	go func() { ended <- runBoard(x.ctx, lease, b, 10*time.Millisecond, load, flush) }()
	pay := func() error { return b.with(x.ctx, lease, "ada", func(state balances) { state["ada"] += 5 }) }
	respondsOK := func(probe http.HandlerFunc) bool {
		answer := httptest.NewRecorder()
		probe(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return answer.Code == http.StatusOK
	}
	probe := b.ready(client, lease)
	ready := func() bool { return respondsOK(probe) }
	standby := x.client()
	idle, err := standby.Lease(x.ctx, "totals", 16, pgleases.WithWeight(0)) // as with a rebalance delay
	x.Check(err)
	for probe := new(board).ready(standby, idle); !respondsOK(probe); {
		time.Sleep(time.Millisecond)
	}
	fmt.Println("ready without a partition")
	x.Check(lease.Wait(x.ctx))
	fmt.Println("before it is loaded:", pay(), ready())
	close(release)
	for !ready() { // until all partitions are loaded
		time.Sleep(time.Millisecond)
	}
	for err = errTryAgain; errors.Is(err, errTryAgain); { // until it is loaded
		err = pay()
	}
	fmt.Println("paid:", err)
	for <-stored != 12 { // until a flush has written a copy
	}
	x.Check(pay())
	x.stop()
	<-ended
	var last int64
	for len(stored) > 0 {
		last = <-stored
	}
	fmt.Println("flushed:", last)
	fmt.Println("after the flush:", pay())
	x.Check(lease.Leave(context.Background()))
	fmt.Println("after it has moved:", pay())
	// Output:
	// ready without a partition
	// before it is loaded: this customer is being loaded or moved: try again false
	// paid: <nil>
	// flushed: 17
	// after the flush: this customer is being loaded or moved: try again
	// after it has moved: this process does not own the customer, or is giving it up
}

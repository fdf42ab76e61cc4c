package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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
	errNotMine  = errors.New("another process owns this customer")
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

// loaded reports whether this process owns partitions, and the state of each of them is visible.
func (b *board) loaded(lease *pgleases.Lease) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	owns := false
	for n := range lease.NumPartitions() {
		p, owned := lease.Partition(n) // unlike Values, this delays no handoff
		_, visible := b.states[stateKey{p.Number, p.Epoch}]
		if owned && !visible {
			return false
		}
		owns = owns || owned
	}
	return owns
}

// ready is the probe for readiness. It succeeds from the first time on that everything is loaded.
func (b *board) ready(client *pgleases.Client, lease *pgleases.Lease) http.HandlerFunc {
	var once atomic.Bool
	joined := health.Readiness(client)
	return func(w http.ResponseWriter, r *http.Request) {
		if !once.Load() && !b.loaded(lease) {
			http.Error(w, "partitions are being loaded", http.StatusServiceUnavailable)
			return
		}
		once.Store(true)
		joined.ServeHTTP(w, r)
	}
}

// runBoard keeps the states of the partitions that this process owns on the board, until ctx ends.
func runBoard(ctx context.Context, lease *pgleases.Lease, b *board,
	load func(context.Context, pgleases.Partition) (balances, error),
	flush func(context.Context, pgleases.Partition, balances) error) error {
	return lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		state, err := load(ctx, p)
		if err != nil {
			return err
		}
		hide := b.show(p, state)
		<-ctx.Done() // a real program also flushes now and then, from a copy that it makes under the mutex
		hide()       // no request changes the state any more
		return flush(p.Context(), p, state)
	})
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
	flush := func(_ context.Context, p pgleases.Partition, state balances) error {
		if p.Number == ada {
			fmt.Println("flushed:", state["ada"])
		}
		return nil
	}
	ended := make(chan error, 1)
	go func() { ended <- runBoard(x.ctx, lease, b, load, flush) }()
	pay := func() error { return b.with(x.ctx, lease, "ada", func(state balances) { state["ada"] += 5 }) }
	probe := b.ready(client, lease)
	ready := func() bool {
		answer := httptest.NewRecorder()
		probe(answer, httptest.NewRequest(http.MethodGet, "/readyz", nil))
		return answer.Code == http.StatusOK
	}
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
	x.stop()
	<-ended
	fmt.Println("after the flush:", pay())
	x.Check(lease.Leave(context.Background()))
	fmt.Println("after it has moved:", pay())
	// Output:
	// before it is loaded: this customer is being loaded or moved: try again false
	// paid: <nil>
	// flushed: 12
	// after the flush: this customer is being loaded or moved: try again
	// after it has moved: another process owns this customer
}

package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
)

// An ownership is a partition that this process owns, while runs may begin or continue in it.
type ownership struct {
	pgleases.Partition
	life   context.Context // of the ownership
	ctx    context.Context // of the runs
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards ended; runs.Add is called under it, so none begins after drain
	ended bool       // no new run begins
	runs  sync.WaitGroup

	crashMu sync.Mutex // guards the following fields; held during noteRuns
	noted   bool       // noteRuns has tried to record that something runs
	opened  time.Time  // database time of noteRuns; zero: no run has begun
	crashed bool       // the previous owner crashed while runs may have been under way
	counted []subject  // subjects with a counted crash of this owner until their run has ended
}

func newOwnership(p pgleases.Partition) *ownership {
	o := &ownership{Partition: p, life: p.Context()}
	o.ctx, o.cancel = context.WithCancelCause(o.life)
	return o
}

// begin reports whether a run may begin. The caller must call runs.Done at its end.
func (o *ownership) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.runs.Add(1)
	}
	return !o.ended
}

// drain waits for the runs, and ends their contexts after atMost. Later writes have what is left of
// lastWrites, until the returned function is called.
func (o *ownership) drain(atMost time.Duration) context.CancelFunc {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	ends := time.Now().Add(atMost)
	defer time.AfterFunc(atMost, func() { o.cancel(ErrDrained) }).Stop()
	o.runs.Wait()
	ctx, cancel := context.WithTimeout(o.life, max(time.Second, lastWrites-max(0, time.Since(ends))))
	o.life = ctx // without a lock: no run uses it any more
	return cancel
}

// lastWrites is how long a process that ends may write the results of its runs.
const lastWrites = 4 * time.Second

// ownerships has the partitions that this process owns. Callbacks of the lease change it.
type ownerships struct{ sync.Map } // *ownership by int

func (os *ownerships) get(partition int) *ownership {
	o, _ := os.Load(partition)
	of, _ := o.(*ownership)
	return of
}

func (os *ownerships) all() (all []*ownership) {
	os.Range(func(_, o any) bool {
		all = append(all, o.(*ownership))
		return true
	})
	return all
}

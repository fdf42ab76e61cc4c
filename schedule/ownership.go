package schedule

import (
	"context"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
)

// An ownership is a partition that this process owns, while runs may begin or go on in it.
type ownership struct {
	pgleases.Partition
	life   context.Context // of the ownership
	ctx    context.Context // of the runs
	cancel context.CancelCauseFunc

	mu    sync.Mutex // guards ended, and the first run of runs
	ended bool       // no new run begins
	runs  sync.WaitGroup

	crashes sync.Mutex // guards what follows; held while it is opened
	opened  time.Time  // by the database; zero: nothing has run in it
	crashed bool       // the owner before crashed, while something may have run
	counted []subject  // have a crash of this owner's counted until their run has ended
}

func newOwnership(p pgleases.Partition) *ownership {
	o := &ownership{Partition: p, life: p.Context()}
	o.ctx, o.cancel = context.WithCancelCause(o.life)
	return o
}

// begin reports whether a run may begin. runs.Done is to be called at its end.
func (o *ownership) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.runs.Add(1)
	}
	return !o.ended
}

// drain lets the runs end, and ends their contexts after a while. What is written afterwards is
// given what is left of lastWrites, until the returned function is called.
func (o *ownership) drain(atMost time.Duration) context.CancelFunc {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	ends := time.Now().Add(atMost)
	defer time.AfterFunc(atMost, func() { o.cancel(ErrDrained) }).Stop()
	o.runs.Wait()
	ctx, cancel := context.WithTimeout(o.life, max(time.Second, lastWrites-max(0, time.Since(ends))))
	o.life = ctx
	return cancel
}

// lastWrites is how long a process that ends writes about its runs, after these have ended.
const lastWrites = 4 * time.Second

// ownerships are the partitions that this process owns. Callbacks of the lease change them.
type ownerships struct{ sync.Map } // of *ownership by int

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

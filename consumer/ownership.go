package consumer

import (
	"context"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
)

// An ownership is that of a partition.
type ownership struct {
	pgleases.Partition
	halting atomic.Bool   // it is to end
	idle    chan struct{} // closed when it is to end, and no job works on it
}

// atOnce is the most partitions that begin or end in one transaction.
const atOnce = 4096

// ends records the ends of ownerships, those that come together in one statement. A record that
// fails is repeated each second, so that no partition counts as crashed after an outage of the
// database.
type ends struct{ come chan endedOwnership }

// An endedOwnership is one on which all work has ended.
type endedOwnership struct {
	*ownership
	done chan struct{} // closed when recording its end was tried
}

func newEnds() ends { return ends{make(chan endedOwnership)} }

// note records the end of an ownership, and waits until that was tried.
func (e *ends) note(o *ownership) {
	it := endedOwnership{o, make(chan struct{})}
	e.come <- it
	<-it.done
}

// record records ends until stopped is closed.
func (e *ends) record(db *db, log *slog.Logger, stopped <-chan struct{}) {
	var left []*ownership // whose ends are to be recorded
	var missing logqueue.Condition
	for pause := time.Duration(0); ; {
		var again <-chan time.Time
		if len(left) > 0 {
			again = time.After(pause)
		}
		var came []endedOwnership
		select {
		case first := <-e.come:
			came = e.further(first)
		case <-again:
		case <-stopped:
			return
		}
		for _, it := range came {
			left = append(left, it.ownership)
		}
		rest := max(0, len(left)-atOnce)
		err := writeEnds(db, left[rest:])
		pause = time.Second
		missing.Tried(err, func() {
			log.Warn("consumer: end not recorded yet, the next owner takes it for a crash",
				slog.Int("partitions", len(left)), slog.Any("error", store.Advised(err)))
		}, func(lasted time.Duration) {
			log.Info("consumer: end recorded", slog.Int("partitions", len(left)-rest), slog.Duration("for", lasted))
		})
		if err == nil {
			left, pause = left[:rest], 0
		}
		for _, it := range came {
			close(it.done)
		}
	}
}

// further returns the ends that have come together with the first.
func (e *ends) further(first endedOwnership) []endedOwnership {
	came := []endedOwnership{first}
	for len(came) < atOnce {
		select {
		case next := <-e.come:
			came = append(came, next)
		default:
			return came
		}
	}
	return came
}

func writeEnds(db *db, owned []*ownership) error {
	var numbers []int32
	var epochs []int64
	for _, o := range owned {
		numbers, epochs = append(numbers, int32(o.Number)), append(epochs, o.Epoch)
	}
	return handlers.InTime(context.Background(), db.times.record, db.times.overrun, func(ctx context.Context) error {
		return db.end(ctx, numbers, epochs)
	})
}

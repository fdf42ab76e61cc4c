// Package pgleasestest provides leases, and named locks, without a database, for tests of what an
// application does with them.
//
// A test says what is owned: [Lease.Gain], [Lease.Lose] and [Lease.Expire] are the three things
// that happen to partitions in production. All else is the real client: Values, Changed, Hold, Run,
// Close and the others do what they always do, with the same delays and the same causes of canceled
// contexts. Only Guard is answered from memory.
//
// It works inside and outside of a bubble of package testing/synctest. In a bubble
// [pgleases.WithHandoffDelay] and [pgleases.WithDrainTimeout] cost no time. Close the lease before
// the bubble ends.
package pgleasestest

import (
	"context"
	"fmt"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
)

// ttl is the longest that there is: a test that is stopped in a debugger shall lose nothing by
// that.
const ttl = 10 * time.Minute

// A Lease is a lease of which a test decides what is owned. Give its embedded *pgleases.Lease to
// what is tested.
//
// All methods are safe for concurrent use. Gain and Lose of one partition at the same time have no
// sensible outcome, though: they wait for each other.
//
// Guard and GuardSQL pass for a partition that is owned under exactly its epoch, drains included,
// and return pgleases.ErrNotOwner else, or the error of a ctx that ended. They make no use of the
// transaction, which may be nil.
type Lease struct {
	*pgleases.Lease

	client *pgleases.Client
	db     *database
	turn   func() // waits until the client's goroutine has done what it was about, or ended
}

// NewLease returns a lease of that name with so many partitions, none of them owned. Close it in
// the end. The name, the number and the options are those of pgleases.Client.Lease; it panics where
// that returns an error. A weight changes nothing.
func NewLease(name string, partitions int, opts ...pgleases.LeaseOption) *Lease {
	ctx := context.Background()
	l := &Lease{db: newDatabase(name)}
	on := &engine.Double{Connect: l.db.connect, Guard: l.db.guard, Locks: l.db.LockTable()}
	var err error
	l.client, err = pgleases.Open(ctx, "", bridge.On(on).(pgleases.Option), pgleases.WithClientID("pgleasestest"), pgleases.WithTTL(ttl))
	if err != nil {
		panic(err) // what it depends on is written above
	}
	l.turn = on.Turn
	if l.Lease, err = l.client.Lease(ctx, name, partitions, opts...); err != nil {
		_ = l.client.Close(ctx) // of no interest beside the first error
		panic(err)
	}
	return l
}

// Client returns the client that joined the lease, for what is tested and needs one. Asked for the
// lease again, by its name and with the same options, it returns the same one; of other leases it
// never owns anything.
//
// It takes named locks, in memory: give it to lock.New, with whatever pool what is tested has,
// which is not used and may be nil. The locks are those of package lock, with the same rules. No
// other client takes them; a lock that another has is one that the test has taken with the same
// client. Guard and GuardSQL of a lock make no use of the transaction either, except that nobody
// waits for its end.
func (l *Lease) Client() *pgleases.Client { return l.client }

// Close ends the client without waiting for work: what is still owned ends with pgleases.ErrClosed.
// To see how work ends when a client is closed, call Close of the client first.
func (l *Lease) Close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.client.Close(ctx) // it tells what was still in work, which the caller knows
}

// Gain gives partitions, each under a new epoch, and returns when they are owned, or the lease has
// ended. One that is owned already stays as it is. One that still drains comes back when its work
// has ended, which Gain waits for. It panics if there is no such partition.
func (l *Lease) Gain(partitions ...int) {
	l.check(partitions)
	l.db.give(partitions)
	l.until(func() bool { return len(l.shown(partitions)) == len(partitions) })
	l.db.note(l.shown(partitions))
}

// Lose asks for partitions, as a rebalance does, and returns when Values shows them no more, or the
// lease has ended. They drain then: contexts of Run callbacks are canceled with
// pgleases.ErrHandoff, open holds and callbacks go on, and who read Values has the hand-off delay.
// The channel that it returns is closed when all of them have been handed over, or lost otherwise.
// One that is not owned is lost already. It panics if there is no such partition.
func (l *Lease) Lose(partitions ...int) <-chan struct{} {
	l.check(partitions)
	leaving := l.db.ask(partitions)
	l.until(func() bool { return len(l.shown(partitions)) == 0 })
	l.turn() // work is asked to end after Values shows it no more
	lost := make(chan struct{})
	go func() {
		l.wait(leaving)
		close(lost)
	}()
	return lost
}

// Expire ends everything that is owned or drains, and all locks of the client, at once and whatever
// is in work, with pgleases.ErrTrustLost: as in a client that was cut off for longer than its TTL,
// and comes back. It returns when all contexts have ended. From then on nothing is owned until
// Gain.
func (l *Lease) Expire() {
	ownerships, renewed := l.db.expire()
	select {
	case <-renewed:
	case <-l.client.Done():
	}
	l.wait(ownerships)
}

// wait waits for the end of ownerships, and of the contexts of holds that contain them, which comes
// a little later.
func (l *Lease) wait(ownerships []pgleases.Partition) {
	for _, p := range ownerships {
		<-p.Context().Done()
	}
	l.turn()
}

func (l *Lease) check(partitions []int) {
	for _, number := range partitions {
		if number < 0 || number >= l.NumPartitions() {
			panic(fmt.Sprintf("pgleasestest: lease %q has partitions 0 to %d, not %d", l.Name(), l.NumPartitions()-1, number))
		}
	}
}

// shown returns which of the partitions are owned and do not drain. It does not read Values: that
// would delay handoffs.
func (l *Lease) shown(partitions []int) []pgleases.Partition {
	var shown []pgleases.Partition
	for _, number := range partitions {
		if p, owned := l.Partition(number); owned {
			shown = append(shown, p)
		}
	}
	return shown
}

// until waits until what the lease shows is as it shall be, at most until it ended.
func (l *Lease) until(ok func() bool) {
	for {
		changed := l.Changed()
		if ok() || l.Err() != nil {
			return
		}
		<-changed
	}
}

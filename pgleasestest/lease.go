// Package pgleasestest has leases and named locks that need no database, for tests of applications:
//
//	lease := pgleasestest.NewLease("orders", 8)
//	defer lease.Close()
//	go work(ctx, lease.Lease) // your code
//	lease.Gain(3)             // now it owns partition 3
//	<-lease.Lose(3)           // now its work on partition 3 has ended
//
// Your test decides what is owned. [Lease.Gain], [Lease.Lose] and [Lease.Expire] are the three
// things that happen to partitions in production. The rest is the real client. So Values, Changed, Hold,
// Run, Close and the other methods behave as always, with their usual delays and causes of canceled
// contexts. Only Guard is answered from memory.
//
// The package works inside and outside of a bubble of package testing/synctest. In a bubble
// [pgleases.WithHandoffDelay] and [pgleases.WithDrainTimeout] take no real time. Close the lease
// before the bubble ends.
package pgleasestest

import (
	"context"
	"fmt"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
)

// ttl is the longest valid TTL, so that a test that is stopped in a debugger loses no partition.
const ttl = 10 * time.Minute

// A Lease is a lease whose ownerships a test decides. Give its embedded *pgleases.Lease to the code
// under test.
//
// All methods are safe for concurrent use. But do not call Gain and Lose for the same partition at
// the same time: they wait for each other.
//
// Guard and GuardSQL pass for a partition that is owned under exactly its epoch, even while it
// drains. Otherwise they return pgleases.ErrNotOwner. If ctx has ended they return its cause. They
// do not use the transaction, which may be nil.
type Lease struct {
	*pgleases.Lease

	client *pgleases.Client
	db     *database
	turn   func() // waits until the client's goroutine has finished its current step, or has ended
}

// NewLease returns a lease with the given name and number of partitions. None of them is owned.
// Close it at the end. The name, the number and the options are those of pgleases.Client.Lease;
// NewLease panics if that returns an error. A weight has no effect.
func NewLease(name string, partitions int, opts ...pgleases.LeaseOption) *Lease {
	ctx := context.Background()
	l := &Lease{db: newDatabase(name)}
	on := &engine.Double{Connect: l.db.connect, Guard: l.db.guard, Locks: l.db.LockTable()}
	var err error
	l.client, err = pgleases.Open(ctx, "", bridge.On(on).(pgleases.Option),
		pgleases.WithClientID("pgleasestest"), pgleases.WithTTL(ttl))
	if err != nil {
		panic(err) // its arguments are the constants above
	}
	l.turn = on.Turn
	l.Lease, err = l.client.Lease(ctx, name, partitions, opts...)
	if err != nil {
		_ = l.client.Close(ctx) // the first error matters more
		panic(err)
	}
	return l
}

// Client returns the client that joined the lease, for code under test that needs one. If you ask
// it for the lease again, by its name and with the same options, it returns the same lease. In
// other leases it never owns a partition.
//
// The client has named locks, in memory: pass it to lock.New. The pool that you pass is not used
// and may be nil. The locks have the rules of package lock. No other client acquires them, so to
// test a lock that is held, acquire it in the test with the same client. Guard and GuardSQL of a
// lock do not use the transaction either, and the lock does not wait for the transaction's end.
func (l *Lease) Client() *pgleases.Client { return l.client }

// Close ends the client without waiting for work: what is still owned ends with pgleases.ErrClosed.
// To test how work ends when a client is closed, call Close of the client first.
func (l *Lease) Close() {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_ = l.client.Close(ctx) // its error names the partitions that were still in work, which the caller knows
}

// Gain gives partitions to the client, each under a new epoch. It returns when the client owns
// them, when an Expire of another goroutine has ended them, or when the lease has ended. A partition
// that is owned already stays as it is. A partition
// that still drains comes back when its work has ended, and Gain waits for that. Gain panics if
// there is no such partition.
func (l *Lease) Gain(partitions ...int) {
	l.check(partitions)
	before := l.db.give(partitions)
	l.until(func() bool { return len(l.shown(partitions)) == len(partitions) || l.db.expiredSince(before) })
	l.db.note(l.shown(partitions))
}

// Lose asks for partitions, as a rebalance does. It returns when Values no longer contains them, or
// when the lease has ended. Then they drain: contexts of Run callbacks are canceled with
// pgleases.ErrHandoff, open holds and callbacks continue, and readers of Values have the handoff
// delay. The returned channel is closed when all of the partitions have been handed over, or lost
// otherwise. A partition that is not owned counts as lost. Lose panics if there is no such
// partition.
func (l *Lease) Lose(partitions ...int) <-chan struct{} {
	l.check(partitions)
	leaving := l.db.ask(partitions)
	l.until(func() bool { return len(l.shown(partitions)) == 0 })
	l.turn() // work is asked to end after Values no longer contains it
	lost := make(chan struct{})
	go func() {
		l.wait(leaving)
		close(lost)
	}()
	return lost
}

// Expire ends everything that is owned or drains, and all locks of the client, at once and even if
// it is in work, with pgleases.ErrTrustLost. This is what happens in a client that was cut off for
// longer than its TTL and returns. Expire returns when all contexts have ended. From then on the
// client owns no partition until Gain.
func (l *Lease) Expire() {
	ownerships, renewed := l.db.expire()
	select {
	case <-renewed:
	case <-l.client.Done():
	}
	l.wait(ownerships)
}

// wait waits for the end of ownerships, and of the contexts of holds that contain them, which end a
// little later.
func (l *Lease) wait(ownerships []pgleases.Partition) {
	for _, p := range ownerships {
		<-p.Context().Done()
	}
	l.turn()
}

func (l *Lease) check(partitions []int) {
	for _, number := range partitions {
		if number < 0 || number >= l.NumPartitions() {
			panic(fmt.Sprintf("pgleasestest: lease %q has partitions 0 to %d, not %d",
				l.Name(), l.NumPartitions()-1, number))
		}
	}
}

// shown returns the partitions that are owned and do not drain. It does not read Values, because
// that would delay handoffs.
func (l *Lease) shown(partitions []int) []pgleases.Partition {
	var shown []pgleases.Partition
	for _, number := range partitions {
		if p, owned := l.Partition(number); owned {
			shown = append(shown, p)
		}
	}
	return shown
}

// until waits until ok returns true or the lease has ended.
func (l *Lease) until(ok func() bool) {
	for {
		changed := l.Changed()
		if ok() || l.Err() != nil {
			return
		}
		<-changed
	}
}

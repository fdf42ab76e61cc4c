package pgleases

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// conn is what the engine needs of a connection; *store.Conn is one.
type conn = seam.Conn

// The engine is a client's state, owned by the client's one goroutine. Readers never see it: they see the snapshots that it
// publishes, and send it requests.
//
// It never waits for the database. One operation at most is under way, in another goroutine, which hands back a function
// for this one to run. So requests, ends of work and the trust deadline are served at once, whatever a statement does.
type engine struct {
	client  *Client
	options options

	connection connection // to the database
	session    session    // what heartbeats keep alive, and the trust that they earn
	agenda     agenda     // what is under way, and what waits after a failure
	check      check      // when to look for the dead
	leases     leases     // what was joined, and drains
	plans      plans      // which leases ask for one
	locks      *locks     // what package lock holds and awaits
	failover   failover   // with WithFastFailover: what it knows of its own connection's end, and of the others'
	ending     ending     // the client's end

	stats  Stats  // counts
	untold []loss // see tellEnded
}

func newEngine(c *Client, first conn, connect func(context.Context) (conn, error)) *engine {
	now := time.Now()
	e := &engine{
		client: c, options: c.options,
		connection: connection{connect: connect, prepareAt: never},
		session: session{
			number: randomID(), process: nextProcess(), startedAt: now,
			nextBeat: now, sent: now, invalid: owned.Invalid(now),
		},
		agenda: agenda{batch: maxBatch, results: make(chan func(), 1), pauses: make(map[*duty]pause), logged: make(map[string]map[string]bool)},
		check:  check{watch: newWatch(now, c.options.ttl), lookAt: never, evictAt: never},
		leases: leases{
			byName:      make(map[string]*membership),
			waiting:     make(map[string][]*joining),
			draining:    make(map[*assignment]struct{}),
			relics:      make(map[string]bool),
			unannounced: make(map[string]*announcement),
		},
		plans:    newPlans(),
		locks:    newLocks(now, c.options.heartbeat),
		failover: newFailover(now),
		ending:   ending{giveUpAt: never},
	}
	c.locks = e.locks
	e.connected(first)
	e.publishStats()
	return e
}

// randomID is 63 random bits, never 0. A sequence would repeat numbers after a crash or a promotion. The bits are the kernel's, as
// copies of a process draw the same from a generator that was copied with it.
func randomID() int64 {
	var bits [8]byte
	_, _ = rand.Read(bits[:]) // it never fails
	return max(int64(binary.NativeEndian.Uint64(bits[:])>>1), 1)
}

// Clients of this program count up from a random number, so that of two of them the database knows the newer.
var (
	thisProgram = randomID() &^ (1<<store.ProcessBits - 1)
	opened      atomic.Int64
)

// nextProcess numbers a client.
func nextProcess() int64 { return thisProgram | opened.Add(1)&(1<<store.ProcessBits-1) }

// loop is the client's goroutine.
func (e *engine) loop() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		now := time.Now()
		e.watchConnection(now)
		e.checkTrust(now)
		e.superviseDrains(now)
		if e.finished(now) {
			break
		}
		e.publishStanding()
		wake := e.work(now)
		e.publishStats()
		timer.Reset(time.Until(wake))
		select {
		case f := <-e.client.requests:
			f(e)
		case f := <-e.agenda.results:
			f()
		case <-e.client.wake:
		case <-timer.C:
		}
	}
	e.finish()
}

func (e *engine) publishStats() {
	n := &numbers{Stats: e.stats, validity: e.currentValidity(), sent: e.session.sent}
	n.RoundTrip, n.Listening, n.Draining = e.session.roundTrip, e.connection.listening, len(e.leases.draining)
	for t := range e.leases.draining {
		if n.DrainingSince.IsZero() || t.since.Before(n.DrainingSince) {
			n.DrainingSince = t.since
		}
	}
	for _, m := range e.leases.byName {
		if m.joined {
			n.Leases++
		}
		n.Owned += len(m.lease.board.Look().Values)
	}
	e.client.numbers.Store(n)
}

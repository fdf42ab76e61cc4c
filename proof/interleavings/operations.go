package interleavings

import (
	"context"
	"slices"
	"strings"
	"time"

	_ "github.com/pgleases/pgleases" // has the plan of the library
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
)

// An operation is what a session does.
type operation struct {
	name    string // as in the table
	of      string // what of it
	touches string // what it reads and writes, in words; two operations can meet where they share one
	run     func(w *world, ctx context.Context, s *session) error
}

// operations in the order of the table. Operations of one name are variants, for different places
// where two sessions can meet.
var operations = []operation{
	{"heartbeat", "of an owner", "alive", beats(alive)},
	{"heartbeat", "of an expired owner", "silent", beats(silent)},
	{"plan", "of both leases", "x server", (*world).plan},
	{"release", "to itself and to its heir", "alive x server", (*world).handOver},
	{"release", "of all that it has, and its membership", "alive x server", (*world).leave},
	{"guard", "of an owner", "alive x server", guards(alive, place{"x", 1})},
	{"guard", "of an expired owner", "silent x server", guards(silent, place{"x", 2})},
	{"evict", "of two expired sessions", "silent x server locks", (*world).evict},
	{"override", "pauses a lease", "x", overrides("SELECT pgleases.pause('x', 'why')")},
	{"override", "drains an owner", "alive x", overrides("SELECT pgleases.drain('a', 'why', force => true)")},
	{"override", "evicts an owner", "alive x locks", overrides("SELECT pgleases.evict_client('a', 'why')")},
	{"promotion", "of a server that is rejected", "server", (*world).promote},
	{"lock", "that others await", "locks server", (*world).freeLock},
	{"lock", "that is free, with a guard", "free", (*world).takeLock},
}

func (o operation) String() string { return o.name + " " + o.of }

func (o operation) meets(other operation) bool {
	return slices.ContainsFunc(strings.Fields(o.touches), func(word string) bool {
		return slices.Contains(strings.Fields(other.touches), word)
	})
}

func beats(of int64) func(*world, context.Context, *session) error {
	return func(w *world, ctx context.Context, s *session) error {
		last := store.Renewal{Clock: w.clock + longTTL.Microseconds(), Marker: marker}
		return s.transaction(ctx, "heartbeat", func(c *commit) error {
			beat, err := s.conn.Heartbeat(ctx, of, longTTL, last)
			if beat.Alive {
				c.renewed = of
			}
			return err
		})
	}
}

// plan reads what the library plans, and writes the library's plan of it.
func (w *world) plan(ctx context.Context, s *session) error {
	leases := []string{"w", "x"}
	err := s.alone(ctx, "claim", func() error {
		_, err := s.conn.Pgx.Exec(ctx, s.locks.Statements.Claim, leases, s.locks.LockWait)
		return err
	})
	if err != nil {
		return err
	}
	var read []store.LeaseSnapshot
	err = s.alone(ctx, "snapshot", func() (err error) {
		read, err = s.conn.Snapshot(ctx, leases, false)
		return err
	})
	if err != nil {
		return err
	}
	return s.transaction(ctx, "apply", func(c *commit) error {
		asRead := slices.Clone(read)
		_, err := s.conn.Apply(ctx, read, bridge.Plan(read), store.NextPlan{OnlyLeftOver: true})
		for i, l := range read {
			if !l.Overtaken {
				c.planned = append(c.planned, asRead[i])
			}
		}
		return err
	})
}

// handOver releases a partition to its target, and one whose target is the owner.
func (w *world) handOver(ctx context.Context, s *session) error {
	releases := []store.Release{{Lease: "x", Partition: 0, Epoch: w.epoch}, {Lease: "x", Partition: 1, Epoch: w.epoch}}
	return w.release(ctx, s, releases, nil)
}

// leave releases everything, and ends the membership.
func (w *world) leave(ctx context.Context, s *session) error {
	releases := []store.Release{{Lease: "x", Partition: 0, Epoch: w.epoch}, {Lease: "x", Partition: 1, Epoch: w.epoch}}
	return w.release(ctx, s, releases, []store.Leave{{Lease: "x", Now: true}})
}

// release does what the library does: if a guarded transaction is open, it raises the epoch, and
// tries again.
func (w *world) release(ctx context.Context, s *session, releases []store.Release, leaving []store.Leave) error {
	released, err := w.releaseOnce(ctx, s, releases, leaving)
	repeats := w.alike && s.number == 1 // it is the other session's statement, repeated after a lost answer
	if err != nil || repeats {
		return err
	}
	if len(released.Busy) > 0 && !w.alike { // the repetition ends soon, so no epoch has to be raised
		if err := w.fenceAndRelease(ctx, s, released.Busy, leaving); err != nil {
			return err
		}
	}
	if len(released.Released) == 0 || len(leaving) > 0 {
		return nil
	}
	return s.alone(ctx, "announce", func() error { return s.conn.Announce(ctx, []string{"x"}, []int64{heir}) })
}

func (w *world) fenceAndRelease(ctx context.Context, s *session, busy []store.Release, leaving []store.Leave) error {
	for i := range busy {
		busy[i].Epoch = w.epoch
	}
	err := s.transaction(ctx, "fence", func(c *commit) error { return s.conn.Fence(ctx, alive, busy) })
	if err != nil {
		return err
	}
	again := []store.Release{}
	err = s.alone(ctx, "read", func() error {
		reads, err := s.conn.Read(ctx, alive, []string{"x"})
		for _, r := range reads {
			for _, o := range r.Owned {
				again = append(again, store.Release{Lease: r.Name, Partition: o.Partition, Epoch: o.Epoch})
			}
		}
		return err
	})
	if err != nil {
		return err
	}
	_, err = w.releaseOnce(ctx, s, again, leaving)
	return err
}

func (w *world) releaseOnce(
	ctx context.Context, s *session, releases []store.Release, leaving []store.Leave,
) (released store.Released, err error) {
	err = s.transaction(ctx, "release", func(c *commit) (err error) {
		c.releases, c.by = releases, alive
		released, err = s.conn.Release(ctx, alive, releases, leaving, 1)
		return err
	})
	return released, err
}

func guards(of int64, at place) func(*world, context.Context, *session) error {
	return func(w *world, ctx context.Context, s *session) error {
		passed, err := s.guarded(ctx, guard{place: at, epoch: w.epoch, session: of})
		if err != nil || !passed {
			return err
		}
		return s.commit(ctx, commit{what: "guarded"})
	}
}

func (w *world) evict(ctx context.Context, s *session) error {
	made := false
	err := s.transaction(ctx, "evict", func(c *commit) error {
		c.cutoff, c.watched = w.cutoff(), ttl.Microseconds()
		evicted, err := s.conn.Evict(ctx, c.cutoff, ttl, ttl, w.run)
		made = evicted.Made
		return err
	})
	if err != nil || !made {
		return err
	}
	return s.alone(ctx, "tidy", func() error {
		_, err := s.conn.Tidy(ctx)
		return err
	})
}

func overrides(verb string) func(*world, context.Context, *session) error {
	return func(w *world, ctx context.Context, s *session) error {
		return s.transaction(ctx, "override", func(c *commit) error { return s.exec(ctx, verb) })
	}
}

// promote rejects the server, as a client does that has seen a later one, and accepts it as after a
// promotion.
func (w *world) promote(ctx context.Context, s *session) error {
	const seen = 6 // the server generation elsewhere
	err := s.transaction(ctx, "reject", func(c *commit) error { return s.conn.RejectServer(ctx, w.run.Timeline, seen) })
	if err != nil {
		return err
	}
	return s.transaction(ctx, "accept", func(c *commit) error {
		_, err := s.conn.AcceptServer(ctx, 2*longTTL, w.run, seen)
		return err
	})
}

// takeLock takes a lock that is free, works under its guard, and releases it. The two sessions of a
// pair are two clients.
func (w *world) takeLock(ctx context.Context, s *session) error {
	by := []int64{alive, heir}[s.number]
	r := store.LockRequest{
		Name: "free", Session: by, Nonce: 1000 + by, Waits: true,
		Latest: w.clock + longTTL.Microseconds(), Server: w.run,
	}
	var answer store.LockAnswer
	err := s.transaction(ctx, "acquire", func(c *commit) (err error) {
		answer, _, err = s.locks.Acquire(ctx, r, nil)
		return err
	})
	if err != nil {
		return err
	}
	if answer.Outcome != store.LockGranted {
		return nil // it waits on, and the release of the other session grants it the lock
	}
	passed, err := s.guarded(ctx, guard{lock: "free", epoch: answer.Token, session: by})
	if err != nil {
		return err
	}
	if passed {
		if err := s.commit(ctx, commit{what: "guarded"}); err != nil {
			return err
		}
	}
	return w.releaseLock(ctx, s, by, store.LockRelease{Name: "free", Nonce: r.Nonce})
}

// freeLock releases the lock that others await.
func (w *world) freeLock(ctx context.Context, s *session) error {
	return w.releaseLock(ctx, s, alive, store.LockRelease{Name: "held", Nonce: holds})
}

func (w *world) releaseLock(ctx context.Context, s *session, by int64, r store.LockRelease) error {
	return s.transaction(ctx, "release lock", func(c *commit) error {
		c.freed = by
		_, _, err := s.locks.Release(ctx, time.Minute, by, r, w.run)
		return err
	})
}

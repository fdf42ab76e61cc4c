package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/lock"
)

const (
	lockClients = 16
	lockNames   = 1000
)

// lockers are clients that take locks. All use the connections of one pool.
type lockers struct {
	*database
	l     *lab
	out   *part
	locks []*lock.Locks
}

// measureLocks compares named locks with bare commits, and measures what waiting clients cost the
// server.
func measureLocks(ctx context.Context, l *lab, out *part) {
	d := l.newDatabase(ctx, l.durable, lockClients)
	defer d.end()
	k := &lockers{database: d, l: l, out: out}
	for i := range lockClients {
		id := pgleases.WithClientID(fmt.Sprint("client-", i))
		client := must(pgleases.NewClient(ctx, d.Pool, id, pgleases.WithLogger(quiet)))
		defer closeClient(client)
		k.locks = append(k.locks, lock.New(client, d.Pool))
	}
	makeBare(ctx, d, lockNames)
	k.alone(ctx)
	k.manyNames(ctx)
	k.oneName(ctx)
	k.queue(ctx)
	out.note("%d clients of one process share a pool of %[1]d connections. "+
		"A commit is an `UPDATE` of one row that waits for the disk.", lockClients)
}

// pair takes a lock and releases it. It returns an error if another client holds the lock.
func (k *lockers) pair(ctx context.Context, client int, name string) error {
	h, err := k.locks[client].TryAcquire(ctx, name)
	if err != nil {
		return err
	}
	return h.Release(ctx)
}

// commits updates one row twice, each time in its own transaction.
func (k *lockers) commits(ctx context.Context, row int) {
	for range 2 {
		must(k.Exec(ctx, "UPDATE public.bare SET at = clock_timestamp() WHERE id = $1", row))
	}
}

// alone times one client that takes and releases a lock that no other client wants.
func (k *lockers) alone(ctx context.Context) {
	turn := 0
	took := k.l.alternate(1000,
		timed("", func() { turn++; check(k.pair(ctx, 0, fmt.Sprint("alone-", turn))) }),
		timed("two bare commits", func() { k.commits(ctx, turn%lockNames) }))
	k.out.compare("`TryAcquire` and `Release`, without another client", took[0], took[1]).atMost(1.5)
}

// manyNames measures all clients while they take locks under 1,000 names.
func (k *lockers) manyNames(ctx context.Context) {
	takeOne := func(client, _ int) {
		err := error(lock.ErrHeld)
		for errors.Is(err, lock.ErrHeld) {
			err = k.pair(ctx, client, fmt.Sprint("name-", rand.IntN(lockNames)))
		}
		check(err)
	}
	bare := func(int, int) { k.commits(ctx, rand.IntN(lockNames)) }
	rates := k.l.alternate(9,
		k.l.throughput("", lockClients, takeOne),
		k.l.throughput("pairs of bare commits", lockClients, bare),
		k.l.throughput("the two statements, by hand", lockClients, k.byHand(ctx)))
	what := fmt.Sprintf("pairs of %d clients at once, %s names", lockClients, grouped(lockNames))
	k.out.compare(what, rates[0], rates[1:]...).atLeast(0.75)
}

// byHand returns a function that only sends the two statements of a pair, in the name of a client's
// session.
func (k *lockers) byHand(ctx context.Context) func(client, _ int) {
	const known = `SELECT c.session, s.accepted_timeline AS timeline, m.marker,
    (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint AS started
FROM pgleases.clients AS c, pgleases.server AS s, pgleases.present_marker AS m LIMIT 1`
	of := ask[struct{ Session, Timeline, Marker, Started int64 }](ctx, k.database, known)
	text := store.StatementsFor("pgleases")
	send := func(answer any, statement string, args ...any) {
		args = append(args, of.Timeline, of.Started, of.Marker, 2000, true)
		check(k.QueryRow(ctx, statement, args...).Scan(answer))
	}
	return func(int, int) {
		var name, released string
		nonce, latest := rand.Int64(), time.Now().Add(time.Hour).UnixMicro()
		for acquired := []string{"held"}; acquired[0] == "held"; {
			name = fmt.Sprint("name-", rand.IntN(lockNames))
			send(&acquired, text.LockAcquire, name, of.Session, nonce, false, false, latest)
		}
		send(&released, text.LockRelease, name, of.Session, nonce, 0)
	}
}

// oneName lets all clients wait for one lock, again and again. It times each handoff, from the call
// of Release until the next client's Acquire returns.
func (k *lockers) oneName(ctx context.Context) {
	var mu sync.Mutex // guards the next two
	var released time.Time
	var took []float64
	together(lockClients, func(client int) {
		for range k.l.pick(2, 50) {
			h := must(k.locks[client].Acquire(ctx, "one"))
			mu.Lock()
			if !released.IsZero() {
				took = append(took, float64(time.Since(released)))
			}
			released = time.Now()
			mu.Unlock()
			check(h.Release(ctx))
		}
	})
	heard := k.notifications(ctx, k.l.pick(20, 400))
	k.out.compare(fmt.Sprintf("%d wait for one lock: from `Release` to the next `Acquire`", lockClients),
		sample{"", took, nanoseconds},
		sample{"a commit that notifies, until it arrives", heard, nanoseconds}).
		goal("median <= 5 ms", median(took) <= float64(5*time.Millisecond))
}

// notifications times a commit that notifies, until another connection gets the notification.
func (k *lockers) notifications(ctx context.Context, n int) []float64 {
	listener, end := connect(ctx, k.url)
	defer end()
	must(listener.Exec(ctx, "LISTEN bare"))
	const commit = `WITH n AS MATERIALIZED (SELECT pg_notify('bare', ''))
UPDATE public.bare SET at = now() FROM n WHERE id = 0`
	took := make([]float64, n)
	for i := range took {
		began := time.Now()
		together(2, func(side int) {
			if side == 0 {
				k.all(ctx, commit)
				return
			}
			must(listener.WaitForNotification(ctx))
			took[i] = float64(time.Since(began))
		})
	}
	return took
}

// queue lets each client wait for one lock. It measures what that costs the server, and whether they
// get the lock in order. The calls of one client would share a request.
func (k *lockers) queue(ctx context.Context) {
	span, waiters := time.Duration(k.l.pick(500, 6000))*time.Millisecond, k.l.pick(10, lockClients)
	idle := k.calm(ctx, span)
	holder := must(k.locks[0].Acquire(ctx, "queue"))
	order, ended := make(chan int, waiters), make(chan error, waiters)
	for i := range waiters {
		go func() {
			h, err := k.locks[i].Acquire(ctx, "queue")
			if err == nil {
				order <- i
				err = h.Release(ctx)
			}
			ended <- err
		}()
		k.until(ctx, "it waits", "SELECT count(*) > $1 FROM pgleases.locks WHERE name = 'queue' AND token IS NULL", i)
	}
	waiting := k.calm(ctx, span)
	began := time.Now()
	check(holder.Release(ctx))
	for range waiters {
		check(<-ended)
	}
	took := time.Since(began)
	close(order)
	inversions, last := 0, -1
	for i := range order {
		if i < last {
			inversions++
		}
		last = max(last, i)
	}
	k.out.figure(fmt.Sprintf("%d wait for one lock: how many got it out of turn", waiters), fmt.Sprint(inversions)).
		than("all had it after", duration(took), duration(took/time.Duration(waiters))+" each").
		goal("0", inversions == 0)
	k.out.figure("server's processor time meanwhile", percent(share(waiting.server, waiting.span))+" of a core").
		than("while none waits", percent(share(idle.server, idle.span)), "")
	k.out.figure("statements meanwhile", grouped(waiting.statements)).
		than("while none waits", grouped(idle.statements), "").
		// Each client polls once for each heartbeat, and at once when it begins to wait.
		goal("<= 1 poll for each heartbeat", waiting.lockers <= waiting.heartbeats+lockClients)
}

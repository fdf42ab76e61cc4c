package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/proof/pgserver"
)

const (
	lockClients  = 16
	lockNames    = 1000
	lockWaiters  = 100
	lockLimit    = 1.5                  // a lock taken and released, in terms of two bare commits
	lockShare    = 0.65                 // of the pairs of bare commits that as many connections do
	lockHandOver = 5 * time.Millisecond // median
)

// lockers are clients that take locks, all on connections of one pool.
type lockers struct {
	gauge
	url     string
	clients []*pgleases.Client
	locks   []*lock.Locks
	drop    func()
}

// newLockers opens so many clients in a database of their own.
func newLockers(ctx context.Context, l *lab, server *pgserver.Server, clients int, opts ...pgleases.Option) (_ *lockers, err error) {
	url, drop, err := newDatabase(ctx, server)
	if err != nil {
		return nil, err
	}
	k := &lockers{url: url, drop: drop}
	defer func() {
		if err != nil {
			k.end()
		}
	}()
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = lockClients
	if k.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if k.postmaster, err = postmasterOf(ctx, k.pool); err != nil {
		return nil, err
	}
	if l.counts {
		if err := k.countStatements(ctx); err != nil {
			return nil, err
		}
		k.pool.Reset() // they count from their beginning on
	}
	if _, err = k.pool.Exec(ctx, "CREATE TABLE floor AS SELECT id, 0 AS n FROM generate_series(0, $1::int - 1) AS id", lockNames); err != nil {
		return nil, err
	}
	if _, err = k.pool.Exec(ctx, "ALTER TABLE floor ADD PRIMARY KEY (id), SET (fillfactor = 50)"); err != nil {
		return nil, err
	}
	for i := range clients {
		client, err := pgleases.NewClient(ctx, k.pool, append([]pgleases.Option{
			pgleases.WithClientID(fmt.Sprint("client-", i)), pgleases.WithLogger(slog.New(slog.DiscardHandler)),
		}, opts...)...)
		if err != nil {
			return nil, err
		}
		k.clients, k.locks = append(k.clients, client), append(k.locks, lock.New(client, k.pool))
	}
	return k, nil
}

func (k *lockers) end() {
	for _, client := range k.clients {
		(&member{client: client}).close()
	}
	if k.pool != nil {
		k.pool.Close()
	}
	k.drop()
}

// pair takes a lock and releases it.
func (k *lockers) pair(ctx context.Context, client int, name string) error {
	h, err := k.locks[client].TryAcquire(ctx, name)
	if err != nil {
		return err
	}
	return h.Release(ctx)
}

// floor updates one row twice, each time in a transaction of its own.
func (k *lockers) floor(ctx context.Context, row int) error {
	for range 2 {
		if _, err := k.pool.Exec(ctx, "UPDATE floor SET n = n + 1 WHERE id = $1", row); err != nil {
			return err
		}
	}
	return nil
}

// measureLocks compares named locks with bare commits, and sees what they cost the server while they wait, are held, and are gone.
func measureLocks(ctx context.Context, l *lab, out *part) error {
	k, err := newLockers(ctx, l, l.durable, lockClients)
	if err != nil {
		return err
	}
	defer k.end()
	for _, measure := range []func(context.Context, *lab, *part) error{k.alone, k.manyNames, k.oneName, k.queue} {
		if err := measure(ctx, l, out); err != nil {
			return err
		}
	}
	out.note("%d clients of one process, each with a connection of its own, take locks on one pool of %d connections. The floor of a pair is two `UPDATE`s of one row on the same pool, "+
		"each a commit that waits for the disk; of a pair, the acquisition does, and a release to somebody who waits.", lockClients, lockClients)
	if err := measureHeld(ctx, l, out); err != nil {
		return err
	}
	return measureUsedOnce(ctx, l, out, l.pick(200, 20_000))
}

// measureNames is the end of measureLocks at full size.
func measureNames(ctx context.Context, l *lab, out *part) error {
	return measureUsedOnce(ctx, l, out, l.pick(200, 1_000_000))
}

// alone times one client that takes a lock which nobody else wants, and releases it.
func (k *lockers) alone(ctx context.Context, l *lab, out *part) error {
	var pairs, floors, ratio []float64
	for i := range 20 + l.pick(10, 1000) {
		began := time.Now()
		if err := k.pair(ctx, 0, fmt.Sprint("alone-", i)); err != nil {
			return err
		}
		middle := time.Now()
		if err := k.floor(ctx, i%lockNames); err != nil {
			return err
		}
		if i < 20 { // to warm up
			continue
		}
		pairs, floors = append(pairs, float64(middle.Sub(began))), append(floors, float64(time.Since(middle)))
	}
	ratio = ratios(pairs, floors)
	out.add(row{
		what:   "`TryAcquire` and `Release` of a lock that nobody else wants",
		figure: fmt.Sprintf("%s, p95 %s", nanosecondsAsDuration(median(pairs)), nanosecondsAsDuration(quantile(pairs, 0.95))),
		floors: []floor{{"two bare commits", nanosecondsAsDuration(median(floors)), times(median(ratio))}},
		goal:   fmt.Sprintf("<= %v x", lockLimit),
		met:    judge(median(ratio) <= lockLimit),
	})
	return nil
}

func nanosecondsAsDuration(ns float64) string { return duration(time.Duration(ns)) }

// manyNames has all clients take locks under a thousand names.
func (k *lockers) manyNames(ctx context.Context, l *lab, out *part) error {
	locks := func(ctx context.Context, client, _ int) error {
		for {
			err := k.pair(ctx, client, fmt.Sprint("name-", rand.IntN(lockNames)))
			if !errors.Is(err, lock.ErrHeld) {
				return err
			}
		}
	}
	bare := func(ctx context.Context, _, _ int) error { return k.floor(ctx, rand.IntN(lockNames)) }
	span := time.Duration(l.pick(20, 300)) * time.Millisecond
	var with, without []float64
	for round := range 1 + l.pick(3, 9) {
		pairs, err := throughput(ctx, lockClients, span, locks)
		if err != nil {
			return err
		}
		floors, err := throughput(ctx, lockClients, span, bare)
		if err != nil {
			return err
		}
		if round > 0 { // the first is to warm up
			with, without = append(with, pairs), append(without, floors)
		}
	}
	share := median(ratios(with, without))
	out.add(row{
		what:   fmt.Sprintf("%d clients at once, each such a pair after the other, under %s names", lockClients, grouped(lockNames)),
		figure: significant(median(with)) + " pairs/s",
		floors: []floor{{"pairs of bare commits", significant(median(without)) + "/s", percent(share)}},
		goal:   fmt.Sprintf(">= %.0f %%", 100*lockShare),
		met:    judge(share >= lockShare),
	})
	return nil
}

// oneName has all clients wait for one lock, again and again, and times each hand-over: from the call of Release to the next one's return of
// Acquire.
func (k *lockers) oneName(ctx context.Context, l *lab, out *part) error {
	var mu sync.Mutex // guards the next two
	var released time.Time
	var took []time.Duration
	var left atomic.Int64
	left.Store(int64(l.pick(32, 800)))
	err := together(lockClients, func(client int) error {
		for left.Add(-1) >= 0 {
			h, err := k.locks[client].Acquire(ctx, "one")
			if err != nil {
				return err
			}
			mu.Lock()
			now := time.Now()
			if !released.IsZero() {
				took = append(took, now.Sub(released))
			}
			released = time.Now()
			mu.Unlock()
			if err := h.Release(ctx); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	told, err := notifications(ctx, k.url, l.pick(20, 400))
	if err != nil {
		return err
	}
	middle := median(took)
	out.add(row{
		what:   fmt.Sprintf("%d clients that wait for one lock: hand-over, from `Release` to the next one's return of `Acquire`", lockClients),
		figure: fmt.Sprintf("%s, p99 %s", duration(middle), duration(quantile(took, 0.99))),
		floors: []floor{{"a bare commit that notifies, until that is heard", fmt.Sprintf("%s, p99 %s", duration(median(told)), duration(quantile(told, 0.99))),
			times(share(middle, median(told)))}},
		goal: "median <= " + duration(lockHandOver),
		met:  judge(middle <= lockHandOver),
	})
	return nil
}

// notifications times a commit that notifies, until another connection hears of it.
func notifications(ctx context.Context, url string, n int) ([]time.Duration, error) {
	ear, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer ear.Close(context.Background())
	mouth, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	defer mouth.Close(context.Background())
	if _, err := ear.Exec(ctx, "LISTEN bare"); err != nil {
		return nil, err
	}
	took := make([]time.Duration, n)
	for i := range took {
		began := time.Now()
		said := make(chan error, 1)
		go func() {
			_, err := mouth.Exec(ctx, "WITH told AS MATERIALIZED (SELECT pg_notify('bare', '')) UPDATE floor SET n = n + 1 FROM told WHERE id = 0")
			said <- err
		}()
		_, err := ear.WaitForNotification(ctx)
		took[i] = time.Since(began)
		if err := errors.Join(err, <-said); err != nil {
			return nil, err
		}
	}
	return took, nil
}

// queue has many wait for one lock, sees what that costs the server, and whether they get it in order.
func (k *lockers) queue(ctx context.Context, l *lab, out *part) error {
	span := time.Duration(l.pick(500, 6000)) * time.Millisecond
	idle, err := k.rest(ctx, span)
	if err != nil {
		return err
	}
	holder, err := k.locks[0].Acquire(ctx, "queue")
	if err != nil {
		return err
	}
	waiters := l.pick(10, lockWaiters)
	got := make(chan int, waiters)
	ended := make(chan error, waiters)
	for i := range waiters {
		go func() {
			h, err := k.locks[i%lockClients].Acquire(ctx, "queue")
			if err == nil {
				got <- i
				err = h.Release(ctx)
			}
			ended <- err
		}()
		if err := untilTrue(ctx, k.pool, "it waits", "SELECT count(*) > $1 FROM pgleases.locks WHERE name = 'queue' AND token IS NULL", i); err != nil {
			return err
		}
	}
	waiting, err := k.rest(ctx, span)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := holder.Release(ctx); err != nil {
		return err
	}
	for range waiters {
		if err := <-ended; err != nil {
			return err
		}
	}
	took := time.Since(began)
	close(got)
	inversions, last := 0, -1
	for i := range got {
		if i < last {
			inversions++
		}
		last = max(last, i)
	}
	out.add(row{
		what:   fmt.Sprintf("%d that wait for one lock: got before somebody that came earlier", waiters),
		figure: fmt.Sprint(inversions),
		floors: []floor{{"all had it after", duration(took), duration(took/time.Duration(waiters)) + " each"}},
		goal:   "0",
		met:    judge(inversions == 0),
	})
	if k.counts {
		looks, beats := waiting.statements["look at locks"].calls, waiting.statements["heartbeat"].calls
		out.add(row{
			what:   "looks at what they wait for meanwhile",
			figure: fmt.Sprintf("%s for each heartbeat; %s statements/s in all", significant(float64(looks)/float64(max(1, beats))), persecond(waiting)),
			floors: []floor{{"while nobody waits", persecond(idle) + " statements/s", ""}},
			goal:   "<= 1, however many wait",
			met:    judge(looks <= beats+lockClients), // the first of each client comes at once
		})
		out.note("Statements while %d wait, with the time that the server took over each: %s. While nobody waits: %s.",
			waiters, listed(waiting.statements), listed(idle.statements))
	} else {
		out.skip("statements while they wait", "the server is without pg_stat_statements")
	}
	out.add(row{
		what:   "processor time of the server meanwhile",
		figure: percent(share(waiting.server, waiting.span)) + " of a core",
		floors: []floor{{"while nobody waits", percent(share(idle.server, idle.span)), ""}},
	})
	return nil
}

// measureHeld sees what the heartbeats of a client cost that holds a thousand locks.
func measureHeld(ctx context.Context, l *lab, out *part) error {
	if !l.counts {
		out.skip("heartbeats of a client that holds locks", "the server is without pg_stat_statements")
		return nil
	}
	k, err := newLockers(ctx, l, l.fast, 1, pgleases.WithTTL(10*time.Second), pgleases.WithHeartbeat(10*time.Millisecond)) // to have many
	if err != nil {
		return err
	}
	defer k.end()
	span := time.Duration(l.pick(300, 4000)) * time.Millisecond
	each := func() (processor time.Duration, statements, bytes float64, err error) {
		u, err := k.rest(ctx, span)
		beats := max(1, u.statements["heartbeat"].calls)
		return u.server / time.Duration(beats), float64(calls(u.statements)) / float64(beats), u.logged / float64(beats), err
	}
	processor, statements, bytes, err := each()
	if err != nil {
		return err
	}
	held := l.pick(20, 1000)
	all := make([]*lock.Held, held)
	for i := range all {
		if all[i], err = k.locks[0].TryAcquire(ctx, fmt.Sprint("held-", i)); err != nil {
			return err
		}
	}
	processorHeld, statementsHeld, bytesHeld, err := each()
	if err != nil {
		return err
	}
	out.add(row{
		what:   fmt.Sprintf("a heartbeat of a client that holds %s locks: statements, WAL, processor time of the server", grouped(held)),
		figure: fmt.Sprintf("%s, %s bytes, %s", significant(statementsHeld), significant(bytesHeld), duration(processorHeld)),
		floors: []floor{{"of the same one before", fmt.Sprintf("%s, %s bytes, %s", significant(statements), significant(bytes), duration(processor)),
			significant(statementsHeld-statements) + " statements more"}},
		goal: "no statement more",
		met:  judge(statementsHeld-statements < 0.05),
	})
	for _, h := range all {
		if err := h.Release(ctx); err != nil {
			return err
		}
	}
	return nil
}

func persecond(u usage) string { return significant(float64(calls(u.statements)) / u.span.Seconds()) }

// rest measures what is used while nothing is done for a while.
func (g *gauge) rest(ctx context.Context, span time.Duration) (usage, error) {
	told, err := g.meter(ctx)
	if err != nil {
		return usage{}, err
	}
	pause := time.NewTimer(span)
	defer pause.Stop()
	select {
	case <-pause.C:
		return told(ctx)
	case <-ctx.Done():
		return usage{}, context.Cause(ctx)
	}
}

// measureUsedOnce takes and releases locks under that many names, each once, and sees what is left of them.
func measureUsedOnce(ctx context.Context, l *lab, out *part, names int) error {
	k, err := newLockers(ctx, l, l.fast, lockClients)
	if err != nil {
		return err
	}
	defer k.end()
	const size = "SELECT pg_total_relation_size('pgleases.locks')"
	most := int64(0)
	look := func() error {
		now, err := one[int64](ctx, k.pool, size)
		most = max(most, now)
		return err
	}
	names -= names % lockClients // each takes as many
	began := time.Now()
	looked := make(chan error, 1)
	all, done := context.WithCancel(ctx)
	go func() {
		every := time.NewTicker(100 * time.Millisecond)
		defer every.Stop()
		for {
			select {
			case <-every.C:
				if err := look(); err != nil {
					looked <- err
					return
				}
			case <-all.Done():
				looked <- nil
				return
			}
		}
	}()
	err = spread(ctx, lockClients, names, func(ctx context.Context, client, turn int) error {
		return k.pair(ctx, client, fmt.Sprintf("webhook-%d-%d", client, turn))
	})
	took := time.Since(began)
	done()
	if err = errors.Join(err, <-looked, look()); err != nil {
		return err
	}
	rows, err := one[int](ctx, k.pool, "SELECT count(*)::int FROM pgleases.locks")
	if err != nil {
		return err
	}
	k.pool.Reset() // then they tell the rest of their statistics
	if err := untilTrue(
		ctx, k.pool, "statistics of all releases",
		"SELECT n_tup_del >= $1 FROM pg_stat_user_tables WHERE relid = 'pgleases.locks'::regclass", names,
	); err != nil {
		return err
	}
	state, err := one[string](
		ctx, k.pool,
		"SELECT format('%s dead rows, %s autovacuums', n_dead_tup, autovacuum_count) FROM pg_stat_user_tables WHERE relid = 'pgleases.locks'::regclass",
	)
	if err != nil {
		return err
	}
	if _, err := k.pool.Exec(ctx, "VACUUM pgleases.locks"); err != nil {
		return err
	}
	vacuumed, err := one[int64](ctx, k.pool, size)
	if err != nil {
		return err
	}
	if _, err := k.pool.Exec(ctx, `CREATE TABLE kept (LIKE pgleases.locks INCLUDING ALL);
INSERT INTO kept SELECT 'webhook-' || n % 16 || '-' || n, 1, n % 16, hashint8extended(n, 0), false, n, now() FROM generate_series(1, `+fmt.Sprint(names)+`::bigint) AS n`,
		pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	kept, err := one[int64](ctx, k.pool, "SELECT pg_total_relation_size('kept')")
	if err != nil {
		return err
	}
	out.add(row{
		what:   fmt.Sprintf("%s names, each taken and released once: rows left", grouped(names)),
		figure: fmt.Sprintf("%d; %s; %s pairs/s", rows, state, significant(float64(names)/took.Seconds())),
		floors: []floor{{"a table with a row for each name", grouped(names), ""}},
		goal:   "0",
		met:    judge(rows == 0),
	})
	out.add(row{
		what:   "size of table and indexes: largest meanwhile, and after VACUUM",
		figure: fmt.Sprintf("%s kB, %s kB", grouped(int(most/1000)), grouped(int(vacuumed/1000))),
		floors: []floor{{"a table with a row for each name", grouped(int(kept/1000)) + " kB", percent(float64(most) / float64(kept))}},
	})
	return nil
}

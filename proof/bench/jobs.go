package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"

	"github.com/pgleases/pgleases/schedule"
)

// This file measures jobs, beside River's.

// jobWorkers is how many jobs run at once, each on a connection of its own, in whatever works them.
const jobWorkers = 32

// A queue is something that works jobs which do nothing but end, each in a durable transaction.
type queue interface {
	// put puts so many jobs, in one transaction each page.
	put(ctx context.Context, n int) error
	// done is how many were worked.
	done() int
	// idle is a condition that holds where none is left.
	idle() string
	close() error
}

// work has a queue take and work so many jobs, and returns how many a second were put, and then worked.
func (s *scheduling) work(ctx context.Context, q queue, n int) (put, worked float64, err error) {
	before, began := q.done(), time.Now()
	if err := q.put(ctx, n); err != nil {
		return 0, 0, err
	}
	put, began = float64(n)/time.Since(began).Seconds(), time.Now()
	again := time.NewTicker(time.Millisecond)
	defer again.Stop()
	for q.done() < before+n {
		select {
		case <-again.C:
		case <-ctx.Done():
			return 0, 0, context.Cause(ctx)
		}
		if time.Since(began) > patience {
			return 0, 0, fmt.Errorf("%w: %d of %d jobs, within %v", errLate, q.done()-before, n, patience)
		}
	}
	if err := untilTrue(ctx, s.pool, "no job is left", "SELECT "+q.idle()); err != nil {
		return 0, 0, err
	}
	return put, float64(n) / time.Since(began).Seconds(), nil
}

// ourJobs are those of package schedule, in one process.
type ourJobs struct {
	*agent
	kind   *schedule.Kind[struct{}]
	worked atomic.Int64
}

func (s *scheduling) ourJobs(ctx context.Context, workers int) (*ourJobs, error) {
	q := &ourJobs{}
	var err error
	if q.agent, err = newAgent(ctx, s.url, "jobs", s.ttl, workers); err != nil {
		return nil, err
	}
	q.kind = schedule.InTx(q.Scheduler, "nothing", func(context.Context, pgx.Tx, schedule.Run[struct{}]) error {
		q.worked.Add(1)
		return nil
	})
	q.run()
	if err := s.shared(ctx, 1); err != nil {
		return nil, errors.Join(err, q.close())
	}
	return q, nil
}

func (q *ourJobs) put(ctx context.Context, n int) error {
	_, err := q.kind.EnqueueMany(ctx, make([]struct{}, n))
	return err
}

func (q *ourJobs) done() int { return int(q.worked.Load()) }
func (q *ourJobs) idle() string {
	return "NOT EXISTS (SELECT FROM pgleases.jobs WHERE group_name = 'bench')"
}

// riverJobs are those of River, in one client.
type riverJobs struct {
	pool   *pgxpool.Pool
	client *river.Client[pgx.Tx]
	worked atomic.Int64
}

type nothingArgs struct{}

func (nothingArgs) Kind() string { return "nothing" }

type nothingWorker struct {
	river.WorkerDefaults[nothingArgs]
	jobs *riverJobs
}

func (w *nothingWorker) Work(ctx context.Context, job *river.Job[nothingArgs]) error {
	err := pgx.BeginFunc(ctx, w.jobs.pool, func(tx pgx.Tx) error {
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.jobs.worked.Add(1)
	}
	return err
}

// riverCooldown is the least time between two fetches: the default, 100 ms, would have it wait.
const riverCooldown = time.Millisecond

func (s *scheduling) riverJobs(ctx context.Context, workers int) (_ *riverJobs, err error) {
	q := &riverJobs{}
	if q.pool, err = sized(ctx, s.url, workers+2); err != nil {
		return nil, err
	}
	migrator, err := rivermigrate.New(riverpgxv5.New(q.pool), &rivermigrate.Config{Logger: slog.New(slog.DiscardHandler)})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err == nil {
		known := river.NewWorkers()
		river.AddWorker(known, &nothingWorker{jobs: q})
		q.client, err = river.NewClient(riverpgxv5.New(q.pool), &river.Config{
			Logger: slog.New(slog.DiscardHandler), Workers: known, FetchCooldown: riverCooldown,
			Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
		})
	}
	if err == nil {
		err = q.client.Start(context.WithoutCancel(ctx)) // close ends it
	}
	if err != nil {
		q.pool.Close()
		return nil, err
	}
	return q, nil
}

func (q *riverJobs) put(ctx context.Context, n int) error {
	jobs := make([]river.InsertManyParams, n)
	for i := range jobs {
		jobs[i].Args = nothingArgs{}
	}
	_, err := q.client.InsertManyFast(ctx, jobs)
	return err
}

func (q *riverJobs) done() int { return int(q.worked.Load()) }
func (q *riverJobs) idle() string {
	return "NOT EXISTS (SELECT FROM river_job WHERE state <> 'completed')"
}

func (q *riverJobs) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := q.client.Stop(ctx)
	q.pool.Close()
	return err
}

// sized returns a pool of so many connections.
func sized(ctx context.Context, url string, connections int) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns, config.MinConns = int32(connections), int32(connections)
	return pgxpool.NewWithConfig(ctx, config)
}

// bareJobs are the transactions of jobs, and nobody who finds, decides or retries: each in two round trips.
type bareJobs struct {
	pool    *pgxpool.Pool
	workers int
	worked  atomic.Int64
	owned   []ownedPartition
}

type ownedPartition struct {
	Number int32
	Epoch  int64
}

func (s *scheduling) bareJobs(ctx context.Context, workers int) (*bareJobs, error) {
	pool, err := sized(ctx, s.url, workers+2)
	if err != nil {
		return nil, err
	}
	q := &bareJobs{pool: pool, workers: workers}
	const tables = "CREATE TABLE public.bare_jobs (LIKE pgleases.jobs INCLUDING ALL); CREATE TABLE public.bare_history (LIKE pgleases.history INCLUDING ALL)"
	_, err = pool.Exec(ctx, tables, pgx.QueryExecModeSimpleProtocol)
	if err == nil {
		rows, _ := pool.Query(ctx, "SELECT partition, epoch FROM pgleases.status WHERE lease = 'schedule/bench'")
		q.owned, err = pgx.CollectRows(rows, pgx.RowToStructByPos[ownedPartition])
	}
	if err != nil {
		pool.Close()
		return nil, err
	}
	return q, nil
}

func (q *bareJobs) put(ctx context.Context, n int) error {
	const insert = `INSERT INTO public.bare_jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
SELECT 'bench', 'key-' || n, n % 128, 'nothing', '', 'job', '{}', 1, now(), now() FROM generate_series(1, $1::int) AS n RETURNING id`
	rows, _ := q.pool.Query(ctx, insert, n)
	ids, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return err
	}
	next := make(chan int64, len(ids))
	for _, id := range ids {
		next <- id
	}
	close(next)
	for range q.workers {
		go func() {
			for id := range next {
				if q.end(ctx, id) != nil {
					return // which the caller's patience tells
				}
				q.worked.Add(1)
			}
		}()
	}
	return nil
}

func (q *bareJobs) end(ctx context.Context, id int64) error {
	conn, err := q.pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	p := q.owned[rand.IntN(len(q.owned))]
	var begin, end pgx.Batch
	begin.BeginTx(pgx.TxOptions{})
	begin.Queue("SELECT pgleases.guard('schedule/bench', $1, $2)", p.Number, p.Epoch)
	begin.Queue("SELECT * FROM public.bare_jobs WHERE id = $1", id)
	answers := conn.SendBatch(ctx, &begin)
	tx := answers.Tx()
	if err := answers.Close(); err != nil {
		return errors.Join(err, tx.Rollback(ctx))
	}
	end.Queue("DELETE FROM public.bare_jobs WHERE id = $1", id)
	end.Queue(`INSERT INTO public.bare_history (schedule, job, group_name, name, since, until, ticks, fate, attempts, epoch, started_at, ended_at)
VALUES (0, $1, 'bench', '', now(), now(), 1, 'done', 1, $2, now(), now())`, id, p.Epoch)
	end.Queue("COMMIT")
	return tx.SendBatch(ctx, &end).Close()
}

func (q *bareJobs) done() int    { return int(q.worked.Load()) }
func (q *bareJobs) idle() string { return "NOT EXISTS (SELECT FROM public.bare_jobs)" }
func (q *bareJobs) close() error { q.pool.Close(); return nil }

// measureJobs has jobs put and worked, in turns with River's and with bare transactions; then beside an old snapshot.
func measureJobs(ctx context.Context, l *lab, out *part) (err error) {
	s, err := newScheduling(ctx, l, l.durable, 0)
	if err != nil {
		return err
	}
	defer s.end()
	ours, err := s.ourJobs(ctx, jobWorkers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, ours.close()) }()
	theirs, err := s.riverJobs(ctx, jobWorkers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, theirs.close()) }()
	bare, err := s.bareJobs(ctx, jobWorkers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, bare.close()) }()

	n := l.pick(100, 10_000)
	var puts, paces [3][]float64
	for range l.pick(1, 3) {
		for i, q := range []queue{ours, theirs, bare} {
			put, worked, err := s.work(ctx, q, n)
			if err != nil {
				return err
			}
			puts[i], paces[i] = append(puts[i], put), append(paces[i], worked)
		}
	}
	beside := func(of [3][]float64, other int) (string, string) {
		return significant(median(of[other])) + "/s", times(median(ratios(of[0], of[other])))
	}
	compared := func(of [3][]float64, river, floors string) []floor {
		their, ratio := beside(of, 1)
		least, share := beside(of, 2)
		return []floor{{river, their, ratio}, {floors, least, share}}
	}
	out.add(row{
		what:   "one-off jobs whose handler does nothing, each in its own durable guarded transaction",
		figure: significant(median(paces[0])) + "/s",
		floors: compared(paces, "River's, each completed in a durable transaction by `JobCompleteTx`", "bare transactions: guard, read; delete, insert"),
		goal:   ">= 4,000/s, and >= River",
		met:    judge(median(paces[0]) >= 4000 && median(ratios(paces[0], paces[1])) >= 1),
	})
	out.add(row{
		what:   fmt.Sprintf("jobs put, %s in one call", grouped(n)),
		figure: significant(median(puts[0])) + "/s",
		floors: compared(puts, "River's `InsertManyFast`", "one bare `INSERT` of as many rows"),
		goal:   ">= 30,000/s", met: judge(median(puts[0]) >= 30_000),
	})
	out.note("Jobs are worked by one process, %d at once, and as many by one client of River (FetchCooldown %v, instead of the default, which would have it wait) and by the bare transactions, which nobody "+
		"finds, retries or fails: two round trips each. Each %s, medians of %d rounds, in turns in one database; handlers write nothing.", jobWorkers, riverCooldown, grouped(n), len(paces[0]))
	if err := s.besideSnapshot(ctx, l, out, ours, median(paces[0])); err != nil {
		return err
	}
	return measurePuts(ctx, l, out)
}

// measurePuts has jobs put one by one, each in a durable transaction, by a process that runs none: so of those that are due now the
// processes that run them are told. Beside those of which nobody is told, as they are due tomorrow.
func measurePuts(ctx context.Context, l *lab, out *part) error {
	s, err := newScheduling(ctx, l, l.durable, 0)
	if err != nil {
		return err
	}
	defer s.end()
	pool, err := sized(ctx, s.url, jobWorkers)
	if err != nil {
		return err
	}
	defer pool.Close()
	if _, err := pool.Exec(ctx, "CREATE TABLE public.bare_jobs (LIKE pgleases.jobs INCLUDING ALL)"); err != nil {
		return err
	}
	enqueuer, err := schedule.NewEnqueuer(pool, scheduleGroup)
	if err != nil {
		return err
	}
	kind := schedule.JobsOf[struct{}](enqueuer, "nothing")
	put := func(opts ...schedule.JobOption) func() error {
		return func() error {
			_, err := kind.Enqueue(ctx, struct{}{}, opts...)
			return err
		}
	}
	bare := func(statement string) func() error {
		return func() error {
			_, err := pool.Exec(ctx, statement)
			return err
		}
	}
	const insert = `INSERT INTO public.bare_jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
VALUES ('bench', gen_random_uuid(), 1, 'nothing', '', 'job', '{}', 1, now(), now())`
	const notifying = "WITH made AS (" + insert + " RETURNING id) SELECT pg_notify('bare_jobs', '') FROM made"
	n := l.pick(100, 10_000)
	ways := []func() error{put(), put(schedule.In(24 * time.Hour)), bare(insert), bare(notifying)}
	paces := make([][]float64, len(ways))
	for range l.pick(1, 3) {
		for i, way := range ways {
			pace, err := atOnce(n, jobWorkers, way)
			if err != nil {
				return err
			}
			paces[i] = append(paces[i], pace)
		}
	}
	beside := func(what string, other int) floor {
		return floor{what, significant(median(paces[other])) + "/s", times(median(ratios(paces[0], paces[other])))}
	}
	out.add(row{
		what: fmt.Sprintf(
			"jobs put one by one by %d at once, each in a durable transaction, while processes are told of them five times a second",
			jobWorkers,
		),
		figure: significant(median(paces[0])) + "/s",
		floors: []floor{
			beside("for tomorrow, so that nobody is told", 1), beside("one bare `INSERT`", 2),
			beside("one bare `INSERT`, each with a `NOTIFY`", 3),
		},
	})
	return nil
}

// atOnce has something done so often, by so many at once, and returns how often in a second.
func atOnce(n, workers int, do func() error) (pace float64, err error) {
	turns := make(chan struct{}, n)
	for range n {
		turns <- struct{}{}
	}
	close(turns)
	began := time.Now()
	err = together(workers, func(int) error {
		for range turns {
			if err := do(); err != nil {
				return err
			}
		}
		return nil
	})
	return float64(n) / time.Since(began).Seconds(), err
}

// besideSnapshot has jobs worked while a transaction holds an old snapshot, behind which ended jobs lie dead.
func (s *scheduling) besideSnapshot(ctx context.Context, l *lab, out *part, ours *ourJobs, before float64) error {
	span, dead := time.Duration(l.pick(1, 20))*time.Second, l.pick(1000, 500_000)
	if l.whole {
		span = 10 * time.Minute
	}
	old, err := s.pool.BeginTx(ctx, pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	if err != nil {
		return err
	}
	defer old.Rollback(context.WithoutCancel(ctx))
	if _, err := old.Exec(ctx, "SELECT count(*) FROM pgleases.jobs"); err != nil {
		return err
	}
	// As if it had been there for an hour: with what was put and has ended since.
	const ended = `INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
SELECT 'bench', 'dead', n % 128, 'nothing', '', 'job', '{}', 1, t, t FROM generate_series(1, $1::int) AS n, LATERAL (SELECT clock_timestamp() - n * interval '1 hour' / $1) AS v (t)`
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, ended, dead); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "DELETE FROM pgleases.jobs WHERE key = 'dead'")
		return err
	})
	if err != nil {
		return err
	}
	without, err := s.looks(ctx, l)
	if err != nil {
		return err
	}
	n := l.pick(100, 10_000)
	var paces []float64
	for began := time.Now(); time.Since(began) < span; {
		_, pace, err := s.work(ctx, ours, n)
		if err != nil {
			return err
		}
		paces = append(paces, pace)
	}
	with, err := s.looks(ctx, l)
	if err != nil {
		return err
	}
	out.add(row{
		what:   fmt.Sprintf("the same for %v beside an old snapshot, behind which %s ended jobs of the last hour lie dead at first", span, grouped(dead)),
		figure: significant(median(paces)) + "/s" + with.String(),
		floors: []floor{{"without it", significant(before) + "/s" + without.String(), percent(median(paces) / before)}},
		goal:   ">= half, a look <= 10 ms", met: judge(2*median(paces) >= before && with.Mean <= 10),
	})
	half, err := s.paced(ctx, ours, before/2, span)
	if err != nil {
		return err
	}
	if with, err = s.looks(ctx, l); err != nil {
		return err
	}
	out.add(row{
		what:   "beside it, jobs that come at half the pace without it, ten times a second",
		figure: significant(half) + "/s" + with.String(),
		floors: []floor{{"without it, as fast as they can be worked", significant(before) + "/s" + without.String(), percent(half / before)}},
		goal:   "a look <= 10 ms", met: judge(with.Mean <= 10),
	})
	return nil
}

// paced has so many jobs a second put, for so long, and returns how many a second were worked.
func (s *scheduling) paced(ctx context.Context, ours *ourJobs, pace float64, span time.Duration) (worked float64, err error) {
	before, began, put := ours.done(), time.Now(), 0
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for time.Since(began) < span {
		select {
		case <-again.C:
		case <-ctx.Done():
			return 0, context.Cause(ctx)
		}
		n := int(pace*time.Since(began).Seconds()) - put
		if err := ours.put(ctx, n); err != nil {
			return 0, err
		}
		put += n
	}
	err = untilTrue(ctx, s.pool, "no job is left", "SELECT "+ours.idle())
	return float64(ours.done()-before) / time.Since(began).Seconds(), err
}

// A looking is how long looks took the server, in milliseconds, while all else that it works at wants its processors too; zero: not known.
type looking struct{ Mean, Most float64 }

func (l looking) String() string {
	if l.Most == 0 {
		return ""
	}
	return fmt.Sprintf("; a look takes the server %s ms, at most %s ms", significant(l.Mean), significant(l.Most))
}

// looks tells of the looks since it was last asked.
func (s *scheduling) looks(ctx context.Context, l *lab) (took looking, err error) {
	if !l.counts {
		return took, nil
	}
	took, err = ask[looking](
		ctx, s.pool,
		"SELECT mean_exec_time, max_exec_time FROM pg_stat_statements WHERE query LIKE '%.schedule_look(%' AND query NOT LIKE '%pg_stat_statements%' ORDER BY calls DESC LIMIT 1",
	)
	if err == nil {
		_, err = s.pool.Exec(ctx, "SELECT pg_stat_statements_reset()")
	}
	return took, err
}

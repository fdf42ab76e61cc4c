package main

import (
	"context"
	"fmt"
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

const (
	jobWorkers = 32 // concurrent jobs, each on a connection of its own
	// riverCooldown is the minimum time between two fetches of River's client. Its default, 100 ms,
	// would make the client wait.
	riverCooldown = time.Millisecond
)

// jobsNote says where the time goes. It was found from the processor time of the server's sessions and of
// the program, which other work on the machine changes little.
const jobsNote = "Where the time goes: to enqueue 10,000 jobs takes 70 ms of processor time of the server " +
	"and 9 ms of the program, and River's takes 69 ms and 26 ms, partly at once. " +
	"Of the 70 ms, the rows take 15 ms, the index of what is due 18 ms, and the primary key 7 ms. " +
	"Before the program sent arrays, the two took 126 ms and 21 ms. " +
	"The server then read JSON (25 ms), hashed the keys in PL/pgSQL (22 ms), drew random numbers (10 ms), " +
	"and confirmed each row for ON CONFLICT (8 ms). " +
	"A one-off job takes about 130 µs of the server: 14 µs for an empty transaction, 30 µs for the guard, " +
	"27 µs to read the job and set limits, and 60 µs to delete it and write the history. " +
	"This end has had a fifth fewer instructions since then. " +
	"It takes about 200 µs of the program: half for the two round trips, " +
	"and a tenth each to read the row, to choose the next job, and to collect garbage."

// A queue runs jobs with empty handlers, each in a durable transaction.
type queue struct {
	name, enqueuing string
	put             func(ctx context.Context, n int) // enqueues n jobs in one call
	done            atomic.Int64
	idle            string // an SQL condition that is true if no job is left
}

// measureJobs enqueues and runs jobs, in turns with River and with bare transactions.
func measureJobs(ctx context.Context, l *lab, out *part) {
	d := l.newDatabase(ctx, l.durable, 4)
	defer d.end()
	check(schedule.Migrate(ctx, d.Pool))
	pool := newPool(ctx, d.url, 2*jobWorkers+4) // for River and for the bare transactions, in turns
	defer pool.Close()
	var ours, theirs, bare queue
	r := newRunner(ctx, d.url, "jobs", 0, jobWorkers)
	defer r.close()
	ours.open(r)
	d.shared(ctx, 1)
	defer theirs.openRiver(ctx, pool)()
	bare.openBare(ctx, pool)
	n := l.pick(100, 10_000)
	var sides []side
	for _, q := range []*queue{&ours, &theirs, &bare} {
		var before int64
		var enqueued time.Time
		sides = append(sides, side{q.enqueuing, perSecond, func() float64 {
			before = q.done.Load()
			began := time.Now()
			q.put(ctx, n)
			enqueued = time.Now()
			return float64(n) / enqueued.Sub(began).Seconds()
		}}, side{q.name, perSecond, func() float64 {
			reaches(n, "jobs were done", func() int { return int(q.done.Load() - before) })
			d.until(ctx, "no job is left", "SELECT "+q.idle)
			return float64(n) / time.Since(enqueued).Seconds()
		}})
	}
	paces := l.alternatePairs(3, []pair{{1, 3}, {1, 5}, {0, 2}, {0, 4}}, sides...)
	out.compare("one-off jobs, each in a durable guarded transaction", paces[1], paces[3], paces[5]).
		goal(">= 2.5x River", paces[1].over(paces[3]) >= 2.5)
	out.compare(fmt.Sprintf("jobs enqueued, %s in one call", grouped(n)), paces[0], paces[2], paces[4]).
		goal(">= River", paces[0].over(paces[2]) >= 1)
	out.note("Handlers do nothing. One process runs %d jobs at once, "+
		"as do one client of River (FetchCooldown %v) and the bare transactions.", jobWorkers, riverCooldown)
	out.note(jobsNote)
}

// open runs the jobs of package schedule.
func (q *queue) open(r *runner) {
	kind := schedule.InTx(r.Scheduler, "nothing", func(context.Context, pgx.Tx, schedule.Run[struct{}]) error {
		q.done.Add(1)
		return nil
	})
	q.put = func(ctx context.Context, n int) { must(kind.EnqueueMany(ctx, make([]struct{}, n))) }
	q.idle = "NOT EXISTS (SELECT FROM pgleases.jobs WHERE group_name = 'bench')"
	r.run()
}

type nothingArgs struct{}

func (nothingArgs) Kind() string { return "nothing" }

type nothingWorker struct {
	river.WorkerDefaults[nothingArgs]
	pool *pgxpool.Pool
	done *atomic.Int64
}

func (w *nothingWorker) Work(ctx context.Context, job *river.Job[nothingArgs]) error {
	err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
		_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		return err
	})
	if err == nil {
		w.done.Add(1)
	}
	return err
}

// openRiver runs the jobs of River, until end is called.
func (q *queue) openRiver(ctx context.Context, pool *pgxpool.Pool) (end func()) {
	driver, known := riverpgxv5.New(pool), river.NewWorkers()
	migrator := must(rivermigrate.New(driver, &rivermigrate.Config{Logger: quiet}))
	must(migrator.Migrate(ctx, rivermigrate.DirectionUp, nil))
	river.AddWorker(known, &nothingWorker{pool: pool, done: &q.done})
	client := must(river.NewClient(driver, &river.Config{
		Logger:        quiet,
		Workers:       known,
		FetchCooldown: riverCooldown,
		Queues:        map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: jobWorkers}},
	}))
	q.name, q.enqueuing = "River's, each with `JobCompleteTx`", "River's `InsertManyFast`"
	q.idle = "NOT EXISTS (SELECT FROM river_job WHERE state <> 'completed')"
	q.put = func(ctx context.Context, n int) {
		jobs := make([]river.InsertManyParams, n)
		for i := range jobs {
			jobs[i].Args = nothingArgs{}
		}
		must(client.InsertManyFast(ctx, jobs))
	}
	check(client.Start(context.WithoutCancel(ctx))) // end stops it
	return func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		_ = client.Stop(ctx)
	}
}

// openBare runs only the transactions that jobs need: guard, read; delete, insert.
func (q *queue) openBare(ctx context.Context, pool *pgxpool.Pool) {
	const tables = `CREATE TABLE public.bare_jobs (id bigserial PRIMARY KEY,
    key text NOT NULL, partition int NOT NULL, args jsonb NOT NULL, due timestamptz NOT NULL);
CREATE INDEX ON public.bare_jobs (partition, due);
CREATE TABLE public.bare_history (id bigserial PRIMARY KEY,
    job bigint NOT NULL, epoch bigint NOT NULL, started_at timestamptz NOT NULL, ended_at timestamptz NOT NULL);
CREATE INDEX ON public.bare_history (ended_at)`
	must(pool.Exec(ctx, tables, pgx.QueryExecModeSimpleProtocol))
	owned := ownedPartitions(ctx, pool)
	q.name, q.enqueuing = "bare transactions", "one bare `INSERT`"
	q.idle = "NOT EXISTS (SELECT FROM public.bare_jobs)"
	q.put = func(ctx context.Context, n int) {
		const insert = `INSERT INTO public.bare_jobs (key, partition, args, due)
SELECT 'key-' || n, n % 128, '{}', now() FROM generate_series(1, $1::int) AS n RETURNING id`
		rows, _ := pool.Query(ctx, insert, n)
		ids := must(pgx.CollectRows(rows, pgx.RowTo[int64]))
		for worker := range jobWorkers {
			go func() {
				for i := worker; i < len(ids); i += jobWorkers {
					if endBare(ctx, pool, ids[i], owned[rand.IntN(len(owned))]) != nil {
						return // missing jobs fail the measurement
					}
					q.done.Add(1)
				}
			}()
		}
	}
}

type ownedPartition struct {
	Number int32
	Epoch  int64
}

func ownedPartitions(ctx context.Context, pool *pgxpool.Pool) []ownedPartition {
	rows, _ := pool.Query(ctx, "SELECT partition, epoch FROM pgleases.status WHERE lease = 'schedule/bench'")
	return must(pgx.CollectRows(rows, pgx.RowToStructByPos[ownedPartition]))
}

func endBare(ctx context.Context, pool *pgxpool.Pool, id int64, p ownedPartition) error {
	conn, err := pool.Acquire(ctx)
	if err != nil {
		return err
	}
	defer conn.Release()
	var begin, end pgx.Batch
	begin.BeginTx(pgx.TxOptions{})
	begin.Queue("SELECT pgleases.guard('schedule/bench', $1, $2)", p.Number, p.Epoch)
	begin.Queue("SELECT * FROM public.bare_jobs WHERE id = $1", id)
	answers := conn.SendBatch(ctx, &begin)
	tx := answers.Tx()
	if err := answers.Close(); err != nil {
		_ = tx.Rollback(ctx)
		return err
	}
	end.Queue("DELETE FROM public.bare_jobs WHERE id = $1", id)
	end.Queue(`INSERT INTO public.bare_history (job, epoch, started_at, ended_at)
VALUES ($1, $2, now(), now())`, id, p.Epoch)
	end.Queue("COMMIT")
	return tx.SendBatch(ctx, &end).Close()
}

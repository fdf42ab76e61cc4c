package main

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

const (
	scheduleGroup = "bench"
	runners       = 4 // processes that run schedules; in this bench, clients of one process
	runsAtOnce    = 4 // in each process
)

// schedulesNote says where the time goes. It was found from the processor time of the server's sessions
// and of the program, which other work on the machine changes little.
const schedulesNote = "Where the time goes: a tick takes about 220 µs of processor time of the server " +
	"and 270 µs of the program. " +
	"Of the server's, an empty transaction takes 14 µs, the guard 30 µs, the opening 33 µs, " +
	"the handler's insert 17 µs, and the end 125 µs. " +
	"The end adds entries to five indexes, and 14 µs of it are its 40 arguments. " +
	"It has had an eighth fewer instructions since then. " +
	"What a run needs, by hand, takes the server about 120 µs, and a bare transaction takes it about 35 µs. " +
	"So anything that guards a tick and writes its outcome takes about 3 times as long as a bare transaction. " +
	"When a client closes, it records the ends of all its partitions in one or two statements. " +
	"Before, it sent four messages for each of them."

// A runner is a process that runs schedules.
type runner struct {
	pool   *pgxpool.Pool
	client *pgleases.Client
	*schedule.Scheduler
	tick  *schedule.Kind[struct{}]
	stop  context.CancelFunc
	ended chan error
}

func newRunner(
	ctx context.Context, url, id string, ttl time.Duration, atOnce int, configure ...func(*pgxpool.Config),
) *runner {
	r := &runner{pool: newPool(ctx, url, atOnce+2, configure...), ended: make(chan error, 1)}
	opts := []pgleases.Option{pgleases.WithClientID(id), pgleases.WithLogger(quiet)}
	if ttl > 0 {
		opts = append(opts, pgleases.WithTTL(ttl))
	}
	r.client = must(pgleases.NewClient(ctx, r.pool, opts...))
	r.Scheduler = must(schedule.New(ctx, r.client, r.pool, scheduleGroup,
		schedule.WithMaxRunning(atOnce),
		schedule.WithLogger(quiet)))
	r.tick = schedule.InTx(r.Scheduler, "tick", func(ctx context.Context, tx pgx.Tx, run schedule.Run[struct{}]) error {
		_, err := tx.Exec(ctx, insertRan, run.Name, run.At, id)
		return err
	})
	return r
}

func (r *runner) run() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
}

// close ends Run and the client.
func (r *runner) close() {
	if r.stop != nil {
		r.stop()
		<-r.ended
	}
	closeClient(r.client)
	r.pool.Close()
}

// shared waits until a number of owners own all partitions of the group.
func (d *database) shared(ctx context.Context, owners int) {
	d.until(ctx, "all is owned", `SELECT count(*) > 0 AND count(*) = count(owner) AND count(DISTINCT owner) = $1
    AND count(*) FILTER (WHERE moving_to IS NOT NULL) = 0 FROM pgleases.status WHERE lease = 'schedule/bench'`, owners)
}

// Handlers write to this table.
const (
	ranTable = `CREATE TABLE public.ran (
    name text, at timestamptz, worker text, ran_at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON public.ran (name, ran_at)`
	insertRan = "INSERT INTO public.ran (name, at, worker) VALUES ($1, $2, $3)"
)

// A scheduling is a database with schedules.
type scheduling struct {
	*database
	ttl     time.Duration // 0: the default TTL
	runners []*runner
}

func newScheduling(ctx context.Context, l *lab, ttl time.Duration) *scheduling {
	s := &scheduling{database: l.newDatabase(ctx, l.durable, runners*runsAtOnce), ttl: ttl}
	check(schedule.Migrate(ctx, s.Pool))
	s.all(ctx, ranTable)
	return s
}

func (s *scheduling) end() {
	s.stop()
	s.database.end()
}

func (s *scheduling) stop() {
	for _, r := range s.runners {
		r.close()
	}
	s.runners = nil
}

// start starts n runners.
func (s *scheduling) start(ctx context.Context, n int) {
	for i := range n {
		s.runners = append(s.runners, newRunner(ctx, s.url, fmt.Sprintf("runner-%d", i), s.ttl, runsAtOnce))
		s.runners[i].run()
	}
	s.shared(ctx, n)
}

// put creates n schedules as copies of one, whatever columns the table has. They are due at an
// instant, or spread over the time after it.
func (s *scheduling) put(ctx context.Context, n int, every time.Duration, due time.Time, spread time.Duration) {
	const copies = `INSERT INTO pgleases.schedules OVERRIDING SYSTEM VALUE
SELECT (jsonb_populate_record(s, jsonb_build_object('id', s.id + n, 'name', copy, 'key', copy,
    'partition', pgleases.partition_for(copy, 128),
    'anchor', first - $3::interval, 'cursor', first - $3::interval, 'due', first))).*
FROM pgleases.schedules AS s, generate_series(1, $1::int) AS n,
    LATERAL (SELECT 'copy-' || n AS copy, $2::timestamptz + n * $4::interval / $1 AS first) AS d`
	r := newRunner(ctx, s.url, "maker", s.ttl, runsAtOnce)
	defer r.close()
	check(r.tick.Put(ctx, "first", struct{}{}, schedule.Every(every), schedule.WithMissed(schedule.MissedAll)))
	must(s.Exec(ctx, copies, n, due, every, spread))
	s.all(ctx, "DELETE FROM pgleases.schedules WHERE name = 'first'", "VACUUM ANALYZE pgleases.schedules", "CHECKPOINT")
}

func (s *scheduling) now(ctx context.Context) time.Time {
	return one[time.Time](ctx, s.database, "SELECT clock_timestamp()")
}

// measureSchedules measures how late runs are, and what happens to schedules when a process ends.
func measureSchedules(ctx context.Context, l *lab, out *part) {
	measureLateRuns(ctx, l, out)
	measureOneTick(ctx, l, out)
	measureElsewhere(ctx, l, out)
	out.note("%d clients of one process have %d runs at once each. "+
		"A run is a durable transaction of one `INSERT` under the guard.", runners, runsAtOnce)
	out.note(schedulesNote)
}

// A spread is the number of runs, and their lateness.
type spread struct {
	Count, Early     int
	Median, P99, Max time.Duration
}

func (s spread) String() string {
	return fmt.Sprintf("p50 %s, p99 %s, at most %s, early: %d",
		duration(s.Median), duration(s.P99), duration(s.Max), s.Early)
}

func (s *scheduling) late(ctx context.Context, from, to time.Time, names string) spread {
	return ask[spread](ctx, s.database, `SELECT count(*), count(*) FILTER (WHERE late < interval '0'),
    coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY late), interval '0'),
    coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY late), interval '0'),
    coalesce(max(late), interval '0')
FROM (SELECT ran_at - at AS late FROM public.ran WHERE at > $1 AND at <= $2 AND name LIKE $3) AS r`, from, to, names)
}

// measureLateRuns measures schedules at a steady pace, beside timers that insert the same rows.
func measureLateRuns(ctx context.Context, l *lab, out *part) {
	s := newScheduling(ctx, l, 0)
	defer s.end()
	n, span := l.pick(20, 200), time.Duration(l.pick(1, 15))*time.Second
	s.put(ctx, n, time.Second, s.now(ctx), time.Second)
	s.start(ctx, runners)
	s.until(ctx, "each has run", "SELECT count(DISTINCT name) = $1 FROM public.ran", n)
	const due = "SELECT count(*) = 0 FROM pgleases.schedules WHERE due <= "
	s.until(ctx, "no run is late", due+"clock_timestamp() - interval '100 ms'")
	from := s.now(ctx)
	used := s.calm(ctx, span)
	to := s.now(ctx)
	s.until(ctx, "all ticks until then were run", due+"$1", to)
	late := s.late(ctx, from, to, "copy-%")
	s.stop()
	timers := s.timers(ctx, n, span)
	inTime := late.Median <= 5*time.Millisecond && late.P99 <= 30*time.Millisecond
	out.figure(fmt.Sprintf("how late runs are, %s of them a second", grouped(n)), late.String()).
		than("timers that insert the same rows", timers.String(), "").
		goal("p50 <= 5 ms, p99 <= 30 ms, never early", inTime && late.Early == 0)
	out.figure("processor time of the server for a run", duration(used.server/time.Duration(max(1, late.Count)))).
		than("one core", duration(used.span), percent(share(used.server, used.span)))
}

// timers inserts rows at the same pace, with timers of this process.
func (s *scheduling) timers(ctx context.Context, n int, span time.Duration) spread {
	began := time.Now().Add(time.Second)
	together(n, func(i int) {
		first := began.Add(time.Duration(i) * time.Second / time.Duration(n))
		for at := first; at.Before(began.Add(span)); at = at.Add(time.Second) {
			time.Sleep(time.Until(at))
			must(s.Exec(ctx, insertRan, "timer", at, "timer"))
		}
	})
	return s.late(ctx, began.Add(-time.Second), began.Add(span), "timer")
}

// measureOneTick measures many schedules that are due at one instant, beside bare transactions.
func measureOneTick(ctx context.Context, l *lab, out *part) {
	s := newScheduling(ctx, l, 0)
	defer s.end()
	n := l.pick(200, 10_000)
	s.start(ctx, runners)
	due := s.now(ctx).Add(time.Duration(l.pick(8, 15)) * time.Second).Truncate(time.Second)
	s.put(ctx, n, time.Hour, due, 0)
	late := s.now(ctx).Sub(due)
	if late >= 0 {
		check(fmt.Errorf("the schedules were made only %v after the tick", late))
	}
	s.until(ctx, "all have run", "SELECT count(*) = $1 FROM public.ran WHERE name LIKE 'copy-%'", n)
	took := ask[struct{ First, Last time.Duration }](ctx, s.database,
		"SELECT min(ran_at - at), max(ran_at - at) FROM public.ran")
	var losses uint64
	for _, r := range s.runners {
		losses += uint64(r.client.Stats().Losses.TrustLost)
	}
	at := time.Now()
	bare := s.each(n, func(int) { must(s.Exec(ctx, insertRan, "bare", at, "bare")) })
	hand := s.ticksByHand(ctx, n)
	out.figure(fmt.Sprintf("%s ticks at once: until the first and the last run", grouped(n)),
		fmt.Sprintf("%s and %s; ownerships lost: %d", duration(took.First), duration(took.Last), losses)).
		than("as many bare transactions", duration(bare), significant(share(took.Last, bare))+"x").
		than("what a run needs, by hand", duration(hand), significant(share(took.Last, hand))+"x").
		goal("the last <= 3x, none lost", took.Last <= 3*bare && losses == 0)
}

// each calls do n times, from as many goroutines as ticks run at once, and returns how long it took.
func (s *scheduling) each(n int, do func(i int)) time.Duration {
	const connections = runners * runsAtOnce
	began := time.Now()
	together(connections, func(connection int) {
		for i := connection; i < n; i += connections {
			do(i)
		}
	})
	return time.Since(began)
}

// ticksByHand runs n ticks with the statements that no implementation can do without, in the three
// round trips that a handler leaves: the guard and the schedule are read before it, and the schedule
// and the history are written after it. It returns how long that took.
func (s *scheduling) ticksByHand(ctx context.Context, n int) time.Duration {
	const (
		tables = `CREATE TABLE public.hand_schedules (id int PRIMARY KEY,
    name text NOT NULL UNIQUE, partition int NOT NULL, rule text NOT NULL,
    cursor timestamptz NOT NULL, due timestamptz NOT NULL) WITH (fillfactor = 50);
CREATE INDEX ON public.hand_schedules (partition, due);
CREATE TABLE public.hand_history (id bigserial PRIMARY KEY,
    name text NOT NULL, tick timestamptz NOT NULL, epoch bigint NOT NULL,
    started_at timestamptz NOT NULL, ended_at timestamptz NOT NULL);
CREATE INDEX ON public.hand_history (name, id)`
		rows = `INSERT INTO public.hand_schedules
SELECT n, 'copy-' || n, n % 128, 'every 1h', now(), now() FROM generate_series(0, $1::int - 1) AS n`
	)
	s.all(ctx, tables)
	must(s.Exec(ctx, rows, n))
	s.all(ctx, "VACUUM ANALYZE public.hand_schedules", "CHECKPOINT")
	owned := ownedPartitions(ctx, s.Pool)
	return s.each(n, func(i int) { check(s.tickByHand(ctx, i, owned[i%len(owned)])) })
}

func (s *scheduling) tickByHand(ctx context.Context, id int, p ownedPartition) error {
	const (
		guard = "SELECT pgleases.guard('schedule/bench', $1, $2)"
		read  = "SELECT name, rule, cursor FROM public.hand_schedules WHERE id = $1"
		move  = `UPDATE public.hand_schedules SET cursor = due, due = due + interval '1 hour'
WHERE id = $1 AND cursor = $2`
		record = `INSERT INTO public.hand_history (name, tick, epoch, started_at, ended_at)
VALUES ($1, $2, $3, now(), now())`
	)
	return s.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		var name, rule string
		var cursor time.Time
		var begin, end pgx.Batch
		begin.BeginTx(pgx.TxOptions{})
		begin.Queue(guard, p.Number, p.Epoch)
		begin.Queue(read, id).QueryRow(func(row pgx.Row) error { return row.Scan(&name, &rule, &cursor) })
		answers := conn.SendBatch(ctx, &begin)
		tx := answers.Tx()
		err := answers.Close()
		if err == nil {
			_, err = tx.Exec(ctx, insertRan, name, cursor, "hand")
		}
		if err != nil {
			_ = tx.Rollback(ctx)
			return err
		}
		end.Queue(move, id, cursor)
		end.Queue(record, name, cursor, p.Epoch)
		end.Queue("COMMIT")
		return tx.SendBatch(ctx, &end).Close()
	})
}

// measureElsewhere times how soon the schedules of a killed or closed process run in another
// process.
func measureElsewhere(ctx context.Context, l *lab, out *part) {
	ttl := time.Duration(l.pick(1, 6)) * time.Second
	s := newScheduling(ctx, l, ttl)
	defer s.end()
	n := l.pick(20, 100)
	s.put(ctx, n, time.Second, s.now(ctx), time.Second)
	s.start(ctx, 1)
	var killed, closed []float64
	for range l.pick(1, 3) {
		w := newCensus().start(job{URL: s.url, Prefix: "victim", Schedules: true, TTL: ttl})
		killed = append(killed, s.elsewhere(ctx, "victim", w.kill))
		r := newRunner(ctx, s.url, "leaver", ttl, runsAtOnce)
		r.run()
		closed = append(closed, s.elsewhere(ctx, "leaver", r.close))
	}
	commits := l.alternate(100, timed("a durable commit", func() {
		s.all(ctx, "INSERT INTO public.ran (name) VALUES ('bare')")
	}))
	out.compare(fmt.Sprintf("from kill -9, with a TTL of %v, until the last schedule runs elsewhere", ttl),
		sample{"", killed, nanoseconds},
		sample{"the TTL", []float64{float64(ttl)}, nanoseconds}).
		goal("<= TTL + 200 ms", quantile(killed, 1) <= float64(ttl+200*time.Millisecond))
	out.compare("from `Close` until the last schedule runs elsewhere", sample{"", closed, nanoseconds}, commits[0]).
		goal("<= 20 ms", median(closed) <= float64(20*time.Millisecond))
}

// elsewhere ends a worker that runs schedules beside another worker. It returns the longest time
// that one of its schedules waited for a run by the other worker, from the end, or from the next
// due time if that is later.
func (s *scheduling) elsewhere(ctx context.Context, worker string, end func()) float64 {
	const (
		runsItsOwn = `SELECT count(*) > 0 AND bool_and(EXISTS (
    SELECT FROM public.ran AS r
    WHERE r.name = s.name AND r.worker = o.owner AND r.ran_at > clock_timestamp() - interval '3 s'))
FROM pgleases.schedules AS s
JOIN pgleases.status AS o ON o.lease = 'schedule/bench' AND o.partition = s.partition
WHERE o.owner = $1`
		followed = `WITH its AS (
    SELECT name, max(at) AS at FROM public.ran
    WHERE worker = $1 AND ran_at > $2::timestamptz - interval '2 s' GROUP BY name
), followed AS (
    SELECT greatest(its.at + interval '1 s', $2) AS due, (
        SELECT min(r.ran_at) FROM public.ran AS r
        WHERE r.name = its.name AND r.at > its.at AND r.worker <> $1) AS ran_at
    FROM its
)`
		allRan  = followed + " SELECT count(*) = count(ran_at) FROM followed"
		longest = followed + " SELECT coalesce(max(ran_at - due), interval '0') FROM followed"
	)
	s.shared(ctx, 2)
	s.until(ctx, worker+" runs what it owns", runsItsOwn, worker)
	since := s.now(ctx)
	end()
	s.until(ctx, "all run elsewhere", allRan, worker, since)
	return float64(one[time.Duration](ctx, s.database, longest, worker, since))
}

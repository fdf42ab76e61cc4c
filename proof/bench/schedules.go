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
// and of the program, because other work on the machine changes that little.
const schedulesNote = "Where the time goes: of 10,000 ticks at once, a tick takes about 460 µs of processor time " +
	"of the server and 280 µs of the program. " +
	"What a run needs, by hand, takes 240 µs and 110 µs, and a bare transaction takes 70 µs and 35 µs. " +
	"So anything that guards a tick and writes its outcome takes more than 3 times as long as a bare transaction. " +
	"Of the server's time, two thirds are for statements, an eighth is for the commit, " +
	"and the rest is for the messages of three round trips. " +
	"The opening and the end of the run take nine tenths of the time of the statements. " +
	"All polls together take less than a twentieth, because 20 of them find the 10,000 schedules. " +
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

// measureOneTick measures many schedules that are due at one instant, in turns with bare transactions
// and with what a run needs by hand.
func measureOneTick(ctx context.Context, l *lab, out *part) {
	s := newScheduling(ctx, l, 0)
	defer s.end()
	n := l.pick(200, 10_000)
	s.put(ctx, n, time.Hour, s.now(ctx).Add(time.Hour), 0)
	s.putByHand(ctx, n)
	s.start(ctx, runners)
	first := sample{unit: nanoseconds}
	took := l.alternate(3,
		side{"", nanoseconds, func() float64 {
			least, most := s.ticksAtOnce(ctx, n)
			first.values = append(first.values, float64(least))
			return float64(most)
		}},
		timed("as many bare transactions", func() {
			s.each(n, func(int) { must(s.Exec(ctx, insertRan, "bare", time.Now(), "bare")) })
		}),
		timed("what a run needs, by hand", func() {
			owned := ownedPartitions(ctx, s.Pool)
			s.each(n, func(i int) { check(s.tickByHand(ctx, i, owned[i%len(owned)])) })
		}))
	var losses uint64
	for _, r := range s.runners {
		losses += uint64(r.client.Stats().Losses.TrustLost)
	}
	what := fmt.Sprintf("%s ticks at once: until the first and the last run", grouped(n))
	row := out.compare(what, took[0], took[1:]...)
	first.values = first.values[len(first.values)-len(took[0].values):] // without the warm-up
	row.figure = fmt.Sprintf("%s and %s; ownerships lost: %d", first, took[0], losses)
	row.goal("the last <= 3x, none lost", row.times <= 3 && losses == 0)
}

// ticksAtOnce makes all n schedules due at one instant, and returns how long after it the first and
// the last of them ran. The counters of the runners say when all have run, because queries for that
// would take a tenth of the processors.
func (s *scheduling) ticksAtOnce(ctx context.Context, n int) (first, last time.Duration) {
	const (
		move = `UPDATE pgleases.schedules SET due = $1, cursor_local = NULL,
    anchor = $1::timestamptz - interval '1 hour', cursor = $1::timestamptz - interval '1 hour'`
		late = "SELECT min(ran_at - at), max(ran_at - at) FROM public.ran WHERE at = $1"
	)
	before := s.succeeded()
	due := s.now(ctx).Add(8 * time.Second).Truncate(time.Second)
	must(s.Exec(ctx, move, due))
	s.all(ctx, "VACUUM ANALYZE pgleases.schedules", "VACUUM ANALYZE public.hand_schedules", "CHECKPOINT")
	after := s.now(ctx).Sub(due)
	if after >= 0 {
		check(fmt.Errorf("the schedules were made only %v after the tick", after))
	}
	reaches(n, "ticks succeeded", func() int { return s.succeeded() - before })
	took := ask[struct{ First, Last time.Duration }](ctx, s.database, late, due)
	return took.First, took.Last
}

// succeeded returns how many ticks have succeeded.
func (s *scheduling) succeeded() (n int) {
	for _, r := range s.runners {
		n += int(r.Stats().Kinds["tick"].Succeeded)
	}
	return n
}

// each calls do n times, from as many goroutines as ticks run at once.
func (s *scheduling) each(n int, do func(i int)) {
	const connections = runners * runsAtOnce
	together(connections, func(connection int) {
		for i := connection; i < n; i += connections {
			do(i)
		}
	})
}

// putByHand creates n schedules for tickByHand.
func (s *scheduling) putByHand(ctx context.Context, n int) {
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
}

// tickByHand runs a tick with the statements that no implementation can do without, in the three
// round trips that a handler leaves: the guard and the schedule are read before it, and the schedule
// and the history are written after it.
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
	var killed, closed, commits []float64
	for range l.pick(1, 3) {
		w := newCensus().start(job{URL: s.url, Prefix: "victim", Schedules: true, TTL: ttl})
		killed = append(killed, s.elsewhere(ctx, "victim", w.kill))
	}
	for range l.pick(1, 9) {
		r := newRunner(ctx, s.url, "leaver", ttl, runsAtOnce)
		r.run()
		closed = append(closed, s.elsewhere(ctx, "leaver", r.close))
		commits = append(commits, median(l.alternate(100, timed("", func() {
			s.all(ctx, "INSERT INTO public.ran (name) VALUES ('bare')")
		}))[0].values))
	}
	out.compare(fmt.Sprintf("from kill -9, with a TTL of %v, until the last schedule runs elsewhere", ttl),
		sample{"", killed, nanoseconds},
		sample{"the TTL", []float64{float64(ttl)}, nanoseconds}).
		goal("<= TTL + 200 ms", quantile(killed, 1) <= float64(ttl+200*time.Millisecond))
	out.compare("from `Close` until the last schedule runs elsewhere", sample{"", closed, nanoseconds},
		sample{"a durable commit", commits, nanoseconds}).
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

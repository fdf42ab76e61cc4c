package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/schedule"
)

const (
	scheduleGroup   = "bench"
	scheduleProcess = 4 // processes that run schedules, here as clients of this one
	scheduleRunning = 4 // runs at once in each
	secondly        = time.Second
)

// A scheduling is a database with schedules.
type scheduling struct {
	gauge
	url    string
	ttl    time.Duration // 0: the default
	agents []*agent
	drop   func()
}

// ranTable is where handlers write.
const ranTable = `CREATE TABLE public.ran (name text, at timestamptz, worker text, ran_at timestamptz DEFAULT clock_timestamp());
CREATE INDEX ON public.ran (name, ran_at)`

const insertRan = "INSERT INTO public.ran (name, at, worker) VALUES ($1, $2, $3)"

func newScheduling(ctx context.Context, l *lab, server *pgserver.Server, ttl time.Duration) (*scheduling, error) {
	url, drop, err := newDatabase(ctx, server)
	if err != nil {
		return nil, err
	}
	s := &scheduling{url: url, ttl: ttl, drop: drop}
	if s.pool, err = newPool(ctx, url); err == nil {
		err = schedule.Migrate(ctx, s.pool)
	}
	if err == nil {
		_, err = s.pool.Exec(ctx, ranTable, pgx.QueryExecModeSimpleProtocol)
	}
	if err == nil && l.counts {
		err = s.countStatements(ctx)
	}
	if err == nil {
		s.postmaster, err = postmasterOf(ctx, s.pool)
	}
	if err != nil {
		s.end()
		return nil, err
	}
	return s, nil
}

func (s *scheduling) end() {
	for _, r := range s.agents {
		_ = r.close() // what it left behind goes with the database
	}
	if s.pool != nil {
		s.pool.Close()
	}
	s.drop()
}

// An agent is what a process has that runs schedules.
type agent struct {
	id     string
	pool   *pgxpool.Pool
	client *pgleases.Client
	*schedule.Scheduler
	tick  *schedule.Kind[struct{}]
	stop  context.CancelFunc
	ended chan error
}

func newAgent(ctx context.Context, url, id string, ttl time.Duration, running int) (*agent, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = int32(running) + 2
	r := &agent{id: id, ended: make(chan error, 1)}
	if r.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	opts := []pgleases.Option{pgleases.WithClientID(id), pgleases.WithLogger(slog.New(slog.DiscardHandler))}
	if ttl > 0 {
		opts = append(opts, pgleases.WithTTL(ttl))
	}
	if r.client, err = pgleases.NewClient(ctx, r.pool, opts...); err != nil {
		r.pool.Close()
		return nil, err
	}
	r.Scheduler, err = schedule.New(ctx, r.client, r.pool, scheduleGroup, schedule.WithMaxRunning(running), schedule.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		return nil, errors.Join(err, r.close())
	}
	r.tick = schedule.InTx(r.Scheduler, "tick", func(ctx context.Context, tx pgx.Tx, run schedule.Run[struct{}]) error {
		_, err := tx.Exec(ctx, insertRan, run.Name, run.At, id)
		return err
	})
	return r, nil
}

func (r *agent) run() {
	ctx, stop := context.WithCancel(context.Background())
	r.stop = stop
	go func() { r.ended <- r.Run(ctx) }()
}

// close ends Run and the client.
func (r *agent) close() error {
	if r.stop != nil {
		r.stop()
		<-r.ended
		r.stop = nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	err := r.client.Close(ctx)
	r.pool.Close()
	return err
}

// start has so many run what there is.
func (s *scheduling) start(ctx context.Context, n int) error {
	for range n {
		r, err := newAgent(ctx, s.url, fmt.Sprintf("agent-%d", len(s.agents)), s.ttl, scheduleRunning)
		if err != nil {
			return err
		}
		s.agents = append(s.agents, r)
		r.run()
	}
	return s.shared(ctx, n)
}

// shared waits until so many own all, each something.
func (s *scheduling) shared(ctx context.Context, owners int) error {
	return untilTrue(ctx, s.pool, "all is owned", `SELECT count(*) > 0 AND count(*) = count(owner) AND count(DISTINCT owner) = $1
		AND count(*) FILTER (WHERE moving_to IS NOT NULL) = 0 FROM pgleases.status WHERE lease = 'schedule/bench'`, owners)
}

// runs waits until two own all, and one of them has run each schedule that it owns.
func (s *scheduling) runs(ctx context.Context, owner string) error {
	if err := s.shared(ctx, 2); err != nil {
		return err
	}
	return untilTrue(ctx, s.pool, owner+" runs what it owns", `SELECT count(*) > 0 AND bool_and(EXISTS (
			SELECT FROM public.ran AS r WHERE r.name = s.name AND r.worker = o.owner AND r.ran_at > clock_timestamp() - interval '3 s'))
		FROM pgleases.schedules AS s JOIN pgleases.status AS o ON o.lease = 'schedule/bench' AND o.partition = s.partition WHERE o.owner = $1`, owner)
}

// put makes so many schedules of each second, spread over the second.
func (s *scheduling) put(ctx context.Context, n int) error {
	r, err := newAgent(ctx, s.url, "maker", s.ttl, scheduleRunning)
	if err != nil {
		return err
	}
	defer r.close()
	for i := range n {
		if err := r.tick.Put(ctx, fmt.Sprintf("second-%d", i), struct{}{}, schedule.Every(secondly), schedule.MissedAll); err != nil {
			return err
		}
	}
	_, err = s.pool.Exec(ctx, `UPDATE pgleases.schedules SET anchor = anchor + (id % $1) * interval '1 s' / $1, due = due + (id % $1) * interval '1 s' / $1,
		cursor = cursor + (id % $1) * interval '1 s' / $1`, n)
	return err
}

// copies makes so many schedules more of one that is put: of a kind of their own columns, whatever those are. They are due at an instant.
func (s *scheduling) copies(ctx context.Context, n int, rule schedule.Rule, anchor, due time.Time) error {
	r, err := newAgent(ctx, s.url, "maker", s.ttl, scheduleRunning)
	if err != nil {
		return err
	}
	defer r.close()
	if err := r.tick.Put(ctx, "copy-0", struct{}{}, rule); err != nil {
		return err
	}
	_, err = s.pool.Exec(ctx, `INSERT INTO pgleases.schedules OVERRIDING SYSTEM VALUE
		SELECT (jsonb_populate_record(s, jsonb_build_object('id', s.id + n, 'name', 'copy-' || n, 'key', 'copy-' || n, 'partition', pgleases.partition_for('copy-' || n, 128),
			'anchor', $2::timestamptz, 'cursor', $2::timestamptz, 'due', $3::timestamptz))).*
		FROM pgleases.schedules AS s, generate_series(1, $1::int) AS n WHERE s.name = 'copy-0'`, n, anchor, due)
	for _, statement := range []string{"DELETE FROM pgleases.schedules WHERE name = 'copy-0'", "VACUUM ANALYZE pgleases.schedules", "CHECKPOINT"} {
		if err == nil {
			_, err = s.pool.Exec(ctx, statement)
		}
	}
	return err
}

func (s *scheduling) now(ctx context.Context) (time.Time, error) {
	return one[time.Time](ctx, s.pool, "SELECT clock_timestamp()")
}

// measureSchedules measures how late runs are, what becomes of them when a process ends, and what schedules cost that are not due.
func measureSchedules(ctx context.Context, l *lab, out *part) error {
	measures := []func(context.Context, *lab, *part) error{measureLateRuns, measureOneTick, measureElsewhere, measureDormant, measureHistory}
	parts := make([]part, len(measures))
	measure := func(i int) error { return measures[i](ctx, l, &parts[i]) }
	if l.quick {
		if err := together(len(measures), measure); err != nil {
			return err
		}
	}
	for i := range measures {
		if !l.quick {
			if err := measure(i); err != nil {
				return err
			}
		}
		out.rows, out.notes = append(out.rows, parts[i].rows...), append(out.notes, parts[i].notes...)
	}
	out.note("%d processes, here clients of one, with %d runs at once each; a run is a durable transaction of one `INSERT`, under its partition's guard, with the step of the schedule and "+
		"the entry in its history. How late it is the handler's `INSERT` tells, by the database's clock.", scheduleProcess, scheduleRunning)
	return nil
}

// A spreadOfRuns tells how many there were, and how late.
type spreadOfRuns struct {
	Count, Early     int
	Median, P99, Max time.Duration
}

const lateRuns = `SELECT count(*), count(*) FILTER (WHERE ran_at < at), coalesce(percentile_disc(0.5) WITHIN GROUP (ORDER BY ran_at - at), interval '0'),
	coalesce(percentile_disc(0.99) WITHIN GROUP (ORDER BY ran_at - at), interval '0'), coalesce(max(ran_at - at), interval '0')
FROM public.ran WHERE at > $1 AND at <= $2 AND name LIKE $3`

func (s *scheduling) late(ctx context.Context, from, to time.Time, names string) (spreadOfRuns, error) {
	return ask[spreadOfRuns](ctx, s.pool, lateRuns, from, to, names)
}

// spend waits while something runs, and returns from when to when that was.
func (s *scheduling) spend(ctx context.Context, span time.Duration) (from, to time.Time, err error) {
	if from, err = s.now(ctx); err != nil {
		return from, to, err
	}
	select {
	case <-time.After(span):
		to, err = s.now(ctx)
		return from, to, err
	case <-ctx.Done():
		return from, to, context.Cause(ctx)
	}
}

// measureLateRuns has schedules run at a steady pace, beside a timer that inserts the same rows.
func measureLateRuns(ctx context.Context, l *lab, out *part) error {
	s, err := newScheduling(ctx, l, l.durable, 0)
	if err != nil {
		return err
	}
	defer s.end()
	n, span := l.pick(20, 200), time.Duration(l.pick(1, 20))*time.Second
	if err := s.put(ctx, n); err != nil {
		return err
	}
	if err := s.start(ctx, scheduleProcess); err != nil {
		return err
	}
	if err := untilTrue(ctx, s.pool, "each has run", "SELECT count(DISTINCT name) = $1 FROM public.ran", n); err != nil {
		return err
	}
	told, err := s.meter(ctx)
	if err != nil {
		return err
	}
	from, to, err := s.spend(ctx, span)
	if err != nil {
		return err
	}
	used, err := told(ctx)
	if err != nil {
		return err
	}
	if err := untilTrue(ctx, s.pool, "all ticks until then were run", "SELECT count(*) = 0 FROM pgleases.schedules WHERE due <= $1", to); err != nil {
		return err
	}
	late, err := s.late(ctx, from, to, "second-%")
	if err != nil {
		return err
	}
	for _, r := range s.agents {
		if err := r.close(); err != nil {
			return err
		}
	}
	s.agents = nil
	timer, err := s.byTimer(ctx, n, span)
	if err != nil {
		return err
	}
	out.add(row{
		what:   fmt.Sprintf("how late runs are, %s of them a second", grouped(n)),
		figure: fmt.Sprintf("p50 %s, p99 %s, at most %s, of %s; %s early", duration(late.Median), duration(late.P99), duration(late.Max), grouped(late.Count), grouped(late.Early)),
		floors: []floor{{"a timer that inserts the same rows, each in a transaction",
			fmt.Sprintf("p50 %s, p99 %s, at most %s", duration(timer.Median), duration(timer.P99), duration(timer.Max)),
			fmt.Sprintf("p50 %s more, p99 %s more", duration(late.Median-timer.Median), duration(late.P99-timer.P99))}},
		goal: "p50 <= 5 ms, p99 <= 30 ms, never early",
		met:  judge(late.Median <= 5*time.Millisecond && late.P99 <= 30*time.Millisecond && late.Early == 0),
	})
	out.add(row{
		what:   "processor time of the server for a run",
		figure: fmt.Sprintf("%s, in all %s of a core", duration(used.server/time.Duration(max(1, late.Count))), percent(share(used.server, used.span))),
		floors: []floor{{"pace", fmt.Sprintf("%s runs a second", significant(float64(late.Count)/used.span.Seconds())), ""}},
	})
	return nil
}

// byTimer inserts rows at the same pace, by timers of this process.
func (s *scheduling) byTimer(ctx context.Context, n int, span time.Duration) (spreadOfRuns, error) {
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return spreadOfRuns{}, err
	}
	config.MaxConns = scheduleProcess * scheduleRunning
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return spreadOfRuns{}, err
	}
	defer pool.Close()
	began := time.Now().Add(time.Second)
	var wait sync.WaitGroup
	errs := make(chan error, n)
	for i := range n {
		wait.Go(func() {
			for at := began.Add(time.Duration(i) * secondly / time.Duration(n)); at.Before(began.Add(span)); at = at.Add(secondly) {
				time.Sleep(time.Until(at))
				if _, err := pool.Exec(ctx, insertRan, "timer", at, "timer"); err != nil {
					errs <- err
					return
				}
			}
		})
	}
	wait.Wait()
	close(errs)
	if err := <-errs; err != nil {
		return spreadOfRuns{}, err
	}
	return s.late(ctx, began.Add(-time.Second), began.Add(span), "timer")
}

// measureOneTick has very many schedules tick at one instant, beside some that tick each second.
func measureOneTick(ctx context.Context, l *lab, out *part) error {
	s, err := newScheduling(ctx, l, l.durable, 0)
	if err != nil {
		return err
	}
	defer s.end()
	n, others := l.pick(200, 10_000), l.pick(5, 20)
	if err := s.put(ctx, others); err != nil {
		return err
	}
	if err := s.start(ctx, scheduleProcess); err != nil {
		return err
	}
	now, err := s.now(ctx)
	if err != nil {
		return err
	}
	at := now.Add(time.Duration(l.pick(8, 20)) * time.Second).Truncate(time.Second)
	if err := s.copies(ctx, n, schedule.Every(time.Hour), at.Add(-time.Hour), at); err != nil {
		return err
	}
	if now, err = s.now(ctx); err != nil {
		return err
	}
	if !now.Before(at) {
		return fmt.Errorf("the schedules were made only %v after the tick", now.Sub(at))
	}
	if err := untilTrue(ctx, s.pool, "all have run", "SELECT count(*) = $1 FROM public.ran WHERE name LIKE 'copy-%'", n); err != nil {
		return err
	}
	type spread struct{ First, Last time.Duration }
	took, err := ask[spread](ctx, s.pool, "SELECT min(ran_at - at), max(ran_at - at) FROM public.ran WHERE name LIKE 'copy-%'")
	if err != nil {
		return err
	}
	beside, err := s.late(ctx, at.Add(-secondly), at.Add(took.Last), "second-%")
	if err != nil {
		return err
	}
	var losses uint64
	for _, r := range s.agents {
		stats := r.client.Stats()
		losses += uint64(stats.Losses.TrustLost)
	}
	bare, err := s.commits(ctx, n)
	if err != nil {
		return err
	}
	out.add(row{
		what:   fmt.Sprintf("%s schedules tick at once: until the first and the last runs", grouped(n)),
		figure: fmt.Sprintf("%s and %s, %s a second; ownerships lost: %d", duration(took.First), duration(took.Last), significant(float64(n)/took.Last.Seconds()), losses),
		floors: []floor{{fmt.Sprintf("as many bare transactions of the same `INSERT`, through as many connections (%d)", scheduleProcess*scheduleRunning),
			fmt.Sprintf("%s, %s a second", duration(bare), significant(float64(n)/bare.Seconds())), times(float64(took.Last) / float64(bare))}},
		goal: "50 ms and 5 s, none lost",
		met:  judge(took.First <= 50*time.Millisecond && took.Last <= 5*time.Second && losses == 0),
	})
	out.add(row{
		what:   fmt.Sprintf("how late runs of %d other schedules are meanwhile", others),
		figure: fmt.Sprintf("p50 %s, at most %s, of %s; %s early", duration(beside.Median), duration(beside.Max), grouped(beside.Count), grouped(beside.Early)),
		floors: []floor{{"until the last of the many runs", duration(took.Last), times(float64(beside.Max) / float64(took.Last))}},
	})
	return nil
}

// commits times bare transactions.
func (s *scheduling) commits(ctx context.Context, n int) (time.Duration, error) {
	const connections = scheduleProcess * scheduleRunning
	config, err := pgxpool.ParseConfig(s.url)
	if err != nil {
		return 0, err
	}
	config.MaxConns, config.MinConns = connections, connections
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return 0, err
	}
	defer pool.Close()
	if err := together(connections, func(int) error { return pool.Ping(ctx) }); err != nil {
		return 0, err
	}
	began := time.Now()
	err = together(connections, func(connection int) error {
		for i := connection; i < n; i += connections {
			if _, err := pool.Exec(ctx, insertRan, "bare", began, "bare"); err != nil {
				return err
			}
		}
		return nil
	})
	return time.Since(began), err
}

// measureElsewhere times when the schedules of a process that is killed, or closed, run in another.
func measureElsewhere(ctx context.Context, l *lab, out *part) error {
	ttl := time.Duration(l.pick(1, 6)) * time.Second
	s, err := newScheduling(ctx, l, l.durable, ttl)
	if err != nil {
		return err
	}
	defer s.end()
	n := l.pick(20, 100)
	if err := s.put(ctx, n); err != nil {
		return err
	}
	if err := s.start(ctx, 1); err != nil {
		return err
	}
	news := newNewsroom(patience)
	var killed, closed []time.Duration
	for range l.pick(1, 3) {
		w, err := news.start(job{URL: s.url, Prefix: "victim", Schedules: true, TTL: ttl})
		if err != nil {
			return err
		}
		err = s.runs(ctx, "victim")
		var at time.Time
		if err == nil {
			at, err = s.now(ctx)
		}
		news.kill(w)
		if err != nil {
			return err
		}
		took, err := s.elsewhere(ctx, "victim", at)
		if err != nil {
			return err
		}
		killed = append(killed, took)

		r, err := newAgent(ctx, s.url, "leaver", ttl, scheduleRunning)
		if err != nil {
			return err
		}
		r.run()
		if err := s.runs(ctx, "leaver"); err != nil {
			return errors.Join(err, r.close())
		}
		if at, err = s.now(ctx); err == nil {
			err = r.close()
		}
		if err != nil {
			return err
		}
		if took, err = s.elsewhere(ctx, "leaver", at); err != nil {
			return err
		}
		closed = append(closed, took)
	}
	trips, err := roundTrips(ctx, s.url, 100, insertBare)
	if err != nil {
		return err
	}
	out.add(row{
		what:   fmt.Sprintf("kill -9 of a process, TTL %v: until the last of its schedules runs elsewhere", ttl),
		figure: fmt.Sprintf("median %s, at most %s", duration(median(killed)), duration(quantile(killed, 1))),
		floors: []floor{{"the TTL", duration(ttl), times(float64(median(killed)) / float64(ttl))}},
		goal:   "<= TTL + 200 ms", met: judge(quantile(killed, 1) <= ttl+200*time.Millisecond),
	})
	out.add(row{
		what:   "Close: until the last of its schedules runs elsewhere",
		figure: fmt.Sprintf("median %s, at most %s", duration(median(closed)), duration(quantile(closed, 1))),
		floors: []floor{{"a durable commit", duration(median(trips)), times(float64(median(closed)) / float64(median(trips)))}},
		goal:   "<= 50 ms", met: judge(median(closed) <= 50*time.Millisecond),
	})
	out.note("Where a process ends, a schedule waits from then, or from its next tick where that is later. Of %d rounds each; %s schedules of each second.", len(closed), grouped(n))
	return nil
}

const insertBare = "INSERT INTO public.ran (name) VALUES ('bare')"

// elsewhere waits until all schedules that a worker ran last were run by another, and returns how long the last of them had waited: from the instant, or from
// when it was due after that.
func (s *scheduling) elsewhere(ctx context.Context, worker string, since time.Time) (time.Duration, error) {
	const followed = `WITH its AS (
    SELECT name, max(at) AS at FROM public.ran WHERE name LIKE 'second-%' AND worker = $1 AND ran_at > $2::timestamptz - interval '2 s' GROUP BY name
), followed AS (
    SELECT greatest(its.at + interval '1 s', $2) AS due, (SELECT min(r.ran_at) FROM public.ran AS r WHERE r.name = its.name AND r.at > its.at AND r.worker <> $1) AS ran_at FROM its
)`
	if err := untilTrue(ctx, s.pool, "all run elsewhere", followed+" SELECT count(*) = count(ran_at) FROM followed", worker, since); err != nil {
		return 0, err
	}
	return one[time.Duration](ctx, s.pool, followed+" SELECT coalesce(max(ran_at - due), interval '0') FROM followed", worker, since)
}

// measureDormant has a process own very many schedules that are not due, beside the same process without any.
func measureDormant(ctx context.Context, l *lab, out *part) error {
	n, span := l.pick(1000, 1_000_000), time.Duration(l.pick(1, 30))*time.Second
	var of, without usage
	var memory, little footprint
	dir, err := os.MkdirTemp("", "pgleases-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := buildLean(ctx, dir)
	if err != nil {
		return err
	}
	for _, many := range []int{1, n} { // one: it has looked too
		s, err := newScheduling(ctx, l, l.fast, 0)
		if err != nil {
			return err
		}
		used, resident, err := s.dormant(ctx, program, many, span)
		s.end()
		if err != nil {
			return err
		}
		if many == n {
			of, memory = used, resident
		} else {
			without, little = used, resident
		}
	}
	per := func(u usage) string { return "statements are not counted" }
	looks := func(u usage) float64 { return float64(u.statements["look at schedules"].calls) / u.span.Seconds() }
	if l.counts {
		per = func(u usage) string { return significant(looks(u)) + " looks a second" }
	}
	more := share(of.server, of.span)
	out.add(row{
		what:   fmt.Sprintf("a process with %s dormant schedules: processor time of the server", grouped(n)),
		figure: fmt.Sprintf("%s of a core, %s", percent(more), per(of)),
		floors: []floor{{
			"the same with one schedule", fmt.Sprintf("%s, %s", percent(share(without.server, without.span)), per(without)),
			fmt.Sprintf("%s more", percent(more-share(without.server, without.span))),
		}},
		goal: "<= 1 % of a core, one query a second",
		met:  judge(more <= 0.01 && looks(of) <= 1.1),
	})
	if memory.all == 0 {
		out.skip("its memory", "this system has no /proc")
		return nil
	}
	out.add(row{
		what: "its memory, resident",
		figure: fmt.Sprintf(
			"%s MB, of which %s MB are pages of its program's file", significant(float64(memory.all)/1e6),
			significant(float64(memory.file)/1e6),
		),
		floors: []floor{{
			"the same with one schedule", fmt.Sprintf("%s MB", significant(float64(little.all)/1e6)),
			times(float64(memory.all) / float64(little.all)),
		}},
		goal: "<= 20 MB", met: judge(memory.all <= 20e6),
	})
	out.note("The process with dormant schedules is a program of its own, proof/bench/dormant: it opens a pool and a client and runs the group, and imports what that takes, as a program of yours does.")
	if l.counts {
		out.note("Statements with %s dormant schedules: %s.", grouped(n), listed(of.statements))
	}
	return nil
}

// buildLean builds the program that has dormant schedules: this one's file has much more in it than a user's, and pages of that file are memory too.
func buildLean(ctx context.Context, dir string) (program string, err error) {
	program = filepath.Join(dir, "dormant")
	build := exec.CommandContext(ctx, "go", "build", "-o", program, "github.com/pgleases/pgleases/proof/bench/dormant")
	if text, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%v: %w: %s", build, err, text)
	}
	return program, nil
}

// dormant has one process own so many schedules, none of them due, for a while.
func (s *scheduling) dormant(ctx context.Context, program string, n int, span time.Duration) (used usage, memory footprint, err error) {
	now, err := s.now(ctx)
	if err != nil {
		return used, memory, err
	}
	if err := s.copies(ctx, n, schedule.Cron("0 0 1 1 *", "UTC"), now, now.AddDate(1, 0, 0)); err != nil {
		return used, memory, err
	}
	news := newNewsroom(patience)
	news.program = program
	w, err := news.start(job{URL: s.url, Prefix: "dormant"})
	if err != nil {
		return used, memory, err
	}
	defer news.kill(w)
	if err := s.shared(ctx, 1); err != nil {
		_, _, ended := news.summary()
		return used, memory, errors.Join(err, ended)
	}
	// The first process of a group sees, once, that each schedule is in its partition.
	if err := untilTrue(ctx, s.pool, "the group is noted", "SELECT EXISTS (SELECT FROM pgleases.schedule_groups WHERE name = $1)", scheduleGroup); err != nil {
		return used, memory, err
	}
	if _, _, err := s.spend(ctx, 2*time.Second); err != nil { // what it does at its start is over
		return used, memory, err
	}
	if used, err = s.rest(ctx, span); err != nil {
		return used, memory, err
	}
	return used, resident(w.cmd.Process.Pid), nil
}

// measureHistory writes the entries of very many runs, of which only the latest are kept, with the statement that trims the history.
func measureHistory(ctx context.Context, l *lab, out *part) error {
	s, err := newScheduling(ctx, l, l.fast, 0)
	if err != nil {
		return err
	}
	defer s.end()
	all, kept, step := l.pick(20_000, 1_000_000), l.pick(2_000, 50_000), l.pick(500, 5_000)
	const insert = `INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, fate, epoch, started_at, ended_at)
SELECT n % 200, 'bench', 'second-' || n % 200, at - interval '1 s', at, 1, 'done', 1, at, at
FROM generate_series($1::int, $2::int) AS n, LATERAL (SELECT timestamptz '2026-01-01' + n * interval '5 ms') AS t (at)`
	const trim = "SELECT up_to, more FROM pgleases.schedule_trim('bench', false, timestamptz '2026-01-01' + $1::int * interval '5 ms', $2, 1000)"
	type trimmed struct {
		UpTo int64
		More bool
	}
	var last trimmed
	var early, size, most int64
	var trimming time.Duration
	for n := step; n <= all; n += step {
		if _, err := s.pool.Exec(ctx, insert, n-step+1, n); err != nil {
			return err
		}
		began := time.Now()
		for last.More = true; last.More; {
			if last, err = ask[trimmed](ctx, s.pool, trim, n-kept, last.UpTo); err != nil {
				return err
			}
		}
		trimming += time.Since(began)
		if n%(kept/5) < step { // a fifth of it is dead: then autovacuum comes
			if _, err := s.pool.Exec(ctx, "VACUUM pgleases.history"); err != nil {
				return err
			}
		}
		if size, err = one[int64](ctx, s.pool, "SELECT pg_total_relation_size('pgleases.history')"); err != nil {
			return err
		}
		if n == 2*kept {
			early = size
		}
		most = max(most, size)
	}
	left, err := one[int](ctx, s.pool, "SELECT count(*)::int FROM pgleases.history")
	if err != nil {
		return err
	}
	out.add(row{
		what:   fmt.Sprintf("history of %s runs, of which %s are kept: its size in the end", grouped(all), grouped(left)),
		figure: fmt.Sprintf("%s MB, at most %s MB; %s to delete an entry", significant(float64(size)/1e6), significant(float64(most)/1e6), duration(trimming/time.Duration(all))),
		floors: []floor{{fmt.Sprintf("after %s runs", grouped(2*kept)), significant(float64(early)/1e6) + " MB", times(float64(size) / float64(early))}},
		goal:   "flat: <= 1.2 x", met: judge(float64(size) <= 1.2*float64(early)),
	})
	return nil
}

// A footprint is the memory of a process, in bytes; 0: that cannot be told here.
type footprint struct {
	all  uint64
	file uint64 // of it, pages of the program's file
}

func resident(pid int) footprint {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return footprint{}
	}
	bytes := func(name string) (n uint64) {
		_, rest, _ := strings.Cut(string(text), name+":")
		_, _ = fmt.Sscan(rest, &n)
		return n * 1024
	}
	return footprint{bytes("VmRSS"), bytes("RssFile")}
}

// runSchedules is what a worker process does that runs schedules: until it is killed.
func (j job) runSchedules(ctx context.Context) error {
	r, err := newAgent(ctx, j.URL, j.Prefix, j.TTL, scheduleRunning)
	if err != nil {
		return err
	}
	return r.Run(ctx)
}

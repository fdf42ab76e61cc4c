package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/schedule"
)

// measureBacklogs measures what waiting jobs cost a poll, and how fast a backlog in one partition is
// done beside schedules.
func measureBacklogs(ctx context.Context, l *lab, out *part) {
	measurePollsBesideRuns(ctx, l, out)
	measureOnePartition(ctx, l, out)
	out.note("The jobs of the backlog have handlers that return at once. Each has a key of its own, and all keys " +
		"are in one partition. Schedules tick every 5 s, and delayed jobs are due within the next minute.")
}

// measurePollsBesideRuns compares polls of a process by the number of its runs under way.
func measurePollsBesideRuns(ctx context.Context, l *lab, out *part) {
	waiting := l.pick(1000, 100_000)
	beside := func(name string, running int) side {
		return side{name, nanoseconds, func() float64 { return float64(pollBeside(ctx, l, running, waiting)) }}
	}
	some, many := l.pick(20, 200), l.pick(30, 300)
	polls := l.alternate(3, beside("at 10 runs", 10), beside("", some), beside("", many))
	for i, running := range []int{some, many} {
		what := fmt.Sprintf("a poll at %d runs, beside %s waiting jobs", running, grouped(waiting))
		out.compare(what, polls[i+1], polls[0]).atMost(2)
	}
}

// pollBeside returns how long a poll of a process takes whose places are all taken.
func pollBeside(ctx context.Context, l *lab, running, waiting int) time.Duration {
	s := newScheduling(ctx, l, 0)
	defer s.end()
	r := newRunner(ctx, s.url, "jobs", 0, running)
	s.runners = append(s.runners, r)
	var begun atomic.Int64
	kind := schedule.AtLeastOnce(r.Scheduler, "holds", func(ctx context.Context, _ schedule.Run[struct{}]) error {
		begun.Add(1)
		return hang(ctx)
	}, schedule.WithTimeout(time.Hour))
	must(kind.EnqueueMany(ctx, make([]struct{}, running+waiting)))
	s.all(ctx, "VACUUM ANALYZE pgleases.jobs", "CHECKPOINT")
	r.run()
	reaches(running, "runs began", func() int { return int(begun.Load()) })
	before := r.Stats()
	s.calm(ctx, time.Duration(l.pick(3, 15))*time.Second)
	after := r.Stats()
	return (after.PollTime - before.PollTime) / time.Duration(max(1, after.Polls-before.Polls))
}

// measureOnePartition compares a backlog in one partition with the same beside schedules and delayed
// jobs.
func measureOnePartition(ctx context.Context, l *lab, out *part) {
	jobs, delayed := l.pick(50, 1000), l.pick(50, 1000)
	later := grouped(delayed) + " delayed jobs"
	var sides []side
	for _, beside := range []struct {
		name               string
		schedules, delayed int
	}{
		{"alone", 0, 0},
		{"4 schedules", 4, 0},
		{"100 schedules", 100, 0},
		{later, 0, delayed},
		{"100 schedules and " + later, 100, delayed},
	} {
		sides = append(sides, side{beside.name, perSecond, func() float64 {
			return onePartition(ctx, l, jobs, beside.schedules, beside.delayed)
		}})
	}
	paces := l.alternate(3, sides...)
	alone := paces[0]
	for _, pace := range paces[1:] {
		what := fmt.Sprintf("%s jobs in one partition, beside %s", grouped(jobs), pace.name)
		out.compare(what, pace, alone).atLeast(0.9)
	}
}

// onePartition returns how many jobs of one partition a process does in a second. Schedules and
// delayed jobs come last, so that they are due while the process works, and not all at its start.
func onePartition(ctx context.Context, l *lab, jobs, schedules, delayed int) float64 {
	s := newScheduling(ctx, l, 0)
	defer s.end()
	r := newRunner(ctx, s.url, "jobs", 0, runsAtOnce)
	s.runners = append(s.runners, r)
	var first, done atomic.Int64
	ended := make(chan time.Time, 1)
	kind := schedule.InTx(r.Scheduler, "backlog", func(context.Context, pgx.Tx, schedule.Run[struct{}]) error {
		first.CompareAndSwap(0, time.Now().UnixNano())
		if done.Add(1) == int64(jobs) {
			ended <- time.Now()
		}
		return nil
	})
	later := schedule.InTx(r.Scheduler, "later", func(context.Context, pgx.Tx, schedule.Run[struct{}]) error {
		return nil
	})
	for _, key := range s.keysOfOnePartition(ctx, jobs) {
		must(kind.Enqueue(ctx, struct{}{}, schedule.WithJobKey(key)))
	}
	if delayed > 0 {
		must(later.EnqueueMany(ctx, make([]struct{}, delayed)))
		s.all(ctx, `UPDATE pgleases.jobs SET due = clock_timestamp() + random() * interval '1 minute'
WHERE kind = 'later'`)
	}
	s.all(ctx, "VACUUM ANALYZE pgleases.jobs", "CHECKPOINT")
	if schedules > 0 {
		s.put(ctx, schedules, 5*time.Second, s.now(ctx), 5*time.Second)
	}
	r.run()
	select {
	case end := <-ended:
		return float64(jobs) / end.Sub(time.Unix(0, first.Load())).Seconds()
	case <-time.After(patience):
		check(fmt.Errorf("%d of %d jobs were done within %v", done.Load(), jobs, patience))
		return 0
	}
}

// keysOfOnePartition returns n keys of jobs, all in one partition.
func (s *scheduling) keysOfOnePartition(ctx context.Context, n int) []string {
	return one[[]string](ctx, s.database, `SELECT array_agg(k.key) FROM (
    SELECT key FROM generate_series(1, 1000 * $1::int) AS i, LATERAL (SELECT 'key ' || i AS key) AS k
    WHERE pgleases.partition_for(key, 128) = 7 LIMIT $1) AS k`, n)
}

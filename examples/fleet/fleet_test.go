package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func good() (figures, []event, probe) {
	f := figures{Once: jobCount, Workers: 5, Ticks: 900, Outcomes: 900, Ran: 900}
	return f, []event{{name: "close"}, {name: "kill"}}, probe{asked: 32, refused: 32}
}

func TestVerdictFindsEveryWrongFigure(t *testing.T) {
	if problems := verdict(good()); len(problems) != 0 {
		t.Errorf("problems where there is none: %q", problems)
	}
	for _, test := range []struct {
		spoil func(*figures, []event, *probe)
		want  string
	}{
		{func(f *figures, _ []event, _ *probe) { f.Once-- }, "5,999 jobs were done once, not 6,000"},
		{func(f *figures, _ []event, _ *probe) { f.Twice = 1 }, "1 jobs were done more than once"},
		{func(f *figures, _ []event, _ *probe) { f.Left = 1200 }, "1,200 jobs are left over"},
		{func(f *figures, _ []event, _ *probe) { f.Outdated = 3 },
			"3 jobs were done by an owner after the next one had begun"},
		{func(f *figures, _ []event, _ *probe) { f.AfterThaw = 2 },
			"the frozen worker did 2 jobs under what it owned before"},
		{func(f *figures, _ []event, _ *probe) { f.Ran = 899 }, "of 900 ticks 899 ran, and 900 have an outcome"},
		{func(f *figures, _ []event, _ *probe) { f.Outcomes = 899 }, "of 900 ticks 900 ran, and 899 have an outcome"},
		{func(f *figures, _ []event, _ *probe) { f.Doubles = 2 }, "2 ticks ran more than once"},
		{func(_ *figures, e []event, _ *probe) { e[1].failure = "nobody came" }, "kill: nobody came"},
		{func(_ *figures, _ []event, p *probe) { p.refused = 31 }, "the guard let 1 of 32 outdated epochs pass"},
	} {
		f, events, p := good()
		test.spoil(&f, events, &p)
		problems := verdict(f, events, p)
		if len(problems) != 1 || problems[0] != test.want {
			t.Errorf("problems %q, want %q", problems, test.want)
		}
		text := summary(f, events, p, problems, time.Minute)
		if !strings.Contains(text, "NOT as it should be") || !strings.Contains(text, test.want) {
			t.Errorf("the summary does not say %q:\n%s", test.want, text)
		}
	}
}

func TestCountSeesWhatTheTablesSay(t *testing.T) {
	ctx := t.Context()
	pool := testkit.Must(connect(ctx, pgtest.OwnerURL(pgtest.Database(t))))(t)
	t.Cleanup(pool.Close)
	testkit.OK(t, prepare(ctx, pool, 10, 1)) // of one customer, hence in one partition
	var partition int
	var thawed time.Time
	err := pool.QueryRow(ctx, `
		SELECT partition, date_trunc('second', clock_timestamp())
		FROM pgleases_example.jobs LIMIT 1`).Scan(&partition, &thawed)
	testkit.OK(t, err)
	// Job 1 to 7 are done well, 8 twice, 9 late by an outdated owner that had been frozen; 10 is left over.
	_, err = pool.Exec(ctx, `
		INSERT INTO pgleases_example.job_runs (job, worker, epoch, ran_at)
		SELECT id, worker, epoch, '`+thawed.Format(time.RFC3339Nano)+`'::timestamptz + late FROM (VALUES
			(1, 'a', 5, interval '-9 s'), (2, 'a', 5, '-8 s'), (3, 'a', 5, '-7 s'), (4, 'b', 6, '-6 s'), (5, 'b', 6, '-5 s'),
			(6, 'b', 6, '-4 s'), (7, 'b', 6, '-3 s'), (8, 'b', 6, '-2 s'), (8, 'b', 6, '-1 s'), (9, 'a', 5, '1 s')
		) AS run (id, worker, epoch, late);
		UPDATE pgleases_example.jobs SET done_at = now() WHERE id < 10`)
	testkit.OK(t, err)
	// The schedule has six ticks up to its cursor, of which the history tells five: 1 to 4 ran, 2 twice, and 7 is after the cursor.
	_, err = pool.Exec(ctx, `
		INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
		VALUES ('fleet', 'second/1', 'x', 0, 'tick', '{}', '@every 1s', '2026-03-02 00:00:00.5Z', true, '2026-03-02 00:00:06.5Z', 'infinity', 1, now());
		INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, ended_at)
		VALUES (1, 'fleet', 'second/1', '2026-03-02 00:00:00.5Z', '2026-03-02 00:00:05.5Z', 5, 'succeeded', now());
		INSERT INTO pgleases_example.ticks (name, at, worker, ran_at)
		SELECT 'second/1', t, 'a', t + late FROM (VALUES (1, interval '20 ms'), (2, '10 ms'), (2, '3 s'), (3, '30 ms'), (4, '30 ms'), (7, '40 ms')) AS r (n, late),
			LATERAL (SELECT timestamptz '2026-03-02 00:00:00.5Z' + n * interval '1 s') AS at (t)`)
	testkit.OK(t, err)
	h := &handoff{from: "a", thawed: thawed, epochs: map[int]int64{partition: 5}}
	f, err := count(ctx, pool, h)
	want := figures{
		Once: 8, Twice: 1, Left: 1, Outdated: 1, AfterThaw: 1, Workers: 2,
		Ticks: 6, Outcomes: 5, Ran: 4, Doubles: 1, Median: 30 * time.Millisecond, Latest: 3 * time.Second,
	}
	if err != nil || f != want {
		t.Errorf("counted %+v, %v, want %+v", f, err, want)
	}
	if f, err := count(ctx, pool, nil); err != nil || f.AfterThaw != 0 {
		t.Errorf("counted %+v, %v where none was frozen", f, err)
	}
}

func TestHandoffEndsWithTheLastPartition(t *testing.T) {
	began := time.Now()
	after := func(d time.Duration) time.Time { return began.Add(d) }
	h := newHandoff("a", began, []ownership{{0, "a", 5, began}, {1, "a", 7, began}, {2, "b", 9, began}})
	for _, step := range []struct {
		rows     []ownership
		complete bool
		last     time.Time
	}{
		{[]ownership{{0, "a", 5, began}, {1, "a", 7, began}, {2, "b", 9, began}}, false, time.Time{}},
		{[]ownership{{0, "b", 6, after(3)}, {1, "", 8, time.Time{}}, {2, "b", 9, began}}, false, after(3)},
		// itself, again
		{[]ownership{{0, "b", 6, after(3)}, {1, "a", 9, after(5)}, {2, "b", 9, began}}, false, after(3)},
		{[]ownership{{0, "c", 7, after(8)}, {1, "c", 10, after(6)}, {2, "c", 10, after(9)}}, true, after(6)},
	} {
		h.observe(step.rows)
		if h.complete() != step.complete || !h.last().Equal(step.last) {
			t.Errorf("after %v: complete %v at %v, want %v at %v",
				step.rows, h.complete(), h.last(), step.complete, step.last)
		}
	}
	all := []ownership{{0, "c", 7, after(8)}, {1, "b", 10, after(6)}, {2, "c", 10, after(9)}}
	if values, since := owned(all, "c"); !slices.Equal(values, []int{0, 2}) || !since.Equal(after(9)) {
		t.Errorf("c owns %v since %v", values, since)
	}
}

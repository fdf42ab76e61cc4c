package main

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/examples/internal/jobs"
	"github.com/pgleases/pgleases/internal/pgtest"
)

func good() (figures, []event, probe) {
	return figures{Once: jobCount, Workers: 5}, []event{{name: "close"}, {name: "kill"}}, probe{asked: 32, refused: 32}
}

func TestVerdictFindsEveryWrongFigure(t *testing.T) {
	if problems := verdict(good()); len(problems) != 0 {
		t.Errorf("problems where there is none: %q", problems)
	}
	for _, test := range []struct {
		spoil func(*figures, []event, *probe)
		want  string
	}{
		{func(f *figures, _ []event, _ *probe) { f.Once-- }, "19,999 jobs were done once, not 20,000"},
		{func(f *figures, _ []event, _ *probe) { f.Twice = 1 }, "1 jobs were done more than once"},
		{func(f *figures, _ []event, _ *probe) { f.Left = 1200 }, "1,200 jobs are left over"},
		{func(f *figures, _ []event, _ *probe) { f.Outdated = 3 }, "3 jobs were done by an owner after the next one had begun"},
		{func(f *figures, _ []event, _ *probe) { f.AfterThaw = 2 }, "the frozen worker did 2 jobs under what it owned before"},
		{func(_ *figures, e []event, _ *probe) { e[1].failure = "nobody came" }, "kill: nobody came"},
		{func(_ *figures, _ []event, p *probe) { p.refused = 31 }, "the guard let 1 of 32 outdated epochs pass"},
	} {
		f, events, p := good()
		test.spoil(&f, events, &p)
		problems := verdict(f, events, p)
		if len(problems) != 1 || problems[0] != test.want {
			t.Errorf("problems %q, want %q", problems, test.want)
		}
		text := summary(f, events, p, problems, 2*time.Second, time.Minute)
		if !strings.Contains(text, "NOT as it should be") || !strings.Contains(text, test.want) {
			t.Errorf("the summary does not say %q:\n%s", test.want, text)
		}
	}
}

func TestCountSeesWhatTheTablesSay(t *testing.T) {
	ctx := t.Context()
	pool, err := connect(ctx, pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := pgleases.Migrate(ctx, pool); err != nil {
		t.Fatal(err)
	}
	if err := jobs.Create(ctx, pool, 10, 1); err != nil { // of one customer, hence in one partition
		t.Fatal(err)
	}
	if _, err := pool.Exec(ctx, refusalsTable); err != nil {
		t.Fatal(err)
	}
	var partition int
	var thawed time.Time
	err = pool.QueryRow(ctx, `
		SELECT partition, date_trunc('second', clock_timestamp())
		FROM pgleases_example.jobs LIMIT 1`).Scan(&partition, &thawed)
	if err != nil {
		t.Fatal(err)
	}
	// Job 1 to 7 are done well, 8 twice, 9 late by an outdated owner that had been frozen; 10 is left over.
	_, err = pool.Exec(ctx, `
		INSERT INTO pgleases_example.job_runs (job, worker, epoch, ran_at)
		SELECT id, worker, epoch, '`+thawed.Format(time.RFC3339Nano)+`'::timestamptz + late FROM (VALUES
			(1, 'a', 5, interval '-9 s'), (2, 'a', 5, '-8 s'), (3, 'a', 5, '-7 s'), (4, 'b', 6, '-6 s'), (5, 'b', 6, '-5 s'),
			(6, 'b', 6, '-4 s'), (7, 'b', 6, '-3 s'), (8, 'b', 6, '-2 s'), (8, 'b', 6, '-1 s'), (9, 'a', 5, '1 s')
		) AS run (id, worker, epoch, late);
		UPDATE pgleases_example.jobs SET done_at = now() WHERE id < 10;
		INSERT INTO pgleases_example.refusals (worker, partition, epoch) VALUES ('a', 1, 5)`)
	if err != nil {
		t.Fatal(err)
	}
	h := &handover{from: "a", thawed: thawed, epochs: map[int]int64{partition: 5}}
	f, err := count(ctx, pool, h)
	if want := (figures{Once: 8, Twice: 1, Left: 1, Outdated: 1, AfterThaw: 1, Refused: 1, Workers: 2}); err != nil || f != want {
		t.Errorf("counted %+v, %v, want %+v", f, err, want)
	}
	if f, err := count(ctx, pool, nil); err != nil || f.AfterThaw != 0 {
		t.Errorf("counted %+v, %v where none was frozen", f, err)
	}
}

func TestHandoverEndsWithTheLastPartition(t *testing.T) {
	began := time.Now()
	after := func(d time.Duration) time.Time { return began.Add(d) }
	h := newHandover("a", began, []ownership{{0, "a", 5, began}, {1, "a", 7, began}, {2, "b", 9, began}})
	for _, step := range []struct {
		rows     []ownership
		complete bool
		last     time.Time
	}{
		{[]ownership{{0, "a", 5, began}, {1, "a", 7, began}, {2, "b", 9, began}}, false, time.Time{}},
		{[]ownership{{0, "b", 6, after(3)}, {1, "", 8, time.Time{}}, {2, "b", 9, began}}, false, after(3)},
		{[]ownership{{0, "b", 6, after(3)}, {1, "a", 9, after(5)}, {2, "b", 9, began}}, false, after(3)}, // itself, again
		{[]ownership{{0, "c", 7, after(8)}, {1, "c", 10, after(6)}, {2, "c", 10, after(9)}}, true, after(6)},
	} {
		h.observe(step.rows)
		if h.complete() != step.complete || !h.last().Equal(step.last) {
			t.Errorf("after %v: complete %v at %v, want %v at %v", step.rows, h.complete(), h.last(), step.complete, step.last)
		}
	}
	all := []ownership{{0, "c", 7, after(8)}, {1, "b", 10, after(6)}, {2, "c", 10, after(9)}}
	if values, since := owned(all, "c"); !slices.Equal(values, []int{0, 2}) || !since.Equal(after(9)) {
		t.Errorf("c owns %v since %v", values, since)
	}
}

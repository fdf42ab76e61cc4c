package main

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
)

func TestMain(m *testing.M) {
	worker() // this binary, started by a test
	os.Exit(m.Run())
}

func good() (figures, []event) {
	return figures{Ticks: 5000, Fates: 5000, Done: 4990, Missed: 10, Effects: 4990, Workers: 4, Calm: 3000}, []event{{name: "close"}, {name: "kill"}}
}

func TestVerdictFindsEveryWrongFigure(t *testing.T) {
	if problems := verdict(good()); len(problems) != 0 {
		t.Errorf("problems where there is none: %q", problems)
	}
	for _, test := range []struct {
		spoil func(*figures, []event)
		want  string
	}{
		{func(f *figures, _ []event) { f.Doubles = 1 }, "1 ticks were done a second time"},
		{func(f *figures, _ []event) { f.Fates, f.Schedules = 4999, 1 }, "5,000 ticks have 4,999 fates; 1 schedules have more or fewer of one than of the other"},
		{func(f *figures, _ []event) { f.Schedules = 2 }, "5,000 ticks have 5,000 fates; 2 schedules have more or fewer of one than of the other"},
		{func(f *figures, _ []event) { f.Apart = 3 }, "of 3 ticks only one is there, the fate or the effect"},
		{func(f *figures, _ []event) { f.Early = 4 }, "4 runs were early"},
		{func(f *figures, _ []event) { f.Outdated = 5 }, "5 runs are of an owner after the next one had begun"},
		{func(f *figures, _ []event) { f.Dead = 6 }, "6 ticks are dead and 0 cancelled, though no handler fails and nobody edits"},
		{func(f *figures, _ []event) { f.Cancelled = 7 }, "0 ticks are dead and 7 cancelled, though no handler fails and nobody edits"},
		{func(f *figures, _ []event) { f.Calm = 0 }, "nothing ran while nothing happened"},
		{func(_ *figures, e []event) { e[1].failure = "nobody came" }, "kill: nobody came"},
	} {
		f, events := good()
		test.spoil(&f, events)
		problems := verdict(f, events)
		if len(problems) != 1 || problems[0] != test.want {
			t.Errorf("problems %q, want %q", problems, test.want)
		}
		text := summary(f, events, problems, 2*time.Second, time.Minute)
		if !strings.Contains(text, "NOT as it should be") || !strings.Contains(text, test.want) {
			t.Errorf("the summary does not say %q:\n%s", test.want, text)
		}
	}
}

func TestCountSeesWhatTheTablesSay(t *testing.T) {
	ctx := t.Context()
	pool, err := connect(ctx, pgtest.OwnerURL(pgtest.Database(t)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	if err := prepare(ctx, pool); err != nil {
		t.Fatal(err)
	}
	// Schedule a has ten ticks up to its cursor and two after it; b has two, of which none was told.
	for _, statement := range []string{`
		INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, policy, declared, cursor, due, revision, registered)
		SELECT 'example', name, name, 0, 'tick', '{}', rule, '2026-03-02 00:00:00.5Z', '{}', true, cursor::timestamptz, 'infinity', 1, now() FROM (VALUES
			('second/a', '@every 1s', '2026-03-02 00:00:10.5Z'), ('minute/b', 'CRON_TZ=Asia/Kathmandu * * * * *', '2026-03-02 00:02:00Z')) AS s (name, rule, cursor)`,
		// 1 to 6 are done, of which 2 has no effect; 7 and 8 are missed, 9 is skipped, 10 is dead and has an effect.
		`INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, fate, ended_at)
		SELECT 1, 'example', 'second/a', t0 + (n - k) * interval '1 s', t0 + n * interval '1 s', k, fate, now() FROM (VALUES
			(1, 1, 'done'), (2, 1, 'done'), (3, 1, 'done'), (4, 1, 'done'), (5, 1, 'done'), (6, 1, 'done'), (8, 2, 'missed'), (9, 1, 'skipped'), (10, 1, 'dead')
		) AS h (n, k, fate), (SELECT timestamptz '2026-03-02 00:00:00.5Z') AS z (t0)`,
		// 3 was done twice, the second time by an outdated owner; 4 was early.
		`INSERT INTO pgleases_example.ticks (name, at, worker, partition, epoch, ran_at)
		SELECT 'second/a', t0 + n * interval '1 s', worker, 0, epoch, t0 + n * interval '1 s' + late FROM (VALUES
			(1, 'x', 5, interval '10 ms'), (3, 'x', 6, '20 ms'), (3, 'y', 5, '30 ms'), (4, 'y', 6, '-1 ms'), (5, 'y', 6, '40 ms'), (6, 'y', 6, '50 ms'), (10, 'y', 6, '2 s')
		) AS e (n, worker, epoch, late), (SELECT timestamptz '2026-03-02 00:00:00.5Z') AS z (t0)`} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			t.Fatal(err)
		}
	}
	at := func(second float64) time.Time {
		return time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC).Add(time.Duration(second * float64(time.Second)))
	}
	f, err := count(ctx, pool, at(12.6), []span{{at(1), at(2)}, {at(5), at(7)}})
	want := figures{Ticks: 14, Fates: 10, Schedules: 2, Done: 6, Missed: 2, Skipped: 1, Dead: 1, Effects: 7, Doubles: 1, Apart: 2, Early: 1, Outdated: 1, Workers: 2,
		Calm: 3, Median: 40 * time.Millisecond, P99: 50 * time.Millisecond, Latest: 2 * time.Second}
	if err != nil || f != want {
		t.Errorf("counted %+v, %v, want\n        %+v", f, err, want)
	}
	var left int
	if err := pool.QueryRow(ctx, withoutFate, at(12.6)).Scan(&left); err != nil || left != 2 {
		t.Errorf("%d ticks are without fate, %v, want 2", left, err)
	}
}

func TestAShortShowIsAsItShouldBe(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes some seconds")
	}
	steps := []func(*story, context.Context) error{(*story).startFour, (*story).killOne}
	problems, err := run(t.Context(), size{TTL: time.Second, Schedules: 16, between: 2500 * time.Millisecond, steps: steps}, false)
	if err != nil || len(problems) > 0 {
		t.Errorf("%q, %v", problems, err)
	}
}

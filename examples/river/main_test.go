package main

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/schedule"
)

// The schedule ticks each second, in two processes. When some ticks are done, one of the two ends; the other one goes on.
func TestEachTickEnqueuesOneJobForEachCustomer(t *testing.T) {
	url := pgtest.Database(t)
	type process struct {
		stop context.CancelFunc
		done chan error
	}
	start := func() process {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		p := process{cancel, make(chan error, 1)}
		go func() { p.done <- run(ctx, url, schedule.Every(time.Second)) }()
		return p
	}
	end := func(p process) {
		t.Helper()
		p.stop()
		if err := <-p.done; err != nil {
			t.Error(err)
		}
	}
	conn, err := pgx.Connect(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(context.Background())
	value := func(query string) (n int) {
		t.Helper()
		if err := conn.QueryRow(t.Context(), query).Scan(&n); err != nil {
			t.Fatalf("%v: %s", err, query)
		}
		return n
	}
	const ticksDone = "SELECT count(*) FROM pgleases.history WHERE outcome = 'succeeded'"
	until := func(what, query string, least int) {
		t.Helper()
		for late := time.After(time.Minute); value(query) < least; {
			select {
			case <-time.After(20 * time.Millisecond):
			case <-late:
				t.Fatal("not so in time: " + what)
			}
		}
	}

	first := start()
	until("the tables", "SELECT count(to_regclass('pgleases.history'))", 1)
	second := start()
	until("some ticks are done", ticksDone, 3)
	end(first)
	until("the other process goes on", ticksDone, value(ticksDone)+3)
	until("jobs are worked", "SELECT count(*) FROM river_job WHERE state = 'completed'", 3)
	end(second)

	if ticks, jobs := value(ticksDone), value("SELECT count(*) FROM river_job"); jobs != 3*ticks {
		t.Errorf("%d jobs of %d ticks", jobs, ticks)
	}
	if n := value(`
		SELECT count(*) FROM (
			SELECT args ->> 'customer', args ->> 'until' FROM river_job GROUP BY 1, 2 HAVING count(*) > 1
		) AS twice`); n != 0 {
		t.Errorf("%d customers were billed twice", n)
	}
	if n := value(`SELECT count(*) FROM (SELECT (args ->> 'from')::timestamptz IS DISTINCT FROM
			lag((args ->> 'until')::timestamptz) OVER (PARTITION BY args ->> 'customer' ORDER BY (args ->> 'until')::timestamptz) AS gap,
			row_number() OVER (PARTITION BY args ->> 'customer' ORDER BY (args ->> 'until')::timestamptz) AS n FROM river_job) AS windows
		WHERE gap AND n > 1`); n != 0 {
		t.Errorf("%d windows do not begin where the one before has ended", n)
	}
}

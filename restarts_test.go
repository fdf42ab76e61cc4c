package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// totals returns how many partitions each client owns over all leases, by client ID.
func totals(t *testing.T, pool *pgxpool.Pool) []int {
	t.Helper()
	return testkit.Value[[]int](t, pool, `SELECT coalesce(array_agg(n ORDER BY id), '{}') FROM (
		SELECT c.id, count(p.partition) AS n FROM pgleases.clients AS c
		LEFT JOIN pgleases.partitions AS p ON p.owner = c.session GROUP BY c.id) AS counts`)
}

// moves counts the changes of owner since the last call: from one client ID to another, even with a
// time without an owner in between.
func moves(t *testing.T, pool *pgxpool.Pool) (all map[string]int) {
	t.Helper()
	all = make(map[string]int)
	rows, err := pool.Query(t.Context(), `WITH noted AS (DELETE FROM public.journal RETURNING *)
		SELECT old_id || ' to ' || id FROM noted WHERE old_id <> id ORDER BY n`)
	testkit.OK(t, err)
	defer rows.Close()
	for rows.Next() {
		var move string
		testkit.OK(t, rows.Scan(&move))
		all[move]++
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return all
}

func TestRollingRestartMovesNothingElse(t *testing.T) {
	t.Parallel()
	const partitions, clients = 64, 4
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	journal(t, pool)
	all, leases := make([]*pgleases.Client, clients), make([]*pgleases.Lease, clients)
	start := func(i int) {
		all[i] = newClient(t, pool, pgleases.WithClientID(string(rune('a'+i))))
		leases[i] = joined(t, all[i], "work", partitions)
	}
	even := func() {
		t.Helper()
		until(t, "each has its quarter", func() bool { return slices.Equal(totals(t, pool), []int{16, 16, 16, 16}) })
	}
	sets := func() string {
		t.Helper()
		return testkit.Value[string](t, pool, `SELECT string_agg(owner, '' ORDER BY partition) FROM pgleases.status`)
	}
	for i := range clients {
		start(i)
	}
	even()
	before := sets()
	moves(t, pool)
	total := 0
	for i := range clients {
		id := all[i].ID()
		shut(t, all[i])
		testkit.Becomes(t, pool, "nothing is without an owner or moves", 0, `
			SELECT count(*) FROM pgleases.status WHERE owner IS NULL OR moving_to IS NOT NULL`)
		away := moves(t, pool)
		start(i)
		even()
		back := moves(t, pool)
		for direction, moved := range map[string]map[string]int{id + " to ": away, " to " + id: back} {
			n := 0
			for move, count := range moved {
				n += count
				if move != direction+move[5:] && move != move[:1]+direction {
					t.Errorf("%d moves %s, which are of others, when %s restarted", count, move, id)
				}
			}
			total += n
			if n != partitions/clients {
				t.Errorf("%d moves %q, not %d, when %s restarted: %v", n, direction, partitions/clients, id, moved)
			}
		}
	}
	t.Logf("%d moves, of which %d are needed", total, 2*partitions)
	if after := sets(); after != before {
		t.Errorf("the owners before and after differ:\n%s\n%s", before, after)
	}
}

// The old process is still there, and at work: its partitions go to the new process with its ID
// when the work ends, and to no other.
func TestSameIDTakesOverFromTheOldProcessOnly(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	journal(t, pool)
	old := newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithHeartbeat(time.Second))
	a := joined(t, old, "work", 16)
	joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 16)
	until(t, "each has half", func() bool { return slices.Equal(totals(t, pool), []int{8, 8}) })
	begun, causes, finish := make(chan struct{}, 100), make(chan error, 100), make(chan struct{})
	j := run(t, a, func(ctx context.Context, p pgleases.Partition) error {
		begun <- struct{}{}
		<-ctx.Done()
		causes <- context.Cause(ctx)
		<-finish
		if err := p.Context().Err(); err != nil {
			t.Errorf("%v ended during its work: %v", p, context.Cause(p.Context()))
		}
		return nil
	})
	for range 8 {
		testkit.Receive(t, "a callback for every partition", begun)
	}
	moves(t, pool)
	beats(t, old, 1) // the next heartbeat reports it; until then the new process has joined
	again := newClient(t, pool, pgleases.WithClientID("a"))
	b := joined(t, again, "work", 16)
	for range 8 {
		cause := testkit.Receive(t, "the callbacks are asked to end", causes)
		if !errors.Is(cause, pgleases.ErrHandoff) && !errors.Is(cause, pgleases.ErrSuperseded) {
			t.Errorf("a callback's context ended with %v: not asked, not superseded", cause)
		}
	}
	beats(t, old, 1) // it renews until its work has ended
	if got := numbers(b); len(got) != 0 || len(numbers(a)) != 0 || old.Err() != nil {
		t.Errorf("during the work the old one shows %v, the new one owns %v; the old one has ended: %v",
			numbers(a), got, old.Err())
	}
	close(finish)
	untilOwns(t, b, 8)
	testkit.Receive(t, "the old one ends", old.Done())
	host, _ := os.Hostname()
	for what, err := range map[string]error{
		"Run":  testkit.Receive(t, "Run returns", j.done),
		"Err":  old.Err(),
		"Wait": a.Wait(t.Context()),
	} {
		wraps(t, what, err, pgleases.ErrSuperseded)
		refused(t, what, err, host, fmt.Sprint(os.Getpid()))
	}
	closedFor(t, old, a, pgleases.ErrSuperseded)
	if err := errors.Join(closes(t, old, t.Context()), again.Err()); err != nil {
		t.Errorf("after the end, Close of the old one or Err of the new one returned %v, not nil", err)
	}
	if got := moves(t, pool); len(got) != 0 {
		t.Errorf("moved to another ID, which none should: %v", got)
	}
}

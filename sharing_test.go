package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

// totals returns how many partitions each client owns over all leases, by client ID.
func totals(t *testing.T, pool *pgxpool.Pool) []int {
	t.Helper()
	return value[[]int](t, pool, `SELECT coalesce(array_agg(n ORDER BY id), '{}') FROM (
		SELECT c.id, count(p.partition) AS n FROM pgleases.clients AS c
		LEFT JOIN pgleases.partitions AS p ON p.owner = c.session GROUP BY c.id) AS counts`)
}

func TestSingletonsAreSharedEvenly(t *testing.T) {
	t.Parallel()
	const leases, clients = 40, 4
	pool := newPool(t, pgtest.MigratedDatabase(t))
	for i := range clients {
		c := newClient(t, pool, pgleases.WithClientID(string(rune('a'+i))))
		for n := range leases {
			joined(t, c, fmt.Sprint("leader ", n), 1)
		}
	}
	even := []int{10, 10, 10, 10}
	until(t, "each has its quarter", func() bool { return slices.Equal(totals(t, pool), even) })
	planned := value[time.Time](t, pool, `SELECT max(planned_at) FROM pgleases.leases`)
	untilValue(t, pool, "nothing is to plan nor to hand over", 0, `
		SELECT count(*) FROM pgleases.leases AS l JOIN pgleases.partitions AS p ON p.lease = l.name
		WHERE l.next_check_at < 'infinity' OR p.target IS DISTINCT FROM p.owner`)
	if got := totals(t, pool); !slices.Equal(got, even) {
		t.Errorf("at rest, after %v, the totals are %v, not %v", planned, got, even)
	}
}

func TestLeasesWithDifferentMembersAreEachSharedByTheirOwn(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	var clients []*pgleases.Client
	for i := range 3 {
		clients = append(clients, newClient(t, pool, pgleases.WithClientID(string(rune('a'+i)))))
	}
	none := pgleases.WithHandoffDelay(0)
	of := func(name string, partitions int, members ...int) []*pgleases.Lease {
		var leases []*pgleases.Lease
		for _, i := range members {
			leases = append(leases, joined(t, clients[i], name, partitions, none))
		}
		return leases
	}
	mail, parcels := of("mail", 8, 0, 1), of("parcels", 9, 1, 2, 0)
	solo := of("solo", 3, 2)
	shared := func() bool {
		return slices.Equal(owned(mail...), []int{4, 4}) && slices.Equal(owned(parcels...), []int{3, 3, 3}) &&
			slices.Equal(owned(solo...), []int{3})
	}
	until(t, "each lease is shared by its members", shared, slices.Concat(mail, parcels, solo)...)
	before := [][]int{mail[1].Values(), parcels[0].Values(), parcels[2].Values()}
	if err := solo[0].Leave(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := [][]int{mail[1].Values(), parcels[0].Values(), parcels[2].Values()}; fmt.Sprint(got) != fmt.Sprint(before) {
		t.Errorf("the end of one lease turned %v into %v", before, got)
	}
	shut(t, clients[0])
	until(t, "the others took over", func() bool {
		return len(mail[1].Values()) == 8 && len(parcels[0].Values())+len(parcels[1].Values()) == 9 &&
			len(parcels[0].Values()) >= 4 && len(parcels[1].Values()) >= 4
	}, mail[1], parcels[0], parcels[1])
}

// moves counts the changes of hands since the last call: from one client ID to another, whether or not with nobody between.
func moves(t *testing.T, pool *pgxpool.Pool) (all map[string]int) {
	t.Helper()
	all = make(map[string]int)
	rows, err := pool.Query(t.Context(), `WITH noted AS (DELETE FROM public.journal RETURNING *)
		SELECT old_id || ' to ' || id FROM noted WHERE old_id <> id ORDER BY n`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var move string
		if err := rows.Scan(&move); err != nil {
			t.Fatal(err)
		}
		all[move]++
	}
	if rows.Err() != nil {
		t.Fatal(rows.Err())
	}
	return all
}

func TestARollingRestartGivesEveryClientItsOwnBackAndShufflesNobodyElse(t *testing.T) {
	t.Parallel()
	const partitions, clients = 64, 4
	pool := newPool(t, pgtest.MigratedDatabase(t))
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
		return value[string](t, pool, `SELECT string_agg(owner, '' ORDER BY partition) FROM pgleases.status`)
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
		untilValue(t, pool, "nothing is without an owner or moves", 0, `
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

// The old process is still there, and at work: its partitions go to the new one of its ID when that ends, and to nobody else.
func TestANewProcessUnderTheSameIDTakesOverFromTheOldAndFromNobodyElse(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
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
		receive(t, "a callback for every partition", begun)
	}
	moves(t, pool)
	beats(t, old, 1) // the next one tells it; until then the new process has joined
	again := newClient(t, pool, pgleases.WithClientID("a"))
	b := joined(t, again, "work", 16)
	for range 8 {
		if cause := receive(t, "the callbacks are asked to end", causes); !errors.Is(cause, pgleases.ErrHandover) && !errors.Is(cause, pgleases.ErrSuperseded) {
			t.Errorf("a callback's context ended with %v, neither %v nor %v", cause, pgleases.ErrHandover, pgleases.ErrSuperseded)
		}
	}
	beats(t, old, 1) // it renews until its work has ended
	if got := numbers(b); len(got) != 0 || len(numbers(a)) != 0 || old.Err() != nil {
		t.Errorf("during the work the old one shows %v, the new one owns %v, not nothing; the old one has ended: %v", numbers(a), got, old.Err())
	}
	close(finish)
	untilOwns(t, b, 8)
	receive(t, "the old one ends", old.Done())
	host, _ := os.Hostname()
	for what, err := range map[string]error{"Run": receive(t, "Run returns", j.done), "Err": old.Err(), "Wait": a.Wait(t.Context())} {
		if !errors.Is(err, pgleases.ErrSuperseded) || !strings.Contains(err.Error(), host) || !strings.Contains(err.Error(), fmt.Sprint(os.Getpid())) {
			t.Errorf("%s returned %v, not %v with host %s and pid %d", what, err, pgleases.ErrSuperseded, host, os.Getpid())
		}
	}
	closedFor(t, old, a, pgleases.ErrSuperseded)
	if err := errors.Join(closes(t, old, t.Context()), again.Err()); err != nil {
		t.Errorf("after the end, Close of the old one or Err of the new one returned %v, not nil", err)
	}
	if got := moves(t, pool); len(got) != 0 {
		t.Errorf("moved to another ID, which none should: %v", got)
	}
}

func TestAClientThatWasDrainedGetsItsOwnBack(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	leases := make([]*pgleases.Lease, 3)
	for i := range leases {
		leases[i] = joined(t, newClient(t, pool, pgleases.WithClientID(string(rune('a'+i)))), "work", 24)
	}
	even := func() {
		t.Helper()
		until(t, "each has its third", func() bool { return slices.Equal(totals(t, pool), []int{8, 8, 8}) })
	}
	for _, weights := range [][]int{{5, 1, 2}, {1, 4, 3}, {2, 1, 1}, {1, 1, 2}, {1, 1, 1}} { // so that the sets are no plain ranges
		for i, weight := range weights {
			if err := leases[i].SetWeight(t.Context(), weight); err != nil {
				t.Fatal(err)
			}
		}
		sum := weights[0] + weights[1] + weights[2]
		until(t, "the shares follow", func() bool {
			return slices.Equal(totals(t, pool), []int{24 * weights[0] / sum, 24 * weights[1] / sum, 24 * weights[2] / sum})
		})
	}
	before := [][]int{ownedBy(t, pool, "a"), ownedBy(t, pool, "b"), ownedBy(t, pool, "c")}
	if err := leases[1].SetWeight(t.Context(), 0); err != nil {
		t.Fatal(err)
	}
	until(t, "it is drained", func() bool { return slices.Equal(totals(t, pool), []int{12, 0, 12}) })
	if err := leases[1].SetWeight(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	even()
	if after := [][]int{ownedBy(t, pool, "a"), ownedBy(t, pool, "b"), ownedBy(t, pool, "c")}; fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("it was drained and came back: before %v, after %v", before, after)
	} else {
		t.Logf("before and after: %v", after)
	}
}

package pgleases_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
)

// Any role may notify: PostgreSQL has no right for that.
func TestAFloodOfNotificationsCostsAFewReadsAndIsOverWhenItEnds(t *testing.T) {
	t.Parallel()
	url := direct(t)
	pool := newPool(t, url)
	config, err := pgx.ParseConfig(url)
	if err != nil {
		t.Fatal(err)
	}
	var tr tracer
	config.Tracer = &tr
	c := newClient(t, pool, pgleases.WithConnConfig(config), pgleases.WithClientID("a"))
	l := joined(t, c, "work", 4, pgleases.WithHandoffDelay(0))
	untilOwns(t, l, 4)
	until(t, "it listens, and nothing is to be read", func() bool {
		before := tr.reads()
		beats(t, c, 3)
		return c.Stats().Listening && tr.reads() == before
	})
	session := value[string](t, ownersPool(t, url), "SELECT session::text FROM pgleases.clients WHERE id = 'a'")

	// 40,000 that name the session, each in its own way, else the server would take those of one transaction for one; then 2,000
	// transactions that tell all.
	before, began := tr.reads(), time.Now()
	for range 2 {
		execute(t, pool, "SELECT pg_notify('pgleases', i || ',' || $1) FROM generate_series(1, 20000) AS i", session)
	}
	execute(t, pool, `DO $$ BEGIN
		FOR i IN 1..2000 LOOP
			PERFORM set_config('synchronous_commit', 'off', true), pg_notify('pgleases', 'all');
			COMMIT;
		END LOOP;
	END $$`, pgx.QueryExecModeSimpleProtocol)
	flooded := time.Since(began)

	other := newClient(t, pool, pgleases.WithClientID("b"))
	b := joined(t, other, "work", 4, pgleases.WithHandoffDelay(0))
	until(t, "both own half", func() bool { return len(l.Values()) == 2 && len(b.Values()) == 2 }, l, b)
	until(t, "nothing is left of the flood", func() bool {
		before := tr.reads()
		beats(t, c, 3)
		return tr.reads() == before
	})
	// 20 in quick succession, then one in 100 ms, and a few for the partitions that moved.
	reads, took := tr.reads()-before, time.Since(began)
	t.Logf("%d reads; the flood lasted %v, and was over after %v", reads, flooded, took)
	if most := 20 + int(took/(100*time.Millisecond)) + 10; reads > most {
		t.Errorf("42,000 notifications cost %d reads in %v, more than %d", reads, took, most)
	}
	if s := c.Stats(); s.Losses.TrustLost != 0 || s.Reconnects != 0 || !s.Listening {
		t.Errorf("after the flood: %+v", s)
	}
}

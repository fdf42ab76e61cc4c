package main

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// makeLarge writes a large fleet into the tables: 200 clients, 30 leases with 10,000 partitions, 300 schedules,
// 50 consumers, and 1,000,000 events of 29 days.
func makeLarge(t *testing.T) *pgxpool.Pool {
	t.Helper()
	databaseURL, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(databaseURL))
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.clients
		SELECT s, 'client-' || s, 1, clock_timestamp() + interval '1 hour', '1 hour', 'host-' || s, 7, now()
		FROM generate_series(1, 200) AS s;
		INSERT INTO pgleases.leases
		SELECT 'lease-' || n, 333, 5, 1, 0, 'infinity', now() FROM generate_series(0, 29) AS n;
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		SELECT 'lease-' || n, s, 1, now(), 1 FROM generate_series(0, 29) AS n, generate_series(1, 200) AS s;
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		SELECT 'lease-' || n, p, 1 + p % 200, 1 + p % 200, 3, 'client-' || 1 + p % 200, now()
		FROM generate_series(0, 29) AS n, generate_series(0, 332) AS p;
		INSERT INTO pgleases.events (tx, at, lease, cause, from_id, to_id, partitions)
		SELECT (1000001 - n)::text::xid8, clock_timestamp() - n * interval '2.5 seconds', 'lease-' || n % 30,
			CASE WHEN n % 7 = 0 THEN 'given' ELSE 'handed over' END, 'client-' || 1 + n % 200,
			'client-' || 1 + (n + 1) % 200, int4multirange(int4range(n % 320, n % 320 + 5))
		FROM generate_series(1, 1000000) AS n`)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.schedule_groups VALUES ('billing', 64);
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
		SELECT 'billing', 's' || lpad(n::text, 6, '0'), 'k' || n, n % 64, 'reports', '{}', '@every 1h0m0s', now(), false,
			now(), now() + interval '1 hour', 1, now()
		FROM generate_series(0, 299) AS n;
		INSERT INTO pgleases.history
			(source, schedule, group_name, name, kind, since, until, ticks, outcome, error, attempts, started_at, ended_at)
		SELECT 'tick', n % 300, 'billing', 's' || lpad((n % 300)::text, 6, '0'), 'reports', t, t, 1,
			CASE WHEN n % 50 = 0 THEN 'failed' ELSE 'succeeded' END, NULL, 1, t, t + interval '3 seconds'
		FROM generate_series(300000, 1, -1) AS n,
			LATERAL (SELECT clock_timestamp() - n * interval '2 seconds' AS t) AS t`)
	for i := range 50 {
		name := fmt.Sprintf("queue_%d", i)
		queue := consumer.Queue{Table: name, Key: "customer", Partitions: 4, Time: "created_at"}
		testkit.Execute(t, pool, consumer.TableSQL(name, "", queue))
		testkit.Execute(t, pool, `
			INSERT INTO pgleases.consumers
				(name, queue, id_column, partition_column, key_column, time_column, partitions)
			VALUES ($1, 'public.' || $1, 'id', 'partition', 'customer', 'created_at', 4)`, name)
		testkit.Execute(t, pool, fmt.Sprintf(`
			INSERT INTO %s (customer, payload)
			SELECT 'customer-' || n %% 90, '{}' FROM generate_series(1, 1000) AS n`, name))
	}
	testkit.Execute(t, pool, "ANALYZE")
	return pool
}

// Each screen of a large fleet is drawn, and is no higher than two screens. How long that took is logged. On a busy
// machine, the page may say instead that the server took too long.
func TestScreensOfALargeFleet(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	const late = `[...document.querySelectorAll("main .failure")].some(e =>
		e.textContent.includes("the server took longer than 200ms"))`
	const tookLonger = ` || document.querySelector("main").textContent.includes("took longer")`
	x := newTab(t, 1440, 900)
	x.signIn(serve(t, makeLarge(t)), "")
	for _, s := range []screen{
		{"", count(".plot svg") + ` === 4 && ` + count("#finding-list li") + ` > 0`, nil},
		{"?since=7d", `document.querySelectorAll(".plot svg").length === 4`, nil},
		{"leases", `document.querySelectorAll("#lease-rows tr").length === 30`, nil},
		{"leases/lease-7", count(".band-events li") + ` > 10 && ` + count(".lease tbody tr") + ` === 200`, nil},
		{"leases/lease-7?since=7d", `document.querySelectorAll(".band-events li").length > 10`, nil},
		{"leases/lease-7/17?since=7d", `document.querySelectorAll("#owner-rows tr").length > 4`, nil},
		{"clients", `document.querySelectorAll("#client-rows tr").length === 200`, nil},
		{"clients/client-7?since=7d", count("#event-list li") + ` > 8` + tookLonger, nil},
		{"consumers", `document.querySelectorAll("#consumer-rows tr").length === 50`, nil},
		{"consumers/queue_7", `document.querySelector(".summary dd")?.textContent === "1,000+"`, nil},
		{"schedules/billing", `document.querySelectorAll("#schedule-list tbody tr").length === 50`, nil},
		{"schedules/billing/s000007", `document.querySelectorAll(".tick").length === 100`, nil},
		{"events?since=7d", count("#event-list li") + ` === 1000` + tookLonger, nil},
	} {
		began := time.Now()
		x.show(s.address)
		x.until(`(` + s.drawn + `) || ` + late)
		took := time.Since(began).Round(10 * time.Millisecond)
		if eval[bool](x, late) {
			t.Logf("%s: the machine is busy, and the page says so after %v", s.address, took)
			continue
		}
		t.Logf("%s: %v, %.0f MB", s.address, took, eval[float64](x, "performance.memory.usedJSHeapSize / 1048576"))
		if tall := eval[int](x, "document.documentElement.scrollHeight"); tall > 1800 {
			t.Errorf("%s is %d pixels high, which is more than two screens", s.address, tall)
		}
	}
}

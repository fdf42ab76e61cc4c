package schedule_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The server caches plans. A plan from the time without jobs and schedules, after a VACUUM, would
// read all of them for each run once there are many.
func TestPlansForEmptyTablesStayCheap(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	schedule.InTx(w.Scheduler, "mail", note)
	w.run()
	db.polled()
	db.exec("VACUUM (ANALYZE) pgleases.jobs")
	db.exec("VACUUM (ANALYZE) pgleases.schedules")
	compiled := one[string](db, `SELECT coalesce(string_agg(p.proname, ', '), '') FROM pg_proc AS p
		WHERE p.pronamespace = 'pgleases'::regnamespace AND p.proname LIKE 'schedule%'
			AND 'enable_seqscan=off' = ANY (p.proconfig) AND NOT 'jit=off' = ANY (p.proconfig)`)
	expect(t, compiled, "", "functions that the server would compile")
	tx := db.begin()
	owned := fmt.Sprintf(`(SELECT s.lease, s.partition, s.epoch FROM pgleases.status AS s
		WHERE s.lease = 'schedule/%s' AND s.owner IS NOT NULL LIMIT 1) AS s`, group)
	whole := func() (n int64) { // with what the server has not counted yet of transactions before
		testkit.OK(t, tx.QueryRow(t.Context(), `SELECT sum(seq_scan)::bigint FROM pg_stat_xact_user_tables
			WHERE relid IN ('pgleases.jobs'::regclass, 'pgleases.schedules'::regclass)`).Scan(&n))
		return n
	}
	const noTrial = ", NULL, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, false, NULL, NULL"
	before := whole()
	for _, call := range []string{
		"pgleases.schedule_poll('" + group + "', '{1,2}', '{1}', 0, 2000000, '{0,0}', '{100,100}', 10, 2000, " +
			"'{}', '{}', '{1,2}', '{1,2}')",
		"pgleases.schedule_place('" + group + "', 4, '{1}', '{1}')",
		"pgleases.schedule_open(s.lease, s.partition, s.epoch, 1, false, 'mark', 10000, 10000, 5000) FROM " + owned,
		"pgleases.schedule_close(1, 'mark', 1, now(), now(), 0, NULL, now(), now(), now(), 1, " +
			"NULL, NULL, NULL, NULL, 0" + noTrial +
			", '{}', '{}', '{}', '{}', now(), 'succeeded', NULL, 1, 1, now(), NULL, NULL)",
		"pgleases.schedule_end_tick(1, 'mark', 1, now(), now(), 0, NULL, 1, now(), now())",
		"pgleases.schedule_open(s.lease, s.partition, s.epoch, 1, true, 'mark', 10000, 10000, 5000) FROM " + owned,
		"pgleases.schedule_end_job(1, 'mark', 1, 'succeeded', NULL, 1, 1, now(), now(), NULL, NULL, NULL)",
		"pgleases.schedule_postpone_job(1, 'mark', 1, now(), NULL" + noTrial + ")",
	} {
		testkit.Must(tx.Exec(t.Context(), `SAVEPOINT before;
			SELECT set_config('schedule.run', 'mark', true),
				set_config('plan_cache_mode', 'force_generic_plan', true)`, pgx.QueryExecModeSimpleProtocol))(t)
		_, err := tx.Exec(t.Context(), "SELECT "+call, pgx.QueryExecModeSimpleProtocol)
		if code := store.Code(err); err != nil && code != "PS001" { // there is none such
			t.Errorf("%s: %v", call, err)
		}
		testkit.Must(tx.Exec(t.Context(), "ROLLBACK TO before"))(t)
		expect(t, whole()-before, 0, "how often all was read up to "+call)
	}
}

package schedule_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The number of polls does not depend on the number of schedules that are not due, and no poll
// reads those.
func TestDormantSchedulesCostLittle(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDirectDatabase(t)
	const dormant, polls, every = 20_000, 10, 200 * time.Millisecond
	first := newWorker(db)
	rarest := schedule.Cron("0 0 1 1 *", "UTC")
	testkit.OK(t, schedule.InTx(first.Scheduler, "books", effect).Put(t.Context(), "0", args{}, rarest))
	db.exec(`INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor,
			declared, cursor, due, revision, registered)
		SELECT group_name, n, n, n % 4, kind, args, rule, anchor, declared, cursor, due, revision, registered
		FROM pgleases.schedules, generate_series(1, ` + fmt.Sprint(dormant) + `) AS n`)
	db.exec("VACUUM ANALYZE pgleases.schedules")
	first.run()
	db.polled() // the first process of a group moves each to its partition
	first.close()
	first.pool.Close()
	before := db.read("schedules", dormant)

	w := newWorker(db)
	schedule.InTx(w.Scheduler, "books", effect)
	w.Times().Poll = every
	w.wire.Count("schedule_poll")
	began := time.Now()
	w.run()
	testkit.Until(t, "it has polled", func() bool { return w.wire.Counted() >= polls })
	if n, most := w.wire.Counted(), 5+int(time.Since(began)/every); n > most {
		t.Errorf("%d polls, not %d at most", n, most)
	}
	w.close()
	w.pool.Close()
	if n := db.read("schedules", before) - before; n > dormant/10 {
		t.Errorf("%d polls read %d schedules of %d that are not due", polls, n, dormant)
	}
}

// A poll reads little more of a backlog with jobs of all priorities than of one with a single priority,
// and 300 runs under way cost about as many rows as there are runs.
func TestPollReadsLittleOfABacklog(t *testing.T) {
	t.Parallel()
	const partitions, each = 8, 400 // jobs of each partition and priority
	db := newDatabase(t)
	tx := db.begin()
	reads := func(priorities, runs int) (rows, answered int) {
		t.Helper()
		testkit.Must(tx.Exec(t.Context(), `TRUNCATE pgleases.jobs`))(t)
		testkit.Must(tx.Exec(t.Context(), `INSERT INTO pgleases.jobs
				(group_name, key, partition, kind, name, trigger, args, priority, at, due)
			SELECT 'tests', concat_ws(' ', p, b, n), p, 'mail', '', 'job', '{}', b, t, t
			FROM generate_series(0, $1::int - 1) AS p, generate_series(4 - $2::int, 3) AS b, generate_series(1, $3::int) AS n,
				LATERAL (SELECT pgleases.schedule_clock() - interval '1 hour' + n * interval '1 second') AS l (t)`, partitions, priorities, each))(t)
		const sum = `SELECT coalesce(sum(idx_tup_fetch + seq_tup_read), 0)::int
			FROM pg_stat_xact_user_tables WHERE relid = 'pgleases.jobs'::regclass`
		var before, after int
		testkit.OK(t, tx.QueryRow(t.Context(), sum).Scan(&before))
		most, few, total := schedule.AskedFor(partitions, runs)
		testkit.OK(t, tx.QueryRow(t.Context(), `SELECT cardinality(id) FROM pgleases.schedule_poll(
			'tests', ARRAY(SELECT generate_series(0, $1::int - 1)), '{}', 0, 2000000, array_fill(0::bigint, ARRAY[$1::int]),
			$2, $3, $4, '{}', '{}', '{}', '{}')`, partitions, most, few, total).Scan(&answered))
		testkit.OK(t, tx.QueryRow(t.Context(), sum).Scan(&after))
		return after - before, answered
	}
	idle, _ := reads(4, 8)
	one, answered := reads(1, 304)
	four, ofFour := reads(4, 304)
	t.Logf("a poll reads %d rows; with 304 runs %d of one priority and %d of four, and returns %d and %d",
		idle, one, four, answered, ofFour)
	if one < 304 || four > one*3/2 || four > idle+3*304/2 {
		t.Errorf("a poll reads %d rows of four priorities, of one %d, with fewer runs %d", four, one, idle)
	}
	if answered < 304+100 || ofFour < answered {
		t.Errorf("it returns %d rows, of four priorities %d", answered, ofFour)
	}
}

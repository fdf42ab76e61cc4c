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
	testkit.OK(t, schedule.InTx(first.Scheduler, "books", effect).Put(t.Context(), "0", args{}, schedule.Cron("0 0 1 1 *", "UTC")))
	db.exec(`INSERT INTO pgleases.schedules (group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered)
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

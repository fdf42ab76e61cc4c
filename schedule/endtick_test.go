package schedule_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The short end of a run writes the same as the general one, and raises the same errors, whatever
// has happened to the schedule meanwhile. A schedule to which nothing has happened does not need the
// general one.
func TestShortEndWritesWhatTheGeneralEndWrites(t *testing.T) {
	t.Parallel()
	const (
		short   = "SELECT pgleases.schedule_end_tick($1, 'mark', $2, $3, $4, 0, $5, 7, $6, $7)::text"
		general = `SELECT pgleases.schedule_close($1, 'mark', $2, $3, $4, 0, $5, $4, $6, $7, 0, NULL, NULL,
    NULL, NULL, 0, NULL, 0, 0, NULL, NULL, 0, NULL, NULL, NULL, false, NULL, NULL,
    '{}', '{}', '{}', '{}', $3, 'succeeded', NULL, 1, 7, $6, NULL, NULL)::text`
		set      = "UPDATE pgleases.schedules SET "
		canceled = `INSERT INTO pgleases.history (schedule, group_name, name, since, until, ticks, outcome, ended_at)
    SELECT s.id, s.group_name, s.name, s.cursor, s.cursor + interval '1 hour', 1, 'canceled', now()
    FROM pgleases.schedules AS s; ` + set + "cursor = cursor + interval '1 hour'"
		written = `SELECT (SELECT to_jsonb(s)::text FROM pgleases.schedules AS s)
    || (SELECT jsonb_agg(to_jsonb(h) - 'id' ORDER BY h.id)::text FROM pgleases.history AS h)`
	)
	db := newDatabase(t)
	w := newWorker(db)
	k := schedule.InTx(w.Scheduler, "books", effect)
	testkit.OK(t, k.Put(t.Context(), "close", args{}, hourly))
	db.setClock(midnight.Add(2 * time.Hour))
	var id, revision int64
	var cursor time.Time
	const read = "SELECT id, revision, cursor FROM pgleases.schedules"
	testkit.OK(t, db.QueryRow(t.Context(), read).Scan(&id, &revision, &cursor))
	end := func(statement, before string, due *time.Time) (wrote, code string) {
		t.Helper()
		tx := db.begin("SELECT set_config('schedule.run', 'mark', true)", before)
		defer func() { _ = tx.Rollback(t.Context()) }()
		tick, began := cursor.Add(time.Hour), cursor.Add(61*time.Minute)
		_, err := tx.Exec(t.Context(), statement, pgx.QueryExecModeExec,
			id, revision, cursor, tick, due, began, began.Add(time.Minute))
		if err != nil {
			return "", store.Code(err)
		}
		testkit.OK(t, tx.QueryRow(t.Context(), written).Scan(&wrote))
		return wrote, ""
	}
	for meanwhile, code := range map[string]string{
		"": "",
		set + "revision = revision + 1, rule = 'every 1m'": "",
		set + "failures = 2": "",
		set + "blocked_reason = 'no such kind', blocked_since = cursor":         "",
		set + "tick = cursor, began = now(), attempts = 1, error = 'it failed'": "",
		canceled: "",
		set + "cursor = cursor + interval '1 hour'":   "PS002",
		"DELETE FROM pgleases.schedules":              "PS001",
		"SELECT set_config('schedule.run', '', true)": "PS003",
	} {
		due := midnight.Add(3 * time.Hour)
		for _, due := range []*time.Time{&due, nil} {
			gotShort, codeShort := end(short, meanwhile, due)
			gotGeneral, codeGeneral := end(general, meanwhile, due)
			expect(t, codeShort, code, "error of the short end after "+meanwhile)
			expect(t, codeGeneral, code, "error of the general end after "+meanwhile)
			expect(t, gotShort, gotGeneral, "after "+meanwhile)
		}
	}
	_, code := end(short, "DROP FUNCTION pgleases.schedule_close", nil)
	expect(t, code, "", "error if there is no general end")
}

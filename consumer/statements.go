package consumer

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer/sql"
	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/store"
)

// statements has the statements of folder sql by the names of their files: see store.Fill.
type statements struct {
	Register, Inspect, Due, State, Unblock, Suspect, TakeBack, PutOff, NoteRow, Skipped, Why, Beyond, Look string
	Poll, Read, ReadBlocked, Remove, RemoveSame, Block, Kill, Crash, Note, Sweep, Misplaced                string // on the user's table
	Open, Begin, End, Ours, Theirs                                                                         string
}

// settings are those of our statements on the user's table. A plan that was made while the table
// was empty must be good for a million rows too, so the planner gets no choice but the index. With
// less work_mem it would read all blocked keys of a partition for each of its rows, once it knows
// that a hash of them is larger. It takes what it needs, not work_mem.
var settings = [][2]string{
	{"enable_seqscan", "off"}, {"enable_bitmapscan", "off"}, {"enable_sort", "off"}, {"enable_hashjoin", "off"}, {"enable_mergejoin", "off"},
	{"jit", "off"}, {"plan_cache_mode", "force_generic_plan"}, {"work_mem", "1GB"},
	{"lock_timeout", strconv.FormatInt(lockWait.Milliseconds(), 10)},
}

var tableSQL = store.Texts(sql.Files, "pgleases")("table")

// statementsFor returns the statements for a schema. names replaces the placeholders in those on
// the user's table.
func statementsFor(schema string, names *strings.Replacer) (s statements) {
	of := pgx.Identifier{schema}.Sanitize()
	s.Begin = "SELECT number, crashed_now, crashed_epoch, watched IS NOT NULL, suspect_first, suspect_last FROM " + of + ".consumer_begin($1::pg_catalog.text, $2::int[], $3::bigint[])"
	s.End = "SELECT " + of + ".consumer_end($1::pg_catalog.text, $2::int[], $3::bigint[])::pg_catalog.text"
	var theirs, save, ours []string
	set := func(name, value string) string { return "pg_catalog.set_config('" + name + "', " + value + ", true)" }
	for i, setting := range settings {
		ours = append(ours, set(setting[0], "'"+setting[1]+"'"))
		save = append(save, "pg_catalog.current_setting('"+setting[0]+"')")
		theirs = append(theirs, set(setting[0], fmt.Sprintf("pg_catalog.split_part(pg_catalog.current_setting('consumer.settings'), ' ', %d)", i+1)))
	}
	saves := []string{set("consumer.settings", "pg_catalog.concat_ws(' ', "+strings.Join(save, ", ")+")")}
	all := ours
	// With the role and the limit that the session has: the handler's may not allow to remove the
	// rows. In a transaction of the handler's own they are not known, and consumer_expect refuses
	// it.
	for _, name := range []string{"role", "statement_timeout"} {
		now, saved := "pg_catalog.current_setting('"+name+"')", "pg_catalog.current_setting('consumer."+name+"', true)"
		saves = append(saves, set("consumer."+name, now))
		all = append(all, "CASE WHEN "+saved+" OPERATOR(pg_catalog.<>) ALL (ARRAY['', "+now+"]) THEN "+set(name, saved)+" END")
	}
	s.Theirs = "SELECT pg_catalog.concat(" + strings.Join(theirs, ", ") + ")"
	s.Ours = "SELECT pg_catalog.concat(" + strings.Join(all, ", ") + ")"
	texts := store.Texts(sql.Files, schema)
	store.Fill(&s, func(name string) string { return names.Replace(texts(name)) })
	opening := append(saves, ours...)
	opening[len(opening)-1] = set("lock_timeout", "$5::pg_catalog.text") // the last of settings
	s.Open = strings.ReplaceAll(s.Open, "{settings}", strings.Join(opening, ", "))
	return s
}

// namesIn returns what replaces the placeholders in statements on a table.
func namesIn(t *table, q Queue, h *handler) *strings.Replacer {
	key := `(''::pg_catalog.text COLLATE pg_catalog."C")`
	if q.Key != "" {
		key = "(q." + quote(q.Key) + `::pg_catalog.text COLLATE pg_catalog."C")`
	}
	columns, lock := "", "FOR UPDATE OF q"
	for _, c := range h.columns {
		columns += ", q." + quote(c)
	}
	if !h.calls.inTransaction() {
		lock = ""
	}
	return strings.NewReplacer("{table}", t.Name, "{id}", quote(q.ID), "{partition}", quote(q.Partition), "{key}", key, "{columns}", columns, "{lock}", lock)
}

// register stores the consumer with its table, or returns an error that names the other.
func (s *statements) register(ctx context.Context, tx pgx.Tx, name string, t *table, q Queue) error {
	rows, err := tx.Query(ctx, s.Register, name, t.Name, q.ID, q.Key, q.Partition, q.Time, q.Partitions)
	if err != nil {
		return err
	}
	var of, queue string
	var has Queue
	var other error
	_, err = pgx.ForEachRow(rows, []any{&of, &queue, &has.ID, &has.Key, &has.Partition}, func() error {
		const orDelete = ", or, when no process uses the consumer any more, run pgleases consumers delete %s --reason '...'"
		remedy := fmt.Sprintf(orDelete, shell.Word(of))
		switch {
		case of != name:
			other = fmt.Errorf("table %s already has the consumer %q, and a table has one: use its name%s", queue, of, remedy)
		case queue != t.Name:
			other = fmt.Errorf("the consumer has the table %s, not %s: give another name%s", queue, t.Name, remedy)
		case has.ID != q.ID || has.Key != q.Key || has.Partition != q.Partition:
			other = fmt.Errorf("the consumer has the ID %q, Key %q and Partition %q, not %q, %q and %q: give the columns that it has%s",
				has.ID, has.Key, has.Partition, q.ID, q.Key, q.Partition, remedy)
		}
		return nil
	})
	if err == nil {
		err = other
	}
	return err
}

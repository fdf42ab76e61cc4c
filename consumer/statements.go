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
	Register, Inspect, Beyond, Look, Why          string
	Due, State, Unblock, PutOff, NoteRow, Skipped string
	Suspect, TakeBack                             string // crashes of a row
	Poll, Read, ReadBlocked, Remove, RemoveSame   string // on the user's table
	ReadOne, RemoveOne                            string // of a partition, of a row: see one
	Block, Kill, Crash, Note, Sweep, Misplaced    string // also on it
	Open, Begin, End                              string
	Ours                                          string // makes the settings those of our statements
	Theirs                                        string // makes them those of the session again
}

// settings are those of our statements on the user's table. A plan that was made while the table
// was empty must be good for a million rows too, so the planner gets no choice but the index. With
// less work_mem it would read all blocked keys of a partition for each of its rows, once it knows
// that a hash of them is larger. It takes what it needs, not work_mem. Without sorts there are no
// merge joins, and no bitmap scans where an order is needed.
var settings = [][2]string{
	{"enable_seqscan", "off"},
	{"enable_sort", "off"},
	{"enable_hashjoin", "off"},
	{"jit", "off"},
	{"plan_cache_mode", "force_generic_plan"},
	{"work_mem", "1GB"},
	{"lock_timeout", strconv.FormatInt(lockWait.Milliseconds(), 10)},
}

// one replaces the arrays of partitions and rows by a single one, because the server prepares a
// join with an array for each transaction, even if it has one element.
var one = strings.NewReplacer(
	"pg_catalog.unnest($1::int[]) AS p", "(VALUES ($1::int)) AS p",
	"ROWS FROM (pg_catalog.unnest($1::int[]), pg_catalog.unnest($2::bigint[])) AS b",
	"(VALUES ($1::int, $2::bigint)) AS b",
	"pg_catalog.cardinality($2::bigint[])", "1",
)

var tableSQL = store.Texts(sql.Files, "pgleases")("table")

// set is an expression that sets a setting for the transaction. value is an expression too.
func set(name, value string) string {
	return "pg_catalog.set_config('" + name + "', " + value + ", true)"
}

// current is an expression for the value of a setting.
func current(name string) string { return "pg_catalog.current_setting('" + name + "')" }

// statementsFor returns the statements for a schema. names replaces the placeholders in those on
// the user's table.
func statementsFor(schema string, names *strings.Replacer) (s statements) {
	of := pgx.Identifier{schema}.Sanitize()
	s.Begin = "SELECT number, crashed_now, crashed_epoch, watched IS NOT NULL, suspect_first, suspect_last " +
		"FROM " + of + ".consumer_begin($1::pg_catalog.text, $2::int[], $3::bigint[])"
	s.End = "SELECT " + of + ".consumer_end($1::pg_catalog.text, $2::int[], $3::bigint[])::pg_catalog.text"
	var theirs, save, ours []string
	for i, setting := range settings {
		name, value := setting[0], setting[1]
		ours = append(ours, set(name, "'"+value+"'"))
		save = append(save, current(name))
		saved := fmt.Sprintf("pg_catalog.split_part(%s, ' ', %d)", current("consumer.settings"), i+1)
		theirs = append(theirs, set(name, saved))
	}
	saves := []string{set("consumer.settings", "pg_catalog.concat_ws(' ', "+strings.Join(save, ", ")+")")}
	all := ours
	// With the role and the limit that the session has: the handler's may not allow to remove the
	// rows. In a transaction of the handler's own they are not known, and consumer_expect refuses
	// it.
	for _, name := range []string{"role", "statement_timeout"} {
		saves = append(saves, set("consumer."+name, current(name)))
		saved := "pg_catalog.current_setting('consumer." + name + "', true)"
		differs := saved + " OPERATOR(pg_catalog.<>) ALL (ARRAY['', " + current(name) + "])"
		all = append(all, "CASE WHEN "+differs+" THEN "+set(name, saved)+" END")
	}
	s.Theirs = "SELECT pg_catalog.concat(" + strings.Join(theirs, ", ") + ")"
	s.Ours = "SELECT pg_catalog.concat(" + strings.Join(all, ", ") + ")"
	texts := store.Texts(sql.Files, schema)
	text := func(name string) string { return names.Replace(texts(name)) }
	s.ReadOne, s.RemoveOne = one.Replace(text("read")), one.Replace(text("remove"))
	store.Fill(&s, text)
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
	columns := ""
	for _, c := range h.columns {
		columns += ", q." + quote(c)
	}
	lock := "FOR UPDATE OF q"
	if !h.calls.inTransaction() {
		lock = ""
	}
	return strings.NewReplacer(
		"{table}", t.Name,
		"{id}", quote(q.ID),
		"{partition}", quote(q.Partition),
		"{key}", key,
		"{columns}", columns,
		"{lock}", lock,
	)
}

// register stores the consumer with its table, or returns an error that names the other.
func (s *statements) register(ctx context.Context, tx pgx.Tx, name string, t *table, q Queue) error {
	rows, err := tx.Query(ctx, s.Register, name, t.Name, q.ID, q.Key, q.Partition, q.Time, q.Partitions)
	if err != nil {
		return err
	}
	q.Table = t.Name
	var of string
	var has Queue
	var other error
	_, err = pgx.ForEachRow(rows, []any{&of, &has.Table, &has.ID, &has.Key, &has.Partition}, func() error {
		if conflict := conflictOf(of, has, name, q); conflict != nil {
			other = conflict
		}
		return nil
	})
	if err == nil {
		err = other
	}
	return err
}

// conflictOf returns an error if the stored consumer, of that name and with that queue, is another
// one than is to be stored.
func conflictOf(stored string, has Queue, name string, q Queue) error {
	const orDelete = ", or, when no process uses the consumer any more, " +
		"run pgleases consumers delete %s --reason '...'"
	remedy := fmt.Sprintf(orDelete, shell.Word(stored))
	switch {
	case stored != name:
		return fmt.Errorf("table %s already has the consumer %q, and a table has one: use its name%s",
			has.Table, stored, remedy)
	case has.Table != q.Table:
		return fmt.Errorf("the consumer has the table %s, not %s: give another name%s", has.Table, q.Table, remedy)
	case has.ID != q.ID || has.Key != q.Key || has.Partition != q.Partition:
		return fmt.Errorf("the consumer has the ID %q, Key %q and Partition %q, not %q, %q and %q: "+
			"give the columns that it has%s",
			has.ID, has.Key, has.Partition, q.ID, q.Key, q.Partition, remedy)
	}
	return nil
}

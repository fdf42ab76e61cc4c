package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// Queue names a table of the application, and its columns. Rows are deleted once they are handled.
// [TableSQL] returns the DDL of such a table.
type Queue struct {
	// Table is the name of the table, with its schema unless the search_path has it, written as in
	// SQL.
	Table string
	// ID is the column with the IDs, bigint or int, drawn by the insert from a sequence. The
	// default is "id".
	ID string
	// Key is the column whose rows of one value are handled in order: text, varchar, int, bigint or
	// uuid. Empty: the partition is the key.
	Key string
	// Partition is the int column with partition_for(key, N). The default is "partition".
	Partition string
	// Partitions is N. 0: it is read from the expression of the generated column.
	Partitions int
	// Time is a timestamptz column with the time of the insert. Empty: there is none, and the age
	// of the oldest row is not shown.
	Time string
}

func (q Queue) withDefaults() Queue {
	q.ID, q.Partition = cmp.Or(q.ID, "id"), cmp.Or(q.Partition, "partition")
	return q
}

// A table is what the database knows about a Queue's table. What it lacks is empty.
type table struct {
	Name, Kind string
	Columns    []string

	Hidden       bool // row-level security hides rows from this role
	Permitted    bool // this role has the rights
	Temporary    bool
	Subscribed   bool   // it is the target of a subscription
	Indexed      bool   // on the partition and the ID
	BeforeDelete string // a trigger with its table
	DeleteRule   string

	Announced bool   // a trigger names the consumer
	Announces string // a consumer that a trigger names

	IDRequired, KeyRequired, PartitionRequired bool
	IDType, KeyType, PartitionType, TimeType   string

	IDUnique, Identity bool
	IDDefault          string
	Sequence           string // from which IDs are drawn
	Increment, Cache   int64  // of the sequence
	Cycle              bool

	Generated     string   // the expression that generates the partition
	GeneratedFrom []string // the columns in it
	N             int      `db:"-"` // of the expression, or 0
	Differs       string   // a partition or child of the table with another expression
}

var (
	idTypes   = []string{"bigint", "integer"}
	keyTypes  = []string{"text", "character varying", "integer", "bigint", "uuid"}
	generated = regexp.MustCompile(`partition_for\(.*, (\d+)\)\s*$`)
	schemaOf  = regexp.MustCompile(`^(?:(?:"[^"]*"|[^"])*\.)?`) // of a table written as in SQL, with the dot
	nameInSQL = regexp.MustCompile(`^(?:[\pL_][\pL\pN_$]*|"(?:[^"]|"")+")(?:\.(?:[\pL_][\pL\pN_$]*|"(?:[^"]|"")+"))*$`)
)

// kinds are what a name may be of, other than a table.
var kinds = map[string]string{
	"v": "a view",
	"m": "a materialized view",
	"f": "a foreign table",
	"c": "a type",
	"S": "a sequence",
	"i": "an index",
}

// notATable are the SQLSTATEs of to_regclass, before PostgreSQL 16, for a name that cannot be one.
var notATable = []string{"42601", "42602", "0A000"}

const noTable = "table %s does not exist in this database, or not in the search_path, " +
	"or its name is not written as in SQL: TableSQL returns its DDL"

// inspect reads what the database knows about the table of a consumer, and checks it. It returns
// the queue with its number of partitions.
func (s *statements) inspect(
	ctx context.Context, conn *pgxpool.Conn, name string, q Queue, ascending bool,
) (*table, Queue, error) {
	if q.Table == "" {
		return nil, q, errors.New("the queue has no Table: name the table whose rows are handled")
	}
	rows, _ := conn.Query(ctx, s.Inspect, q.Table, q.ID, q.Key, q.Partition, name, q.Time) // the rows have its error
	t, err := pgx.CollectExactlyOneRow(rows, pgx.RowToAddrOfStructByName[table])
	if errors.Is(err, pgx.ErrNoRows) || slices.Contains(notATable, store.Code(err)) {
		return nil, q, fmt.Errorf(noTable, q.Table)
	}
	if err != nil {
		return nil, q, err
	}
	q, err = t.check(q, ascending)
	if err != nil {
		return nil, q, fmt.Errorf("table %s: %w", t.Name, err)
	}
	return t, q, nil
}

func (t *table) check(q Queue, ascending bool) (Queue, error) {
	if t.Kind != "r" && t.Kind != "p" {
		return q, fmt.Errorf("it is %s: rows are locked and deleted, so it must be a table",
			cmp.Or(kinds[t.Kind], "no table"))
	}
	err := cmp.Or(t.checkTable(), t.checkColumns(q), t.checkKey(q), t.checkTime(q), t.checkIndex(q))
	if err == nil && !ascending {
		err = t.checkIDs(q)
	}
	if err != nil {
		return q, err
	}
	return t.count(q)
}

// checkTable checks that rows of the table can be locked and deleted, all of them.
func (t *table) checkTable() error {
	return cmp.Or(
		wrong(
			t.Subscribed,
			"it is the target of a subscription: consume the rows where they are inserted",
		),
		wrong(
			t.Hidden,
			"row-level security hides rows from this role: "+
				"exempt the role with BYPASSRLS, or use the owner of the table",
		),
		wrong(
			!t.Permitted,
			"the role lacks rights: GRANT SELECT, UPDATE, DELETE ON %s TO your role; UPDATE is for locking rows",
			t.Name,
		),
		wrong(
			t.Temporary,
			"it is a temporary table, which only its own session sees: create it without TEMPORARY",
		),
		wrong(
			t.BeforeDelete != "",
			"a trigger BEFORE DELETE may keep rows that were handled: drop %s, or make it AFTER DELETE",
			t.BeforeDelete,
		),
		wrong(
			t.DeleteRule != "",
			"a rule ON DELETE may keep rows that were handled: drop rule %s, or make it a trigger AFTER DELETE",
			quote(t.DeleteRule),
		),
	)
}

// checkColumns checks the columns that each queue has.
func (t *table) checkColumns(q Queue) error {
	return cmp.Or(
		wrong(q.ID == q.Partition, "ID and Partition are both column %q: give two columns", q.ID),
		column("ID", q.ID, t.IDRequired, t.IDType, idTypes),
		column("Partition", q.Partition, t.PartitionRequired, t.PartitionType, []string{"integer"}),
	)
}

const (
	ofOtherColumn = "column %q is generated from column %q, so rows of one value of Key %[3]q " +
		"may be in several partitions, out of order: generate it as partition_for(%[3]s, N), or give another Key"
	ofOtherExpression = "column %q is generated by another expression in %s, so rows of one value of Key %q " +
		"may be in several partitions, out of order: generate it there as in %s, or detach that table"
)

// checkKey checks the column of the key, and that the partition is not generated from another one.
func (t *table) checkKey(q Queue) error {
	if q.Key == "" {
		return nil
	}
	if err := column("Key", q.Key, t.KeyRequired, t.KeyType, keyTypes); err != nil {
		return err
	}
	for _, from := range t.GeneratedFrom {
		if from != q.Key {
			return fmt.Errorf(ofOtherColumn, q.Partition, from, q.Key)
		}
	}
	return wrong(t.Differs != "", ofOtherExpression, q.Partition, t.Differs, q.Key, t.Name)
}

// checkTime checks the column of the time. consumers_status reads only timestamptz, because what
// other types mean depends on the session's time zone.
func (t *table) checkTime(q Queue) error {
	if q.Time == "" {
		return nil
	}
	return cmp.Or(
		wrong(
			t.TimeType == "",
			"Time: it has no column %q; name another one, or create it as TableSQL does", q.Time,
		),
		wrong(
			t.TimeType != "timestamp with time zone",
			"Time: column %q is of type %s: give a column of type timestamptz, or leave Time out",
			q.Time, t.TimeType,
		),
	)
}

// checkIndex checks that the rows of a partition can be read by ID.
func (t *table) checkIndex(q Queue) error {
	return wrong(
		!t.Indexed,
		"it has no valid, complete btree index on (%[2]s, %[3]s): "+
			"CREATE INDEX CONCURRENTLY ON %[1]s (%[2]s, %[3]s)",
		t.Name, quote(q.Partition), quote(q.ID),
	)
}

// count returns the queue with its number of partitions, from the generated column if that has it.
func (t *table) count(q Queue) (Queue, error) {
	if found := generated.FindStringSubmatch(t.Generated); found != nil {
		t.N, _ = strconv.Atoi(found[1])
	}
	switch {
	case t.N != 0 && q.Partitions != 0 && t.N != q.Partitions:
		return q, fmt.Errorf("the queue has Partitions: %d, but column %q is generated for %d: leave Partitions out",
			q.Partitions, q.Partition, t.N)
	case t.N != 0:
		q.Partitions = t.N
	case q.Partitions == 0:
		return q, fmt.Errorf("column %q is not generated as partition_for(key, N), so N is not known: give Partitions",
			q.Partition)
	}
	return q, wrong(
		q.Partitions < 1 || q.Partitions > 65536,
		"%d partitions is out of range: 1 to 65,536", q.Partitions,
	)
}

// nextval is the default of a column that each insert draws from a sequence.
var nextval = regexp.MustCompile(
	`^(?:pg_catalog\.)?nextval\('.*'::(?:pg_catalog\.)?regclass\)(?:::(?:integer|bigint))?$`,
)

// checkIDs checks that IDs are unique, and rise with the inserts.
func (t *table) checkIDs(q Queue) error {
	const own = "; if the application itself gives each key unique IDs that rise with its inserts, " +
		"use WithAscendingIDs"
	drawn := t.Identity || nextval.MatchString(t.IDDefault)
	return cmp.Or(
		wrong(
			t.IDDefault == "" && !t.Identity,
			"column %q has no default, so IDs may not be in the order of the inserts: "+
				"ALTER TABLE %s ALTER COLUMN %s ADD GENERATED ALWAYS AS IDENTITY%s",
			q.ID, t.Name, quote(q.ID), own,
		),
		wrong(
			!drawn || t.Sequence == "",
			"column %q has the default %s, so IDs may not be in the order of the inserts: "+
				"give it the default nextval of a sequence%s",
			q.ID, t.IDDefault, own,
		),
		wrong(
			t.Cache > 1,
			"the sequence of column %q has CACHE %d, so that IDs are not in the order of the inserts: "+
				"ALTER SEQUENCE %s CACHE 1%s",
			q.ID, t.Cache, t.Sequence, own,
		),
		wrong(
			t.Increment != 1,
			"the sequence of column %q has INCREMENT BY %d, so that IDs may not be in the order of the inserts, "+
				"because the application draws several at once, or they fall: "+
				"ALTER SEQUENCE %s INCREMENT BY 1, and let each insert draw its ID%s",
			q.ID, t.Increment, t.Sequence, own,
		),
		wrong(
			t.Cycle,
			"the sequence of column %q has CYCLE, so that IDs come again: ALTER SEQUENCE %s NO CYCLE%s",
			q.ID, t.Sequence, own,
		),
		wrong(
			!t.IDUnique,
			"column %q may have one ID twice, because no unique index has it alone or with %q: "+
				"CREATE UNIQUE INDEX CONCURRENTLY ON %s (%s, %s)%s",
			q.ID, q.Partition, t.Name, quote(q.Partition), quote(q.ID), own,
		),
	)
}

// column checks a column of the queue: that it is there, has one of the types, and has no NULL.
func column(of, name string, required bool, typ string, types []string) error {
	plain := strings.TrimPrefix(typ, "pg_catalog.") // the search_path may have another of that name first
	switch {
	case typ == "":
		return fmt.Errorf("%s: it has no column %q; name another one, or create it as TableSQL does", of, name)
	case !slices.Contains(types, plain):
		return fmt.Errorf("%s: column %q is of type %s: it must be %s", of, name, typ, strings.Join(types, ", or "))
	case !required:
		return fmt.Errorf("%s: column %q may be NULL, and such a row would never be handled: "+
			"ALTER COLUMN %s SET NOT NULL", of, name, quote(name))
	}
	return nil
}

// registerAgain stores the consumer, which is missing, as New did. The next attempt to begin finds
// it.
func (c *Consumer) registerAgain(ctx context.Context, line *worker.Line, missing error) error {
	err := worker.InTx(ctx, line, c.pool, func(ctx context.Context, tx pgx.Tx) error {
		return c.sql.register(ctx, tx, c.name, c.table, c.source)
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("it is stored again: %w", missing)
}

func quote(name string) string { return pgx.Identifier{name}.Sanitize() }

// TableSQL returns DDL for a queue table, to paste into a migration: the table with its index,
// its generated partition and the trigger that wakes the consumer, and below it, as a comment,
// the steps for a table that exists and is in use. Without a Key it has no such steps, nor if a
// name has control characters, because a newline would end the comment. name is the consumer's,
// as in [New]. schema is that of the library's tables, "pgleases" if it is empty. The names in q
// are written into the text; a Table that is not written as in SQL is quoted. Partitions is 1,024
// unless q has another number, which never has to change while a fleet grows.
func TableSQL(name, schema string, q Queue) string {
	q = q.withDefaults()
	if q.Table != "" && !nameInSQL.MatchString(q.Table) {
		q.Table = quote(q.Table)
	}
	q.Table, q.Partitions = cmp.Or(q.Table, "<Queue.Table>"), cmp.Or(q.Partitions, 1024)
	names := []string{name, schema, q.Table, q.ID, q.Partition, q.Key, q.Time}
	schema = quote(cmp.Or(schema, "pgleases"))
	text, _, _ := strings.Cut(tableSQL, "\n-- Instead,")
	key, partition := columnsSQL(q, schema)
	if q.Key != "" && !strings.ContainsFunc(strings.Join(names, ""), unicode.IsControl) {
		text = tableSQL
	}
	in := schemaOf.FindString(q.Table)
	// A function for each table, in its schema.
	set := "set_partition_" + strings.ReplaceAll(q.Table[len(in):], `"`, "")
	if len(set) > 63 {
		set = fmt.Sprintf("set_partition_%08x", crc32.ChecksumIEEE([]byte(q.Table)))
	}
	return strings.NewReplacer(
		"{pgleases}", schema,
		"$pgleases$", store.BodyTag("$pgleases$", names...),
		"'{name}'", store.Literal(name),
		"{set}", in+quote(set),
		"{table}", q.Table,
		"{id}", quote(q.ID),
		"{key}", key,
		"{partition}", partition,
		"{time}", quote(cmp.Or(q.Time, "created_at")),
		"{k}", quote(q.Key),
		"{p}", quote(q.Partition),
		"{n}", strconv.Itoa(q.Partitions),
	).Replace(text)
}

// columnsSQL returns the DDL of the columns of the key, if there is one, and the partition.
func columnsSQL(q Queue, schema string) (key, partition string) {
	p, k := quote(q.Partition), quote(q.Key)
	if q.Key == "" {
		return "", p + " int NOT NULL, -- given by the insert; rows of one partition are handled in order"
	}
	key = k + " text NOT NULL, -- rows of one key are handled in order\n    "
	return key, fmt.Sprintf("%s int NOT NULL GENERATED ALWAYS AS (%s.partition_for(%s, %d)) STORED,",
		p, schema, k, q.Partitions)
}

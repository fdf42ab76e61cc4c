package consumer

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
)

// A Row is a row of the queue table.
type Row[T any] struct {
	ID        int64
	Key       string // as text; empty if the queue has no key
	Value     T      // the columns that T has fields for
	Partition int
	Epoch     int64 // of the ownership of Partition: a fencing token
	Attempt   int   // counts from 1
}

// A Handler handles rows of a queue: [Each], [InTx] or [AtLeastOnce].
type Handler[T any] struct {
	calls calls
	call  func(ctx context.Context, tx pgx.Tx, rows []Row[T]) error // Each gets one row a call
}

// calls is how a handler is called.
type calls int

const (
	each calls = iota
	inTx
	atLeastOnce
)

// oneRow reports whether a call has one row.
func (c calls) oneRow() bool { return c == each }

// inTransaction reports whether a call is in the transaction that removes its rows.
func (c calls) inTransaction() bool { return c == each || c == inTx }

// Each returns a handler of one row, in the transaction of the batch. If it returns nil, the row is
// deleted with the commit. If it returns an error, what it wrote for this row and for the rows
// after it in the batch is rolled back. The rows before it are handled again and committed. So the
// effects of a row in this database exist exactly once. Effects elsewhere may be repeated.
//
// The transaction is READ COMMITTED, and the handler must not end it. Its
// idle_in_transaction_session_timeout is that of [WithIdleTimeout]. A panic is a failure.
func Each[T any](handler func(ctx context.Context, tx pgx.Tx, row Row[T]) error) Handler[T] {
	if handler == nil {
		return Handler[T]{}
	}
	call := func(ctx context.Context, tx pgx.Tx, rows []Row[T]) error { return handler(ctx, tx, rows[0]) }
	return Handler[T]{calls: each, call: call}
}

// InTx returns a handler of a batch, in its transaction. Rows of one key are in the order of their
// IDs, and [ByKey] returns them by key. If the handler fails, everything is rolled back. It may
// return [RowError] to say which row failed. Otherwise smaller batches find that row, even if it
// returns [Snooze] or [Discard]. In all else it is like Each.
func InTx[T any](handler func(ctx context.Context, tx pgx.Tx, rows []Row[T]) error) Handler[T] {
	return Handler[T]{calls: inTx, call: handler}
}

// AtLeastOnce returns a handler of a batch, for effects elsewhere. It is called outside of a
// transaction, without a connection. If it returns nil, the rows are deleted under guard. Those
// that were changed meanwhile stay, and are handled again. If the process crashes after the call,
// the rows are handled again. A process that lost its partition may still be publishing. A receiver
// that drops lower epochs of a partition sees each key in order all the same.
func AtLeastOnce[T any](handler func(ctx context.Context, rows []Row[T]) error) Handler[T] {
	if handler == nil {
		return Handler[T]{}
	}
	call := func(ctx context.Context, _ pgx.Tx, rows []Row[T]) error { return handler(ctx, rows) }
	return Handler[T]{calls: atLeastOnce, call: call}
}

// ByKey returns the rows of a batch by key, so that a handler can work on keys side by side. The
// rows of each key keep their order.
func ByKey[T any](rows []Row[T]) [][]Row[T] {
	places, all := make(map[string]int), [][]Row[T]{}
	for _, r := range rows {
		place, found := places[r.Key]
		if !found {
			place = len(all)
			places[r.Key], all = place, append(all, nil)
		}
		all[place] = append(all[place], r)
	}
	return all
}

// RowError returns an error for a handler of a batch to return. It says that row i is the cause,
// and that the rows before it have succeeded. These are committed, for which InTx is called with
// them again. err says what happens to row i. It has failed, unless err is a [Snooze], [Discard] or
// [Unavailable]. If rows come before it, and nothing is unavailable, the handler is then called
// again with a batch that begins with row i, and only that call counts.
func RowError(i int, err error) error { return worker.RowError(i, err) }

// Unavailable returns an error for a handler to return. It says that something is away that the
// handler needs, and that no row is at fault. The rows are handled again after a pause, which grows
// from 100 ms to 1 min, and no attempt is counted.
func Unavailable(err error) error { return worker.Unavailable(err) }

// Discard returns an error for a handler to return. It says that the row has failed, and that
// another attempt would fail too. So the policy of [WithOnFailure] applies at once, whatever
// [WithMaxAttempts] says.
func Discard(err error) error { return worker.Discard(err) }

// Snooze returns an error for a handler to return. It asks to handle the row again after d, by the
// database's clock. A negative d is 0. Its key waits, and other keys continue. This is not a failed
// attempt, and the number of snoozes has no limit. RunUntilEmpty does not wait for such a row. If
// no other rows are left, it returns [ErrBlocked].
func Snooze(d time.Duration) error { return worker.Snooze(d) }

// ErrTimeout is the cause of a handler's context if the batch took longer than [WithTimeout].
var ErrTimeout = errors.New("consumer: the batch took longer than its timeout")

// A row is a Row without its type.
type row struct {
	id        int64
	partition *part
	key       string
	version   uint32 // xmin
	attempts  int    // how many have failed
	value     any    // a pointer to the value
	err       error  // why the value cannot be read; nil: it can
}

// A handler is a Handler without its type.
type handler struct {
	calls   calls
	columns []string
	read    func(pgx.CollectableRow) (any, error)
	call    func(ctx context.Context, tx pgx.Tx, rows []row) error
}

// untyped returns a handler of a table with these columns.
func untyped[T any](h Handler[T], columns []string) (*handler, error) {
	if h.call == nil {
		return nil, errors.New("handler is nil")
	}
	u := &handler{calls: h.calls, call: func(ctx context.Context, tx pgx.Tx, rows []row) error {
		all := make([]Row[T], len(rows))
		for i, r := range rows {
			all[i] = Row[T]{r.id, r.key, *r.value.(*T), r.partition.Number, r.partition.Epoch, r.attempts + 1}
		}
		return h.call(ctx, tx, all)
	}}
	switch of := reflect.TypeFor[T](); {
	case of == reflect.TypeFor[map[string]any]():
		u.columns = columns
		u.read = func(r pgx.CollectableRow) (any, error) {
			m := make(map[string]any)
			values, err := r.Values()
			for i, v := range values {
				m[r.FieldDescriptions()[i].Name] = v
			}
			return &m, err
		}
	case of.Kind() == reflect.Struct:
		u.read = func(r pgx.CollectableRow) (any, error) { return pgx.RowToAddrOfStructByName[T](r) }
		for _, column := range columns { // pgx decides which columns have fields
			if _, err := pgx.RowToStructByNameLax[T](names{column}); err == nil {
				u.columns = append(u.columns, column)
			}
		}
		if _, err := u.read(names(u.columns)); err != nil {
			return nil, fmt.Errorf("the columns of the table do not fit %v: %w", of, err)
		}
	default:
		return nil, fmt.Errorf("rows are read into %v: it must be a struct with a field for each column "+
			"that the handler needs, or a map[string]any", of)
	}
	return u, nil
}

// names are a row that has names and no values.
type names []string

func (n names) FieldDescriptions() (all []pgconn.FieldDescription) {
	for _, name := range n {
		all = append(all, pgconn.FieldDescription{Name: name})
	}
	return all
}
func (names) Scan(...any) error      { return nil }
func (names) Values() ([]any, error) { return nil, nil }
func (names) RawValues() [][]byte    { return nil }

// A rawRow is a row as it arrived. Reading a value may fail, and the other rows must be read all
// the same. It is used for all rows of a query, one after the other.
type rawRow struct {
	fields []pgconn.FieldDescription
	values [][]byte
	types  *pgtype.Map
	plans  []scanPlan // of the fields, for the destinations of the row before
}

type scanPlan struct {
	pgtype.ScanPlan
	of reflect.Type
}

func (r *rawRow) FieldDescriptions() []pgconn.FieldDescription { return r.fields }
func (r *rawRow) RawValues() [][]byte                          { return r.values }

func (r *rawRow) Scan(dest ...any) error {
	for i, d := range dest {
		field := r.fields[i]
		of := reflect.TypeOf(d)
		if r.plans[i].of != of {
			r.plans[i] = scanPlan{r.types.PlanScan(field.DataTypeOID, field.Format, d), of}
		}
		if err := r.plans[i].Scan(r.values[i], d); err != nil {
			return pgx.ScanArgError{ColumnIndex: i, FieldName: field.Name, Err: err}
		}
	}
	return nil
}

func (r *rawRow) Values() ([]any, error) {
	values := make([]any, len(r.values))
	for i, raw := range r.values {
		t, known := r.types.TypeForOID(r.fields[i].DataTypeOID)
		switch {
		case raw == nil:
		case known:
			v, err := t.Codec.DecodeValue(r.types, r.fields[i].DataTypeOID, r.fields[i].Format, raw)
			if err != nil {
				return nil, err
			}
			values[i] = v
		default:
			values[i] = string(raw)
		}
	}
	return values, nil
}

// A reading says how collect reads the rows of a query.
type reading struct {
	first []any            // destinations of the columns before those of the handler, the same for all rows
	types *pgtype.Map      // of the connection
	limit int64            // the number of bytes with which a batch is full
	begin func() error     // is called with each row; an error says why its value is not read
	add   func(any, error) // is called with the value, or with the error for which it cannot be read
	raw   [2]rawRow        // the row: its first columns, and its value
}

// collect reads the rows of a query up to that with which they have so many bytes. It returns how
// many rows there were, and how many bytes they had. Values are read by code of the application,
// which may panic or end its goroutine: that is an error of the row, and the next one is read all
// the same.
func (h *handler) collect(rows pgx.Rows, r *reading) (n int, bytes int64, err error) {
	defer rows.Close()
	for more := true; more; {
		inRow := false
		failed := handlers.Call(func() error {
			for rows.Next() {
				inRow = true
				full := bytes >= r.limit
				size, err := r.split(h, rows)
				n, bytes = n+1, bytes+size
				if err == nil && !full {
					err = r.read(h)
				}
				inRow = false
				if err != nil {
					return err
				}
			}
			more = false
			return rows.Err()
		})
		switch {
		case !more, failed != nil && !inRow:
			return n, bytes, failed
		default:
			r.add(nil, failed)
		}
	}
	return n, bytes, nil
}

// split splits a row into its first columns and its value, and returns the size of that.
func (r *reading) split(h *handler, rows pgx.Rows) (size int64, err error) {
	fields, raw := rows.FieldDescriptions(), rows.RawValues()
	at := len(r.first)
	if r.raw[0].fields == nil {
		if len(raw) != at+len(h.columns) {
			return 0, fmt.Errorf("%d columns instead of %d", len(raw), at+len(h.columns))
		}
		r.raw[0] = rawRow{fields: fields[:at], types: r.types, plans: make([]scanPlan, at)}
		r.raw[1] = rawRow{fields: fields[at:], types: r.types, plans: make([]scanPlan, len(h.columns))}
	}
	r.raw[0].values, r.raw[1].values = raw[:at], raw[at:]
	for _, v := range raw[at:] {
		size += int64(len(v))
	}
	return size, nil
}

// read reads a row that was split.
func (r *reading) read(h *handler) error {
	if err := r.raw[0].Scan(r.first...); err != nil {
		return err
	}
	value, unreadable := any(nil), r.begin()
	if unreadable == nil {
		value, unreadable = h.decode(&r.raw[1])
	}
	r.add(value, unreadable)
	return nil
}

// decode reads a value. A panic is an error.
func (h *handler) decode(row pgx.CollectableRow) (value any, err error) {
	defer handlers.Caught(&err)
	value, err = h.read(row)
	return value, copied(err)
}

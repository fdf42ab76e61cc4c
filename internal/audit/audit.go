// Package audit replays what a live database has recorded, and finds what must never happen in it:
// two owners of a partition, an epoch that falls, a tick or a job with two outcomes or without one.
//
//	report, err := audit.Run(ctx, pool, "pgleases", 24*time.Hour)
//
// It reads in one read-only transaction, so all records are of one moment, and needs the rights of
// a reader. Rows are checked as they arrive. Memory grows with partitions, client IDs and groups of
// schedules, not with events or entries.
//
// A record says less than an observer saw. So a check convicts only what no order of events can
// explain, and the report says which part of the period the records do not cover. Times of records
// are compared with a minute of tolerance.
package audit

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/audit/sql"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// tolerance is how much the time of a record may differ from the order of the records: a statement
// takes its time before others that commit earlier, and a promoted server may have a slower clock.
const tolerance = time.Minute

// A Report is a certificate if it has no violation.
type Report struct {
	Schema    string     `json:"schema"`
	From      time.Time  `json:"from"`
	Until     time.Time  `json:"until"`
	Parts     []Part     `json:"parts"`
	Violation *Violation `json:"violation,omitempty"` // the first that was found
}

// A Part is what was checked of one kind of records.
type Part struct {
	Name      string    `json:"name"`
	From      time.Time `json:"from"` // the records cover the period from here on
	Counts    []Count   `json:"counts"`
	Unchecked []string  `json:"unchecked"` // what could not be checked, and why
}

// A Count says how many things were checked.
type Count struct {
	Number int64  `json:"number"`
	Of     string `json:"of"`
}

// A Violation is what must never happen, with the fewest records that show it.
type Violation struct {
	Part    string   `json:"part"`
	Subject string   `json:"subject"` // a partition, schedule, job, lock or row
	Text    string   `json:"text"`
	Records []string `json:"records"`
}

func (p *Part) count(number int64, of string) { p.Counts = append(p.Counts, Count{number, of}) }

func (p *Part) unchecked(format string, args ...any) {
	p.Unchecked = append(p.Unchecked, fmt.Sprintf(format, args...))
}

// violation is a Violation on its way to the report.
type violation struct{ Violation }

func (v *violation) Error() string { return v.Subject + ": " + v.Text }

func violated(subject, text string, records ...string) error {
	return &violation{Violation{Subject: subject, Text: text, Records: records}}
}

// An auditor reads in one transaction.
type auditor struct {
	tx     pgx.Tx
	text   func(name string) string
	period period
}

// A period is what the records can cover.
type period struct {
	now, installed       time.Time
	kept                 *float64
	firstAt              *time.Time
	firstID              *int64
	schedules, consumers bool
	generation           int64
	from                 time.Time
}

// settings are those of the transaction. It waits 1 s for a locked table, and uses no function or
// operator of another user in place of the system's.
const settings = "SET LOCAL search_path = pg_catalog, pg_temp; SET LOCAL timezone = UTC; SET LOCAL jit = off; " +
	"SET LOCAL lock_timeout = 1000; SET LOCAL statement_timeout = 0"

// Run checks the records of the last part of the time, as long as since. It returns an error if it
// could not.
func Run(ctx context.Context, pool *pgxpool.Pool, schema string, since time.Duration) (*Report, error) {
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	var r *Report
	err := pgx.BeginTxFunc(ctx, pool, options, func(tx pgx.Tx) (err error) {
		r, err = within(ctx, tx, schema, since)
		return err
	})
	if err != nil {
		return nil, failure(schema, err)
	}
	return r, nil
}

// within is Run in a transaction.
func within(ctx context.Context, tx pgx.Tx, schema string, since time.Duration) (*Report, error) {
	if _, err := tx.Conn().PgConn().Exec(ctx, settings).ReadAll(); err != nil {
		return nil, err
	}
	a := &auditor{tx: tx, text: store.Texts(sql.Files, schema)}
	r := &Report{Schema: schema}
	return r, a.run(ctx, r, since)
}

func (a *auditor) run(ctx context.Context, r *Report, since time.Duration) error {
	p := &a.period
	err := a.tx.QueryRow(ctx, a.text("period")).Scan(&p.now, &p.installed, &p.kept, &p.firstAt, &p.firstID,
		&p.schedules, &p.consumers, &p.generation)
	if err != nil {
		return err
	}
	r.Until = p.now.UTC()
	r.From = r.Until.Add(-since)
	p.from = when.Later(r.From, p.installed.UTC())
	for _, part := range []struct {
		name  string
		has   bool
		check func(context.Context, *Part) error
	}{
		{"leases", true, a.checkLeases},
		{"locks", true, a.checkLocks},
		{"schedules", p.schedules, a.checkTicks},
		{"jobs", p.schedules, a.checkJobs},
		{"consumers", p.consumers, a.checkConsumers},
	} {
		if !part.has {
			continue
		}
		done := Part{Name: part.name, From: p.from, Counts: []Count{}, Unchecked: []string{}}
		err := part.check(ctx, &done)
		r.Parts = append(r.Parts, done)
		var found *violation
		if errors.As(err, &found) {
			found.Part = part.name
			r.Violation = &found.Violation
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// each calls one for each row of a statement, as the rows arrive.
func (a *auditor) each(ctx context.Context, name string, one func(rows pgx.Rows) error, args ...any) error {
	rows, err := a.tx.Query(ctx, a.text(name), args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := one(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// failure adds a remedy to an error.
func failure(schema string, err error) error {
	remedy := ""
	switch code := store.Code(err); {
	case store.Undefined(err):
		const text = "schema %q is missing in this database, or too old: name it with --schema, or migrate it"
		remedy = fmt.Sprintf(text, schema)
	case store.Denied(err):
		remedy = fmt.Sprintf("give the role what pgleases grants ROLE --for=reader prints for schema %q", schema)
	case store.LockTimeout(err):
		remedy = "another transaction has locked a table: pgleases doctor names it"
	case code == "40001", code == "57014":
		remedy = "on a standby, raise max_standby_streaming_delay, or audit a shorter period"
	default:
		return fmt.Errorf("audit schema %q: %w", schema, err)
	}
	return fmt.Errorf("audit schema %q: %w; %s", schema, err, remedy)
}

// stamp returns a time as records show it.
func stamp(at time.Time) string { return at.UTC().Format("2006-01-02 15:04:05.000000") }

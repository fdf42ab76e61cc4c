//go:build unix

// Package queues is the oracle of queue tables. It compares the rows that were committed to a queue
// with what became of them, and with what the handlers did. [Read] reads all that, and
// [Ledger.Check] returns the violations by kind.
package queues

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/proof/faults"
)

// A Ledger has the rows that were committed to a queue, what became of them, and what the
// handlers did.
type Ledger struct {
	Outside  bool // the effects are outside the database: each row is handled at least once
	Promoted bool // a standby was promoted that may have missed commits
	// When the primary before was killed. Rows that were deleted in the commits that were missed come
	// back, behind later ones.
	Killed   time.Time
	Attempts int // of a row that does not fail, at most; 0: any number, because faults charge rows
	written  map[string]written
	left     map[string]bool      // rows in the queue
	dead     map[string]time.Time // dead letters
	handled  []effect             // in order
}

// A written is a committed row.
type written struct {
	ID                   int64
	Customer, Name, Kind string
	Version              int
	Deleted              bool
}

// An effect is what a handler wrote about a row.
type effect struct {
	ID                           int64
	Customer, Name, Kind, Worker string
	Version, Partition           int
	Epoch                        int64
	Attempt                      int
	At                           time.Time
	Transaction                  int64
	Committed                    time.Time
}

func (h effect) String() string {
	at := h.At.UTC().Format("15:04:05.000000")
	return fmt.Sprintf("row %d of key %s (%s), attempt %d, by %s in partition %d@%d, at %s in transaction %d",
		h.ID, h.Customer, h.Kind, h.Attempt, h.Worker, h.Partition, h.Epoch, at, h.Transaction)
}

// The kinds of violations.
const (
	Twice     = "handled twice"
	Lost      = "lost"
	Remains   = "left in the queue"
	Phantom   = "handled, but never committed"
	Disorder  = "out of order"
	AtOnce    = "two of one key at once"
	Overtaken = "a blocked row was overtaken"
	Outdated  = "handled in an old version only"
	Deleted   = "handled after it was deleted"
	Zombie    = "handled after a newer epoch"
	HalfDone  = "a failed attempt left its effect"
	Charged   = "charged for a failure that is not its own"
)

// A Querier is a pool, a connection or a transaction.
type Querier interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}

// Structs returns the rows of a query as structs, by position.
func Structs[T any](ctx context.Context, db Querier, query string) ([]T, error) {
	rows, _ := db.Query(ctx, query) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// Read reads the tables. receiver has the effects outside. Without a receiver, effects are in the
// database.
func Read(ctx context.Context, pool, receiver *pgxpool.Pool) (*Ledger, error) {
	l := &Ledger{
		written: make(map[string]written),
		left:    make(map[string]bool),
		dead:    make(map[string]time.Time),
		Outside: receiver != nil,
	}
	oneSnapshot := pgx.TxOptions{IsoLevel: pgx.RepeatableRead} // workers continue
	err := pgx.BeginTxFunc(ctx, pool, oneSnapshot, func(tx pgx.Tx) error { return l.read(ctx, tx, receiver) })
	return l, err
}

const (
	deadRows = `
		SELECT name, at FROM app.dead
		UNION ALL SELECT content ->> 'name', died_at FROM pgleases.consumer_dead_letters`
	handledRows = `
		SELECT id, customer, name, kind, worker, version, partition, epoch, attempt, at, xmin::text::bigint, %s
		FROM handled ORDER BY n`
)

func (l *Ledger) read(ctx context.Context, tx pgx.Tx, receiver *pgxpool.Pool) error {
	committed, err := Structs[written](ctx, tx, "SELECT id, customer, name, kind, version, deleted FROM app.written")
	if err != nil {
		return err
	}
	for _, w := range committed {
		l.written[w.Name] = w
	}
	left, err := Structs[struct{ Name string }](ctx, tx, "SELECT name FROM app.outbox")
	if err != nil {
		return err
	}
	for _, row := range left {
		l.left[row.Name] = true
	}
	dead, err := Structs[struct {
		Name string
		At   time.Time
	}](ctx, tx, deadRows)
	if err != nil {
		return err
	}
	for _, d := range dead {
		l.dead[d.Name] = d.At
	}
	if l.Outside {
		l.handled, err = Structs[effect](ctx, receiver, fmt.Sprintf(handledRows, "at"))
	} else {
		l.handled, err = Structs[effect](ctx, tx, fmt.Sprintf(handledRows, "pg_xact_commit_timestamp(xmin)"))
	}
	return err
}

// Check returns descriptions of all violations, by kind. The promise is that there are none.
func (l *Ledger) Check() map[string][]string {
	found := make(map[string][]string)
	add := func(kind, format string, args ...any) {
		found[kind] = append(found[kind], fmt.Sprintf(format, args...))
	}
	committed := map[int64]bool{} // transactions that a handler committed itself
	for _, h := range l.handled {
		committed[h.Transaction] = committed[h.Transaction] || h.Kind == faults.CommitsItself && !l.Outside
	}
	spoiled := map[string]bool{} // by name, rows of these transactions: nobody can know what to do with them
	for _, h := range l.handled {
		spoiled[h.Name] = spoiled[h.Name] || committed[h.Transaction]
	}
	stays := map[string]int64{} // by key, the first row that may stay
	first := map[string]int64{} // by key, the first row that is left
	for name := range l.left {
		w := l.written[name]
		lower(first, w)
		if poisoned(w) || spoiled[name] {
			lower(stays, w)
		}
	}
	dead := map[string][]written{}
	for name := range l.dead {
		dead[l.written[name].Customer] = append(dead[l.written[name].Customer], l.written[name])
	}
	newest := map[int]int64{}       // by partition, the highest epoch so far
	previous := map[string]effect{} // by key, the row that was handled before
	last := map[string]effect{}     // by name
	for _, h := range l.handled {
		w, known := l.written[h.Name]
		switch again, seen := last[h.Name]; {
		case !known && l.Outside && l.Promoted, l.Outside && h.Epoch < newest[h.Partition]: // the receiver drops it
			continue
		case !known:
			add(Phantom, "%v", h)
			continue
		case seen && !l.Outside && !spoiled[h.Name]:
			add(Twice, "%v, and before: %v", h, again)
		case !seen:
			p, any := previous[h.Customer]
			if any && p.ID > h.ID && !(l.Outside && p.At.Before(l.Killed) && h.At.After(l.Killed)) {
				add(Disorder, "%v, but before: %v", h, p)
			}
			if any && !l.Outside && p.Transaction != h.Transaction && h.At.Before(p.Committed) {
				add(AtOnce, "%v, before the commit at %v of %v", h, p.Committed.UTC(), p)
			}
			previous[h.Customer] = h
		}
		last[h.Name] = h
		if h.Epoch < newest[h.Partition] {
			add(Zombie, "%v, after epoch %d", h, newest[h.Partition])
		}
		newest[h.Partition] = max(newest[h.Partition], h.Epoch)
		id, waits := first[h.Customer]
		if waits && h.ID > id && !spoiled[h.Name] {
			add(Overtaken, "%v, but row %d is still in the queue", h, id)
		}
		for _, d := range dead[h.Customer] {
			if d.ID < h.ID && h.At.Before(l.dead[d.Name]) {
				add(Overtaken, "%v, but row %d became a dead letter later, at %v", h, d.ID, l.dead[d.Name].UTC())
			}
		}
		if w.Deleted && !l.Outside && !spoiled[h.Name] {
			add(Deleted, "%v", h)
		}
		most := l.Attempts
		if h.Kind == faults.FailsThrice {
			most = max(most, 4)
		}
		switch {
		case spoiled[h.Name]:
		case poisoned(w):
			add(HalfDone, "%v", h)
		case l.Attempts > 0 && h.Attempt > most:
			add(Charged, "%v", h)
		}
	}
	for name, w := range l.written {
		h, handled := last[name]
		_, isDead := l.dead[name]
		stay, blocked := stays[w.Customer]
		switch {
		case l.left[name]:
			if !blocked || w.ID < stay {
				add(Remains, "row %d of key %s (%s)", w.ID, w.Customer, w.Kind)
			}
		case isDead:
			if !poisoned(w) {
				add(Charged, "row %d of key %s (%s) became a dead letter", w.ID, w.Customer, w.Kind)
			}
		case w.Deleted:
		case !handled:
			add(Lost, "row %d of key %s (%s)", w.ID, w.Customer, w.Kind)
		case h.Version != w.Version:
			add(Outdated, "%v: version %d, but its last one is %d", h, h.Version, w.Version)
		}
	}
	return found
}

// lower makes a row the one with the lowest ID of its key, if it is.
func lower(lowest map[string]int64, w written) {
	id, known := lowest[w.Customer]
	if !known || w.ID < id {
		lowest[w.Customer] = w.ID
	}
}

// poisoned reports whether a row must never be handled.
func poisoned(w written) bool {
	return w.Kind == faults.FailsAlways || w.Kind == faults.KillsProcess || w.Kind == faults.CommitsItself
}

// Rows returns how many rows were committed to the queue, and Handled how often one was handled.
func (l *Ledger) Rows() int    { return len(l.written) }
func (l *Ledger) Handled() int { return len(l.handled) }

// String describes what was checked.
func (l *Ledger) String() string {
	again := 0
	for _, h := range l.handled {
		again += min(1, h.Attempt-1)
	}
	return fmt.Sprintf("%d rows, handled %d times, %d of these in a later attempt; %d left, %d dead letters",
		len(l.written), len(l.handled), again, len(l.left), len(l.dead))
}

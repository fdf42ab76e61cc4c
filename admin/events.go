package admin

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/admin/sql"
	"github.com/pgleases/pgleases/internal/store"
)

// An Event is what happened to members and partitions, and why.
type Event struct {
	At         time.Time `json:"at"`
	Lease      string    `json:"lease"`               // empty: it is about all leases
	Cause      string    `json:"cause"`               // what happened, see docs/operations.md
	Actor      string    `json:"actor,omitempty"`     // who asked for it; empty: nobody, the clients do it by themselves
	Reason     string    `json:"reason,omitempty"`    // why, in the words of the actor
	From       string    `json:"from"`                // the client that owned the partitions, left or was evicted; empty: none
	To         string    `json:"to"`                  // the client that owns them from then on, or joined; empty: none
	Partitions Ranges    `json:"partitions"`          // of which it tells
	Generation int64     `json:"generation,omitzero"` // the lease's before it

	tx string
	id int64
}

// eventPage is how many events are read at once.
const eventPage = 1000

// Events returns the last events of a lease, the oldest of them first; at most that many, 1 to 1000. An empty name: of all leases.
func (a *Admin) Events(ctx context.Context, lease string, most int) (events []Event, err error) {
	if most < 1 || most > eventPage {
		return nil, fmt.Errorf("admin: %d events is out of range: 1 to %d", most, eventPage)
	}
	err = reading(ctx, a.pool, func(tx pgx.Tx) (err error) {
		events, err = a.lastEvents(ctx, tx, lease, most, nil)
		return err
	})
	return events, a.failure("read the events", err)
}

// ErrAway is what Follow yields where the database does not answer as it should, or not now, as while it restarts or another takes its place.
var ErrAway = errors.New("admin: the connection was lost")

// mostPause is the longest time between two looks of Follow while the database is away, in so far as the interval is no longer.
const mostPause = 5 * time.Second

// Follow returns the last events as Events does, at most that many, 0 to 1000, then those that come, until ctx ends or the loop does: it
// looks each second, see WithInterval. Each event comes once, also where one is committed later than another with a higher number: so an
// event waits for the transactions that were open when it was written, anywhere on the server.
//
// Where a look after the first fails, and may succeed later, it yields ErrAway, once until one succeeds, and where the loop goes on it
// looks again, after pauses that grow to 5 s, and goes on from the last event. A promoted server may lack events that were there: then it
// goes on from the last that this one has too. Any other error ends it, as that of a password which is not the right one any more.
func (a *Admin) Follow(ctx context.Context, lease string, most int) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if most < 0 || most > eventPage {
			yield(Event{}, fmt.Errorf("admin: %d events is out of range: 0 to %d", most, eventPage))
			return
		}
		f := follower{admin: a, text: store.Texts(sql.Files, a.options.schema)}
		page, err := f.first(ctx, lease, most)
		away, pause := false, a.options.interval
		for first := true; ; first = false {
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				away, pause = false, a.options.interval
			case first || !store.Transient(err):
				yield(Event{}, a.failure("follow the events", err))
				return
			default:
				if !away && !yield(Event{}, fmt.Errorf("%w: %w", ErrAway, a.failure("follow the events", err))) {
					return
				}
				away, pause = true, max(a.options.interval, min(2*pause, mostPause))
			}
			for _, e := range page {
				if (lease == "" || e.Lease == lease) && !yield(e, nil) {
					return
				}
			}
			if first || len(page) < eventPage {
				select {
				case <-time.After(pause):
				case <-ctx.Done():
					return
				}
			}
			page, err = f.next(ctx, away)
		}
	}
}

// A follower knows where the next look goes on.
type follower struct {
	admin  *Admin
	text   func(string) string
	server time.Time // when it started, by which it is known
	last   Event
	seen   []Event // the latest, without what they tell
}

// look has f read within the time that a look may take, also where the server says nothing any more.
func (f *follower) look(ctx context.Context, read func(ctx context.Context, tx pgx.Tx) ([]Event, error)) (page []Event, err error) {
	limited, cancel := context.WithTimeout(ctx, answers+f.admin.options.interval)
	defer cancel()
	err = reading(limited, f.admin.pool, func(tx pgx.Tx) (err error) {
		page, err = read(limited, tx)
		return err
	})
	if err != nil {
		return nil, err
	}
	for _, e := range page {
		f.seen = append(f.seen, Event{tx: e.tx, id: e.id, At: e.At})
	}
	f.seen = slices.Clone(f.seen[max(0, len(f.seen)-eventPage):])
	return page, nil
}

func (f *follower) first(ctx context.Context, lease string, most int) ([]Event, error) {
	return f.look(ctx, func(ctx context.Context, tx pgx.Tx) (page []Event, err error) {
		// all below it is there, and nothing is added
		err = tx.QueryRow(ctx, "SELECT pg_postmaster_start_time(), pg_snapshot_xmin(pg_current_snapshot())::text").Scan(&f.server, &f.last.tx)
		if err == nil && most > 0 {
			page, err = f.admin.lastEvents(ctx, tx, lease, most, &f.last.tx)
		}
		return page, err
	})
}

// next returns what came. The server may be another than before, also where no look has failed: pools open new connections by themselves.
func (f *follower) next(ctx context.Context, away bool) ([]Event, error) {
	last, server := f.last, f.server
	page, err := f.look(ctx, func(ctx context.Context, tx pgx.Tx) ([]Event, error) {
		if err := tx.QueryRow(ctx, "SELECT pg_postmaster_start_time()").Scan(&server); err != nil {
			return nil, err
		}
		if away || !server.Equal(f.server) {
			txs, ids, times := make([]string, len(f.seen)), make([]int64, len(f.seen)), make([]time.Time, len(f.seen))
			for i, e := range f.seen {
				txs[i], ids[i], times[i] = e.tx, e.id, e.At
			}
			if err := tx.QueryRow(ctx, f.text("eventsagain"), last.tx, last.id, txs, ids, times).Scan(&last.tx, &last.id); err != nil {
				return nil, err
			}
		}
		rows, _ := tx.Query(ctx, f.text("eventsafter"), last.tx, last.id, eventPage) // CollectRows returns its error
		return pgx.CollectRows(rows, scanEvent)
	})
	if err != nil {
		return nil, err
	}
	if n := len(page); n > 0 {
		last = page[n-1]
	}
	f.last, f.server = last, server
	return page, nil
}

// lastEvents are those of Events; below: only what is below that transaction, or of another server.
func (a *Admin) lastEvents(ctx context.Context, tx pgx.Tx, lease string, most int, below *string) ([]Event, error) {
	rows, _ := tx.Query(ctx, store.Texts(sql.Files, a.options.schema)("events"), lease, most, below) // CollectRows returns its error
	events, err := pgx.CollectRows(rows, scanEvent)
	slices.Reverse(events)
	return events, err
}

func scanEvent(row pgx.CollectableRow) (e Event, err error) {
	var partitions string
	if err := row.Scan(&e.tx, &e.id, &e.At, &e.Lease, &e.Cause, &e.Actor, &e.Reason, &e.From, &e.To, &partitions, &e.Generation); err != nil {
		return e, err
	}
	if partitions != "" && partitions != "{}" {
		e.Partitions, err = parseRanges(partitions)
	}
	return e, err
}

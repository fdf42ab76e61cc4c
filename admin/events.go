package admin

import (
	"context"
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

// Follow returns the last events as Events does, at most that many, 0 to 1000, then those that come, until ctx ends or the loop does: it looks each second, see
// WithInterval. Each event comes once, also where one is committed later than another with a higher number: so an event waits for the transactions that were open
// when it was written, anywhere on the server. An error ends it.
func (a *Admin) Follow(ctx context.Context, lease string, most int) iter.Seq2[Event, error] {
	return func(yield func(Event, error) bool) {
		if most < 0 || most > eventPage {
			yield(Event{}, fmt.Errorf("admin: %d events is out of range: 0 to %d", most, eventPage))
			return
		}
		var last Event // where the next look goes on
		var page []Event
		err := reading(ctx, a.pool, func(tx pgx.Tx) (err error) {
			err = tx.QueryRow(ctx, "SELECT pg_snapshot_xmin(pg_current_snapshot())::text").Scan(&last.tx) // all below it is there, and nothing is added
			if err == nil && most > 0 {
				page, err = a.lastEvents(ctx, tx, lease, most, &last.tx)
			}
			return err
		})
		after := store.Texts(sql.Files, a.options.schema)("eventsafter")
		tick := time.NewTicker(a.options.interval)
		defer tick.Stop()
		for first := true; ; first = false {
			for _, e := range page {
				if (lease == "" || e.Lease == lease) && !yield(e, nil) {
					return
				}
			}
			if err == nil && (first || len(page) < eventPage) {
				select {
				case <-tick.C:
				case <-ctx.Done():
				}
			}
			if ctx.Err() == nil && err == nil {
				err = reading(ctx, a.pool, func(tx pgx.Tx) (err error) {
					rows, _ := tx.Query(ctx, after, last.tx, last.id, eventPage) // CollectRows returns its error
					page, err = pgx.CollectRows(rows, scanEvent)
					return err
				})
			}
			if ctx.Err() != nil {
				return
			}
			if err != nil {
				yield(Event{}, a.failure("follow the events", err))
				return
			}
			if n := len(page); n > 0 {
				last = page[n-1]
			}
		}
	}
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

package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
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
	ID         string    `json:"id"`                  // names it among those of one server
}

// eventPage is how many events are read at once.
const eventPage = 1000

// Events returns the last events of a lease, the oldest of them first; at most that many, 1 to
// 1000. An empty name: of all leases.
func (a *Admin) Events(ctx context.Context, lease string, most int) (events []Event, err error) {
	if most < 1 || most > eventPage {
		return nil, fmt.Errorf("admin: %d events is out of range: 1 to %d", most, eventPage)
	}
	events, err = collect(ctx, a, a.pool, "events", pgx.RowTo[Event], lease, most)
	slices.Reverse(events)
	return events, a.failure("read the events", err)
}

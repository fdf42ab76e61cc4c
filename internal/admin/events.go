package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// An Event is a change of members or partitions, or what an operator did, with its cause.
type Event struct {
	At     time.Time `json:"at"`
	Lease  string    `json:"lease"`            // empty: all leases
	Cause  string    `json:"cause"`            // the kind of event, see docs/operations.md
	Actor  string    `json:"actor,omitempty"`  // the operator; empty: the clients did it themselves
	Reason string    `json:"reason,omitempty"` // the actor's reason; if evicted, host and pid of the process
	// The client that owned the partitions, left or was evicted; empty: no client.
	From string `json:"from"`
	// The client that owns them from then on, or joined; empty: no client.
	To         string `json:"to"`
	Partitions Ranges `json:"partitions"`           // the partitions that changed
	Generation int64  `json:"generation,omitzero"`  // of the lease before the event; or of the server
	Row        *int64 `json:"row,string,omitempty"` // of a verb on one row of a consumer, or on one job: its ID
	Rows       int    `json:"rows,omitzero"`        // of a verb on rows of a consumer, or on jobs: how many
	Name       string `json:"name,omitempty"`       // of a verb on a schedule or a job: the name that it has
	// What else a verb on schedules or jobs was given, for example the range of a backfill.
	Args map[string]string `json:"args,omitempty"`
	ID   string            `json:"id"` // unique on one server
}

// Causes are the causes of events. docs/operations.md explains them, in the same order.
var Causes = []string{
	"joined", "left", "handed over", "given", "evicted", "awaited", "over ceilings", "accepted",
	"new generation", "no live client", "dropped", "replaced", "replaces", "drain", "undrain", "cordon",
	"uncordon", "pause", "resume", "freeze", "unfreeze", "pin", "unpin", "evict", "consumer paused",
	"consumer resumed", "consumer deleted", "row retried", "rows retried", "row skipped", "row returned",
	"schedule paused", "schedule resumed", "schedule deleted", "schedule triggered",
	"schedule backfilled", "tick retried", "job retried", "jobs retried", "job canceled",
}

// eventPage is the maximum number of events that one call reads.
const eventPage = 1000

// Events returns the latest events of a lease, or of all leases if its name is empty: at most most
// of them, 1 to 1000. The oldest is first.
func (a *Admin) Events(ctx context.Context, lease string, most int) (events []Event, err error) {
	if most < 1 || most > eventPage {
		return nil, fmt.Errorf("pgleases: %d events is out of range: 1 to %d", most, eventPage)
	}
	events, err = collect(ctx, a, a.pool, "events", pgx.RowTo[Event], lease, most)
	slices.Reverse(events)
	return events, a.failure("read the events", err)
}

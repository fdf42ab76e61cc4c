package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/ranges"
)

// shortestTrip returns the shortest of 5 round trips.
func (d *doctor) shortestTrip(ctx context.Context) (least time.Duration, err error) {
	for range 5 {
		began := time.Now()
		_, failure := d.conn.Conn().PgConn().Exec(ctx, "SELECT 1").ReadAll()
		took := time.Since(began)
		least = min(cmp.Or(least, took), took)
		err = cmp.Or(err, failure)
	}
	return least, err
}

// clientsByTTL returns the number of clients with each TTL.
func (d *doctor) clientsByTTL() map[time.Duration]int {
	clients := make(map[time.Duration]int)
	for _, c := range d.snapshot.Clients {
		clients[c.TTL]++
	}
	return clients
}

// roundTrip checks what the library requires: a client whose round trips take longer than half the
// margin cannot watch the clock.
func (d *doctor) roundTrip(context.Context) {
	shortest := 6 * time.Second // the default
	ttls := slices.Sorted(maps.Keys(d.clientsByTTL()))
	if len(ttls) > 0 {
		shortest = ttls[0]
	}
	most := max(shortest/20, 100*time.Millisecond) / 2
	trip := d.trip.Round(10 * time.Microsecond)
	if trip >= most {
		d.found(LevelWarning, "run clients closer to the database, or set a longer TTL",
			"%v from here; from %v on, for a TTL of %v, a client cannot take over from expired sessions",
			trip, most, shortest)
	}
	d.fine("%v from here, %v would be too long", trip, most)
}

func (d *doctor) ttls(context.Context) {
	clients := d.clientsByTTL()
	if len(clients) > 1 {
		var all []string
		for _, ttl := range slices.Sorted(maps.Keys(clients)) {
			all = append(all, fmt.Sprintf("%v (%d)", ttl, clients[ttl]))
		}
		d.found(LevelWarning, "give all clients the same, see docs/sizing.md", "they differ: %s", listed(all))
	}
	d.fine("%s, with one TTL", ranges.Many(len(d.snapshot.Clients), "client"))
}

// joins reports clients that cannot join a lease again.
func (d *doctor) joins(context.Context) {
	var all []string
	for _, c := range d.snapshot.Clients {
		for _, lease := range slices.Sorted(maps.Keys(c.Refused)) {
			all = append(all, fmt.Sprintf("client %q, host %s, pid %d, has %d partitions of %q",
				c.ID, c.Host, c.PID, c.Refused[lease], lease))
		}
	}
	if len(all) > 0 {
		d.found(LevelWarning, "start their processes again with the number that the lease has",
			"%s, and the lease has another number: they cannot join it again", listed(all))
	}
	d.fine("no client is refused a lease that it had joined")
}

// silent returns the clients that are expired for long, and not evicted, with their last heartbeat.
func (d *doctor) silent() (ids []string) {
	for _, c := range d.snapshot.Clients {
		if c.Expired && c.HeartbeatAge > c.TTL+d.Long {
			last := when("since", d.snapshot.At.Add(-c.HeartbeatAge), d.snapshot.At)
			ids = append(ids, fmt.Sprintf("client %q%s", c.ID, last))
		}
	}
	return ids
}

// expired reports sessions that have expired, and clients that were evicted: those that are not
// replaced, and those of the last 10 minutes that have not come back.
func (d *doctor) expired(context.Context) {
	silent := d.silent()
	if len(silent) > 0 {
		remedy := "start one: no client is live, and the partitions of the expired ones move only to a live client"
		if d.rowsLocked() {
			remedy = "end what row-locks names"
		} else if d.snapshot.live("") {
			remedy = "search the logs of the live clients for evict: it fails, or their round trips are too slow"
		}
		d.found(LevelWarning, remedy,
			"silent for longer than their TTL, and not evicted: %s", listed(silent))
	}
	d.evicted()
	d.fine("no session is expired")
}

func (d *doctor) evicted() {
	const remedy = "on that host: if the process is frozen (state T in ps), continue it or kill -9 it; " +
		"if it has ended, and nothing has started it again, start it"
	var missing, recent []string
	known := make(map[string]bool)
	level := LevelNote // for a short time, because it may start again
	for _, l := range d.snapshot.losses(d.lately) {
		known[l.ID] = true
		missing = append(missing, l.String()+when("since", l.At, d.snapshot.At))
		if d.snapshot.At.Sub(l.At) > d.Long {
			level = LevelWarning
		}
	}
	for _, e := range d.lately {
		of := e.Cause == causeEvicted && !known[e.ID] && d.snapshot.At.Sub(e.At) < 10*time.Minute
		if of && !d.snapshot.live(e.From) {
			recent = append(recent, fmt.Sprintf("client %q, %s,%s", e.From, e.Reason, when("at", e.At, d.snapshot.At)))
		}
	}
	if len(missing) > 0 {
		d.found(level, remedy, "evicted and not replaced: %s", listed(missing))
	}
	if len(recent) > 0 {
		d.found(LevelNote, remedy, "evicted in the last 10 min, and not back: %s", listed(recent))
	}
}

// clientIDs reports client IDs that live processes take from each other.
func (d *doctor) clientIDs(ctx context.Context) {
	type contended struct {
		ID        string
		Takeovers int
		Processes string
	}
	ids, err := collect(ctx, d.Admin, d.conn, "ids", pgx.RowToStructByPos[contended])
	if err != nil {
		d.found(LevelNote, "see the log of the server", "cannot read them: %v", err)
	}
	var all []string
	for _, c := range ids {
		all = append(all, fmt.Sprintf("processes with the client ID %q have ended each other %d times, "+
			"within 5 min each time: %s", c.ID, c.Takeovers, c.Processes))
	}
	if len(all) > 0 {
		d.found(LevelWarning, "give every live process an ID of its own (WithClientID, pgleases run --id), "+
			"or leave the option out; see docs/kubernetes.md", "%s", listed(all))
	}
	d.fine("no live processes share one")
}

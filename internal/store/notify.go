package store

import (
	"context"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/connect"
)

// Any role may notify the channel, without end: PostgreSQL has no right for that. So what arrives
// is never queued, and a client is told to read at most readsAtOnce times in quick succession, as
// at a handoff of many partitions one by one, and then once in readEvery.
const (
	readEvery   = 100 * time.Millisecond
	readsAtOnce = 20
)

// notices is what the notifications on a connection come to, whatever their number: whether to
// read, and when. pgx calls heard in the goroutine that uses the connection. It takes the place of
// pgx's own queue, which would hold each notification in memory.
type notices struct {
	channel string    // the schema's name
	session string    // the client's, as notifications name it
	readAt  time.Time // zero: nothing was heard that concerns the session
	paid    time.Time // the reads until now would end here, one in readEvery

	locks   string  // the channel of locks that the session awaits; empty: it listens to none
	granted []int64 // nonces that were heard there, at most grantsAtOnce
}

// grantsAtOnce is the most nonces that are kept until they are fetched: what else is granted at
// once, the next heartbeat finds.
const grantsAtOnce = 1000

func (n *notices) heard(_ *pgconn.PgConn, note *pgconn.Notification) {
	switch {
	case note.Channel == n.locks:
		if nonce, err := strconv.ParseInt(note.Payload, 10, 64); err == nil && len(n.granted) < grantsAtOnce {
			n.granted = append(n.granted, nonce)
		}
	case note.Channel != n.channel:
	case note.Payload == "all":
		if n.readAt.IsZero() {
			n.readAt = n.earliest(rand.N(100 * time.Millisecond)) // else all sessions would read at the same instant
		}
	case names(note.Payload, n.session):
		if at := n.earliest(0); n.readAt.IsZero() || at.Before(n.readAt) {
			n.readAt = at
		}
	}
}

// names reports whether a payload, numbers with commas between, has the number.
func names(payload, number string) bool {
	for name := range strings.SplitSeq(payload, ",") {
		if name == number {
			return true
		}
	}
	return false
}

// earliest is when a read may be told of that is wanted in so long.
func (n *notices) earliest(in time.Duration) time.Time {
	at, allowed := time.Now().Add(in), n.paid.Add(-(readsAtOnce-1)*readEvery)
	if allowed.After(at) {
		return allowed
	}
	return at
}

// told notes that a read was told of.
func (n *notices) told() {
	n.readAt = time.Time{}
	if now := time.Now(); n.paid.Before(now) {
		n.paid = now
	}
	n.paid = n.paid.Add(readEvery)
}

// concerns says which session the notifications concern from now on.
func (n *notices) concerns(session int64) { n.session = strconv.FormatInt(session, 10) }

// Wait waits until a notification has named the session that was last registered or renewed on this
// connection, and nil tells that; or one has come for GrantedLocks, and nil tells that first. The
// connection is still good when ctx has ended, and nothing that was heard is forgotten then.
func (c *Conn) Wait(ctx context.Context) error {
	ctx = connect.Waiting(ctx)
	n := c.notices
	for n.readAt.IsZero() && len(n.granted) == 0 {
		if err := c.Pgx.PgConn().WaitForNotification(ctx); err != nil {
			return err
		}
	}
	// What else arrives until it is time is taken too: left alone, it would fill the server's queue,
	// and delay the next heartbeat.
	if len(n.granted) > 0 {
		return nil
	}
	soon, cancel := context.WithDeadline(ctx, n.readAt)
	defer cancel()
	for n.readAt.After(time.Now()) && len(n.granted) == 0 {
		if err := c.Pgx.PgConn().WaitForNotification(soon); err != nil && (ctx.Err() != nil || soon.Err() == nil || c.Closed()) {
			return err
		}
	}
	if len(n.granted) == 0 {
		n.told()
	}
	return nil
}

// Listen listens for notifications, and reports whether they arrive. A pooler may accept LISTEN and
// deliver nothing, or deliver to another client of the same server connection: so the connection
// must be direct.
func (c *Conn) Listen(ctx context.Context) (bool, error) {
	if !c.Direct() {
		return false, nil
	}
	err := c.exec(ctx, "LISTEN "+pgx.Identifier{c.channel}.Sanitize())
	return err == nil, err
}

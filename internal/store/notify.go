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

// Any role may notify the channel without limit, because PostgreSQL has no right for that. So
// notifications are never queued. A client reads at most readsAtOnce times in quick
// succession, for example at a handoff of many partitions one by one, and then once in readEvery.
const (
	readEvery   = 100 * time.Millisecond
	readsAtOnce = 20
)

// notices is the result of all notifications on a connection: whether to read, and when. pgx calls
// heard in the goroutine that uses the connection. It replaces pgx's own queue, which would keep
// each notification in memory.
type notices struct {
	channel string    // the schema's name
	session string    // the client's, as notifications name it
	readAt  time.Time // zero: no notification concerned the session
	paid    time.Time // until when the reads so far use up the limit, at one per readEvery

	locks   string  // the channel of locks that the session awaits; empty: it does not listen
	granted []int64 // nonces that were received there, at most grantsAtOnce
}

// grantsAtOnce is the maximum number of nonces that are kept until they are fetched. The next
// heartbeat finds the other grants.
const grantsAtOnce = 1000

func (n *notices) heard(_ *pgconn.PgConn, note *pgconn.Notification) {
	switch {
	case note.Channel == n.locks:
		nonce, err := strconv.ParseInt(note.Payload, 10, 64)
		if err == nil && len(n.granted) < grantsAtOnce {
			n.granted = append(n.granted, nonce)
		}
	case note.Channel != n.channel:
	case note.Payload == "all":
		if n.readAt.IsZero() {
			n.readAt = n.earliest(rand.N(100 * time.Millisecond)) // otherwise all sessions would read at the same time
		}
	case names(note.Payload, n.session):
		at := n.earliest(0)
		if n.readAt.IsZero() || at.Before(n.readAt) {
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

// earliest returns when a read may be requested that is wanted after the given time.
func (n *notices) earliest(in time.Duration) time.Time {
	at, allowed := time.Now().Add(in), n.paid.Add(-(readsAtOnce-1)*readEvery)
	if allowed.After(at) {
		return allowed
	}
	return at
}

// requested notes that a read was requested.
func (n *notices) requested() {
	n.readAt = time.Time{}
	now := time.Now()
	if n.paid.Before(now) {
		n.paid = now
	}
	n.paid = n.paid.Add(readEvery)
}

// concerns sets the session that notifications concern from now on.
func (n *notices) concerns(session int64) { n.session = strconv.FormatInt(session, 10) }

// Wait waits until a notification has named the session that was last registered or renewed on this
// connection, and returns nil. It also returns nil if a notification for GrantedLocks has arrived;
// that has precedence. When ctx has ended, the connection is still good, and no received
// notification is lost.
func (c *Conn) Wait(ctx context.Context) error {
	ctx = connect.Waiting(ctx)
	n := c.notices
	for n.readAt.IsZero() && len(n.granted) == 0 {
		if err := c.Pgx.PgConn().WaitForNotification(ctx); err != nil {
			return err
		}
	}
	// Until the time of the read, Wait also receives other notifications: otherwise they would fill
	// the server's queue, and delay the next heartbeat.
	if len(n.granted) > 0 {
		return nil
	}
	soon, cancel := context.WithDeadline(ctx, n.readAt)
	defer cancel()
	for n.readAt.After(time.Now()) && len(n.granted) == 0 {
		err := c.Pgx.PgConn().WaitForNotification(soon)
		readIsDue := ctx.Err() == nil && soon.Err() != nil && !c.Closed()
		if err != nil && !readIsDue {
			return err
		}
	}
	if len(n.granted) == 0 {
		n.requested()
	}
	return nil
}

// Listen listens for notifications, and reports whether they arrive. A pooler may accept LISTEN and
// deliver no notification, or deliver it to another client of the same server connection. So the
// connection must be direct.
func (c *Conn) Listen(ctx context.Context) (bool, error) {
	if !c.Direct() {
		return false, nil
	}
	err := c.exec(ctx, "LISTEN "+pgx.Identifier{c.notices.channel}.Sanitize())
	return err == nil, err
}

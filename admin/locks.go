package admin

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
)

// Lock is a named lock that somebody holds or awaits.
type Lock struct {
	Name    string   `json:"name"`
	Shared  bool     `json:"shared"`  // its holders share it
	Holders []Holder `json:"holders"` // in the order in which they got it; none: it is on its way to the first that waits
	Waiting int      `json:"waiting"` // how many wait
}

// Holder is a client that holds a lock.
type Holder struct {
	Client       string        `json:"client"` // its ID; empty: it was taken out, and a guarded transaction under the lock is open
	Host         string        `json:"host"`
	PID          int           `json:"pid"`
	Token        int64         `json:"token,string"` // fencing token, a text in JSON, as it has up to 63 bits
	Since        time.Time     `json:"since"`        // by the database's clock
	HeartbeatAge time.Duration `json:"heartbeat_age_ns"`
	TimeLeft     time.Duration `json:"time_left_ns"` // until it may be taken out, if it falls silent; negative: it may be already
}

// lockPage is how many locks are read at once.
const lockPage = 1000

// Locks returns the named locks whose names begin with prefix, by name, byte by byte; an empty
// prefix: all. It reads some at a time, so they are not of one moment. An error ends it.
//
// Nothing here takes a lock from a client that lives: its work would go on, beside that of the next
// one. End its process.
func (a *Admin) Locks(ctx context.Context, prefix string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		for after := ""; ; {
			var page []store.LockRow
			err := a.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) (err error) {
				page, err = a.locks.List(ctx, conn.Conn(), prefix, after, lockPage)
				return err
			})
			if err != nil {
				yield(Lock{}, a.failure(fmt.Sprintf("list locks with prefix %q", prefix), err))
				return
			}
			for _, row := range page {
				l := Lock{Name: row.Name, Shared: row.Shared, Waiting: row.Waiting, Holders: make([]Holder, len(row.IDs))}
				for i, id := range row.IDs {
					l.Holders[i] = Holder{Client: id, Host: row.Hosts[i], PID: row.PIDs[i], Token: row.Tokens[i], Since: instant(row.Since[i]),
						HeartbeatAge: micros(row.Silent[i]), TimeLeft: micros(row.Lives[i])}
				}
				if !yield(l, nil) {
					return
				}
				after = row.Name
			}
			if len(page) < lockPage {
				return
			}
		}
	}
}

package admin

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// Lock is a named lock that clients hold or await.
type Lock struct {
	Name   string `json:"name"`
	Shared bool   `json:"shared"` // held in shared mode
	// In order of acquisition; empty: it is about to go to the first client that waits.
	Holders []Holder `json:"holders"`
	Waiting int      `json:"waiting"` // number of clients that wait
}

// Holder is a client that holds a lock.
type Holder struct {
	// Its ID; empty: its session was evicted, and a transaction that the lock guards is open.
	Client       string        `json:"client"`
	Host         string        `json:"host"`
	PID          int           `json:"pid"`
	Token        int64         `json:"token,string"` // fencing token; a string in JSON, because it has up to 63 bits
	Since        time.Time     `json:"since"`        // by the database's clock
	HeartbeatAge time.Duration `json:"heartbeat_age_ns"`
	// The client has lost the lock, and has not released it: nobody else gets it.
	Lost bool `json:"lost"`
	// Until its session may be evicted without another heartbeat; negative: it may be evicted now.
	TimeLeft time.Duration `json:"time_left_ns"`
}

// lockPage is the number of locks that one query reads.
const lockPage = 1000

// Locks returns the named locks whose names begin with prefix, in byte order of their names. An
// empty prefix selects all locks. It reads them in pages, so they are not of one snapshot. An error
// ends the sequence.
//
// This package cannot release a lock of a live client: the work of that client would continue
// beside the work of the next holder. End the client's process instead.
func (a *Admin) Locks(ctx context.Context, prefix string) iter.Seq2[Lock, error] {
	return func(yield func(Lock, error) bool) {
		for after := ""; ; {
			var page []store.LockRow
			err := worker.Read(ctx, nil, a.pool, func(ctx context.Context, conn *pgxpool.Conn) (err error) {
				page, err = a.locks.List(ctx, conn.Conn(), prefix, after, lockPage)
				return err
			})
			if err != nil {
				yield(Lock{}, a.failure(fmt.Sprintf("list locks with prefix %q", prefix), err))
				return
			}
			for _, row := range page {
				if !yield(lockOf(row), nil) {
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

func lockOf(row store.LockRow) Lock {
	l := Lock{Name: row.Name, Shared: row.Shared, Waiting: row.Waiting, Holders: make([]Holder, len(row.IDs))}
	for i, id := range row.IDs {
		l.Holders[i] = Holder{
			Client:       id,
			Host:         row.Hosts[i],
			PID:          row.PIDs[i],
			Token:        row.Tokens[i],
			Since:        instant(row.Since[i]),
			HeartbeatAge: micros(row.Silent[i]),
			TimeLeft:     micros(row.Lives[i]),
			Lost:         row.Lost[i],
		}
	}
	return l
}

package store

import (
	"context"
	"fmt"
)

// Fast failover: the statements.

// HoldLiveness makes the connection hold a lock for a session until it ends, under a negative key
// below the client's earlier keys. See liveness.sql.
func (c *Conn) HoldLiveness(ctx context.Context, session, presence int64) error {
	got, err := one[struct{ Taken bool }](ctx, c, c.statements.Liveness, session, presence, c.lockWait)
	if err == nil && !got.Taken {
		err = fmt.Errorf("the session has a later lock than %d", presence)
	}
	return err
}

// SessionEnds counts the sessions of the database that did not end normally, by how they ended.
type SessionEnds struct{ Abandoned, Killed, Fatal, Reset int64 }

// A Liveness is the result of a check of the sessions' locks. See watch.sql.
type Liveness struct {
	Watches bool // the caller is one of the two that watch; otherwise the rest is empty
	Ends    SessionEnds
	Digest  int64
	Held    map[int64]int // the server process by key; nil: the digest is the one given
	Free    []Absence
	// Stranger is a server process that holds or awaits a client's lock, and is not the client's. It
	// keeps the lock held when the client crashes. 0: there is no such process.
	Stranger int
}

// An Absence is a session whose lock is free.
type Absence struct {
	Session, Presence int64
	Expiry            int64 // as in the table: another value means that the session was renewed
	PID               int   // of the server process that held the lock
}

// WatchLiveness checks which sessions' locks are held, if the session is one of the two that watch.
func (c *Conn) WatchLiveness(ctx context.Context, session, digest int64) (Liveness, error) {
	type row struct {
		Watches                          bool
		Abandoned, Killed, Fatal, Reset  int64
		Digest                           int64
		Held, PIDs                       numbers
		Free, FreeSessions, FreeExpiries numbers
		Stranger                         int
	}
	got, err := one[row](ctx, c, c.statements.Watch, session, digest)
	if err != nil || !got.Watches {
		return Liveness{}, err
	}
	ends := SessionEnds{got.Abandoned, got.Killed, got.Fatal, got.Reset}
	l := Liveness{Watches: true, Ends: ends, Digest: got.Digest, Stranger: got.Stranger}
	if got.Digest != digest {
		l.Held = make(map[int64]int, len(got.Held))
		for i, key := range got.Held {
			l.Held[key] = int(got.PIDs[i])
		}
	}
	for i, key := range got.Free {
		l.Free = append(l.Free, Absence{Session: got.FreeSessions[i], Presence: key, Expiry: got.FreeExpiries[i]})
	}
	return l, nil
}

// EvictDisconnected removes sessions whose connection ended as the connection of a crashed process
// does. It requires that at least as many sessions were abandoned since, and that none ended in
// another way. See evictdisconnected.sql.
func (c *Conn) EvictDisconnected(
	ctx context.Context, ended []Absence, since SessionEnds, run Incarnation,
) (Evicted, error) {
	sessions := column(ended, func(a Absence) int64 { return a.Session })
	keys := column(ended, func(a Absence) int64 { return a.Presence })
	pids := column(ended, func(a Absence) int { return a.PID })
	expiries := column(ended, func(a Absence) int64 { return a.Expiry })
	return notifying[Evicted](ctx, c, c.statements.EvictDisconnected, sessions, keys, pids, expiries,
		since.Abandoned, since.Killed, since.Fatal, since.Reset, run.Timeline, run.Started, run.Marker, c.lockWait)
}

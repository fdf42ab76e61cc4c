package seam

import (
	"context"

	"github.com/pgleases/pgleases/internal/store"
)

// A FailoverConn is a connection on which there is fast failover; *store.Conn is one.
type FailoverConn interface {
	OnEnd(func())
	Severed() bool
	Attend(ctx context.Context, session, presence int64) error
	LookOut(ctx context.Context, session, digest int64) (store.Lookout, error)
	EvictEnded(ctx context.Context, ended []store.Absence, since store.SessionEnds, run store.Run) (store.Evicted, error)
}

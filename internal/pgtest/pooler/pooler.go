// Package pooler has the support for tests that go through PgBouncer.
package pooler

import (
	"context"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// WithoutCancels is the BeforeConnect of a pool whose connections send no cancel request. PgBouncer
// 1.18 and 1.19 crash if a cancel request is cut short, or if the server ends a connection during
// its cancel request, for example because the database is dropped. pgx dials a new connection for
// each cancel request. Before that it may dial several hosts.
func WithoutCancels(_ context.Context, config *pgx.ConnConfig) error {
	dial, after := config.DialFunc, config.AfterConnect
	connected := false
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if connected {
			return nil, errors.New("nothing is canceled through a pooler")
		}
		return dial(ctx, network, address)
	}
	config.AfterConnect = func(ctx context.Context, conn *pgconn.PgConn) error {
		connected = true
		if after == nil {
			return nil
		}
		return after(ctx, conn)
	}
	return nil
}

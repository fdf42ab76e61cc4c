// Package pooler is what tests need that go through PgBouncer.
package pooler

import (
	"context"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
)

// WithoutCancels is the BeforeConnect of a pool whose connections send no request to cancel: where
// the server ends a connection while one is under way for it, as where its database is dropped, or
// where one is cut short, PgBouncer 1.18 and 1.19 end. pgx dials anew for each.
func WithoutCancels(_ context.Context, config *pgx.ConnConfig) error {
	dial, dialed := config.DialFunc, false
	config.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		if dialed {
			return nil, errors.New("nothing is canceled through a pooler")
		}
		dialed = true
		return dial(ctx, network, address)
	}
	return nil
}

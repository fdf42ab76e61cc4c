package pgleases

import (
	"context"

	"github.com/pgleases/pgleases/internal/seam"
)

func init() { seam.Open, seam.Turn = openOn, turn }

// openOn opens a client on what stands in for a database, for package pgleasestest.
func openOn(ctx context.Context, db seam.Database, opts ...Option) (*Client, error) {
	o, err := newOptions(opts)
	if err != nil {
		return nil, err
	}
	o.guard = db.Guard
	connect := func(ctx context.Context) (conn, error) {
		c, err := db.Connect(ctx)
		if err != nil {
			return nil, err
		}
		return c.(conn), nil
	}
	first, err := connect(ctx)
	if err != nil {
		return nil, err
	}
	return start(ctx, first, connect, o)
}

// turn waits until the client's goroutine has done what it was about.
func turn(c *Client) {
	done := make(chan error, 1)
	_ = c.request(context.Background(), done, func(*engine) { done <- nil }) // an error tells that it ended
}

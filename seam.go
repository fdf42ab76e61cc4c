package pgleases

import (
	"context"
	"errors"
	"fmt"
)

// openOn opens a client on what stands in for a server.
func openOn(ctx context.Context, o options) (*Client, error) {
	if o.fastFailover {
		return nil, errors.New("pgleases: open client: WithFastFailover needs a server, and there is none")
	}
	first, err := o.database.Connect(ctx)
	if err != nil {
		return nil, fmt.Errorf("pgleases: open client: connect: %w", err)
	}
	c, err := start(ctx, first, o.database.Connect, o)
	if err != nil {
		return nil, err
	}
	o.database.Turn = func() {
		// an error tells that it ended
		_, _ = requestAnswer(context.Background(), c, func(_ *engine, done chan<- struct{}) { done <- struct{}{} })
	}
	return c, nil
}

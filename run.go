package pgleases

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/wrap"
)

// closeWithin bounds the Close at the end of Run. The work has ended by then, so it takes a few
// milliseconds unless the database is away.
const closeWithin = 10 * time.Second

// Run opens a client with NewClient, calls f with it, and closes the client when f has returned. It
// is the frame of a program that works until somebody stops it:
//
//	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
//	defer stop()
//	err := pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
//		lease, err := client.Lease(ctx, "orders", 64)
//		if err != nil {
//			return err
//		}
//		return lease.Run(ctx, work)
//	})
//
// The ctx of f ends with ctx. It also ends when the client ends, because a newer process has taken
// over its ID or an operator has evicted it. Its cause is then ErrSuperseded or ErrEvicted.
//
// f must return only when its work has ended, as Lease.Run, leader.Run and the Run of a consumer or
// scheduler do. Run then closes the client, so that other processes can take over the partitions at
// once. It does so even if ctx has ended or f has panicked, with a context of its own that lasts
// 10 s. A panic in another goroutine, such as one of Lease.Run, ends the process without it.
//
// Run returns nil for an orderly end. That is if f has returned nil, or if ctx was canceled and f
// has returned an error that wraps the cause. Otherwise it returns the error of NewClient or f. It
// returns the error of f also if the deadline of ctx has passed, because f may not have done all.
// If f has returned nil although the client had ended, Run returns the client's error. If Close
// fails, its error is joined.
func Run(ctx context.Context, pool *pgxpool.Pool, f func(ctx context.Context, client *Client) error,
	opts ...Option) (err error) {
	if f == nil {
		return errors.New("pgleases: run: the function is nil")
	}
	client, err := NewClient(ctx, pool, opts...)
	if err != nil {
		return err
	}
	defer func() {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeWithin)
		defer cancel()
		err = errors.Join(err, client.Close(closing))
	}()
	err = f(client.lifetime(ctx), client)
	if ctx.Err() == context.Canceled && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx))) {
		return nil
	}
	ended := client.Err()
	if err == nil && ended != nil && !errors.Is(ended, ErrClosed) {
		return wrap.Errorf("pgleases: run: the client has ended: %w", ended)
	}
	return err
}

// lifetime returns a context that ends with ctx or with the client.
func (c *Client) lifetime(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancelCause(ctx)
	go func() {
		select {
		case <-c.Done():
			cancel(c.Err())
		case <-ctx.Done():
		}
	}()
	return ctx
}

package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// A member is a client that joined one lease.
type member struct {
	url, id    string
	lease      string
	partitions int
	ttl        time.Duration // 0: the default

	client *pgleases.Client
	*pgleases.Lease
}

// open opens the client.
func (m *member) open(ctx context.Context) (err error) {
	opts := []pgleases.Option{pgleases.WithClientID(m.id), pgleases.WithLogger(slog.New(slog.DiscardHandler))}
	if m.ttl > 0 {
		opts = append(opts, pgleases.WithTTL(m.ttl))
	}
	m.client, err = pgleases.Open(ctx, m.url, opts...)
	return err
}

// join joins the lease. There is no hand-off delay: nobody works here.
func (m *member) join(ctx context.Context) (err error) {
	m.Lease, err = m.client.Lease(ctx, m.lease, m.partitions, pgleases.WithHandoffDelay(0))
	return err
}

// join opens a client that joins a lease.
func join(ctx context.Context, m member) (*member, error) {
	if err := m.open(ctx); err != nil {
		return nil, err
	}
	if err := m.join(ctx); err != nil {
		m.close()
		return nil, err
	}
	return &m, nil
}

// close hands over and leaves; it takes 10 s at most.
func (m *member) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	_ = m.client.Close(ctx) // what it left behind goes with the database
}

// pool returns a pool for the harness's own questions and for transactions.
func newPool(ctx context.Context, url string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 4
	return pgxpool.NewWithConfig(ctx, config)
}

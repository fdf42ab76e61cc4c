package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// An ownership is a row of pgleases.status. Owner is empty, and Since zero, if the partition has no
// owner.
type ownership struct {
	Partition int
	Owner     string
	Epoch     int64
	Since     time.Time
}

// owners reads the ownerships, by partition.
func owners(ctx context.Context, pool *pgxpool.Pool) ([]ownership, error) {
	rows, _ := pool.Query(ctx, `
		SELECT partition, coalesce(owner, ''), epoch, coalesce(since, '0001-01-01 00:00:00Z')
		FROM pgleases.status WHERE lease = $1 ORDER BY partition`, leaseName) // CollectRows returns the error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[ownership])
}

// databaseTime reads the database's clock: everything that is measured here is read from that one.
func databaseTime(ctx context.Context, pool *pgxpool.Pool) (now time.Time, err error) {
	err = pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, err
}

// expiry reads when a worker's session expires; zero if it has none.
func expiry(ctx context.Context, pool *pgxpool.Pool, id string) (at time.Time, err error) {
	err = pool.QueryRow(ctx, `
		SELECT expires_at FROM pgleases.clients WHERE id = $1 ORDER BY incarnation DESC, expires_at DESC LIMIT 1`, id).Scan(&at)
	if errors.Is(err, pgx.ErrNoRows) {
		err = nil
	}
	return at, err
}

// owned returns what a client owns, and since when it has all of it.
func owned(all []ownership, id string) (partitions []int, since time.Time) {
	for _, o := range all {
		if o.Owner == id {
			partitions = append(partitions, o.Partition)
			if o.Since.After(since) {
				since = o.Since
			}
		}
	}
	return partitions, since
}

// A handoff is the change of owner of all partitions of a client.
type handoff struct {
	from   string
	began  time.Time         // by the database's clock, like all times here
	epochs map[int]int64     // under which it owned them
	taken  map[int]time.Time // since when another has a partition
	expiry time.Time         // of the last heartbeat
	thawed time.Time         // when the client went on; zero if it did not
}

func newHandoff(from string, began time.Time, all []ownership) *handoff {
	h := &handoff{from: from, began: began, epochs: make(map[int]int64), taken: make(map[int]time.Time)}
	for _, o := range all {
		if o.Owner == from {
			h.epochs[o.Partition] = o.Epoch
		}
	}
	return h
}

// observe takes what was read later.
func (h *handoff) observe(all []ownership) {
	for _, o := range all {
		before, concerned := h.epochs[o.Partition]
		_, seen := h.taken[o.Partition]
		taken := o.Owner != "" && o.Owner != h.from && o.Epoch > before
		if concerned && !seen && taken {
			h.taken[o.Partition] = o.Since
		}
	}
}

// complete reports whether every partition has a new owner.
func (h *handoff) complete() bool { return len(h.taken) == len(h.epochs) }

// last returns when the last partition so far got its new owner.
func (h *handoff) last() (last time.Time) {
	for _, at := range h.taken {
		if at.After(last) {
			last = at
		}
	}
	return last
}

// A probe is how often the guard was asked about epochs of a former owner, and refused.
type probe struct{ asked, refused int }

// ask calls the guard as a transaction would that began before the client was frozen.
func (h *handoff) ask(ctx context.Context, pool *pgxpool.Pool) (p probe, err error) {
	for partition, epoch := range h.epochs {
		p.asked++
		_, err := pool.Exec(ctx, "SELECT pgleases.guard($1, $2, $3)", leaseName, partition, epoch)
		var refusal *pgconn.PgError
		switch {
		case errors.As(err, &refusal) && refusal.Code == "PL001":
			p.refused++
		case err != nil:
			return p, err
		}
	}
	return p, nil
}

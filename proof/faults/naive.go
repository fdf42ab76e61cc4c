//go:build unix

package faults

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
)

// Naive are the loops that people write instead of package consumer.
var Naive = []string{"skip locked", "owner"}

// read returns rows without an owner's epoch.
func read(ctx context.Context, tx interface {
	Query(context.Context, string, ...any) (pgx.Rows, error)
}, query string, args ...any) ([]task, error) {
	const all = "SELECT id, customer, name, kind, version, partition, 0, attempts + 1 FROM app.outbox "
	rows, _ := tx.Query(ctx, all+query, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, pgx.RowToStructByPos[task])
}

// skipLocked has no order. A batch that fails charges all of its rows.
func (h *handler) skipLocked(ctx context.Context) error {
	for ctx.Err() == nil {
		var tasks []task
		err := pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) (err error) {
			tasks, err = read(ctx, tx, "ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED")
			if err != nil {
				return err
			}
			_, err = h.handle(ctx, tx, tasks)
			if err != nil {
				return err
			}
			return remove(ctx, tx, tasks)
		})
		if err != nil {
			charge(ctx, h.pool, tasks)
		}
		if err != nil || len(tasks) == 0 {
			pause(ctx, 10*time.Millisecond)
		}
	}
	return nil
}

// owner believes that Values is enough. It has no guard, removes each row in a transaction of its
// own, continues after a row that fails, and reads on from the last ID.
func (h *handler) owner(ctx context.Context) error {
	low := make(map[int]int64)
	for pause(ctx, 10*time.Millisecond) {
		for _, n := range h.lease.Values() {
			p, _ := h.lease.Partition(n)
			tasks, err := read(ctx, h.pool, "WHERE partition = $1 AND id > $2 ORDER BY id LIMIT 100", n, low[n])
			if err != nil {
				return err
			}
			failed := false
			for _, t := range tasks {
				t.Epoch = p.Epoch
				if h.receiver != nil {
					_, err = h.handle(ctx, nil, []task{t})
				} else {
					err = pgx.BeginFunc(ctx, h.pool, func(tx pgx.Tx) error {
						_, err := h.handle(ctx, tx, []task{t})
						return err
					})
				}
				if err != nil {
					failed = true
					charge(ctx, h.pool, []task{t})
					continue
				}
				err = remove(ctx, h.pool, []task{t})
				if err == nil && !failed {
					low[n] = t.ID
				}
			}
		}
	}
	return nil
}

func remove(ctx context.Context, tx executor, tasks []task) error {
	_, err := tx.Exec(ctx, "DELETE FROM app.outbox WHERE id = ANY($1)", ids(tasks))
	return err
}

const killCharged = `
	WITH o AS (DELETE FROM app.outbox WHERE attempts >= $1 RETURNING name)
	INSERT INTO app.dead SELECT name FROM o`

// charge counts an attempt of rows, and makes those without another one dead letters. It ignores
// errors: the rows are handled again.
func charge(ctx context.Context, tx executor, tasks []task) {
	_, _ = tx.Exec(ctx, "UPDATE app.outbox SET attempts = attempts + 1 WHERE id = ANY($1)", ids(tasks))
	_, _ = tx.Exec(ctx, killCharged, QueueAttempts)
}

func ids(tasks []task) (ids []int64) {
	for _, t := range tasks {
		ids = append(ids, t.ID)
	}
	return ids
}

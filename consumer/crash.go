package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// beginAll records the begin of ownerships, and learns whether the owners before crashed. It goes
// on when Run ends: otherwise the end might be recorded before the begin. The partitions are busy
// meanwhile.
func (g *group) beginAll(fresh []*partition) error {
	suspects, crashed := 0, 0
	err := g.guarded(fresh, func(ctx context.Context, tx *handlers.Transaction, _ string) (err error) {
		suspects, crashed, err = g.learn(ctx, tx, ownedOf(fresh))
		return err
	})
	if err == nil && crashed > 0 {
		g.log.Warn("consumer: previous owner crashed or was cut off", slog.Int("partitions", crashed), slog.Int("with_suspects", suspects))
	}
	switch {
	case errors.Is(err, pgleases.ErrNotOwner): // of any
		return nil
	case store.Code(err) == "42704": // the tables were restored or made anew, or an operator has deleted it
		return g.registerAgain(err)
	}
	return err
}

// registerAgain stores the consumer, which is missing, as New did. The next attempt to begin finds it.
func (g *group) registerAgain(missing error) error {
	err := worker.InTx(context.WithoutCancel(g.life), g.line(), g.pool, func(ctx context.Context, tx pgx.Tx) error {
		return g.sql.register(ctx, tx, g.name, g.table, g.queue)
	})
	if err != nil {
		return err
	}
	return fmt.Errorf("it is stored again: %w", missing)
}

// learn records the begin of ownerships, and sets which of the partitions are watched. It returns
// how many owners before crashed, and how many of these with a noted batch in hand.
func (g *group) learn(ctx context.Context, tx pgx.Tx, owned []*partition) (suspects, crashed int, err error) {
	numbers, epochs := keysOf(owned)
	rows, err := tx.Query(ctx, g.sql.Begin, g.name, numbers, epochs)
	if err != nil {
		return 0, 0, err
	}
	at, batch := byNumber(owned), new(pgx.Batch)
	var number int
	var fell, watched bool
	var epoch, first, last *int64
	_, err = pgx.ForEachRow(rows, []any{&number, &fell, &epoch, &watched, &first, &last}, func() error {
		p := at[number]
		if p.watched = watched; !fell {
			return nil
		}
		if crashed++; first != nil {
			suspects++
		}
		batch.Queue(g.sql.Crash, g.name, number, epoch, first, last).QueryRow(func(row pgx.Row) error { return row.Scan(&p.watched) })
		return nil
	})
	if err == nil && batch.Len() > 0 {
		err = tx.SendBatch(ctx, batch).Close()
	}
	return suspects, crashed, err
}

// note notes the next batch of a partition, which is watched, and reports whether there is one.
func (g *group) note(j *job, p *partition) bool {
	var first, last *int64
	err := g.guarded([]*partition{p}, func(ctx context.Context, tx *handlers.Transaction, _ string) error {
		err := tx.QueryRow(ctx, g.sql.Note, g.name, p.Number, p.Epoch, g.options.batch, p.rows.leaveOut()).Scan(&first, &last, &p.watched)
		if errors.Is(err, pgx.ErrNoRows) { // another owner has begun
			p.lost = true
			return pgleases.ErrNotOwner
		}
		return err
	})
	if err != nil {
		g.trouble(j, []*partition{p}, outcome{err: err})
		return false
	}
	if first == nil {
		p.due, p.rows.tried = len(p.rows.tried) > 0, nil // all keys again
		return false
	}
	p.noted = *last
	return true
}

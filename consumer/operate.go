package consumer

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
)

// skip moves a blocked row that an operator skips to the dead letters, even if it was changed since
// it failed, and reports whether it is done. See consumer_skip.
func (g *group) skip(j *job) bool {
	p, id, text := j.partitions[0], j.retry.id, ""
	err := g.guarded([]*partition{p}, func(ctx context.Context, tx *handlers.Transaction, xact string) error {
		attempts := 0
		err := tx.QueryRow(ctx, g.sql.Skipped, g.name, p.Number, id).Scan(&attempts, &text)
		if errors.Is(err, pgx.ErrNoRows) { // the operator has taken it back
			return nil
		}
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, g.sql.Bury, g.name, p.Number, id, nil, attempts, text, xact).Scan(nil)
	})
	log := g.log.With(slog.Int("partition", p.Number), slog.Int64("id", id))
	switch {
	case err != nil && !p.lost:
		p.blocked.notBefore = time.Now().Add(troubleWait)
		log.Warn("consumer: row not skipped, retried", slog.Any("error", err))
	case err == nil && text != "":
		p.due = true // rows of its key wait
		g.counts.dead.Add(1)
		log.Warn("consumer: row skipped by an operator", slog.String("reason", text))
	}
	return err == nil
}

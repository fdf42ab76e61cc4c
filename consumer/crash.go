package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
)

// beginAll records the begin of ownerships, and learns whether the owners before crashed. The
// partitions are busy meanwhile.
func (g *group) beginAll(fresh []*partition) error {
	// Also when Run ends: otherwise the end might be recorded before the begin.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(g.life), answerTime)
	defer cancel()
	slices.SortFunc(fresh, func(a, b *partition) int { return a.Number - b.Number })
	return pgx.BeginTxFunc(ctx, g.pool, handlers.ReadCommitted, func(tx pgx.Tx) error {
		var lost []int32
		var owned []pgleases.Partition
		for _, p := range fresh {
			owned = append(owned, p.Partition)
		}
		numbers, epochs := keysOf(owned)
		err := tx.QueryRow(ctx, g.sql.Open, g.lease.Name(), numbers, epochs, g.options.idle.Milliseconds(), lockWait.Milliseconds()).Scan(&lost, new(string))
		if err != nil {
			return err
		}
		owned = owned[:0]
		at := make(map[int]*partition)
		for _, p := range fresh {
			if p.lost = slices.Contains(lost, int32(p.Number)); !p.lost {
				owned, at[p.Number] = append(owned, p.Partition), p
			}
		}
		numbers, epochs = keysOf(owned)
		rows, err := tx.Query(ctx, g.sql.Begin, g.name, numbers, epochs)
		if err != nil {
			return err
		}
		type before struct {
			Number      int
			Crashed     bool
			Epoch       *int64
			Watched     bool
			First, Last *int64
		}
		all, err := pgx.CollectRows(rows, pgx.RowToStructByPos[before])
		if err != nil {
			return err
		}
		suspects, crashed := 0, 0
		for _, b := range all {
			at[b.Number].watched = b.Watched
			if !b.Crashed {
				continue
			}
			var upTo *int64
			if err := tx.QueryRow(ctx, g.sql.Crash, g.name, b.Number, b.Epoch, b.First, b.Last).Scan(&upTo); err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return err
			}
			at[b.Number].watched = upTo != nil
			if crashed++; b.First != nil {
				suspects++
			}
		}
		if crashed > 0 {
			g.log.Warn("consumer: the owner before did not end in order", slog.Int("partitions", crashed), slog.Int("with_suspects", suspects))
		}
		for _, p := range at {
			p.known = true
		}
		return nil
	})
}

// note notes the next batch of a partition that is watched, and reports whether there is one.
func (g *group) note(p *partition) bool {
	var first, last *int64
	err := g.inTime(func(ctx context.Context) error {
		err := g.pool.QueryRow(ctx, g.sql.Note, g.name, p.Number, p.Epoch, g.options.batch).Scan(&first, &last, &p.watched)
		if errors.Is(err, pgx.ErrNoRows) { // another owner has begun
			p.lost = true
			return pgleases.ErrNotOwner
		}
		return err
	})
	if err != nil {
		g.trouble([]*partition{p}, outcome{err: err})
		return false
	}
	if first == nil {
		p.due = false
		return false
	}
	p.noted = *last
	return true
}

package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
)

// A crashError is why a row is neither read nor handled again.
type crashError struct{ crashes int }

func (e crashError) Error() string {
	return fmt.Sprintf("%d processes crashed while they handled the row alone: see WithMaxCrashes", e.crashes)
}

// begin records the begin of ownerships, and learns whether the owners before crashed. It sets
// which of the partitions are watched, and which are lost.
func (x *executor) begin(fresh []*part) error {
	suspects, crashed := 0, 0
	err := x.db.guarded(fresh, func(ctx context.Context, tx *handlers.Transaction, _ string) (err error) {
		suspects, crashed, err = x.learn(ctx, tx, ownedOf(fresh))
		return err
	})
	if err == nil && crashed > 0 {
		x.log.Warn("consumer: previous owner crashed or was cut off",
			slog.Int("partitions", crashed), slog.Int("with_suspects", suspects))
	}
	if errors.Is(err, pgleases.ErrNotOwner) { // none of them is owned any more
		return nil
	}
	return err
}

// learn returns how many owners before crashed, and how many of these with a noted batch in hand.
func (x *executor) learn(ctx context.Context, tx pgx.Tx, owned []*part) (suspects, crashed int, err error) {
	beginnings, err := x.db.begin(ctx, tx, owned)
	if err != nil {
		return 0, 0, err
	}
	at, batch := byNumber(owned), new(pgx.Batch)
	for _, b := range beginnings {
		p := at[b.number]
		p.watched = b.watched
		if !b.crashed {
			continue
		}
		crashed++
		if b.first != nil {
			suspects++
		}
		x.db.noteCrash(batch, b, &p.watched)
	}
	if batch.Len() > 0 {
		err = tx.SendBatch(ctx, batch).Close()
	}
	return suspects, crashed, err
}

// byNumber returns partitions by their numbers.
func byNumber(parts []*part) map[int]*part {
	all := make(map[int]*part, len(parts))
	for _, p := range parts {
		all[p.Number] = p
	}
	return all
}

// note notes the next batch of a partition, which is watched, and reports whether there is one.
func (e *execution) note(p *part) (found bool) {
	err := e.db.guarded([]*part{p}, func(ctx context.Context, tx *handlers.Transaction, _ string) (err error) {
		found, err = e.db.note(ctx, tx, p, e.options.batch)
		if errors.Is(err, pgx.ErrNoRows) { // another owner has begun
			p.lost = true
			return pgleases.ErrNotOwner
		}
		return err
	})
	if err != nil {
		e.brokeOff([]*part{p}, outcome{err: err})
		return false
	}
	if !found {
		p.due, p.rows.triedKeys = len(p.rows.triedKeys) > 0, nil // all keys are tried again
	}
	return found
}

// noteRetry notes the blocked row of the job before its attempt, if the process may crash during
// that. The crash of a suspect is counted before.
func (e *execution) noteRetry() error {
	p, id := e.parts[0], e.job.retry.id
	if !e.job.retry.suspect && !p.watched {
		return nil
	}
	return e.db.guarded(e.parts, func(ctx context.Context, tx *handlers.Transaction, _ string) error {
		if e.job.retry.suspect {
			backoff := e.options.backoff
			return e.db.countCrash(ctx, tx, p, id, worker.PauseAfter(1, backoff), worker.LongestPause(backoff))
		}
		return e.db.noteRow(ctx, tx, p, id)
	})
}

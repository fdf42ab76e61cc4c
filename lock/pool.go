package lock

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// pooled is a table of locks in a database, on connections of the application's.
type pooled struct {
	pool       *pgxpool.Pool
	statements *store.Locks
}

var _ seam.LockTable = pooled{}

func (p pooled) Acquire(ctx context.Context, r store.LockRequest) (answer store.LockAnswer, sent bool, err error) {
	conn, err := p.pool.Acquire(ctx)
	if err != nil {
		return answer, false, err
	}
	defer conn.Release()
	answer, err = p.statements.Acquire(ctx, conn.Conn(), r)
	return answer, true, err
}

func (p pooled) Release(
	ctx context.Context, wait time.Duration, session int64, r store.LockRelease, run store.Run,
) (became store.LockOutcome, sent bool, err error) {
	soon, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	conn, err := p.pool.Acquire(soon)
	if err != nil {
		return "", false, err
	}
	defer conn.Release()
	became, err = p.statements.Release(ctx, conn.Conn(), session, r, run)
	return became, true, err
}

func (p pooled) Guard(_ context.Context, query store.Query, name string, token, trust int64) error {
	return query(p.statements.Statements.LockGuard, name, token, trust)
}

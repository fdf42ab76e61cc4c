package suites

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"

	"github.com/hashicorp/vault/sdk/physical"
	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
)

// TestVaultHABackend runs the exercise that Vault has for the backends that elect its active node.
func TestVaultHABackend(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	testkit.Execute(t, s.pool, notesTable)
	backend := func() haBackend { return haBackend{s, lock.New(s.client(), s.pool)} }
	physical.ExerciseHABackend(t, backend(), backend())
}

// A haBackend is Vault's backend in one process.
type haBackend struct {
	*site
	locks *lock.Locks
}

func (haBackend) HAEnabled() bool { return true }

func (b haBackend) LockWith(key, value string) (physical.Lock, error) {
	return &noted{haBackend: b, key: key, value: value}, nil
}

// A noted is a lock whose holder writes a value that others read.
type noted struct {
	haBackend
	key, value string
	held       atomic.Pointer[lock.Held]
}

func (n *noted) Lock(stop <-chan struct{}) (<-chan struct{}, error) {
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin)
	defer cancel()
	stopped := make(chan struct{})
	go func() {
		select {
		case <-stop:
			close(stopped)
			cancel()
		case <-ctx.Done():
		}
	}()
	held, err := n.locks.Acquire(ctx, n.key)
	select {
	case <-stopped:
		if err == nil {
			err = held.Release(context.Background())
		}
		if errors.Is(err, context.Canceled) {
			err = nil
		}
		return nil, err
	default:
	}
	if err != nil {
		return nil, err
	}
	n.held.Store(held)
	return held.Context().Done(), note(ctx, n.site, held, n.key, n.value)
}

func (n *noted) Unlock() error { return n.held.Load().Release(context.Background()) }

func (n *noted) Value() (bool, string, error) {
	value, err := noteOf(context.Background(), n.site, n.key)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, "", nil
	}
	return err == nil, value, err
}

// note writes the holder's value, in a transaction that only the holder of the lock can commit.
func note(ctx context.Context, s *site, held *lock.Held, name, value string) error {
	return pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		err := held.Guard(ctx, tx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, `INSERT INTO notes VALUES ($1, $2, $3)
			ON CONFLICT (name) DO UPDATE SET value = excluded.value, token = excluded.token`, name, value, held.Token())
		return err
	})
}

// noteOf reads the value of the session that holds the lock now.
func noteOf(ctx context.Context, s *site, name string) (value string, err error) {
	err = s.pool.QueryRow(ctx, `SELECT n.value FROM notes AS n JOIN pgleases.locks_status AS l USING (name, token)
		WHERE l.name = $1 AND l.state = 'holds'`, name).Scan(&value)
	return value, err
}

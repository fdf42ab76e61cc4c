//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/proof/oracle/locks"
)

const (
	lockers = 3 // goroutines of a worker that take locks
	// lockersConns is the size of each worker's pool of lockers: small, so that it is exhausted at
	// times, and because all workers share one server's connections.
	lockersConns = 1
)

// lostLock reports whether an error means that a lock is lost.
func lostLock(err error) bool { return errors.Is(err, lock.ErrLost) }

// A locker is a goroutine that takes locks.
type locker struct {
	Config
	locks   *lock.Locks
	keeper  *locks.Keeper
	effects *Effects // nil: it does not write
	zombies sync.WaitGroup
}

// run takes random locks with every kind of call, holds each for a while, and releases it, until
// ctx ends. A locker with an exclusive lock writes under it. It also writes as a zombie: some time
// later, whether or not it still has the lock.
func (l *locker) run(ctx context.Context) error {
	defer l.zombies.Wait()
	for ctx.Err() == nil {
		if err := l.once(ctx, rand.N(l.Locks)); err != nil {
			return err
		}
		pause(ctx, rand.N(l.TTL/10))
	}
	return nil
}

// once takes a lock. Its only errors are errors of the log.
func (l *locker) once(ctx context.Context, number int) error {
	patient, impatient := context.WithTimeout(ctx, rand.N(l.TTL))
	defer impatient()
	acquire := []func(context.Context, string) (*lock.Held, error){
		l.locks.Acquire, l.locks.AcquireShared, l.locks.TryAcquire, l.locks.TryAcquireShared,
	}[rand.N(4)]
	held, err := acquire(patient, LockName(number))
	if err != nil {
		if !errors.Is(err, lock.ErrHeld) && ctx.Err() == nil {
			pause(ctx, rand.N(l.TTL/4)) // the server, or the connection to it, is down
		}
		return nil
	}
	if l.effects != nil && !held.Shared() {
		l.zombies.Go(func() { l.haunt(ctx, number, held.Token()) })
		// A limit, because the write could wait for an unreachable server while the lock is held.
		working, stop := context.WithTimeout(held.Context(), l.TTL)
		for rand.N(2) == 0 {
			l.effects.write(working, number, held.Token(), l.ID, held.Guard)
		}
		stop()
	}
	enough, done := context.WithTimeout(ctx, rand.N(l.TTL/5))
	defer done()
	err = l.keeper.Keep(enough, number, held.Token(), held.Shared(), func() bool { return held.Context().Err() == nil })
	soon, late := context.WithTimeout(context.WithoutCancel(ctx), rand.N(l.TTL))
	defer late()
	// The lock may be lost; a release that takes longer continues in the background.
	_ = held.Release(soon)
	return err
}

// takeLocks starts goroutines that take locks of a client until ctx ends. The function that it
// returns waits for their end.
func takeLocks(ctx context.Context, config Config, client *pgleases.Client) (func() error, error) {
	if config.Locks == 0 {
		return func() error { return nil }, nil
	}
	pool, err := config.pool(lockersConns)
	if err != nil {
		return nil, err
	}
	effects, shut, err := openEffects(ctx, config, config.Log+locks.Suffix, LocksName, lockersConns)
	if err != nil {
		return nil, err
	}
	manager := lock.New(client, pool)
	errs := make([]error, lockers)
	var wait sync.WaitGroup
	for i := range lockers {
		keeper, err := locks.Create(fmt.Sprintf("%s-%d%s", strings.TrimSuffix(config.Log, ".log"), i, locks.Suffix))
		if err != nil {
			return nil, err
		}
		l := &locker{Config: config, locks: manager, keeper: keeper, effects: effects}
		wait.Go(func() { errs[i] = errors.Join(l.run(ctx), keeper.Close()) })
	}
	return func() error {
		wait.Wait()
		shut()
		pool.Close()
		return errors.Join(errs...)
	}, nil
}

// haunt writes under a token before, during or after its lock's release. It uses the guard in SQL,
// which does not know what the client knows.
func (l *locker) haunt(ctx context.Context, number int, token int64) {
	// A limit, because the write could wait for an unreachable server.
	ctx, cancel := context.WithTimeout(ctx, 2*l.TTL)
	defer cancel()
	pause(ctx, rand.N(l.TTL/2))
	refused := l.effects.write(ctx, number, token, l.ID, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "SELECT pgleases.guard_lock($1, $2)", LockName(number), token)
		return err
	})
	if refused {
		l.effects.Zombies.Add(1)
	}
}

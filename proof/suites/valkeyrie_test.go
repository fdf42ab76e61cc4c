package suites

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/kvtools/valkeyrie/store"
	"github.com/kvtools/valkeyrie/testsuite"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/lock"
)

// TestValkeyrieLocks runs the lock tests of github.com/kvtools/valkeyrie/testsuite.
func TestValkeyrieLocks(t *testing.T) {
	t.Parallel()
	for name, run := range map[string]func(*testing.T, store.Store, store.Store){
		"Lock":    func(t *testing.T, kv, _ store.Store) { testsuite.RunTestLock(t, kv) },
		"LockTTL": testsuite.RunTestLockTTL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			testkit.Execute(t, s.pool, notesTable)
			run(t, newKV(s, "one"), newKV(s, "other"))
		})
	}
}

// A kv is valkeyrie's store in one process: of its methods only those that its lock tests call.
type kv struct {
	store.Store
	*site
	client *pgleases.Client
}

func newKV(s *site, id string) kv {
	return kv{site: s, client: clients.New(s.t, s.pool, pgleases.WithClientID(id), pgleases.WithTTL(2*time.Second))}
}

func (k kv) Get(ctx context.Context, key string, _ *store.ReadOptions) (*store.KVPair, error) {
	value, err := noteOf(ctx, k.site, key)
	if err != nil {
		return nil, err
	}
	return &store.KVPair{Key: key, Value: []byte(value), LastIndex: 1}, nil
}

func (k kv) NewLock(_ context.Context, key string, opts *store.LockOptions) (store.Locker, error) {
	return &locker{kv: k, locks: lock.New(k.client, k.pool), key: key, value: string(opts.Value)}, nil
}

// Close ends the connection without a release, so that the locks end with the session.
func (k kv) Close() error {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return k.client.Close(ctx)
}

type locker struct {
	kv
	locks      *lock.Locks
	key, value string
	held       atomic.Pointer[lock.Held]
}

func (l *locker) Lock(ctx context.Context) (<-chan struct{}, error) {
	held, err := l.locks.Acquire(ctx, l.key)
	if err != nil {
		return nil, err
	}
	l.held.Store(held)
	return held.Context().Done(), note(ctx, l.site, held, l.key, l.value)
}

func (l *locker) Unlock(ctx context.Context) error { return l.held.Load().Release(ctx) }

package lock_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
)

// An acquisition may commit just after its client has closed, or a client may evict and end before
// its sweep. Then rows of evicted sessions remain, under names that are not used again. The next check
// for expired sessions sweeps them.
func TestCheckSweepsLocksOfSessionsThatAreGone(t *testing.T) {
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a := newWorker(t, url)
	release(t, a.held(a.Acquire, "before")) // the server has its mark
	tx := testkit.Must(db.Begin(t.Context()))(t)
	_, err := tx.Exec(t.Context(), `
		SELECT pgleases.lock_acquire('webhook 1'::text, c.session, 1::bigint, false, false, 9e15::bigint,
			s.accepted_timeline, (extract(epoch FROM pg_postmaster_start_time()) * 1000000)::bigint,
			m.marker, 1000, true)
		FROM pgleases.clients AS c, pgleases.server AS s, pgleases.boot_marker AS m`, pgx.QueryExecModeSimpleProtocol)
	testkit.OK(t, err)
	testkit.OK(t, a.client.Close(t.Context()))
	testkit.OK(t, tx.Commit(t.Context()))
	expect(t, testkit.Value[int](t, db, "SELECT count(*) FROM pgleases.clients"), 0, "sessions")
	expect(t, testkit.Value[int](t, db, rows), 1, "rows of evicted sessions")
	newWorker(t, url, pgleases.WithTTL(2*time.Second))
	testkit.Becomes(t, db, "no row of evicted sessions is left", 0, rows)
}

// A holder that is evicted while an attempt runs leaves the lock free.
func TestEvictionDuringAnAttemptIsNotReportedAsHeld(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := newDatabase(t)
	db := testkit.Pool(t, pgtest.OwnerURL(url))
	a, b := newWorker(t, url), newWorker(t, url)
	a.held(a.TryAcquire, "x")
	a.held(a.TryAcquire, "guarded")
	tx := testkit.Must(db.Begin(t.Context()))(t)
	testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.locks WHERE name = 'guarded' FOR UPDATE"))(t)
	a.own.Cut()
	testkit.Execute(t, db, fmt.Sprintf(`
		ALTER FUNCTION pgleases.lock_turn(text, bigint, boolean) RENAME TO lock_turn_alone;
		CREATE FUNCTION pgleases.lock_turn(text, bigint, boolean) RETURNS void
		LANGUAGE plpgsql SECURITY DEFINER AS $$ BEGIN
			PERFORM pgleases.lock_turn_alone($1, $2, $3);
			DELETE FROM pgleases.clients WHERE id = '%s';
		END $$`, a.client.ID()))
	release(t, b.held(b.TryAcquire, "x"))
	_, err := b.TryAcquire(t.Context(), "guarded")
	wraps(t, "a guarded transaction is open", err, lock.ErrHeld)
	testkit.OK(t, tx.Rollback(t.Context()))
}

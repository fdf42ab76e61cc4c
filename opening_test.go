package pgleases_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// An opening is a call of NewClient under the ID a, while a row that registering needs is locked.
type opening struct {
	book   *logbook
	unlock func() error
	done   chan error // what NewClient returned; the client is closed with the test
}

// openLocked opens a client while the row that the query locks is locked, and returns when
// registering has failed.
func openLocked(t *testing.T, ctx context.Context, pool *pgxpool.Pool, query string, heartbeat time.Duration) opening {
	t.Helper()
	shut(t, newClient(t, pool, pgleases.WithClientID("a"))) // so the ID has a row
	// Beside a longer TTL a registration needs the server's row too.
	newClient(t, pool, pgleases.WithTTL(2*calmTTL))
	tx := testkit.Must(ownersPool(t, pool.Config().ConnString()).Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.Background()) })
	if tag, err := tx.Exec(t.Context(), query); err != nil || tag.RowsAffected() != 1 {
		t.Fatalf("%s: %v, %v", query, tag, err)
	}
	o := opening{new(logbook), func() error { return tx.Rollback(context.Background()) }, make(chan error, 1)}
	go func() {
		c, err := pgleases.NewClient(ctx, pool, pgleases.WithClientID("a"), o.book.option(), pgleases.WithTTL(calmTTL),
			pgleases.WithHeartbeat(heartbeat))
		if err == nil {
			t.Cleanup(func() { shut(t, c) })
		}
		o.done <- err
	}()
	return o
}

// failed waits until registering has failed with that reason.
func (o opening) failed(t *testing.T, reason string) {
	t.Helper()
	until(t, "registering fails: "+reason, func() bool {
		select {
		case err := <-o.done:
			t.Fatalf("NewClient returned %v, and registering did not fail before for another try: %s", err, reason)
		default:
		}
		return len(o.book.lines("WARN pgleases: register failed, will be tried again", reason)) == 1
	})
}

// opens unlocks the row, and fails the test unless the client opens then.
func (o opening) opens(t *testing.T) {
	t.Helper()
	testkit.OK(t, o.unlock())
	if err := testkit.Receive(t, "NewClient returns", o.done); err != nil {
		t.Error(err)
	}
	until(t, "it is logged that registering succeeds", func() bool {
		return len(o.book.lines("INFO pgleases: register succeeded again", "after")) == 1
	})
}

const itsID = "SELECT FROM pgleases.identities WHERE id = 'a' FOR UPDATE"

func TestOpeningWaitsForARowThatSomebodyHasLocked(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		"its ID":     itsID,
		"the server": "SELECT FROM pgleases.server FOR UPDATE",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := openLocked(t, t.Context(), testkit.Pool(t, direct(t)), query, calmHeartbeat)
			o.failed(t, "SQLSTATE 55P03")
			o.opens(t)
		})
	}
}

func TestOpeningGoesOnWhereItsConnectionIsLost(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, direct(t))
	o := openLocked(t, t.Context(), pool, itsID, calmTTL/3) // so it waits in one statement
	testkit.Becomes(t, ownersPool(t, pool.Config().ConnString()), "it waits for the lock, and is cut off", 1, `
		SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
		WHERE datname = current_database() AND application_name = 'pgleases' AND wait_event_type = 'Lock'`)
	o.failed(t, "SQLSTATE 57P01")
	o.opens(t)
}

func TestOpenEndsWithContextAndLastError(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, direct(t))
	cause := errors.New("no more patience")
	ctx, cancel := context.WithCancelCause(t.Context())
	o := openLocked(t, ctx, pool, itsID, calmHeartbeat)
	o.failed(t, "SQLSTATE 55P03")
	cancel(cause)
	err := testkit.Receive(t, "NewClient returns", o.done)
	wraps(t, "NewClient", err, cause)
	refused(t, "NewClient", err, `register "a"`, cause.Error(), "SQLSTATE 55P03")
	until(t, "only the other client's connection is left", func() bool { return connections(t, pool) == 1 })
}

// A migration from an older schema takes no partition from the clients at work. While it waits for
// a long transaction, a client joins.
func TestMigrationUnderLiveClients(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool, owner := testkit.Pool(t, url), ownersPool(t, url)
	a := joined(t, newClient(t, pool, pgleases.WithClientID("a")), "work", 4)
	b := newClient(t, pool, pgleases.WithClientID("b"))
	share := joined(t, b, "work", 4)
	c := newClient(t, pool, pgleases.WithClientID("c"))
	until(t, "each owns half", func() bool { return len(a.Values()) == 2 && len(share.Values()) == 2 }, a, share)
	const owners = `SELECT string_agg(concat_ws(' ', partition, owner, epoch), ', ' ORDER BY partition)
		FROM pgleases.partitions WHERE lease = 'work'`
	before := testkit.Value[string](t, owner, owners)
	testkit.Execute(t, owner, `
		UPDATE pgleases.schema_version SET version = 0;
		DROP VIEW pgleases.locks_status;
		DROP INDEX pgleases.partitions_owner;
		DROP FUNCTION pgleases.lock_list(text, text, int)`)

	long := testkit.Must(owner.Begin(t.Context()))(t)
	defer long.Rollback(t.Context())
	testkit.Must(long.Exec(t.Context(), "LOCK TABLE pgleases.leases IN ROW EXCLUSIVE MODE"))(t)
	migrated := make(chan error, 1)
	go func() { migrated <- pgleases.Migrate(t.Context(), owner) }()
	testkit.Becomes(t, owner, "the migration waits", true, `
		SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'pgleases.leases'::regclass)`)
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	if _, err := c.Lease(ctx, "other", 1); err != nil { // it writes to that table
		t.Errorf("a join beside a migration: %v", err)
	}
	testkit.OK(t, long.Commit(t.Context()))
	testkit.OK(t, <-migrated)

	if after := testkit.Value[string](t, owner, owners); after != before {
		t.Errorf("owners and epochs are %s after the migration, not %s", after, before)
	}
	if len(a.Values()) != 2 || len(share.Values()) != 2 {
		t.Errorf("the clients believe that they own %v and %v", a.Values(), share.Values())
	}
	made := testkit.Value[bool](t, owner, `
		SELECT version = 1 AND to_regclass('pgleases.locks_status') IS NOT NULL
			AND to_regclass('pgleases.partitions_owner') IS NOT NULL
			AND to_regproc('pgleases.lock_list') IS NOT NULL
		FROM pgleases.schema_version`)
	if !made {
		t.Error("the schema is not what it should be after the migration")
	}
	shut(t, b)
	untilOwns(t, a, 4)
}

package pgleases_test

import (
	"context"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A migration from an older schema takes no partition from the clients at work. While it waits for
// a long transaction, a client joins.
func TestMigrationUnderLiveClients(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool, owner := testkit.Pool(t, url), ownersPool(t, url)
	a := joined(t, newClient(t, pool, pgleases.WithClientID("a")), "work", 4)
	b := newClient(t, pool, pgleases.WithClientID("b"))
	share := joined(t, b, "work", 4)
	c := newClient(t, pool, pgleases.WithClientID("c"))
	until(t, "each owns half", func() bool { return len(a.Values()) == 2 && len(share.Values()) == 2 }, a, share)
	const owners = "SELECT string_agg(concat_ws(' ', partition, owner, epoch), ', ' ORDER BY partition) FROM pgleases.partitions WHERE lease = 'work'"
	before := testkit.Value[string](t, owner, owners)
	testkit.Execute(t, owner, `UPDATE pgleases.schema_version SET version = 0; DROP VIEW pgleases.locks_status; DROP INDEX pgleases.partitions_owner;
		DROP FUNCTION pgleases.lock_list(text, text, int)`)

	long := testkit.Must(owner.Begin(t.Context()))(t)
	defer long.Rollback(t.Context())
	testkit.Must(long.Exec(t.Context(), "LOCK TABLE pgleases.leases IN ROW EXCLUSIVE MODE"))(t)
	migrated := make(chan error, 1)
	go func() { migrated <- pgleases.Migrate(t.Context(), owner) }()
	testkit.Becomes(t, owner, "the migration waits", true, "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND relation = 'pgleases.leases'::regclass)")
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
	made := testkit.Value[bool](t, owner, `SELECT version = 1 AND to_regclass('pgleases.locks_status') IS NOT NULL AND to_regclass('pgleases.partitions_owner') IS NOT NULL
		AND to_regproc('pgleases.lock_list') IS NOT NULL FROM pgleases.schema_version`)
	if !made {
		t.Error("the schema is not what it should be after the migration")
	}
	shut(t, b)
	untilOwns(t, a, 4)
}

package pgleases_test

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// lockLease locks a lease's row until the function that it returns is called.
func lockLease(t *testing.T, pool *pgxpool.Pool, name string) (release func()) {
	t.Helper()
	return lockLeaseFor(t, pool, name, "UPDATE")
}

func lockLeaseFor(t *testing.T, pool *pgxpool.Pool, name, strength string) (release func()) {
	t.Helper()
	tx := testkit.Must(pool.Begin(t.Context()))(t)
	testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.leases WHERE name = $1 FOR "+strength, name))(t)
	return func() { _ = tx.Rollback(context.Background()) }
}

func TestALockedLeaseKeepsNoOtherFromBeingHandedOver(t *testing.T) {
	t.Parallel()
	pool, ca, cb, _ := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	locked := joined(t, ca, "locked", 1)
	untilOwns(t, locked, 1)
	next := joined(t, cb, "work", 1)
	defer lockLease(t, pool, "locked")()
	leaving := newCrew(t)
	defer leaving.gone()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	leaving.do(func() {
		go func() { _ = ca.Close(ctx) }()
	})
	untilOwns(t, next, 1)
}

func TestALockedLeaseKeepsNoOtherFromBeingPlanned(t *testing.T) {
	t.Parallel()
	pool, _, cb, work := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	untilOwns(t, joined(t, cb, "locked", 1), 1)
	next := joined(t, cb, "work", 1) // so that a plan is of both
	defer lockLease(t, pool, "locked")()
	testkit.OK(t, work.SetWeight(t.Context(), 0))
	untilOwns(t, next, 1)
}

// In the mode in which a lease is changed by hand.
func TestLockedLeaseDelaysNoOtherAnnouncement(t *testing.T) {
	t.Parallel()
	pool, ca, cb, work := twoClients(t, 1, pgleases.WithHandoffDelay(0))
	locked := joined(t, ca, "locked", 1)
	untilOwns(t, locked, 1)
	leases := map[string]*pgleases.Lease{"work": work, "locked": locked}
	heirs, holds := make(map[string]*pgleases.Lease), make(map[string]*pgleases.Hold)
	for name := range leases {
		holds[name] = leases[name].Hold(t.Context())
		heirs[name] = joined(t, cb, name, 1, pgleases.WithWeight(0))
	}
	for name := range leases {
		for lease, weight := range map[*pgleases.Lease]int{heirs[name]: 1, leases[name]: 0} {
			testkit.OK(t, lease.SetWeight(t.Context(), weight))
		}
	}
	for _, lease := range leases {
		untilOwns(t, lease, 0) // both drain
	}
	beats(t, cb, 3) // these report everything from before to the next owner
	defer lockLeaseFor(t, pool, "locked", "NO KEY UPDATE")()
	holds["locked"].Release()
	testkit.Becomes(t, pool, "it is released", "b", "SELECT owner FROM pgleases.status WHERE lease = 'locked'")
	holds["work"].Release()
	untilOwns(t, heirs["work"], 1)
}

// Nor does another role's lock on a partition without an owner, where no guard can be open.
func TestLockedPartitionDelaysNoOther(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	c := newClient(t, pool, pgleases.WithClientID("a"))
	l := joined(t, c, "work", 2, pgleases.WithWeight(0))
	tx := testkit.Must(pool.Begin(t.Context()))(t)
	defer func() { _ = tx.Rollback(context.Background()) }()
	testkit.Must(tx.Exec(t.Context(), "SELECT FROM pgleases.partitions WHERE partition = 0 FOR UPDATE"))(t)
	testkit.OK(t, l.SetWeight(t.Context(), 1))
	untilOwns(t, l, 1)
}

//go:build unix

package proof_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle/writes"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// unlockedFence refuses lower epochs, and remembers the highest one, without a lock on the row.
const unlockedFence = `CREATE OR REPLACE FUNCTION pgleases.fence(name text, epoch bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER AS $$
DECLARE
    highest CONSTANT bigint := (SELECT f.epoch FROM pgleases.fences AS f WHERE f.name = $1);
BEGIN
    IF highest > $2 THEN
        RAISE EXCEPTION 'refused' USING ERRCODE = 'PL004';
    ELSIF highest IS DISTINCT FROM $2 THEN
        INSERT INTO pgleases.fences VALUES ($1, $2) ON CONFLICT ON CONSTRAINT fences_pkey DO UPDATE SET epoch = EXCLUDED.epoch;
    END IF;
END $$`

// The leases are on one server, the data on another. Owners are killed and frozen, also in the
// middle of a transaction, and continue. With the fence, no write of an older owner is committed
// after one of a newer owner. A check that locks nothing lets such writes pass.
func TestFenceOnAnotherServerUnderFaults(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		elsewhere := pgserver.Private(t)
		began, most := time.Now(), 2*time.Minute
		ledger, _ := fenced(t, elsewhere.URL(), "unlocked", unlockedFence, most)
		if len(ledger.Check()) == 0 {
			t.Missed(began, most, "a check without a lock let no late write pass: the faults do not test the fence")
		}
		fleet := 8 * time.Second
		if !brief() {
			fleet = time.Minute
		}
		ledger, owners := fenced(t, elsewhere.URL(), "fenced", fence.Schema(faults.FenceSchema).SQL(), fleet)
		for _, late := range weighedWrites(t, ledger) {
			t.Error(late)
		}
		if owners < 12 {
			t.Missed(began, fleet, "only %d ownerships wrote: the test covered too little", owners)
		}
	})
}

// fenced lets a fleet write elsewhere under processes that are killed and frozen, for a time or
// until a late write was committed. It returns the writes, and how many ownerships wrote.
func fenced(
	t *timeguard.Try, elsewhere, lease, function string, most time.Duration,
) (ledger *writes.Ledger, owners int) {
	t.Helper()
	const partitions = 8
	pool := testkit.Pool(t, elsewhere)
	testkit.Execute(t, pool, fence.Schema(faults.FenceSchema).SQL())
	testkit.Execute(t, pool, function)
	effects := faults.NewEffects(pool, lease)
	testkit.OK(t, effects.Create(t.Context(), partitions))
	fleet := newFleet(t, faults.Config{
		URL: pgtest.Database(t), FenceURL: elsewhere,
		Lease: lease, Partitions: partitions, TTL: time.Second, Effects: true,
	}, 4, 0)
	fleet.Faults = slices.DeleteFunc(slices.Clone(fleet.Faults), func(f faults.Fault) bool {
		return !slices.Contains([]string{"join", "kill", "restart", "pause"}, f.Name)
	})
	fleet.Enough = func(map[string]int) bool {
		ledger = testkit.Must(effects.Ledger(t.Context()))(t)
		return len(ledger.Check()) > 0
	}
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	if err := fleet.Run(ctx); err != nil {
		t.Error(err)
	}
	fleet.Enough(nil) // the last writes too
	late := ledger.Check()
	if err := ledger.Linearizable(fleet.Dir, patience); err != nil && len(late) == 0 {
		t.Error(err)
	}
	owners = count(t, pool, "(SELECT DISTINCT partition, epoch FROM effects WHERE lease = $1) AS o", lease)
	tally.Faults(t, fleet.Counts)
	t.Logf("%s: %d writes of %d ownerships, %d of them late; faults: %v",
		lease, len(ledger.Writes), owners, len(late), fleet.Counts)
	return ledger, owners
}

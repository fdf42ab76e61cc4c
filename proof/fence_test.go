//go:build unix

package proof_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/timeguard"
)

// unlockedFence refuses lower epochs, and remembers the highest one, without a lock on the row.
const unlockedFence = `CREATE OR REPLACE FUNCTION pgleases.fence(name text, epoch bigint) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
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
		if zombies, _ := fenced(t, elsewhere.URL(), "unlocked", unlockedFence, most); len(zombies) == 0 {
			t.Missed(began, most, "a check without a lock let no late write pass: the faults do not test the fence")
		}
		fleet := 8 * time.Second
		if !brief() {
			fleet = time.Minute
		}
		zombies, owners := fenced(t, elsewhere.URL(), "fenced", fence.Schema(faults.FenceSchema).SQL(), fleet)
		for _, zombie := range zombies {
			t.Error(zombie)
		}
		if owners < 12 {
			t.Missed(began, fleet, "only %d ownerships wrote: the test covered too little", owners)
		}
	})
}

// The fence's own server fails over to a standby that lacks the last commits: epochs and the writes
// under them. A lower epoch passes there only if the standby lacks the higher one, and then what was
// written under the higher one is lost too.
func TestFenceLosesEpochsAndWritesTogether(t *testing.T) {
	t.Parallel()
	const fences = fence.Schema("pgleases")
	c := newCluster(t, 2)
	old, next := newPool(t, c.servers[0].URL()), newPool(t, c.servers[1].URL())
	execute(t, old, fences.SQL())
	execute(t, old, "CREATE TABLE written (epoch bigint)")
	write := func(pool *pgxpool.Pool, name string, epoch int64) error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error {
			if err := fences.Check(t.Context(), tx, name, epoch); err != nil {
				return err
			}
			_, err := tx.Exec(t.Context(), "INSERT INTO written VALUES ($1)", epoch)
			return err
		})
	}
	expect := func(what string, err, want error) {
		t.Helper()
		if !errors.Is(err, want) {
			t.Errorf("%s: %v, not %v", what, err, want)
		}
	}
	expect("the first owner", write(old, "a", 7), nil)
	caughtUp(t, c.servers[0], c.servers[1])
	c.pipes[0].Freeze()
	expect("the next owner, which the standby misses", write(old, "a", 9), nil)
	expect("a lower epoch before the failover", write(old, "a", 8), fence.ErrFenced)
	if err := c.servers[0].Kill(); err != nil {
		t.Fatal(err)
	}
	if err := c.servers[1].Promote(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect("an epoch below what the standby has", write(next, "a", 6), fence.ErrFenced)
	expect("an epoch between what it has and what it lacks", write(next, "a", 8), nil)
	if lost := value[bool](t, next, "SELECT max(epoch) = 8 FROM written"); !lost {
		t.Error("the write under epoch 9 is there, and the epoch is not")
	}
	expect("the present owner", write(next, "a", 9), nil)
	expect("the older owner, after that", write(next, "a", 8), fence.ErrFenced)
	if order := value[string](t, next, "SELECT string_agg(epoch::text, ' ' ORDER BY ctid) FROM written"); order != "7 8 9" {
		t.Errorf("written under %s", order)
	}
}

// fenced lets a fleet write elsewhere under processes that are killed and frozen, for a time or
// until a late write was committed. It returns the late writes, and how many ownerships wrote.
func fenced(t *timeguard.Try, elsewhere, lease, function string, most time.Duration) (zombies []string, owners int) {
	t.Helper()
	const partitions = 8
	pool := newPool(t, elsewhere)
	execute(t, pool, fence.Schema(faults.FenceSchema).SQL())
	execute(t, pool, function)
	effects := faults.NewEffects(pool, lease)
	if err := effects.Create(t.Context(), partitions); err != nil {
		t.Fatal(err)
	}
	config := faults.Config{URL: pgserver.Database(t), FenceURL: elsewhere, Lease: lease, Partitions: partitions, TTL: time.Second, Effects: true, Patience: patience, ProbeURL: probeURL(t)}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	seed := rand.Uint64()
	fleet, err := faults.NewFleet(ctx, config, t.TempDir(), 4, seed)
	t.Cleanup(func() { endFleet(t, fleet, 40) })
	if err != nil {
		t.Fatal(err)
	}
	fleet.Faults = slices.DeleteFunc(slices.Clone(fleet.Faults), func(f faults.Fault) bool {
		return !slices.Contains([]string{"join", "kill", "restart", "pause"}, f.Name)
	})
	var writes int64
	fleet.Enough = func(map[string]int) bool {
		if writes, zombies, err = effects.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		return len(zombies) > 0
	}
	ctx, cancel = context.WithTimeout(t.Context(), most)
	defer cancel()
	if err := fleet.Run(ctx); err != nil {
		t.Error(err)
	}
	fleet.Enough(nil) // the last writes too
	history, err := effects.History(t.Context(), fleet.Dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := faults.Linearizable(history, patience); err != nil && len(zombies) == 0 {
		t.Error(err)
	}
	owners = value[int](t, pool, "SELECT count(*) FROM (SELECT DISTINCT partition, epoch FROM effects WHERE lease = $1) AS o", lease)
	t.Logf("%s, seed %d: %d writes of %d ownerships, %d of them late; faults: %v", lease, seed, writes, owners, len(zombies), fleet.Counts)
	return zombies, owners
}

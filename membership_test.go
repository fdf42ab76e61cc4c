package pgleases_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

// Nobody should do that by hand; but what a context's end has told stays so.
func TestWhatEndedWithARemovedMembershipNeverPassesAGuardAgain(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	l := joined(t, newClient(t, pool), "work", 2)
	untilOwns(t, l, 2)
	before := []pgleases.Partition{ownership(t, l, 0), ownership(t, l, 1)}
	execute(t, ownersPool(t, pool.Config().ConnString()), "DELETE FROM pgleases.members")
	execute(t, ownersPool(t, pool.Config().ConnString()), "UPDATE pgleases.leases SET generation = generation + 1") // else it may be a minute until it is heard
	for _, p := range before {
		if cause := ended(t, "it is lost", p.Context()); !errors.Is(cause, pgleases.ErrTrustLost) {
			t.Errorf("the ownership ended with %v", cause)
		}
	}
	until(t, "both are owned again, under other epochs", func() bool { return len(l.Values()) == 2 }, l)
	for _, p := range before {
		if now := ownership(t, l, p.Number); now.Epoch <= p.Epoch {
			t.Errorf("partition %v, which was lost, is owned again as %v", p, now)
		}
		wraps(t, fmt.Sprintf("Guard of %v", p), guard(t, pool, l, p), pgleases.ErrNotOwner)
		stored := pgleases.Partition{Number: p.Number, Epoch: p.Epoch} // as the work of before has passed it on
		wraps(t, fmt.Sprintf("Guard of %v, from its numbers", p), guard(t, pool, l, stored), pgleases.ErrNotOwner)
	}
}

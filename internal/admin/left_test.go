package admin_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

// A lease counts as left only if its last member has left in order: not if that was killed, also
// after an operator had made it hand its partitions over.
func TestALeaseIsLeftInOrderOnly(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		end          string
		stop, resume admin.Verb
		subject      string
	}{
		{"killed", "", "", ""},
		{"killed in a pause", admin.VerbPause, admin.VerbResume, "l"},
		{"killed after a drain", admin.VerbDrain, admin.VerbUndrain, "victim"},
		{"closed", "", "", ""},
	} {
		t.Run(test.end, func(t *testing.T) {
			t.Parallel()
			url := pgtest.MigratedDatabase(t)
			a := newAdmin(t, newPool(t, pgtest.OwnerURL(url)))
			other := clients.New(t, newPool(t, url), pgleases.WithClientID("other"), pgleases.WithTTL(time.Second))
			joined(t, other, "m", 1)
			wire := new(testkit.Wire)
			pool := newPool(t, url, wire.Carry)
			victim := testkit.Must(pgleases.NewClient(t.Context(), pool,
				pgleases.WithClientID("victim"), pgleases.WithTTL(time.Second)))(t)
			t.Cleanup(func() {
				wire.Mend()
				_ = victim.Close(context.Background()) // its session is gone
			})
			lease := joined(t, victim, "l", 2)
			testkit.Until(t, "it owns all", func() bool { return len(lease.Values()) == 2 })
			snapshot := func() *admin.Snapshot { return testkit.Must(a.Snapshot(t.Context()))(t) }
			vacant := func() bool {
				owned := func(h admin.Holding) bool { return h.OwnerSession != 0 }
				return !slices.ContainsFunc(snapshot().Lease("l").Holdings, owned)
			}
			order := func(verb admin.Verb) {
				if verb != "" {
					testkit.OK(t, a.Apply(t.Context(), admin.Change{
						Verb: verb, Subject: test.subject, Reason: "why", Actor: "me", Force: verb == admin.VerbDrain,
					}))
				}
			}
			order(test.stop)
			if test.stop != "" {
				testkit.Until(t, "it has handed over", vacant)
			}
			if test.end == "closed" {
				testkit.OK(t, victim.Close(t.Context()))
			} else {
				wire.Cut()
			}
			testkit.Until(t, "it is no member", func() bool {
				return len(snapshot().Lease("l").Members) == 0 && vacant()
			})
			order(test.resume)
			s := snapshot()
			lost := s.Unowned(s.Lease("l"))
			if left := s.Lease("l").Left; left != (test.end == "closed") || left != (lost == 0) {
				t.Errorf("left: %t, with %d partitions without an owner", left, lost)
			}
		})
	}
}

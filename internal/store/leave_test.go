package store_test

import (
	"fmt"
	"testing"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A leave that its client gave up may arrive late: the client has left by another message since,
// and joined again.
func TestLateLeaveEndsNoLaterMembership(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		s := f.client("s")
		s.join("l", 1)
		first := s.joins
		late := func() {
			t.Helper()
			leave := []Leave{{Lease: "l", Now: true}}
			got := testkit.Must(s.Release(f.ctx, s.session, []Release{{"l", 0, 1}}, leave, first))(f)
			expect(t, fmt.Sprint(got), "{[] [] [] []}", "answer to a late leave")
			m := f.tables().Members[fakestore.Member{Lease: "l", Session: s.session}]
			m.JoinedAt, m.JoinedGeneration = 0, 0
			expect(t, m, fakestore.Membership{Weight: 1, JoinNumber: 2}, "membership")
		}
		s.give("l", s.session)
		expect(t, len(s.release([]Release{{"l", 0, 1}}, "l").Left), 1, "leases left")
		s.join("l", 1)
		late() // it owns nothing yet, and would have left
		s.give("l", s.session)
		late() // it owns, and would own nothing soon
		expect(t, s.owned("l"), "0:3", "owned")
		expect(t, len(s.release([]Release{{"l", 0, 3}}, "l").Left), 1, "leases left")
	})
}

func TestLeaveThatWaitedForAJoinKeepsItsMembership(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	for _, left := range []bool{true, false} { // before it joined again
		s := f.client(fmt.Sprint("left before: ", left))
		s.join("l", 1)
		first := s.joins
		session := f.session()
		tx := testkit.Must(session.Begin(f.ctx))(f)
		if left {
			testkit.Must(tx.Exec(f.ctx, "DELETE FROM members WHERE session = $1", s.session))(f)
		}
		testkit.Must(tx.Exec(f.ctx, "UPDATE leases SET generation = generation + 1"))(f)
		_, err := tx.Exec(f.ctx, `INSERT INTO members VALUES ('l', $1, 1, clock_timestamp(), $2)
			ON CONFLICT (lease, session) DO UPDATE SET join_number = EXCLUDED.join_number`, s.session, first+1)
		f.ok(err)
		conn := f.conn()
		late := later(func() error {
			_, err := conn.Release(f.ctx, s.session, nil, []Leave{{Lease: "l", Now: true}}, first)
			return err
		})
		f.blocked(conn.Raw())
		f.ok(tx.Commit(f.ctx))
		f.ok(late())
		got := f.text("SELECT weight, join_number FROM members WHERE session = $1", s.session)
		expect(t, got, fmt.Sprint("1|", first+1), "membership")
	}
}

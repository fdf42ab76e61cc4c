package admin_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// Connections of the pool that lead to a standby hinder no change.
func TestChangesPassOverStrayConnections(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	joined(t, newClient(t, newPool(t, url), "x"), "orders", 4)
	a := newAdmin(t, testkit.StrayPool(t, url, 3))
	for range 4 {
		testkit.OK(t, a.Apply(t.Context(), admin.Change{Verb: admin.VerbFreeze, Subject: "orders", Reason: "why"}))
	}
}

func TestOverridesAreObeyedShownAndTakenBack(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, url)
	a, operator := newAdmin(t, pool), newAdmin(t, newPool(t, pgtest.OwnerURL(url)))
	x, y := newClient(t, pool, "x"), newClient(t, pool, "y")
	joined(t, x, "orders", 4)
	joined(t, y, "orders", 4)
	owns := func(of ...int) func(*admin.Snapshot) bool {
		return func(s *admin.Snapshot) bool {
			m := s.Lease("orders").Members
			return len(m) == 2 && m[0].Owned == of[0] && m[1].Owned == of[1]
		}
	}
	apply := func(c admin.Change) {
		t.Helper()
		testkit.OK(t, operator.Apply(t.Context(), c))
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	awaitSnapshot(t, a, "shares", owns(2, 2))
	apply(admin.Change{Verb: admin.VerbDrain, Subject: "y", Reason: "its host goes", Actor: "maria"})
	s := awaitSnapshot(t, a, "y is drained", owns(4, 0))
	if m := s.Lease("orders").Members; m[0].Share != 4 || m[1].Share != 0 {
		t.Errorf("shares of %+v", m)
	}
	w := s.OverridesOf("orders", "y")
	if len(w) != 1 || len(s.OverridesOf("orders", "x")) != 0 {
		t.Fatalf("overrides %+v", s.Overrides)
	}
	drain := w[0]
	if !strings.HasPrefix(drain.Actor, "maria (") || drain.Since.IsZero() {
		t.Errorf("a drain by maria: %+v", drain)
	}
	drain.Actor = ""
	drain.Since = time.Time{}
	if want := (admin.Override{Verb: admin.VerbDrain, Client: "y", Reason: "its host goes"}); drain != want {
		t.Errorf("the override is %+v, want %+v", drain, want)
	}
	apply(admin.Change{Verb: admin.VerbUndrain, Subject: "y", Reason: "it stays"})
	awaitSnapshot(t, a, "y has its own back", owns(2, 2))
	apply(admin.Change{Verb: admin.VerbPause, Subject: "orders", Reason: "maintenance", Lasts: time.Hour})
	s = awaitSnapshot(t, a, "nobody owns it", owns(0, 0))
	if w := s.OverridesOf("orders", "x"); len(w) != 1 || w[0].Until.Before(s.At) {
		t.Errorf("overrides %+v", s.Overrides)
	}
	expectMatch(t, "of a lease that is paused", explained(t, a, "orders", 0),
		`An operator set a pause of "orders".*No member may own it, because the lease is paused\. `+
			`When it may go on: pgleases resume orders --reason '\.\.\.'\.$`)
	for _, f := range a.Doctor(t.Context(), admin.DoctorOptions{}) {
		if f.Check == "orphans" && f.Level != admin.LevelOK {
			t.Errorf("of a lease that is paused: %+v", f)
		}
	}
	apply(admin.Change{Verb: admin.VerbResume, Subject: "orders", Reason: "done"})
	awaitSnapshot(t, a, "shares again", owns(2, 2))

	pin := admin.Change{Verb: admin.VerbPin, Subject: "orders", Partition: 2, Client: "x", Reason: "its data is near"}
	apply(pin)
	pin.Client = "y"
	pin.Lasts = time.Hour
	apply(pin)
	s = awaitSnapshot(t, a, "the partition is with y, and the others are shared", func(s *admin.Snapshot) bool {
		for _, h := range s.Lease("orders").Holdings {
			if h.Partitions.Contains(2) && (h.Owner != "y" || h.Moves()) {
				return false
			}
		}
		m := s.Lease("orders").Members
		return m[0].Owned+m[1].Owned == 4 && m[0].Owned >= 1 && m[1].Owned >= 2 && s.Lease("orders").Due.IsZero()
	})
	if len(s.Overrides) != 1 || len(s.OverridesOf("orders", "y")) != 0 {
		t.Fatalf("overrides %+v", s.Overrides)
	}
	if w := s.Overrides[0]; w.Of() != "orders/2" || w.Client != "y" {
		t.Errorf("overrides %+v", s.Overrides)
	}
	for partition, want := range []string{"", "", `An operator pinned it to "y"`, ""} {
		text := explained(t, a, "orders", partition)
		if strings.Contains(text, "pinned") != (want != "") || !strings.Contains(text, want) {
			t.Errorf("partition %d: %s", partition, text)
		}
	}
	apply(admin.Change{Verb: admin.VerbUnpin, Subject: "orders", Partition: 2, Reason: "it is over"})
	awaitSnapshot(t, a, "shares without the pin", owns(2, 2))

	if last, err := a.Events(ctx, "orders", 1); err != nil || len(last) != 1 || last[0].Lease != "orders" {
		t.Errorf("the last event of orders: %+v, %v", last, err)
	}
	for want, c := range map[string]admin.Change{
		`client "none" is not known`: {Verb: admin.VerbDrain, Subject: "none", Reason: "why"},
		"give a name and a reason":   {Verb: admin.VerbCordon, Subject: "x"},
		`verb "lose" is none of`:     {Verb: "lose", Subject: "x", Reason: "why"},
		"Force for drain":            {Verb: admin.VerbCordon, Subject: "x", Reason: "why", Force: true},
		"It has those from 0 to 3": {
			Verb: admin.VerbPin, Subject: "orders", Partition: 4, Client: "x", Reason: "why",
		},
		"numbered from 0": {
			Verb: admin.VerbPin, Subject: "orders", Partition: -1, Client: "x", Reason: "why",
		},
		"Pin takes a client":          {Verb: admin.VerbPin, Subject: "orders", Reason: "why"},
		"no other verb does":          {Verb: admin.VerbUnpin, Subject: "orders", Client: "x", Reason: "why"},
		"Partition for pin and unpin": {Verb: admin.VerbFreeze, Subject: "orders", Partition: 1, Reason: "why"},
		"for -2h0m0s: give a time":    {Verb: admin.VerbDrain, Subject: "x", Reason: "why", Lasts: -2 * time.Hour},
		"Lasts is for":                {Verb: admin.VerbUndrain, Subject: "x", Reason: "why", Lasts: time.Hour},
		"Next for drop and replace":   {Verb: admin.VerbFreeze, Subject: "orders", Reason: "why", Next: 3},
		"drop_lease with 70000":       {Verb: admin.VerbDrop, Subject: "orders", Reason: "why", Next: 70_000},
		"takes the name of another":   {Verb: admin.VerbReplace, Subject: "orders", Reason: "why", Next: 3},
		"with 0 partitions":           {Verb: admin.VerbReplace, Subject: "orders", Reason: "why", By: "more"},
		`"orders" has members: x, y`:  {Verb: admin.VerbReplace, Subject: "orders", Reason: "why", By: "more", Next: 8},
		"has an option of another":    {Verb: admin.VerbUnpin, Subject: "orders", Reason: "why", Lasts: time.Hour},
	} {
		if err := operator.Apply(t.Context(), c); !errors.Is(err, admin.ErrRefused) || !fails(err, want) {
			t.Errorf("%+v: %v, want a refusal with %q", c, err, want)
		}
	}
	apply(admin.Change{Verb: admin.VerbDrain, Subject: "x", Reason: "away"})
	err := operator.Apply(t.Context(), admin.Change{Verb: admin.VerbDrain, Subject: "y", Reason: "away"})
	if !errors.Is(err, admin.ErrLast) {
		t.Error(err)
	}
	apply(admin.Change{Verb: admin.VerbDrain, Subject: "y", Reason: "away", Force: true})
	awaitSnapshot(t, a, "nobody works", owns(0, 0))
}

// The clock of the operator may be wrong.
func TestOverrideEndsByTheDatabasesClock(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, "INSERT INTO pgleases.leases VALUES ('l', 1, 5, 1, 0, 'infinity', now())")
	var last time.Time // when the pool gave a connection, for a change that was given before
	pool := newPool(t, pgtest.OwnerURL(url), func(c *pgxpool.Config) {
		c.PrepareConn = func(ctx context.Context, conn *pgx.Conn) (bool, error) {
			return true, conn.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&last)
		}
	})
	freeze := admin.Change{Verb: admin.VerbFreeze, Subject: "l", Reason: "why", Lasts: time.Hour}
	testkit.OK(t, newAdmin(t, pool).Apply(t.Context(), freeze))
	began := last
	var until time.Time
	testkit.OK(t, pool.QueryRow(t.Context(), "SELECT until FROM pgleases.overrides").Scan(&until))
	if stands := until.Sub(began); stands < time.Hour || stands > time.Hour+patience {
		t.Errorf("it stands for %v", stands)
	}
}

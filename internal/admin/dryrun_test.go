package admin_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// owners returns the owner of each partition of a lease, or "".
func ownersOf(l *admin.Lease) []string {
	owners := make([]string, l.Partitions)
	for _, h := range l.Holdings {
		for _, r := range h.Partitions {
			for p := r[0]; p <= r[1]; p++ {
				owners[p] = h.Owner
			}
		}
	}
	return owners
}

// awaitQuiet waits until no plan is due, and no partition is moving.
func awaitQuiet(t *testing.T, a *admin.Admin, members map[string]int) *admin.Snapshot {
	t.Helper()
	return awaitSnapshot(t, a, "it is quiet", func(s *admin.Snapshot) bool {
		for name, n := range members {
			l := s.Lease(name)
			if l == nil || len(l.Members) != n || !l.Due.IsZero() {
				return false
			}
			for _, h := range l.Holdings {
				if h.OwnerSession != h.TargetSession {
					return false
				}
			}
		}
		return true
	})
}

// dryRun returns the owners after a dry run.
func dryRun(t *testing.T, before map[string][]string, p *admin.DryRun) string {
	t.Helper()
	after := make(map[string][]string)
	for lease, owners := range before {
		after[lease] = append([]string(nil), owners...)
	}
	for _, m := range p.Moves {
		for _, r := range m.Partitions {
			for n := r[0]; n <= r[1]; n++ {
				if before[m.Lease][n] != m.From && m.Kind != admin.MoveAtOnce {
					t.Errorf("partition %d of %s is %s's, and not of %+v", n, m.Lease, before[m.Lease][n], m)
				}
				if after[m.Lease][n] = m.To; m.Kind == admin.MoveKept {
					t.Errorf("of a fleet that is quiet: %+v", m)
				}
			}
		}
	}
	return fmt.Sprint(after)
}

// In the modes that describe statements, the server sends arrays in another format.
func TestDryRunInEveryModeOfPgx(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	joined(t, newClient(t, newPool(t, url), "one"), "orders", 4)
	for _, mode := range testkit.Modes(url) {
		withMode := func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode }
		a := newAdmin(t, testkit.Pool(t, pgtest.OwnerURL(url), withMode))
		_, err := a.DryRun(t.Context(), admin.Change{Verb: admin.VerbDrain, Subject: "one", Force: true})
		if err != nil {
			t.Errorf("%v: %v", mode, err)
		}
	}
}

// A quiet fleet does what the dry run showed, and a dry run changes no row.
func TestAFleetDoesWhatTheDryRunShowed(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, url)
	a, operator := newAdmin(t, pool), newAdmin(t, newPool(t, pgtest.OwnerURL(url)))
	x, y, z := newClient(t, pool, "x"), newClient(t, pool, "y"), newClient(t, pool, "z")
	for i, c := range []*pgleases.Client{x, y, z} {
		joined(t, c, "orders", 13, pgleases.WithWeight(i+1))
	}
	joined(t, x, "mails", 5)
	joined(t, y, "mails", 5)
	joined(t, x, "lead", 1)
	joined(t, y, "lead", 1)
	members := map[string]int{"orders": 3, "mails": 2, "lead": 2}
	owners := func(s *admin.Snapshot) map[string][]string {
		owners := make(map[string][]string)
		for name := range members {
			owners[name] = ownersOf(s.Lease(name))
		}
		return owners
	}
	const of = `
		SELECT json_agg(row_to_json(l)::jsonb - '{changed,plan_due_at,planned_at,generation}'::text[])::text ||
			(SELECT count(*) FROM pgleases.events) || (SELECT count(*) FROM pgleases.overrides)
		FROM (SELECT * FROM pgleases.leases ORDER BY name) AS l`
	owner := newPool(t, pgtest.OwnerURL(url))
	state := func() (text string) {
		t.Helper()
		testkit.OK(t, owner.QueryRow(t.Context(), of).Scan(&text))
		return text
	}
	moved := 0
	for _, c := range []admin.Change{
		{Verb: admin.VerbDrain, Subject: "y"},
		{Verb: admin.VerbCordon, Subject: "z", Lasts: time.Hour},
		{Verb: admin.VerbUndrain, Subject: "y"},
		{Verb: admin.VerbPin, Subject: "orders", Partition: 3, Client: "x"},
		{Verb: admin.VerbPin, Subject: "orders", Partition: 4, Client: "x"},
		{Verb: admin.VerbPin, Subject: "orders", Partition: 4, Client: "z"},
		{Verb: admin.VerbUncordon, Subject: "z"},
		{Verb: admin.VerbFreeze, Subject: "mails"},
		{Verb: admin.VerbDrain, Subject: "x"},
		{Verb: admin.VerbDrain, Subject: "y", Force: true},
		{Verb: admin.VerbUndrain, Subject: "x"},
		{Verb: admin.VerbUnfreeze, Subject: "mails"},
		{Verb: admin.VerbUndrain, Subject: "y"},
		{Verb: admin.VerbPause, Subject: "orders"},
		{Verb: admin.VerbResume, Subject: "orders"},
		{Verb: admin.VerbUnpin, Subject: "orders", Partition: 4},
		{Verb: admin.VerbUnpin, Subject: "orders", Partition: 3},
	} {
		name := fmt.Sprintf("%s %s/%d %s", c.Verb, c.Subject, c.Partition, c.Client)
		s := awaitQuiet(t, a, members)
		before := owners(s)
		stood := state()
		p, err := operator.DryRun(t.Context(), c)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if strings.Join(p.Leases, " ") != "lead mails orders" {
			t.Errorf("%s: leases %q", name, p.Leases)
		}
		again, err := operator.DryRun(t.Context(), c)
		if err != nil || fmt.Sprint(again) != fmt.Sprint(p) {
			t.Errorf("%s: %+v, then %+v, %v", name, p, again, err)
		}
		if now := state(); now != stood {
			t.Errorf("a dry run of %s changed %s to %s", name, stood, now)
		}
		for _, m := range p.Moves {
			moved += m.Partitions.Count()
		}
		want := dryRun(t, before, p)
		c.Reason = "as the dry run said"
		if err := operator.Apply(t.Context(), c); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		s = awaitQuiet(t, a, members)
		if got := fmt.Sprint(owners(s)); got != want {
			t.Errorf("after %s owners are\n%s, and the dry run said\n%s, from\n%v", name, got, want, before)
		}
	}
	if moved < 30 {
		t.Errorf("only %d moves in all", moved)
	}
}

// A dry run of an invalid or impossible change returns an error. One of an eviction says when others
// get the partitions.
func TestDryRunOfImpossibleChangesAndEvictions(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, url)
	a, operator := newAdmin(t, pool), newAdmin(t, newPool(t, pgtest.OwnerURL(url)))
	x, y := newClient(t, pool, "x"), newClient(t, pool, "y\n")
	joined(t, x, "orders", 4)
	joined(t, y, "orders", 4)
	joined(t, y, "mails", 2)
	awaitQuiet(t, a, map[string]int{"orders": 2, "mails": 1})
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	for want, c := range map[string]admin.Change{
		`client "none" is not known`:     {Verb: admin.VerbEvict, Subject: "none"},
		`verb "lose" is none of`:         {Verb: "lose", Subject: "orders"},
		"partitions would have no owner": {Verb: admin.VerbDrain, Subject: "y\n"},
		"give a time above 0":            {Verb: admin.VerbDrain, Subject: "x", Lasts: -time.Hour},
	} {
		if p, err := operator.DryRun(ctx, c); p != nil || !fails(err, want) {
			t.Errorf("dry run of %+v: %v, want %q", c, err, want)
		}
	}
	// Others get the partitions of an evicted client at its expiry.
	p := testkit.Must(operator.DryRun(ctx, admin.Change{Verb: admin.VerbEvict, Subject: "x"}))(t)
	if got := told(p); got != `at expiry: 2 from "x" to "y\n"` {
		t.Errorf("of an eviction: %s", got)
	}
}

// told returns the moves of a dry run, each with the number of its partitions.
func told(p *admin.DryRun) string {
	var moves []string
	for _, m := range p.Moves {
		moves = append(moves, fmt.Sprintf("%s: %d from %q to %q", m.Kind, m.Partitions.Count(), m.From, m.To))
	}
	return strings.Join(moves, ", ")
}

// A change by which the owner keeps the partitions cancels a handoff that waits for work.
func TestADryRunTellsWhatIsKept(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, url)
	a, operator := newAdmin(t, pool), newAdmin(t, newPool(t, pgtest.OwnerURL(url)))
	x, y := newClient(t, pool, "x"), newClient(t, pool, "y")
	orders := joined(t, x, "orders", 4)
	awaitSnapshot(t, a, "x has them", func(s *admin.Snapshot) bool {
		m := s.Lease("orders").Members
		return len(m) == 1 && m[0].Owned == 4
	})
	var hold *pgleases.Hold
	for {
		changed := orders.Changed()
		if hold = orders.Hold(t.Context()); len(hold.Values()) == 4 {
			break
		}
		hold.Release()
		<-changed
	}
	defer hold.Release()
	joined(t, y, "orders", 4)
	awaitSnapshot(t, a, "x is asked for two of them", func(s *admin.Snapshot) bool {
		m := s.Lease("orders").Members
		return len(m) == 2 && m[0].Outgoing == 2 && s.Lease("orders").Due.IsZero()
	})
	p := testkit.Must(operator.DryRun(t.Context(), admin.Change{Verb: admin.VerbCordon, Subject: "x"}))(t)
	if got := told(p); got != "" {
		t.Errorf("what is under way is told: %s", got)
	}
	p = testkit.Must(operator.DryRun(t.Context(), admin.Change{Verb: admin.VerbDrain, Subject: "y"}))(t)
	if got := told(p); got != `kept: 2 from "x" to "x"` {
		t.Errorf("of a drain that cancels the handoff: %s", got)
	}
}

// The server locks the leases while it sends its answer, which is larger than the buffers on the
// way.
func TestDryRunOfStoppedProgramLocksNoLease(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.OwnerURL(pgtest.FreshDatabase(t)))
	exec(t, url, `INSERT INTO pgleases.leases VALUES ('wide', 20000, 5, 1, 0, 'infinity', now())`,
		`INSERT INTO pgleases.partitions (lease, partition, epoch, owner_id, preferred_owner_id)
			SELECT 'wide', p, 3, repeat('x', 200) || p, repeat('y', 200) || p FROM generate_series(0, 19999) AS p`)
	wire := &testkit.Wire{ReadBuffer: 4096}
	a := newAdmin(t, newPool(t, url, wire.Carry))
	free := wire.Delay(".freeze(")
	answer := make(chan error, 1)
	go func() {
		_, err := a.DryRun(t.Context(), admin.Change{Verb: admin.VerbFreeze, Subject: "wide"})
		answer <- err
	}()
	defer func() {
		free()
		if err := <-answer; err == nil {
			t.Error("it told what it could not read")
		}
	}()
	testkit.Until(t, "it is stopped", func() bool { return wire.Left() == 0 })
	pool := newPool(t, url)
	lock := func(how string) error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := pool.Exec(ctx, "SELECT FROM pgleases.leases FOR UPDATE "+how)
		return err
	}
	for began := time.Now(); lock("NOWAIT") == nil; time.Sleep(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the leases were never locked")
		}
	}
	if err := lock(""); err != nil {
		t.Errorf("while it is stopped: %v", err)
	}
}

// Heartbeats wait for the locks of a dry run. If its read takes long, the server cancels it well
// before the shortest TTL, and no change is made.
func TestDryRunDelaysHeartbeatsByAQuarterTTLAtMost(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool, owner := newPool(t, url), newPool(t, pgtest.OwnerURL(url))
	joined(t, newClient(t, pool, "x"), "orders", 4)
	a := newAdmin(t, owner)
	exec(t, url, "UPDATE pgleases.clients SET ttl = '1 s'")
	tx := testkit.Must(owner.Begin(t.Context()))(t) // what the server reads takes for ever
	testkit.Must(tx.Exec(t.Context(), "LOCK TABLE pgleases.partitions IN ACCESS EXCLUSIVE MODE"))(t)
	_, err := a.DryRun(t.Context(), admin.Change{Verb: admin.VerbCordon, Subject: "x"})
	if !errors.Is(err, admin.ErrRefused) || !fails(err, "25 % of the shortest TTL") {
		t.Error(err)
	}
	testkit.OK(t, tx.Rollback(t.Context()))
	if s, err := a.Snapshot(t.Context()); err != nil || len(s.Overrides) != 0 {
		t.Errorf("%+v, %v", s, err)
	}
}

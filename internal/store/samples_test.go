package store_test

import (
	"strings"
	"sync"
	"testing"
	"time"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// samples returns the samples of one kind: name, value.
func (f *fixture) samples(kind string) string {
	f.Helper()
	return f.text("SELECT name, value FROM samples WHERE kind = $1 ORDER BY at, name", kind)
}

// sampleAll calls Sample until all of this minute is written.
func (c *client) sampleAll() (calls int) {
	c.f.Helper()
	for remains := true; remains && calls < 1000; calls++ {
		remains = testkit.Must(c.Sample(c.f.ctx, testkit.Patience))(c.f).Remains
	}
	return calls
}

func TestSamplesCountOnceAMinute(t *testing.T) {
	t.Parallel()
	f := stoppedFixture(t)
	start := time.Now().Truncate(time.Minute)
	f.setClock(start.Add(time.Second))
	a, b := f.client("a"), f.client("b")
	a.join("l", 6)
	b.join("l", 6)
	b.join("m", 2)
	a.give("l", a.session, a.session, b.session, a.session)
	a.sampleAll()
	for kind, want := range map[string]string{
		"members": "l|2\nm|1",
		"unowned": "|4\nl|2\nm|2",
		"clients": "|2",
		"leases":  "|2",
		"locks":   "|0",
		"waiting": "",
		"late":    "",
	} {
		expect(t, f.samples(kind), want, kind)
	}
	f.setClock(start.Add(59 * time.Second))
	a.beat()
	b.beat()
	a.join("new", 3)
	b.sampleAll()
	expect(t, f.samples("leases"), "|2", "in the same minute")
	f.setClock(start.Add(61 * time.Second))
	b.sampleAll()
	expect(t, f.samples("leases"), "|2\n|3", "in the next minute")
	f.setClock(start.Add(4 * time.Minute)) // all have expired, but their owners are not evicted
	b.sampleAll()
	expect(t, f.samples("clients"), "|2\n|2\n|0", "clients")
	minutes := f.text("SELECT count(DISTINCT at), bool_and(at = date_trunc('minute', at)) FROM samples")
	expect(t, minutes, "3|true", "minutes")
}

// Of clients that write samples at once, one does it, and the others do not wait for it.
func TestSamplesOfOneMinuteAreWrittenByOneClient(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b := f.client("a"), f.client("b")
	a.join("l", 6)
	end := f.lock("SELECT pgleases.sample(1000)")
	expect(t, testkit.Must(b.Sample(f.ctx, testkit.Patience))(f), Sampled{}, "sampled")
	end()
	once := f.text("SELECT count(*) > 0, count(*) = count(DISTINCT (kind, name, at)) FROM samples")
	expect(t, once, "true|true", "samples")
	f.exec("TRUNCATE samples")
	var calls sync.WaitGroup
	for range 4 {
		calls.Go(func() { f.clientTTL("more", time.Minute).sampleAll() })
	}
	calls.Wait()
	ofLease := f.text("SELECT count(*) FROM samples WHERE kind = 'members' GROUP BY at ORDER BY at LIMIT 1")
	expect(t, ofLease, "1", "samples of the lease")
}

// With many leases a call ends early, and the next ones go on.
func TestSamplesOfManyLeasesTakeManyCalls(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	f.exec(`
		INSERT INTO leases (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
		SELECT 'l' || n, 5000, 1, 1, 0, 'infinity', now() FROM generate_series(1, 20) AS n;
		INSERT INTO partitions (lease, partition, epoch)
		SELECT 'l' || n, p, 0 FROM generate_series(1, 20) AS n, generate_series(0, 4999) AS p`)
	a.sampleAll()
	got := f.text(`
		SELECT count(*), sum(value) FROM samples WHERE kind = 'unowned' AND name <> ''
		AND at = (SELECT max(at) FROM samples WHERE kind = 'clients')`)
	expect(t, got, "20|100000", "leases, and partitions without an owner")
}

func TestSamplesAreKeptForAWeek(t *testing.T) {
	t.Parallel()
	f := fixtureIn(t, emptyDatabase(t), "pgleases")
	role := f.role()
	f.grant("application", role)
	f.runAs = role
	c := f.client("c")
	c.join("l", 1)
	f.exec(`
		INSERT INTO samples (at, kind, name, value)
		SELECT now() - interval '8 days' - n * interval '1 second', 'old', 'l', 1 FROM generate_series(1, 12000) AS n`)
	f.exec(`
		INSERT INTO samples (at, kind, name, value) VALUES
			(now() - interval '6 days', 'young', 'l', 1),
			(now() + interval '1 hour', 'ahead', 'l', 1),
			(now() + interval '2 days', 'far ahead', 'l', 1)`)
	c.sampleAll() // as the application
	for _, want := range []string{"2000", "0"} {
		f.checkNow()
		c.evict()
		expect(t, f.text("SELECT count(*) FROM samples WHERE kind = 'old'"), want, "old")
	}
	kept := f.text(`
		SELECT string_agg(kind, ' ' ORDER BY at) FROM samples WHERE kind IN ('young', 'ahead', 'far ahead')`)
	expect(t, kept, "young ahead", "kept")
	expect(t, f.samples("members"), "l|1", "members")
	f.exec("SET ROLE " + role)
	defer f.exec("RESET ROLE")
	for _, statement := range []string{"DELETE FROM samples", "UPDATE samples SET value = 0", "TRUNCATE samples"} {
		if _, err := f.sql.Exec(f.ctx, statement); err == nil || !strings.Contains(err.Error(), "permission denied") {
			t.Errorf("an application may %s: %v", statement, err)
		}
	}
}

// However many leases there are, samples have a bound: those of the first 200 by name.
func TestSamplesHaveABound(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	f.exec(`INSERT INTO leases (name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at)
		SELECT 'l' || lpad(n::text, 3, '0'), 1, 1, 1, 0, 'infinity', now() FROM generate_series(1, 300) AS n`)
	a.sampleAll()
	got := f.text(`
		SELECT count(*), max(name) FROM samples WHERE kind = 'members'
		AND at = (SELECT max(at) FROM samples WHERE kind = 'clients')`)
	expect(t, got, "200|l200", "leases with samples, and the last of them")
}

// A lock on the samples, for example by VACUUM FULL, keeps no override from ending.
func TestALockOnSamplesStopsNothingElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a := f.client("a")
	f.exec("SELECT pgleases.pause('l', 'why', 'me', clock_timestamp() + interval '1 hour')")
	f.exec("UPDATE overrides SET until = clock_timestamp() - interval '1 second'")
	tx := testkit.Must(f.raw().Begin(f.ctx))(f) // of the owner, who may vacuum the table
	defer func() { _ = tx.Rollback(f.ctx) }()
	testkit.Must(tx.Exec(f.ctx, "LOCK TABLE pgleases.samples IN ACCESS EXCLUSIVE MODE"))(f)
	testkit.Must(a.Tidy(f.ctx))(t)
	expect(t, f.text("SELECT count(*) FROM overrides"), "0", "overrides")
}

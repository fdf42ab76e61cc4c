package store_test

import (
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// accepted changes the server to another one and accepts it, and returns the server generation.
func accepted(c *client) int64 {
	c.f.Helper()
	c.f.server(func(s *fakestore.Server, _ int64) { s.AcceptedTimeline = 77 })
	generation := testkit.Must(c.AcceptServer(c.f.ctx, 10*time.Minute, c.run(), 0))(c.f)
	if generation == 0 {
		c.f.Error("the server was not accepted")
	}
	return generation
}

// renewed accepts the server and makes the owner of the only partition renew it, and returns its
// epoch then.
func renewed(c *client) int64 {
	c.f.Helper()
	accepted(c)
	before := c.f.tables().Partitions["l"][0].Epoch
	expect(c.f.TB, len(c.release([]Release{{"l", 0, before}}).Released), 1, "renewed")
	return c.f.tables().Partitions["l"][0].Epoch
}

// Two standbys of one server, promoted one after the other, are on the same timeline and have the
// same server generation.
func TestCopiesOfOneStateGiveNoEpochTwice(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	c := f.client("c")
	c.join("l", 1)
	c.give("l", c.session)
	f.exec("CREATE TABLE public.copied AS SELECT s.generation, p.epoch FROM server AS s, partitions AS p")
	first := renewed(c)
	c.release([]Release{{"l", 0, first}})
	last := f.tables().Partitions["l"][0].Epoch

	second := value[int64](f, "SELECT floor(extract(epoch FROM clock_timestamp()))::bigint")
	f.until("the clock has gone on by a second", func() bool {
		return value[bool](f, "SELECT floor(extract(epoch FROM clock_timestamp())) > $1::bigint", second)
	})
	f.exec("UPDATE server SET generation = copied.generation FROM public.copied")
	f.exec("UPDATE partitions SET epoch = copied.epoch FROM public.copied")
	if other := renewed(c); other <= last {
		t.Errorf("one copy gave epochs %d to %d, the other begins with %d", first, last, other)
	}
}

func TestServerGenerationNeverFalls(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		c := f.client("c")
		c.join("l", 1)
		c.give("l", c.session)
		before := int64(1)
		for _, generation := range []int64{0, 0, 2_000_000_000} { // after a clock that was wrong by decades
			f.server(func(s *fakestore.Server, _ int64) { s.Generation = max(s.Generation, generation) })
			epoch := renewed(c)
			of, last := ServerGenerationOf(epoch), ServerGenerationOf(before)
			if of <= last || of > 2_000_000_001 {
				t.Errorf("epoch %d of server generation %d after %d of server generation %d", epoch, of, before, last)
			}
			before = epoch
		}
	})
}

// A client that was on another server knows a higher server generation than a server that is
// behind.
func TestServerThatIsBehindIsAcceptedAboveOthers(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		c := f.client("c")
		here := accepted(c)
		f.ok(c.RejectServer(f.ctx, c.run().Timeline, here))
		expect(t, f.tables().Server.AcceptedTimeline, c.run().Timeline, "timeline of a server that is not behind")
		f.ok(c.RejectServer(f.ctx, c.run().Timeline-1, here+10))
		timeline := f.tables().Server.AcceptedTimeline
		expect(t, timeline, c.run().Timeline, "timeline of a server that was accepted meanwhile")
		f.ok(c.RejectServer(f.ctx, c.run().Timeline, here+10))
		beat := c.beat()
		expect(t, beat.AcceptedTimeline == beat.Server.Timeline, false, "accepted")
		// Far above the clock's.
		generation := testkit.Must(c.AcceptServer(f.ctx, 10*time.Minute, c.run(), 2_100_000_000))(f)
		expect(t, generation, 2_100_000_001, "server generation")
	})
}

// Servers that were created separately may be on timelines with the same number.
func TestATimelineNamesItsServer(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	number := value[int64](f, `
		SELECT timeline() - tables_number() - (SELECT system_identifier FROM pg_control_system())`)
	if number < 1 || number > 1000 {
		t.Errorf("timeline %d", number)
	}
	tables := value[int64](f, "SELECT tables_number()")
	own := value[int64](f, "SELECT timeline()")
	owner := value[string](f, "SELECT proowner::regrole::text FROM pg_proc WHERE oid = 'timeline()'::regprocedure")
	f.exec(`BEGIN; GRANT EXECUTE ON FUNCTION pg_control_system() TO ` + owner + `;
		REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC; CREATE ROLE nobody_in_particular;
		GRANT USAGE, CREATE ON SCHEMA pgleases TO nobody_in_particular; GRANT EXECUTE ON FUNCTION timeline(), tables_number(), present_database() TO nobody_in_particular;
		GRANT SELECT ON installation TO nobody_in_particular;
		SET LOCAL ROLE nobody_in_particular`)
	expect(t, value[int64](f, "SELECT timeline()"), own, "timeline for a role that may not ask for the server")
	f.exec("RESET ROLE; ALTER FUNCTION timeline() OWNER TO nobody_in_particular")
	got := value[int64](f, "SELECT timeline()")
	expect(t, got, number+tables, "timeline where the schema's owner may not ask for it")
	f.exec("ROLLBACK")
}

// A server that does not return one of the two values returns the other. On Aurora, which has
// functions by these names, the value is made from the instance and its start.
func TestTimelineUsesTheValuesOfTheServer(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	f := freshFixture(t)
	identifier := value[int64](f, "SELECT system_identifier FROM pg_control_system()")
	number := func() int64 {
		return valueOn[int64](f, f.raw(), "SELECT pgleases.timeline() - pgleases.tables_number()") - identifier
	} // without plans of before
	f.exec(`ALTER FUNCTION pg_current_wal_lsn() RENAME TO pg_current_wal_lsn_before;
		CREATE FUNCTION pg_catalog.pg_current_wal_lsn() RETURNS pg_lsn LANGUAGE plpgsql AS 'BEGIN RAISE ''WAL control functions are not allowed''; END'`)
	expect(t, number(), 0, "the timeline's number where the server does not tell it")
	seen := map[int64]string{0: "nothing"}
	for _, stub := range []string{
		`CREATE FUNCTION pg_catalog.aurora_version() RETURNS text LANGUAGE sql AS 'SELECT ''15.4'' '`,
		`CREATE FUNCTION pg_catalog.aurora_replica_status(OUT server_id text, OUT session_id text)
			RETURNS SETOF record LANGUAGE sql
			AS $$ VALUES ('reader', 'f9b1'), ('writer', 'MASTER_SESSION_ID') $$`,
		`CREATE FUNCTION pg_catalog.aurora_db_instance_identifier() RETURNS text LANGUAGE sql AS 'SELECT ''one'' '`,
		`CREATE OR REPLACE FUNCTION pg_catalog.aurora_db_instance_identifier() RETURNS text LANGUAGE sql
			AS 'SELECT ''two'' '`,
		`ALTER FUNCTION pg_postmaster_start_time() RENAME TO pg_postmaster_start_time_before;
			CREATE FUNCTION pg_catalog.pg_postmaster_start_time() RETURNS timestamptz LANGUAGE sql AS 'SELECT pg_catalog.pg_postmaster_start_time_before() + interval ''1 hour'' '`,
	} {
		f.exec(stub)
		n := number()
		if before, known := seen[n]; known || n < 0 || n >= 1<<40 {
			t.Errorf("%s: number %d, as with %s", stub, n, before)
		}
		seen[n] = stub
		expect(t, number(), n, "the number, asked for again")
	}
	f.exec(`
		CREATE OR REPLACE FUNCTION pg_catalog.aurora_db_instance_identifier() RETURNS text LANGUAGE sql
			AS 'SELECT ''writer'' ';
		DROP FUNCTION pg_catalog.pg_postmaster_start_time();
		ALTER FUNCTION pg_postmaster_start_time_before() RENAME TO pg_postmaster_start_time`)
	expect(t, strings.Contains(seen[number()], "aurora_replica_status"), true, "the writer is the instance")
}

func TestNewServerGenerationIsAcceptedAsAPromotion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client("c")
	c.join("l", 2)
	c.give("l", c.session)
	f.exec("SELECT new_server_generation()")
	beat := c.beat()
	expect(t, beat.AcceptedTimeline == beat.Server.Timeline, false, "accepted at once")
	expect(t, c.apply(c.snapshot("l"), Move{"l", 1, c.session}).Applied, false, "given meanwhile")
	generation := testkit.Must(c.AcceptServer(f.ctx, time.Second, c.run(), 0))(f)
	expect(t, generation, 0, "server generation accepted after a watch that is shorter than a TTL")
	epoch := renewed(c)
	if ServerGenerationOf(epoch) < 200_000_000 {
		t.Errorf("epoch %d", epoch)
	}
	expect(t, c.beat().ServerGeneration, ServerGenerationOf(epoch), "server generation that heartbeats tell")
	expect(t, c.apply(c.snapshot("l"), Move{"l", 1, c.session}).Applied, true, "given then")
}

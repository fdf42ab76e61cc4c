package store_test

import (
	"fmt"
	"testing"

	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A session with many leases: a statement about one of them reads no other, and a statement about
// all of them reads each a few times.

// owningMany returns a client that owns partition 0 of leases, and partitions of another client
// beside it.
func (f *fixture) owningMany(leases int) *client {
	f.Helper()
	c := f.client("c")
	f.exec(`
		INSERT INTO leases SELECT 'l-' || n, 2, 1, 1, 1, 'infinity', now() FROM generate_series(1, $1) AS n`, leases)
	f.exec(`
		INSERT INTO members SELECT 'l-' || n, $2, 1, now(), 1 FROM generate_series(1, $1) AS n`, leases, c.session)
	f.exec(`INSERT INTO partitions (lease, partition, owner, target, epoch, owner_id)
		SELECT 'l-' || n, p, CASE p WHEN 0 THEN $2::bigint ELSE 7 END, CASE p WHEN 0 THEN $2::bigint ELSE 7 END, 1, 'c'
		FROM generate_series(1, $1) AS n, generate_series(0, 1) AS p`, leases, c.session)
	return c
}

// rowsRead returns how many rows of members, partitions and clients a statement reads, and how many
// entries of their indexes.
func (c *client) rowsRead(statement func()) (rows int64) {
	c.f.Helper()
	read := func() int64 {
		return valueOn[int64](c.f, c.pg().Raw(), `
			SELECT sum(pg_stat_get_xact_tuples_returned(indexrelid))::bigint
				+ sum(pg_stat_get_xact_tuples_returned(indrelid))::bigint
			FROM pg_index
			WHERE indrelid IN (format('%I.members', $1::text)::regclass, format('%I.partitions', $1::text)::regclass,
				format('%I.clients', $1::text)::regclass)`,
			c.f.schema)
	}
	c.f.ok(c.pg().Exec(c.f.ctx, "BEGIN"))
	before := read()
	statement()
	rows = read() - before
	c.f.ok(c.pg().Exec(c.f.ctx, "COMMIT"))
	return rows
}

func TestReadOfOneLeaseReadsNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.owningMany(1000)
	f.exec("ANALYZE partitions")
	f.exec(`
		INSERT INTO partitions (lease, partition, owner, epoch) SELECT 'l-7', n, 7, 1 FROM generate_series(2, 1000) AS n`)
	rows := c.rowsRead(func() {
		read := testkit.Must(c.Read(f.ctx, c.session, []string{"l-7"}))(f)
		expect(t, fmt.Sprint(read[0].Owned), "[{0 1 false}]", "owned")
	})
	if rows > 10 {
		t.Errorf("%d rows read", rows)
	}
}

func TestReleaseOfAllLeasesReadsEachAFewTimes(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	const leases = 500
	c := f.owningMany(leases)
	var releases []Release
	var leaving []Leave
	for n := range leases {
		name := fmt.Sprint("l-", n+1)
		releases, leaving = append(releases, Release{name, 0, 1}), append(leaving, Leave{Lease: name, Now: true})
	}
	rows := c.rowsRead(func() {
		released := testkit.Must(c.Release(f.ctx, c.session, releases, leaving, 1))(f)
		expect(t, len(released.Left), leases, "left")
	})
	if rows > 10*leases {
		t.Errorf("%d rows read, for %d leases", rows, leases)
	}
}

func TestReleaseInOneLeaseReadsNoOther(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.owningMany(1000)
	other := f.client("other")
	f.exec("INSERT INTO members VALUES ('l-7', $1, 1, now(), 1)", other.session)
	f.exec("UPDATE partitions SET target = $1 WHERE lease = 'l-7' AND partition = 0", other.session)
	rows := c.rowsRead(func() {
		expect(t, len(c.release([]Release{{"l-7", 0, 1}}).Released), 1, "released")
	})
	if rows > 20 {
		t.Errorf("%d rows read", rows)
	}
}

// Of those with a longer TTL it needs to know, so it reads the others once.
func TestRegistrationReadsOthersOnce(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client("c")
	const others = 500
	f.exec(`INSERT INTO clients (session, id, incarnation, expires_at, ttl, host, pid, started_at)
		SELECT n, n, 1, now() + interval '1 minute', interval '1 second', '', 1, now() FROM generate_series(1, $1) AS n`,
		others)
	rows := c.rowsRead(func() {
		_, _, err := c.Register(f.ctx, registration(random(), "new", 0, random(), usualTTL))
		f.ok(err)
	})
	if rows > others+10 {
		t.Errorf("%d rows read", rows)
	}
}

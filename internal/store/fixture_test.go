package store_test

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/pgtest"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/sql"
)

// Cases about the meaning of the statements run on a server and on package fakestore, so that both
// behave alike. Cases that depend on a server, for example on locks, the disk and rights, run only
// there.

// onBoth runs a case on a server and on its double in memory. Their clocks stand still, so that on
// a slow machine no session expires meanwhile, and due times are exact.
func onBoth(t *testing.T, test func(t *testing.T, f *fixture)) {
	t.Helper()
	t.Parallel()
	t.Run("server", func(t *testing.T) {
		t.Parallel()
		f := stoppedFixture(t)
		test(t, f)
	})
	t.Run("fakestore", func(t *testing.T) {
		t.Parallel()
		f := &fixture{TB: t, ctx: t.Context(), double: fakestore.New()}
		f.setClock(time.Now())
		test(t, f)
	})
}

// byHand replaces the server's clock by one that is set by hand.
var byHand = strings.NewReplacer(
	"pg_catalog.clock_timestamp()", "public.clock()",
	"clock_timestamp()", "public.clock()",
)

// stoppedFixture is newFixture with a clock that stands still.
func stoppedFixture(t testing.TB) *fixture {
	t.Helper()
	schema := testkit.Must(sql.Files.ReadFile("schema.sql"))(t)
	url, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t, `CREATE TABLE public.clock (at timestamptz);
		INSERT INTO public.clock VALUES (now());
		GRANT SELECT ON public.clock TO PUBLIC;
		CREATE FUNCTION public.clock() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT at FROM public.clock';`, byHand.Replace(string(schema))))
	f := fixtureIn(t, url, "pgleases")
	f.byHand = true
	f.exec("ALTER TABLE clients ALTER begun_at SET DEFAULT public.clock()")
	f.setClock(time.Now())
	return f
}

// setClock sets a clock that stands still.
func (f *fixture) setClock(at time.Time) {
	f.Helper()
	if f.double == nil {
		f.exec("UPDATE public.clock SET at = $1", at)
		return
	}
	f.double.Clock = func() time.Time { return at }
}

// clock is the server's clock, in microseconds.
func (f *fixture) clock() (now int64) {
	f.Helper()
	f.edit(func(_ *fakestore.Tables, clock int64) { now = clock })
	return now
}

// tables reads all tables.
func (f *fixture) tables() (t fakestore.Tables) {
	f.Helper()
	if f.double != nil {
		f.double.Look(func(now *fakestore.Tables, _ int64) { t = now.Clone() })
		return t
	}
	return tablesOf(f, f.sql)
}

// edit changes the tables by hand, with the server's clock.
func (f *fixture) edit(change func(t *fakestore.Tables, clock int64)) {
	f.Helper()
	if f.double != nil {
		f.double.Edit(change)
		return
	}
	f.ok(pgx.BeginFunc(f.ctx, f.sql, func(tx pgx.Tx) error {
		before := tablesOf(f, tx)
		after := before.Clone()
		clock := "SELECT clock_timestamp()"
		if f.byHand {
			clock = byHand.Replace(clock)
		}
		change(&after, valueOn[time.Time](f, tx, clock).UnixMicro())
		f.write(tx, before, after)
		return nil
	}))
}

// A batcher is a connection or a transaction.
type batcher interface {
	SendBatch(context.Context, *pgx.Batch) pgx.BatchResults
}

// instant is an instant in microseconds.
func instant(at pgtype.Timestamptz) int64 {
	switch at.InfinityModifier {
	case pgtype.Infinity:
		return fakestore.Ever
	case pgtype.NegativeInfinity:
		return fakestore.Never
	}
	return at.Time.UnixMicro()
}

// timestamp is an instant as PostgreSQL reads it.
func timestamp(at int64) string {
	switch at {
	case fakestore.Ever:
		return "infinity"
	case fakestore.Never:
		return "-infinity"
	}
	return time.UnixMicro(at).UTC().Format("2006-01-02 15:04:05.999999Z07:00")
}

// A tableReader reads tables in one round trip: it requests all of them, then takes the rows in the
// same order.
type tableReader struct {
	batch pgx.Batch
	takes []func(rows pgx.Rows) error
}

// read requests a query's rows. row returns where each is scanned to, and a function to call then.
func (r *tableReader) read(query string, row func() (destinations []any, done func())) {
	r.batch.Queue(query)
	r.takes = append(r.takes, func(rows pgx.Rows) error {
		for rows.Next() {
			destinations, done := row()
			if err := rows.Scan(destinations...); err != nil {
				return err
			}
			done()
		}
		return rows.Err()
	})
}

func tablesOf(f *fixture, on batcher) fakestore.Tables {
	f.Helper()
	t := fakestore.Tables{
		Clients:    make(map[int64]fakestore.Client),
		Identities: make(map[string]fakestore.Identity),
		Leases:     make(map[string]fakestore.Lease),
		Members:    make(map[fakestore.Member]fakestore.Membership),
		Partitions: make(map[string][]fakestore.Partition),
		Overrides:  make(map[fakestore.Override]fakestore.OverrideValue),
		Graces:     make(map[fakestore.GraceKey]fakestore.Grace),
	}
	var a, b, c, d, e pgtype.Timestamptz
	var name string
	var r tableReader
	r.read(`
		SELECT session, id, incarnation, expires_at, (extract(epoch FROM ttl) * 1000000000)::bigint,
			host, pid, started_at, metadata::text FROM clients`, func() ([]any, func()) {
		var c fakestore.Client
		p := &c.Process
		fields := []any{&c.Session, &c.ID, &c.Incarnation, &a, &c.TTL, &p.Host, &p.PID, &p.StartedAt, &c.Metadata}
		return fields, func() {
			c.ExpiresAt, p.StartedAt = instant(a), p.StartedAt.UTC()
			t.Clients[c.Session] = c
		}
	})
	r.read(`
		SELECT id, incarnation, process, used_at, takeovers, taken_at, taken_from FROM identities`, func() ([]any, func()) {
		var i fakestore.Identity
		return []any{&name, &i.Incarnation, &i.Process, &a, &i.Takeovers, &b, &i.TakenFrom}, func() {
			i.UsedAt, i.TakenAt = instant(a), instant(b)
			t.Identities[name] = i
		}
	})
	r.read(`
		SELECT name, partitions, generation, created_generation, epoch_floor, plan_due_at, planned_at,
			next_partitions, next_until, coalesce(successor, ''), coalesce(settling_since, 'epoch'),
			coalesce(settles_at, 'epoch'), unowned, joins FROM leases`, func() ([]any, func()) {
		var l fakestore.Lease
		fields := []any{
			&name, &l.Partitions, &l.Generation, &l.CreatedGeneration, &l.EpochFloor, &a, &b,
			&l.NextPartitions, &c, &l.Successor, &d, &e, &l.Unowned, &l.Joins,
		}
		return fields, func() {
			l.NextCheckAt, l.PlannedAt, l.NextUntil = instant(a), instant(b), instant(c)
			l.SettlingSince, l.SettlesAt = instant(d), instant(e)
			t.Leases[name] = l
		}
	})
	r.read(`
		SELECT lease, session, weight, joined_at, join_number, joined_generation,
			(extract(epoch FROM rebalance_delay) * 1000000000)::bigint, coalesce(max_partitions, 0),
			(extract(epoch FROM restart_grace) * 1000000000)::bigint FROM members`, func() ([]any, func()) {
		var m fakestore.Member
		var rest fakestore.Membership
		fields := []any{
			&m.Lease, &m.Session, &rest.Weight, &a, &rest.JoinNumber, &rest.JoinedGeneration,
			&rest.RebalanceDelay, &rest.MaxPartitions, &rest.RestartGrace,
		}
		return fields, func() {
			rest.JoinedAt = instant(a)
			t.Members[m] = rest
		}
	})
	r.read(`
		SELECT lease, coalesce(owner, 0), coalesce(target, 0), epoch, coalesce(owner_id, ''), coalesce(preferred_owner_id, '')
		FROM partitions ORDER BY lease, partition`, func() ([]any, func()) {
		var p fakestore.Partition
		return []any{&name, &p.Owner, &p.Target, &p.Epoch, &p.OwnerID, &p.PreferredID}, func() {
			t.Partitions[name] = append(t.Partitions[name], p)
		}
	})
	r.read(`
		SELECT verb, coalesce(lease, ''), coalesce(partition, 0),
			CASE WHEN partition IS NULL AND client IS NOT NULL THEN client ELSE '' END,
			CASE WHEN partition IS NOT NULL THEN client ELSE '' END, until FROM overrides`, func() ([]any, func()) {
		var w fakestore.Override
		var override fakestore.OverrideValue
		return []any{&w.Verb, &w.Lease, &w.Partition, &w.Client, &override.PinnedTo, &a}, func() {
			override.Until = instant(a)
			t.Overrides[w] = override
		}
	})
	r.read(`
		SELECT lease, client, weight, coalesce(max_partitions, 0), generation, since, until FROM graces`, func() ([]any, func()) {
		var key fakestore.GraceKey
		var g fakestore.Grace
		return []any{&key.Lease, &key.Client, &g.Weight, &g.MaxPartitions, &g.Generation, &a, &b}, func() {
			g.Since, g.Until = instant(a), instant(b)
			t.Graces[key] = g
		}
	})
	r.read(`
		SELECT accepted_timeline, generation, next_check_at, sessions, (extract(epoch FROM unwatched) * 1000000000)::bigint
		FROM server`, func() ([]any, func()) {
		s := &t.Server
		return []any{&s.AcceptedTimeline, &s.Generation, &a, &s.Sessions, &s.Unwatched}, func() {
			s.NextCheckAt = instant(a)
		}
	})
	results := on.SendBatch(f.ctx, &r.batch)
	for _, take := range r.takes {
		rows := testkit.Must(results.Query())(f)
		f.ok(take(rows))
	}
	f.ok(results.Close())
	return t
}

// write brings the tables of a server from one state to the next. Partitions come and go with their
// leases only.
func (f *fixture) write(tx pgx.Tx, before, after fakestore.Tables) {
	f.Helper()
	exec := func(statement string, args ...any) {
		f.Helper()
		testkit.Must(tx.Exec(f.ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...))(f)
	}
	changes(before.Clients, after.Clients, func(session int64) {
		exec("DELETE FROM clients WHERE session = $1", session)
	}, func(_ int64, c fakestore.Client) {
		exec("INSERT INTO clients VALUES ($1, $2, $3, $4::timestamptz, $5 * interval '1 microsecond', $6, $7, $8, $9)",
			c.Session, c.ID, c.Incarnation, timestamp(c.ExpiresAt), c.TTL.Microseconds(),
			c.Process.Host, c.Process.PID, c.Process.StartedAt, c.Metadata)
	})
	changes(before.Identities, after.Identities, func(id string) {
		exec("DELETE FROM identities WHERE id = $1", id)
	}, func(id string, i fakestore.Identity) {
		exec("INSERT INTO identities VALUES ($1, $2, $3, $4::timestamptz, $5, $6::timestamptz, $7)",
			id, i.Incarnation, i.Process, timestamp(i.UsedAt), i.Takeovers, timestamp(i.TakenAt), i.TakenFrom)
	})
	changes(before.Leases, after.Leases, func(name string) {
		exec("DELETE FROM leases WHERE name = $1", name)
	}, func(name string, l fakestore.Lease) {
		exec(`
			INSERT INTO leases VALUES ($1, $2, $3, $4, $5, $6::timestamptz, $7::timestamptz, DEFAULT, $8, $9::timestamptz,
				nullif($10, ''), nullif($11::timestamptz, 'epoch'), nullif($12::timestamptz, 'epoch'), $13, $14)`,
			name, l.Partitions, l.Generation, l.CreatedGeneration, l.EpochFloor, timestamp(l.NextCheckAt),
			timestamp(l.PlannedAt), l.NextPartitions, timestamp(l.NextUntil), l.Successor,
			timestamp(l.SettlingSince), timestamp(l.SettlesAt), l.Unowned, l.Joins)
	})
	changes(before.Members, after.Members, func(m fakestore.Member) {
		exec("DELETE FROM members WHERE lease = $1 AND session = $2", m.Lease, m.Session)
	}, func(m fakestore.Member, rest fakestore.Membership) {
		exec(`INSERT INTO members VALUES ($1, $2, $3, $4::timestamptz, $5, $6, $7 * interval '1 microsecond',
				nullif($8, 0), $9 * interval '1 microsecond')`,
			m.Lease, m.Session, rest.Weight, timestamp(rest.JoinedAt), rest.JoinNumber, rest.JoinedGeneration,
			rest.RebalanceDelay.Microseconds(), rest.MaxPartitions, rest.RestartGrace.Microseconds())
	})
	// No statement changes members without their lease, and heartbeats rely on that.
	if !maps.Equal(before.Members, after.Members) {
		exec("UPDATE leases SET name = name")
	}
	for name, rows := range after.Partitions {
		for number, p := range rows {
			if p != before.Partitions[name][number] {
				exec(`UPDATE partitions SET owner = nullif($3::bigint, 0), target = nullif($4::bigint, 0), epoch = $5,
						owner_id = nullif($6, ''), preferred_owner_id = nullif($7, '')
					WHERE lease = $1 AND partition = $2`, name, number, p.Owner, p.Target, p.Epoch, p.OwnerID, p.PreferredID)
			}
		}
	}
	if s := after.Server; s != before.Server {
		exec(`UPDATE server SET accepted_timeline = $1, generation = $2, next_check_at = $3::timestamptz, sessions = $4,
				unwatched = $5 * interval '1 microsecond'`,
			s.AcceptedTimeline, s.Generation, timestamp(s.NextCheckAt), s.Sessions, s.Unwatched.Microseconds())
	}
}

// changes deletes the rows that are gone or differ, and inserts those that are new or differ.
func changes[K, V comparable](before, after map[K]V, remove func(K), insert func(K, V)) {
	for k, v := range before {
		if now, there := after[k]; !there || now != v {
			remove(k)
		}
	}
	for k, v := range after {
		if was, there := before[k]; !there || was != v {
			insert(k, v)
		}
	}
}

// --- what the cases do by hand

// kill removes the sessions of client IDs, or all sessions, as an eviction does; their memberships
// stay.
func (f *fixture) kill(ids ...string) {
	f.Helper()
	f.edit(func(t *fakestore.Tables, _ int64) {
		maps.DeleteFunc(t.Clients, func(_ int64, c fakestore.Client) bool {
			return len(ids) == 0 || slices.Contains(ids, c.ID)
		})
	})
}

// lease changes the row of a lease.
func (f *fixture) lease(name string, change func(l *fakestore.Lease, clock int64)) {
	f.Helper()
	f.edit(func(t *fakestore.Tables, clock int64) {
		l, known := t.Leases[name]
		if !known {
			f.Fatalf("no lease %q", name)
		}
		change(&l, clock)
		t.Leases[name] = l
	})
}

// server changes the row of table server.
func (f *fixture) server(change func(s *fakestore.Server, clock int64)) {
	f.Helper()
	f.edit(func(t *fakestore.Tables, clock int64) { change(&t.Server, clock) })
}

// setMarker gives the server incarnation another boot marker; 0: none.
func (f *fixture) setMarker(marker int64) {
	f.Helper()
	if f.double != nil {
		run := f.double.Run()
		run.Marker = marker
		f.double.SetRun(run)
		return
	}
	f.exec("DELETE FROM boot_marker")
	if marker != 0 {
		f.exec("INSERT INTO boot_marker VALUES ($1)", marker)
	}
}

// expireIn makes a session expire after the given time.
func (f *fixture) expireIn(c *client, d time.Duration) {
	f.Helper()
	f.edit(func(t *fakestore.Tables, clock int64) {
		row := t.Clients[c.session]
		row.ExpiresAt = clock + d.Microseconds()
		t.Clients[c.session] = row
	})
}

// passes reports whether a guard passes.
func (f *fixture) passes(lease string, partition int, epoch int64) bool {
	f.Helper()
	end := f.guarding(lease, partition, epoch)
	if end == nil {
		return false
	}
	end()
	return true
}

// counts are the numbers of rows.
func (f *fixture) counts() string {
	f.Helper()
	t := f.tables()
	partitions := 0
	for _, rows := range t.Partitions {
		partitions += len(rows)
	}
	return fmt.Sprintf("%d leases, %d members, %d partitions", len(t.Leases), len(t.Members), partitions)
}

// guarding begins a transaction that passes the guard, and returns a function that ends it; nil if
// it is refused.
func (f *fixture) guarding(lease string, partition int, epoch int64) (end func()) {
	f.Helper()
	if f.double != nil {
		if end, ok := f.double.Guard(lease, partition, epoch); ok {
			return end
		}
		return nil
	}
	conn := f.session()
	tx := testkit.Must(conn.Begin(f.ctx))(f)
	_, err := tx.Exec(f.ctx, "SELECT guard($1, $2, $3)", lease, partition, epoch) // without a limit on idling
	if Code(err) == CodeNotOwner {
		f.ok(conn.Close(f.ctx))
		return nil
	}
	f.ok(err)
	return func() {
		f.ok(tx.Commit(f.ctx))
		f.ok(conn.Close(f.ctx))
	}
}

// replace replaces a lease.
func (f *fixture) replace(lease, successor string, partitions int64) error {
	if f.double != nil {
		return f.double.ReplaceLease(lease, successor, partitions)
	}
	_, err := f.sql.Exec(f.ctx, "SELECT replace_lease($1, $2, $3, 'why')", lease, successor, partitions)
	switch Code(err) {
	case "55006":
		return fmt.Errorf("%w: %w", fakestore.ErrInUse, err)
	case "42704":
		return fmt.Errorf("%w: %w", fakestore.ErrNoLease, err)
	case "55000":
		return fmt.Errorf("%w: %w", fakestore.ErrReplaced, err)
	}
	return err
}

// drop drops a lease.
func (f *fixture) drop(lease string, next ...int64) error {
	if f.double != nil {
		return f.double.Drop(lease, slices.Max(append(next, 0)))
	}
	_, err := f.sql.Exec(f.ctx, "SELECT drop_lease($1, 'why', NULL, nullif($2, 0))", lease, slices.Max(append(next, 0)))
	switch Code(err) {
	case "55006":
		return fmt.Errorf("%w: %w", fakestore.ErrInUse, err)
	case "42704":
		return fmt.Errorf("%w: %w", fakestore.ErrNoLease, err)
	}
	return err
}

// override gives an operator's verb; until 0: without an end.
func (f *fixture) override(w fakestore.Override, until int64, force bool) error {
	f.Helper()
	return f.pin(w, "", until, force)
}

// pin is override, for a pin to a client.
func (f *fixture) pin(w fakestore.Override, to string, until int64, force bool) error {
	f.Helper()
	if until == 0 {
		until = fakestore.Ever
	}
	if f.double != nil {
		return f.double.Override(w, to, until, force)
	}
	if w.Verb == "pin" {
		return f.operate("SELECT pin($1, $2, $3, 'a reason', until => $4::timestamptz)",
			w.Lease, w.Partition, to, timestamp(until))
	}
	args := []any{w.Lease + w.Client, timestamp(until)}
	extra := ""
	if w.Verb == "drain" {
		extra, args = ", force => $3", append(args, force)
	}
	return f.operate("SELECT "+w.Verb+"($1, 'a reason', 'somebody', until => $2::timestamptz"+extra+")", args...)
}

// back takes an override back.
func (f *fixture) back(w fakestore.Override) error {
	f.Helper()
	if f.double != nil {
		return f.double.TakeBack(w)
	}
	if w.Verb == "pin" {
		return f.operate("SELECT unpin($1, $2, 'a reason')", w.Lease, w.Partition)
	}
	undo := map[string]string{"drain": "undrain", "cordon": "uncordon", "pause": "resume", "freeze": "unfreeze"}
	return f.operate("SELECT "+undo[w.Verb]+"($1, 'a reason')", w.Lease+w.Client)
}

// evictClient revokes the sessions of a client.
func (f *fixture) evictClient(id string) error {
	f.Helper()
	if f.double != nil {
		_, err := f.double.EvictClient(id)
		return err
	}
	return f.operate("SELECT evict_client($1, 'a reason')", id)
}

func (f *fixture) operate(statement string, args ...any) error {
	_, err := f.sql.Exec(f.ctx, statement, append([]any{pgx.QueryExecModeSimpleProtocol}, args...)...)
	switch Code(err) {
	case "55006":
		return fmt.Errorf("%w: %w", fakestore.ErrInUse, err)
	case "42704", "22023":
		return fmt.Errorf("%w: %w", fakestore.ErrUnknown, err)
	}
	return err
}

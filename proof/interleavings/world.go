package interleavings

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
)

// The clients of the world, by session. alive and heir have heartbeats. silent expired a minute ago.
// So did unwatched, but its TTL is longer than each watch, so that no client may evict it.
const (
	alive     int64 = 11
	heir      int64 = 12
	silent    int64 = 13
	unwatched int64 = 14
)

// The nonces of the acquisitions of lock "held": alive holds it, and the two others wait.
const (
	holds      int64 = 101
	waitsFirst int64 = 103
	waitsNext  int64 = 102
)

const (
	ttl     = 10 * time.Minute
	longTTL = time.Hour
	marker  = 777
)

// worldSQL is the beginning of every interleaving. Lease x has a partition of alive that it keeps,
// one that it is asked to hand over to heir, one of silent, and a free one. Lease w has one
// of silent. A plan and a check are due.
const worldSQL = `
UPDATE pgleases.server SET generation = 5, next_check_at = clock_timestamp() - interval '1 minute';
UPDATE pgleases.partitions AS p
SET owner = s.owner, target = s.target, owner_id = c.id, epoch = pgleases.first_epoch(5) + 10,
    owned_since = CASE WHEN s.owner IS NOT NULL THEN clock_timestamp() END
FROM (VALUES ('x', 0, 11, 11), ('x', 1, 11, 12), ('x', 2, 13, 13), ('x', 3, NULL, NULL), ('w', 0, 13, 13)) AS s (lease, partition, owner, target)
LEFT JOIN pgleases.clients AS c ON c.session = s.owner
WHERE p.lease = s.lease AND p.partition = s.partition;
UPDATE pgleases.leases SET plan_due_at = clock_timestamp() - interval '1 minute', planned_at = clock_timestamp() - interval '1 minute';
UPDATE pgleases.clients SET expires_at = clock_timestamp() - interval '1 minute' WHERE session IN (13, 14);
DELETE FROM pgleases.events;
CREATE SCHEMA saved;
`

var tables = []string{"clients", "identities", "leases", "members", "partitions", "locks", "overrides", "server"}

// restoreSQL defines the function that brings the tables back, with times that are as far away as
// they were.
func restoreSQL() string {
	copies := ""
	body := "SET LOCAL synchronous_commit = off; DELETE FROM pgleases.events;\n"
	for _, table := range tables {
		copies += fmt.Sprintf("CREATE TABLE saved.%[1]s AS TABLE pgleases.%[1]s;\n", table)
		body += fmt.Sprintf("DELETE FROM pgleases.%[1]s;\nINSERT INTO pgleases.%[1]s TABLE saved.%[1]s;\n", table)
	}
	return copies + "CREATE FUNCTION saved.restore() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN\n" + body + `
		UPDATE pgleases.clients
		SET expires_at = clock_timestamp() + CASE WHEN session IN (13, 14) THEN interval '-1 minute' ELSE interval '1 hour' END;
		RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint; END $$`
}

// A world is a database with gates, the driver's connections to it, and its two sessions.
type world struct {
	url      string
	conn     *store.Conn // for statements of the library
	driver   *pgx.Conn
	gates    gatekeeper
	run      store.Incarnation
	sessions []*session
	settled  map[string]bool // states in which nothing is stuck
	alike    bool            // both sessions do the same, or variants of it
	clock    int64           // of the database, at the beginning of the interleaving
	epoch    int64           // of each partition then
}

func newWorld(ctx context.Context, url string) (*world, error) {
	conn, err := newConn(ctx, url, nil)
	if err != nil {
		return nil, err
	}
	driver, err := pgx.Connect(ctx, url)
	if err != nil {
		return nil, err
	}
	w := &world{url: url, conn: conn, driver: driver, gates: gatekeeper{driver}, settled: make(map[string]bool)}
	if err := w.populate(ctx); err != nil {
		return nil, err
	}
	return w, w.renew(ctx)
}

// renew begins with new sessions, because the last ones may be anywhere.
func (w *world) renew(ctx context.Context) error {
	for _, s := range w.sessions {
		_, err := w.driver.Exec(ctx, "SELECT pg_terminate_backend($1, 10000), pg_advisory_unlock_all()", s.pid)
		if err != nil {
			return err
		}
	}
	w.sessions = nil
	for number := range 2 {
		s, err := newSession(ctx, w.url, number)
		if err != nil {
			return err
		}
		if err := w.gates.close(ctx, s); err != nil {
			return err
		}
		w.sessions = append(w.sessions, s)
	}
	return nil
}

func (w *world) close() {
	for _, s := range w.sessions {
		s.conn.Close()
	}
	w.conn.Close()
	_ = w.driver.Close(context.Background())
}

// populate makes the beginning, by the statements of the library.
func (w *world) populate(ctx context.Context) error {
	if err := w.conn.SetMarker(ctx, marker); err != nil {
		return err
	}
	beat, err := w.conn.Heartbeat(ctx, 0, 0, store.Renewal{})
	if err != nil {
		return err
	}
	w.run = beat.Server
	for i, session := range []int64{alive, heir, silent, unwatched} {
		r := store.Registration{
			Session: session, ID: string(rune('a' + i)), Process: session << store.ProcessBits, TTL: ttl,
			Host: "host", PID: 1, StartedAt: time.Now(),
		}
		if session == unwatched {
			r.TTL = longTTL
		}
		if _, _, err := w.conn.Register(ctx, r); err != nil {
			return err
		}
		if _, err := w.conn.Join(ctx, session, "x", 4, store.Terms{Weight: 1}, 1); err != nil {
			return err
		}
	}
	for _, session := range []int64{alive, silent} {
		if _, err := w.conn.Join(ctx, session, "w", 1, store.Terms{Weight: 1}, 1); err != nil {
			return err
		}
	}
	locks := &store.Locks{Statements: store.StatementsFor("pgleases"), LockWait: 1000}
	locks.OnConn = on(w.conn)
	requests := []store.LockRequest{
		{Session: alive, Nonce: holds}, {Session: silent, Nonce: waitsFirst}, {Session: heir, Nonce: waitsNext},
	}
	for _, r := range requests {
		r.Name, r.Waits = "held", true
		r.Latest, r.Server = time.Now().Add(time.Hour).UnixMicro(), w.run
		if _, _, err := locks.Acquire(ctx, r, nil); err != nil {
			return err
		}
	}
	_, err = w.conn.Pgx.Exec(ctx, worldSQL+restoreSQL())
	return err
}

// restore begins an interleaving.
func (w *world) restore(ctx context.Context) (tablesState, error) {
	if err := w.driver.QueryRow(ctx, "SELECT saved.restore()").Scan(&w.clock); err != nil {
		return tablesState{}, err
	}
	now, err := w.look(ctx)
	w.epoch = now.partition(place{"x", 0}).Epoch
	return now, err
}

// cutoff is between the time when sessions expired and now.
func (w *world) cutoff() int64 { return w.clock - (30 * time.Second).Microseconds() }

// tablesState is what is committed.
type tablesState struct {
	Clients    []clientRow
	Members    []memberRow
	Leases     []leaseRow
	Partitions []partitionRow
	Locks      []lockRow
	Paused     []string
	Accepted   bool
	Generation int64 // of the server
	LeftBehind []int64
	Events     []eventRow
}

type clientRow struct {
	Session int64
	ID      string
	Expires int64 // microseconds
	TTL     int64 // microseconds
	Revoked bool
	Drained bool
}

type memberRow struct {
	Lease   string
	Session int64
}

type leaseRow struct {
	Name       string
	Generation int64
	Due        bool // a plan is
}

type partitionRow struct {
	Lease     string
	Partition int
	Owner     int64
	OwnerID   string
	Target    int64
	Epoch     int64
}

type lockRow struct {
	Name    string
	Session int64
	Shared  bool
	Token   int64
}

type eventRow struct {
	ID         int64
	Lease      string
	Cause      string
	To         string
	From       string
	Partitions []int
}

const lookSQL = `SELECT jsonb_build_object(
	'clients', (SELECT jsonb_agg(jsonb_build_object('session', c.session, 'id', c.id, 'expires', (extract(epoch FROM c.expires_at) * 1000000)::bigint,
		'ttl', (extract(epoch FROM c.ttl) * 1000000)::bigint, 'revoked', c.incarnation < 0,
		'drained', EXISTS (SELECT FROM pgleases.overrides AS o WHERE o.verb = 'drain' AND o.client = c.id)) ORDER BY c.session) FROM pgleases.clients AS c),
	'members', (SELECT jsonb_agg(jsonb_build_object('lease', m.lease, 'session', m.session) ORDER BY m.lease, m.session) FROM pgleases.members AS m),
	'leases', (SELECT jsonb_agg(jsonb_build_object('name', l.name, 'generation', l.generation, 'due', l.plan_due_at < 'infinity') ORDER BY l.name) FROM pgleases.leases AS l),
	'partitions', (SELECT jsonb_agg(jsonb_build_object('lease', p.lease, 'partition', p.partition, 'owner', p.owner, 'ownerid', p.owner_id,
		'target', p.target, 'epoch', p.epoch) ORDER BY p.lease, p.partition) FROM pgleases.partitions AS p),
	'locks', (SELECT jsonb_agg(jsonb_build_object('name', l.name, 'session', l.session, 'shared', l.shared, 'token', l.token) ORDER BY l.name, l.ticket) FROM pgleases.locks AS l),
	'paused', (SELECT jsonb_agg(o.lease) FROM pgleases.overrides AS o WHERE o.verb = 'pause'),
	'accepted', (SELECT s.accepted_timeline = pgleases.timeline() FROM pgleases.server AS s),
	'generation', (SELECT s.generation FROM pgleases.server AS s),
	'leftbehind', (SELECT to_jsonb(s.left_behind) FROM pgleases.server AS s),
	'events', (SELECT jsonb_agg(jsonb_build_object('id', e.id, 'lease', e.lease, 'cause', e.cause, 'to', e.to_id, 'from', e.from_id,
		'partitions', (SELECT jsonb_agg(n) FROM generate_series(0, 3) AS n WHERE e.partitions @> n))) FROM pgleases.events AS e))::text`

// look reads what is committed, in one snapshot.
func (w *world) look(ctx context.Context) (now tablesState, err error) {
	var text []byte
	if err := w.driver.QueryRow(ctx, lookSQL).Scan(&text); err != nil {
		return now, err
	}
	return now, json.Unmarshal(text, &now)
}

func (t tablesState) partition(at place) partitionRow {
	for _, p := range t.Partitions {
		if p.Lease == at.lease && p.Partition == at.partition {
			return p
		}
	}
	return partitionRow{}
}

func (t tablesState) client(session int64) (clientRow, bool) {
	for _, c := range t.Clients {
		if c.Session == session {
			return c, true
		}
	}
	return clientRow{}, false
}

// lives reports whether a session is a member of a lease, and was not evicted.
func (t tablesState) lives(lease string, session int64) bool {
	_, known := t.client(session)
	for _, m := range t.Members {
		if m.Lease == lease && m.Session == session {
			return known
		}
	}
	return false
}

func (t tablesState) generation(lease string) int64 {
	for _, l := range t.Leases {
		if l.Name == lease {
			return l.Generation
		}
	}
	return 0
}

// summary is the state without what differs from one interleaving to the next: times, numbers of
// events, and how high tokens and generations are.
func (t tablesState) summary() string {
	var b strings.Builder
	now := time.Now().UnixMicro()
	for _, c := range t.Clients {
		fmt.Fprintln(&b, c.Session, c.Expires > now, c.Revoked, c.Drained)
	}
	for _, p := range t.Partitions {
		fmt.Fprintln(&b, p.Lease, p.Partition, p.Owner, p.Target, p.Epoch>>32 < t.Generation)
	}
	for _, l := range t.Locks {
		fmt.Fprintln(&b, l.Name, l.Session, l.Shared, l.Token > 0)
	}
	for _, l := range t.Leases {
		fmt.Fprintln(&b, l.Name, l.Due)
	}
	fmt.Fprintln(&b, t.Members, t.Paused, t.Accepted, t.LeftBehind)
	return b.String()
}

package admin_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// The tables have a handoff that waits for work, a superseded client, and a crashed client.
func TestASnapshotTellsWhatWaits(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.clients
		SELECT s, id, i, clock_timestamp() + age, '1 minute', 'host', 6 + i, now()
		FROM (VALUES
			(11, 'a', 1, interval '1 minute'), (12, 'b', 1, interval '1 minute'),
			(13, 'b', 2, interval '1 minute'), (14, 'dead', 1, interval '-1 hour')) AS v (s, id, i, age);
		INSERT INTO pgleases.identities SELECT id, max(incarnation), 1, now() FROM pgleases.clients GROUP BY id;
		INSERT INTO pgleases.presences VALUES (11, -1);
		INSERT INTO pgleases.leases VALUES ('l', 11, 5, 1, 0, 'infinity', now()), ('dropped', 0, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		SELECT 'l', s, 1, now(), 1 FROM unnest('{11,12,13,99}'::bigint[]) AS s;
		INSERT INTO pgleases.partitions
			(lease, partition, owner, target, epoch, owner_id, preferred_owner_id, owned_since, asked_at) VALUES
			('l', 0, 11, 11, 3, 'a', NULL, now(), NULL), ('l', 1, 11, 13, 3, 'a', NULL, now(), now()),
			('l', 2, 14, 14, 3, 'dead', NULL, now(), NULL), ('l', 3, 77, 11, 3, 'gone', 'gone', now(), NULL),
			('l', 10, NULL, NULL, 3, 'gone', NULL, NULL, NULL), ('l', 4, NULL, NULL, 3, NULL, 'dead', NULL, NULL),
			('l', 5, 12, 13, 3, 'b', 'a', now(), now());
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		SELECT 'l', p, 11, 11, 3, 'a', now() FROM generate_series(6, 9) AS p;
		INSERT INTO pgleases.events (at, lease, cause, actor, from_id, partitions) VALUES
			(now() - interval '4 minutes', NULL, 'evicted', NULL, 'gone', NULL),
			(now() - interval '3 minutes', 'l', 'handed over', NULL, 'gone', '{[10,11)}'),
			(now(), 'l', 'pin', 'maria', NULL, '{[10,11)}');
		INSERT INTO pgleases.overrides (verb, client, until, since, actor, reason)
		VALUES ('drain', 'gone', 'infinity', now(), 'operator', 'why')`)
	a := newAdmin(t, newPool(t, url))
	s := testkit.Must(a.Snapshot(t.Context()))(t)
	l := s.Lease("l")
	if s.Lease("dropped") != nil || l == nil || len(l.Members) != 3 {
		t.Fatalf("%+v", s)
	}
	for i, want := range []admin.Member{
		{Session: 11, Client: "a", Weight: 1, Share: 5.5, Owned: 6, Outgoing: 1, Incoming: 1},
		{Session: 12, Client: "b", Weight: 1, Share: 0, Owned: 1, Outgoing: 1},
		{Session: 13, Client: "b", Weight: 1, Share: 5.5, Incoming: 2},
	} {
		got := l.Members[i]
		got.Joined = time.Time{}
		if got != want {
			t.Errorf("member %+v, want %+v", got, want)
		}
	}
	var holdings []string
	for _, h := range l.Holdings {
		clients := []string{h.Owner, h.Target, h.LastOwner, h.PreferredOwner}
		holdings = append(holdings, h.Partitions.String()+"|"+strings.Join(clients, "|"))
		if h.Moves() != (h.Partitions[0][0] == 1 || h.Partitions[0][0] == 5) {
			t.Errorf("%v moves: %v", h.Partitions, h.Moves())
		}
	}
	want := "0,6-9|a|a|a| 1|a|b|a| 2|dead|dead|dead| 3||a|gone|gone 4||||dead 5|b|b|b|a 10|||gone|"
	if got := strings.Join(holdings, " "); got != want {
		t.Errorf("holdings %s, want %s", got, want)
	}
	if got := s.Orphans(l).String(); got != "2-4,10" {
		t.Errorf("orphans %s, want 2-4,10", got)
	}
	type states struct{ superseded, expired, fastFailover bool }
	for session, want := range map[int64]states{
		11: {fastFailover: true},
		12: {superseded: true},
		13: {},
		14: {expired: true},
	} {
		c := s.Client(session)
		if got := (states{c.Superseded, c.Expired, c.FastFailover}); got != want {
			t.Errorf("client %d has %+v, want %+v", session, got, want)
		}
	}
	for partition, want := range map[int]string{
		0: `^It is owned by "a" since 20\d\d-\d\d-\d\d \d\d:\d\d:\d\d UTC \(\d.* ago\), on host, pid 7, ` +
			`last heartbeat \S+s ago. Its owner has weight 1, ` +
			`so its share is 5.50 of 11 partitions among 2 working members; it owns 6`,
		1: `moving to "b". The owner was asked to hand it over \S+ ago. It does so when its Run callback .* ` +
			`kill -QUIT 7 on its host logs where, and ends it; if it does not, or under pgleases run, kill -9 7. ` +
			`Open transactions: pgleases doctor --long 1s.`,
		2: `longer than its TTL of 1m0s. A client that has watched`,
		3: `^Its owner "gone" was evicted at .* UTC \(4m\S* ago\). .* ` +
			`Its preferred owner is "gone", which is not a live client: if .* gets this one first. ` +
			`Nothing waits for that. An operator set a drain of "gone"`,
		4:  `^It has had no owner yet. Its preferred owner is "dead", which sends no heartbeats: if`,
		5:  `A newer process has the ID "b"`,
		10: `^It has had no owner since .* UTC \(3m\S* ago\). The last one was "gone"`,
	} {
		e := testkit.Must(a.Explain(t.Context(), "l", partition))(t)
		expectMatch(t, fmt.Sprintf("partition %d", partition), strings.Join(e.Reasons, " "), want)
		if e.Epoch != 3 {
			t.Errorf("partition %d has epoch %d, want 3", partition, e.Epoch)
		}
	}
	exec(t, url, "UPDATE pgleases.clients SET expires_at = clock_timestamp() + interval '20 seconds'",
		"UPDATE pgleases.partitions SET preferred_owner_id = 'dead' WHERE partition = 0")
	expectMatch(t, "of a silent process whose ID a newer one has", explained(t, a, "l", 5),
		`^It is owned by an older process of "b" \(pid 7\), silent for 4\ds. The newer process with this ID `+
			`\(pid 8\) gets it when the older one hands it over, or at 1m0s if it is dead.$`)
	expectMatch(t, "of a silent owner", explained(t, a, "l", 0),
		`last heartbeat 4\ds ago; taken over at 1m0s\..* `+
			`Its preferred owner is "dead", which is not a member of the lease:`)
	exec(t, url, "UPDATE pgleases.clients SET expires_at = now() - interval '1 hour'",
		"UPDATE pgleases.leases SET plan_due_at = now()")
	for partition, could := range map[int]string{2: "evict", 10: "make"} {
		expectMatch(t, "without a live client", explained(t, a, "l", partition),
			"No client is live that could "+could+" it: continue or restart one.")
	}
	for _, lease := range []string{"l", "none"} {
		if _, err := a.Explain(t.Context(), lease, 11); !errors.Is(err, admin.ErrNoSuchPartition) {
			t.Errorf("partition 11 of %q: %v", lease, err)
		}
	}
}

func TestExplainSaysHowLongALeaseSettles(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, liveClients("a", "b"), `
		INSERT INTO pgleases.leases VALUES ('l', 1, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		VALUES ('l', 11, 1, now(), 1), ('l', 12, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		VALUES ('l', 0, 11, 11, 3, 'a', now())`)
	a := newAdmin(t, newPool(t, url))
	for _, test := range []struct{ change, want string }{
		{"leases SET settling_since = now(), settles_at = now() + interval '1 hour'",
			`stay until 20\d\d-\S+ \S+ UTC \((1h0m0s|59m\d+s) from now\), ` +
				`unless .* The member with a rebalance delay has left.$`},
		{"members SET rebalance_delay = '30 seconds'", `The rebalance delay of all members is 30s.$`},
		{"members SET rebalance_delay = '1 minute' WHERE session = 12",
			`the longest counts, which is the 1m0s of "b".$`},
		{"leases SET settles_at = now()", `owns 1.$`},
		{"leases SET settling_since = now() + interval '1 hour', settles_at = now() + interval '2 hours'",
			`owns 1.$`},
	} {
		exec(t, url, "UPDATE pgleases."+test.change)
		expectMatch(t, "after "+test.change, explained(t, a, "l", 0), test.want)
	}
}

func TestSnapshotSharesUpToCeilings(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, liveClients("a", "b", "c"), `
		INSERT INTO pgleases.leases VALUES ('l', 13, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number, max_partitions)
		VALUES ('l', 11, 1, now(), 1, 2), ('l', 12, 1, now(), 1, 5), ('l', 13, 1, now(), 1, NULL);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id)
		VALUES ('l', 0, 11, 11, 3, 'a'), ('l', 1, NULL, NULL, 3, NULL)`)
	a := newAdmin(t, newPool(t, url))
	shares := func(want ...float64) {
		t.Helper()
		for i, m := range testkit.Must(a.Snapshot(t.Context()))(t).Lease("l").Members {
			if m.Share != want[i] {
				t.Errorf("the share of %s is %v, not %v", m.Client, m.Share, want[i])
			}
		}
	}
	explains := func(partition int, want string) {
		t.Helper()
		if got := explained(t, a, "l", partition); !strings.Contains(got, want) {
			t.Errorf("partition %d: %s, want %s", partition, got, want)
		}
	}
	shares(2, 5, 6)
	explains(0, "so its share is 2.00 of 13 partitions among 3 working members; it owns 1. It may own 2 at most.")
	exec(t, url, "DELETE FROM pgleases.members WHERE session = 13", "UPDATE pgleases.leases SET unowned = 6")
	shares(2, 5)
	explains(1, "No member may own it, because all are at their ceilings: "+
		"2 members, 7 together, 13 partitions. Start more processes")
	exec(t, url, "UPDATE pgleases.members SET max_partitions = 5")
	explains(1, "because all are at their ceilings: 2 members, 5 each, 13 partitions.")
	exec(t, url, "UPDATE pgleases.members SET max_partitions = 7")
	explains(1, "It has had no owner yet.")
	shares(6.5, 6.5)
}

func TestSnapshotShowsWhatWaitsForAClient(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, liveClients("a"), `
		INSERT INTO pgleases.leases VALUES ('l', 5, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members
			(lease, session, weight, joined_at, join_number, joined_generation, restart_grace) VALUES
			('l', 11, 1, now(), 1, 2, '5 minutes');
		INSERT INTO pgleases.graces (lease, client, weight, generation, since, until) VALUES
			('l', 'b', 1, 3, now() - interval '10 seconds', now() + interval '4 minutes'),
			('l', 'a', 1, 1, now(), now() + interval '1 hour');
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id) VALUES
			('l', 0, 11, 11, 3, 'a'), ('l', 1, NULL, NULL, 3, 'b'), ('l', 2, 77, NULL, 3, 'b'),
			('l', 3, NULL, NULL, 3, 'c'), ('l', 4, NULL, NULL, 3, 'a')`)
	a := newAdmin(t, newPool(t, url))
	told := func() string {
		s := testkit.Must(a.Snapshot(t.Context()))(t)
		l := s.Lease("l")
		return fmt.Sprint(l.Waiting(), " ", s.Orphans(l), " ", len(l.Awaited))
	}
	if got := told(); got != "1-2 3-4 1" {
		t.Errorf("waiting, orphans and awaited: %s", got)
	}
	expectMatch(t, "explained", explained(t, a, "l", 1),
		`It waits for the return of "b", which went away 1\ds ago, until 20\d\d-\S+ \S+ UTC `+
			`\((4m0s|3m5\ds) from now\), because of its restart grace. .* pgleases drain b --reason '...'.`)
	views := func(want string) {
		t.Helper()
		var got string
		row := newPool(t, url).QueryRow(t.Context(), `
			SELECT coalesce(string_agg(partition || ' ' || waits_for, ', ' ORDER BY partition), '-')
			FROM pgleases.status WHERE waits_until > now()`)
		testkit.OK(t, row.Scan(&got))
		if got != want {
			t.Errorf("the view status has %s, not %s", got, want)
		}
	}
	views("1 b")
	exec(t, url, `
		INSERT INTO pgleases.overrides (verb, client, until, since, actor, reason)
		VALUES ('drain', 'b', 'infinity', now(), 'operator', 'why')`)
	if got := told(); got != "- 1-4 0" {
		t.Errorf("after a drain: %s", got)
	}
	exec(t, url, "DELETE FROM pgleases.overrides", "UPDATE pgleases.graces SET until = now()")
	if got := told(); got != "- 1-4 0" {
		t.Errorf("after the end: %s", got)
	}
	views("-")
}

func TestNewRefusesBadOptions(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.EmptyDatabase(t))
	for _, test := range []struct {
		pool *pgxpool.Pool
		opt  admin.Option
		want string
	}{
		{nil, admin.WithSchema("s"), "pool is nil"},
		{pool, nil, "option is nil"},
		{pool, admin.WithSchema(""), `schema name ""`},
		{pool, admin.WithSchema(strings.Repeat("x", 64)), "1 to 63 bytes"},
	} {
		if _, err := admin.New(test.pool, test.opt); !fails(err, test.want) {
			t.Errorf("%v, want %q", err, test.want)
		}
	}
	_, err := newAdmin(t, pool, admin.WithSchema("no such")).Snapshot(t.Context())
	if !fails(err, `schema "no such" is missing`) {
		t.Error(err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := newAdmin(t, pool).Snapshot(ended); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestRangesAreReadAndWritten(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `INSERT INTO pgleases.leases VALUES ('big', 65536, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, owner, epoch) SELECT 'big', p, nullif(p % 3, 0), 1 FROM generate_series(0, 65535) AS p`)
	s := testkit.Must(newAdmin(t, newPool(t, url)).Snapshot(t.Context()))(t)
	count, sum := 0, 0.0
	for i, h := range s.Lease("big").Holdings {
		count += h.Partitions.Count()
		for _, r := range h.Partitions {
			if r[0] != r[1] || r[0]%3 != i {
				t.Fatalf("holding %d has %v", i, r)
			}
			sum += float64(r[0])
		}
	}
	if count != 65536 || math.Abs(sum-65536*65535/2) > 0.1 {
		t.Errorf("%d partitions, sum %v", count, sum)
	}
	ranges := admin.Ranges{{0, 4}, {7, 7}}
	text := testkit.Must(json.Marshal(ranges))(t)
	if string(text) != "[[0,4],[7,7]]" {
		t.Errorf("as JSON: %s", text)
	}
	if got, empty := ranges.String(), (admin.Ranges{}).String(); got != "0-4,7" || empty != "-" {
		t.Errorf("%s, and without partitions %s", got, empty)
	}
}

// An evicted client has no share, and is not superseded.
func TestAnEvictedClientIsCalledSo(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.clients
		SELECT s, id, i, clock_timestamp() + interval '1 minute', '1 minute', 'host', 7, now()
		FROM (VALUES (11, 'a', 1), (12, 'b', -1)) AS v (s, id, i);
		INSERT INTO pgleases.identities VALUES ('a', 1, 1, now()), ('b', 2, 0, now());
		INSERT INTO pgleases.leases VALUES ('l', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		VALUES ('l', 11, 1, now(), 1), ('l', 12, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		VALUES ('l', 0, 11, 11, 3, 'a', now()), ('l', 1, 12, 12, 3, 'b', now())`)
	a := newAdmin(t, newPool(t, url))
	s := testkit.Must(a.Snapshot(t.Context()))(t)
	if a, b := s.Client(11), s.Client(12); a.Evicted || a.Superseded || !b.Evicted || b.Superseded {
		t.Errorf("clients %+v", s.Clients)
	}
	if m := s.Lease("l").Members; m[0].Share != 2 || m[1].Share != 0 {
		t.Errorf("members %+v", m)
	}
	text := explained(t, a, "l", 1)
	if !strings.Contains(text, `An operator has evicted "b"`) || strings.Contains(text, "newer process") {
		t.Error(text)
	}
}

// Clients may write any times, and that does not prevent reading.
func TestWhateverTimesClientsWriteTheTablesCanBeRead(t *testing.T) {
	t.Parallel()
	for _, at := range []string{"infinity", "-infinity", "294276-12-31", "4713-01-01 BC"} {
		url := pgtest.MigratedDatabase(t)
		a := newAdmin(t, newPool(t, url))
		exec(t, url, strings.ReplaceAll(`
			INSERT INTO pgleases.leases VALUES ('l', 1, 5, 1, 0, AT, AT);
			INSERT INTO pgleases.clients VALUES (1, 'a', 1, AT, '1000000 hours', 'h', 1, AT);
			INSERT INTO pgleases.members VALUES ('l', 1, 1, AT, 1);
			INSERT INTO pgleases.partitions VALUES ('l', 0, 1, 1, 1, 'a', NULL, AT, AT);
			INSERT INTO pgleases.graces VALUES
				('l', 'since', 1, NULL, 1, AT, 'infinity'), ('l', 'until', 1, NULL, 1, '-infinity', AT);
			INSERT INTO pgleases.locks VALUES ('x', 1, 1, 1, false, 1, AT);
			INSERT INTO pgleases.events (at, cause) VALUES (AT, 'joined');
			INSERT INTO pgleases.overrides (verb, lease, until, since, actor, reason)
			VALUES ('freeze', 'l', AT, now(), 'maria', 'why')`, "AT", "'"+at+"'"))
		s, err := a.Snapshot(t.Context())
		if err != nil || len(s.Clients) != 1 || s.Lease("l") == nil || len(s.Lease("l").Members) != 1 {
			t.Fatalf("%s: %+v, %v", at, s, err)
		}
		if _, err := json.Marshal(s); err != nil {
			t.Errorf("%s: %v", at, err)
		}
		for _, w := range s.Overrides { // none if its end is past; the year of no end is 1
			if want := map[string]int{"infinity": 1, "294276-12-31": 9999}[at]; w.Until.Year() != want {
				t.Errorf("a freeze until %s ends at %v", at, w.Until)
			}
		}
		if c := s.Clients[0]; c.Expired != (at == "-infinity" || at == "4713-01-01 BC") {
			t.Errorf("a client that expires at %s: %+v", at, c)
		}
		e, err := a.Explain(t.Context(), "l", 0)
		if _, bad := json.Marshal(e); err != nil || bad != nil {
			t.Errorf("%s: %v, %v", at, err, bad)
		}
		events, err := a.Events(t.Context(), "", 10)
		if _, bad := json.Marshal(events); err != nil || bad != nil || len(events) != 1 {
			t.Errorf("%s: %v, %v, %v", at, events, err, bad)
		}
		for l, err := range a.Locks(t.Context(), "") {
			if _, bad := json.Marshal(l); err != nil || bad != nil {
				t.Errorf("%s: %v, %v", at, err, bad)
			}
		}
	}
}

// A refused lease that no client can have written hides neither its client nor the others.
func TestOddRefusedLeasesHideNoClient(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.clients
			(session, id, incarnation, expires_at, ttl, host, pid, started_at, refused_leases)
		SELECT n, 'c' || n, 1, now(), '6 s', 'h', 1, now(), odd::jsonb
		FROM unnest(ARRAY['{"f": "x", "g": 16}', '{"f": 1.5}', '{"f": 1e99}', '{"f": -1}', '{"f": null}', '[1]', '7', '{}'])
		WITH ORDINALITY AS o (odd, n)`)
	s := testkit.Must(newAdmin(t, newPool(t, url)).Snapshot(t.Context()))(t)
	none := map[string]int{}
	want := []map[string]int{{"f": 0, "g": 16}, {"f": 0}, {"f": 0}, {"f": 0}, {"f": 0}, none, none, none}
	for i, c := range s.Clients {
		if !maps.Equal(c.Refused, want[i]) {
			t.Errorf("%s: %v, not %v", c.ID, c.Refused, want[i])
		}
	}
	if len(s.Clients) != len(want) {
		t.Errorf("%d clients", len(s.Clients))
	}
}

// Metadata that no client has written, even JSON that is nested more deeply than a program reads, hides
// no client.
func TestOddMetadataHidesNoClient(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	deep := strings.Repeat("[", 11_000) + strings.Repeat("]", 11_000)
	exec(t, url, `
		INSERT INTO pgleases.clients (session, id, incarnation, expires_at, ttl, host, pid, started_at, metadata)
		SELECT n, 'c' || n, 1, now(), '6 s', 'h', 1, now(), odd::jsonb
		FROM unnest(ARRAY['{"a": "b", "n": 7}', '{"a": {"b": [1]}}', '{"a": null}', '{"a": `+deep+`}', '[1]', '7', '{}'])
		WITH ORDINALITY AS o (odd, n)`)
	s := testkit.Must(newAdmin(t, newPool(t, url)).Snapshot(t.Context()))(t)
	none := map[string]string{}
	want := []map[string]string{{"a": "b", "n": "7"}, {"a": `{"b": [1]}`}, {"a": ""}, {"a": deep}, none, none, none}
	for i, c := range s.Clients {
		if !maps.Equal(c.Metadata, want[i]) {
			t.Errorf("%s: %.100v, not %.100v", c.ID, c.Metadata, want[i])
		}
	}
	if len(s.Clients) != len(want) {
		t.Errorf("%d clients", len(s.Clients))
	}
}

// The events of a lease include those of all leases that name one of its clients.
func TestEventsOfALeaseHaveTheEvictionsOfItsClients(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `INSERT INTO pgleases.events (cause, actor, lease, from_id, to_id, partitions) VALUES
		('evicted', NULL, NULL, 'a', NULL, NULL), ('joined', NULL, 'l', NULL, 'a', NULL), ('joined', NULL, 'other', NULL, 'b', NULL), ('evict', 'maria', NULL, 'a', NULL, NULL),
		('evicted', NULL, NULL, 'a', NULL, NULL), ('evicted', NULL, NULL, 'b', NULL, NULL), ('given', NULL, 'l', 'a', 'c', '{[0,4)}'), ('accepted', NULL, NULL, NULL, NULL, NULL)`)
	exec(t, url, "UPDATE pgleases.events SET tx = id::text::xid8")
	for most, want := range map[int]string{
		10: "joined evict evicted given accepted",
		3:  "evicted given accepted",
		2:  "given accepted",
	} {
		var causes []string
		for _, e := range testkit.Must(newAdmin(t, newPool(t, url)).Events(t.Context(), "l", most))(t) {
			if causes = append(causes, e.Cause); e.From == "b" {
				t.Errorf("it has the eviction of a client of another lease")
			}
		}
		if got := strings.Join(causes, " "); got != want {
			t.Errorf("the latest %d are %s, not %s", most, got, want)
		}
	}
}

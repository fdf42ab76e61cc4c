package admin_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/admin/sql"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// findingsOf returns the findings of one check, each as its level and its text.
func findingsOf(t *testing.T, a *admin.Admin, check string) (texts []string) {
	t.Helper()
	for _, f := range a.Doctor(t.Context(), admin.DoctorOptions{}) {
		if f.Check == check {
			texts = append(texts, string(f.Level)+" "+f.Text)
		}
	}
	return texts
}

// tellStory writes what happened to the members of lease l, a verb and a client each, one every ten
// minutes and the last one ten minutes ago. The clients in now are its members.
func tellStory(t *testing.T, url, story, now string) {
	t.Helper()
	steps := strings.Split(story, ", ")
	statements := []string{`
		TRUNCATE pgleases.events, pgleases.clients, pgleases.members, pgleases.leases, pgleases.identities,
			pgleases.partitions, pgleases.overrides`, `
		INSERT INTO pgleases.leases VALUES
			('l', 1, 5, 1, 0, 'infinity', now()), ('other', 1, 5, 1, 0, 'infinity', now())`,
	}
	for i, step := range steps {
		verb, id, _ := strings.Cut(step, " ")
		row := map[string]string{
			"join":      `'l', 'joined', NULL, NULL, NULL, %s`,
			"elsewhere": `'other', 'joined', NULL, NULL, NULL, %s`,
			"leave":     `'l', 'left', NULL, NULL, %s, NULL`,
			"kill":      `NULL, 'evicted', NULL, 'host node-7, pid 9', %s, NULL`,
			"inherit":   `'l', 'given', NULL, NULL, %s, 'a'`,
			"evict":     `NULL, 'evict', 'maria', 'it hangs', %s, NULL`,
		}[verb]
		at := fmt.Sprintf("clock_timestamp() - %d * interval '10 minutes'", len(steps)-i)
		if verb == "inherit" { // by the plan that follows an eviction
			at += " - interval '599 seconds'"
		}
		statements = append(statements,
			"INSERT INTO pgleases.events (at, lease, cause, actor, reason, from_id, to_id) VALUES ("+at+", "+
				fmt.Sprintf(row, "'"+id+"'")+")")
	}
	for i, id := range strings.Fields(now) {
		client := fmt.Sprintf(`
			INSERT INTO pgleases.clients
			VALUES (%d, '%s', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now())`, i+1, id)
		member := fmt.Sprintf(`
			INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
			VALUES ('l', %d, 1, now(), %[1]d)`, i+1)
		statements = append(statements, client, member)
	}
	exec(t, url, statements...)
}

// An evicted client that nothing has replaced is reported as long as its lease has fewer members for it.
func TestDoctorKeepsNamingAClientThatNothingReplaced(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	owner := newPool(t, pgtest.OwnerURL(url))
	a := newAdmin(t, owner)
	const evictedAt = `
		SELECT to_char(max(at) AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') FROM pgleases.events
		WHERE cause = 'evicted' AND from_id = $1`
	for _, test := range []struct{ name, story, now, want string }{
		{"killed", "join a, join b, join c, kill c", "a b", "c"},
		{"joined before all events", "kill c, inherit c", "a b", "c"},
		{"replaced by another", "join a, join b, kill b, join c", "a c", ""},
		{"back under its ID", "join a, join b, kill b, join b", "a b", ""},
		{"back before its old session was evicted", "join a, join b, join b, kill b", "a b", ""},
		{"back, and killed again", "join a, join b, kill b, join b, kill b", "a", "b"},
		{"two killed, one replaced", "join a, join b, join c, kill b, kill c, join d", "a d", "c"},
		{"a deploy of the rest, one after the other",
			"join a, join b, join c, kill c, leave a, join d, leave b, join e", "d e", "c"},
		{"a deploy of the rest, the new ones first",
			"join a, join b, join c, kill c, join d, leave a, join e, leave b", "d e", "c"},
		{"a deploy of all", "join a, join b, join c, kill c, leave a, join d, leave b, join e, join f", "d e f", ""},
		{"a deploy under the same IDs", "join a, join b, kill b, leave a, join a, join b", "a b", ""},
		{"fewer on purpose", "join a, join b, join c, join d, kill d, leave c", "a b", ""},
		{"fewer on purpose before", "join a, join b, join c, leave c, kill b", "a", "b"},
		{"back, and left in order", "join a, join b, kill b, join b, leave b", "a", ""},
		{"an operator evicted it", "join a, join b, evict b, kill b", "a", ""},
		{"an operator evicted it before", "join a, join b, evict b, kill b, join b, kill b", "a", "b"},
		{"another was back before its old session was evicted",
			"join a, join b, join c, kill b, join c, kill c", "a c", "b"},
		{"back before its old session was evicted, and left in order",
			"join a, join b, join b, kill b, leave b", "a", ""},
		{"more were started before", "join a, join b, join c, join d, kill b", "a c d", "b"},
		{"of another lease", "join a, elsewhere b, kill b", "a", ""},
		{"it had left the lease", "join a, join b, leave b, kill b", "a", ""},
		{"a replacement was killed, too", "join a, join b, kill b, join c, kill c", "a", "c"},
		{"killed often, and always back", "join a, join b, kill b, join c, kill c, join d", "a d", ""},
	} {
		tellStory(t, url, test.story, test.now)
		got := findingsOf(t, a, "expired")
		want := []string{"ok no session is expired"}
		if test.want != "" {
			at := testkit.Value[string](t, owner, evictedAt, test.want)
			want[0] = fmt.Sprintf("warning evicted and not replaced: "+
				`client %q of "l", host node-7, pid 9, since %s UTC (`, test.want, at)
		}
		if len(got) != 1 || !strings.HasPrefix(got[0], want[0]) {
			t.Errorf("%s (%s): %q, want %q", test.name, test.story, got, want)
		}
	}
	tellStory(t, url, "join a, join b, kill b", "a")
	exec(t, url, `
		INSERT INTO pgleases.overrides (verb, client, until, since, actor, reason)
		VALUES ('drain', 'b', 'infinity', now(), 'x', 'its host goes')`)
	if got := findingsOf(t, a, "expired"); !slices.Equal(got, []string{"ok no session is expired"}) {
		t.Errorf("of a drained client: %q", got)
	}
	tellStory(t, url, "join a, join b, kill b", "a")
	exec(t, url, "UPDATE pgleases.events SET at = at - interval '24 hours'")
	if got := findingsOf(t, a, "expired"); !slices.Equal(got, []string{"ok no session is expired"}) {
		t.Errorf("after a day: %q", got)
	}
}

// Without an eviction, the events of the past are not read. With many, few of them are.
func TestLossesReadFewEvents(t *testing.T) {
	t.Parallel()
	url := pgtest.FreshDatabase(t) // see BlocksRead
	exec(t, url, `
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id)
		SELECT now() - n * interval '1 second', 'l',
			CASE n % 4 WHEN 0 THEN 'joined' WHEN 1 THEN 'left' ELSE 'given' END, 'c' || n, 'c' || n
		FROM generate_series(200000, 1, -1) AS n`,
		"VACUUM ANALYZE pgleases.events")
	direct, _ := pgtest.DirectURL(pgtest.OwnerURL(url))
	pool := newPool(t, direct, func(c *pgxpool.Config) { c.ConnConfig.RuntimeParams["enable_seqscan"] = "off" })
	text := testkit.Must(sql.Files.ReadFile("lately.sql"))(t)
	if blocks := testkit.BlocksRead(t, pool, string(text), 5_000); blocks > 20 {
		t.Errorf("without an eviction it reads %d blocks", blocks)
	}
	exec(t, url, `
		INSERT INTO pgleases.events (at, cause, from_id)
		SELECT now() - n * interval '20 minutes', 'evicted', 'c' || n * 1200 FROM generate_series(1, 70) AS n`)
	if blocks := testkit.BlocksRead(t, pool, string(text), 5_000); blocks > 6000 {
		t.Errorf("it reads %d blocks", blocks)
	}
}

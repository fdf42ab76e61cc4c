package consumer_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestTableSQLRunsNoPartOfAName(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.OwnerURL(pgtest.EmptyDatabase(t))) // psql sends settings, which a pooler mixes up
	pool := testkit.Pool(t, url)
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	for n, name := range testkit.HostileNames {
		short := name[:len(name)-1] // 63 bytes at most
		column := func(kind string) string { return kind + strings.ToValidUTF8(short, "") }
		q := consumer.Queue{ID: column("i"), Key: column("k"), Partition: column("p"), Time: column("t")}
		for _, q.Table = range []string{fmt.Sprintf("public.plain%d", n), pgx.Identifier{name}.Sanitize(), name} {
			testkit.Execute(t, pool, "DROP TABLE IF EXISTS "+pgx.Identifier{name}.Sanitize())
			testkit.RunPrinted(t, pool, consumer.TableSQL(name, "", q))
		}
	}
}

// The steps for a table that exists are a comment. Without it they run as they are.
func TestStepsOfTableSQLRunNoPartOfAName(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.OwnerURL(pgtest.EmptyDatabase(t))) // psql sends settings, which a pooler mixes up
	pool := testkit.Pool(t, url)
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	for _, name := range testkit.HostileNames {
		quoted := pgx.Identifier{name}.Sanitize()
		testkit.Execute(t, pool, fmt.Sprintf("CREATE TABLE %[1]s (id bigint PRIMARY KEY, %[1]s text)", quoted))
		queue := consumer.Queue{Table: quoted, Key: name}
		_, steps, found := strings.Cut(consumer.TableSQL(name, "", queue), "SET lock_timeout")
		if found {
			steps, _, _ = strings.Cut(steps, "CREATE INDEX CONCURRENTLY") // which runs in no transaction
			steps = strings.ReplaceAll(strings.ReplaceAll("SET lock_timeout"+steps, "\n--", "\n"), "COMMIT;", "")
			testkit.RunPrinted(t, pool, steps)
		} else if !strings.ContainsAny(name, "\n\x1b") {
			t.Errorf("%q: there are no steps", name)
		}
	}
}

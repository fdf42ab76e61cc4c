package admin_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// The texts that create the tables, and then those that give rights on them.
func TestSchemasAndGrantsRunNoPartOfAName(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url, _ := pgtest.DirectURL(pgtest.EmptyDatabase(t))
	owner := newPool(t, url)
	for _, name := range testkit.HostileNames {
		tables := testkit.Must(pgleases.Schema(pgleases.WithSchema(name)))(t)
		tables += "\n" + testkit.Must(schedule.Schema(schedule.WithSchema(name)))(t)
		tables += "\n" + testkit.Must(consumer.Schema(consumer.WithSchema(name)))(t)
		testkit.RunPrinted(t, owner, tables)
		role := pgx.Identifier{name}.Sanitize()
		testkit.Execute(t, owner, "CREATE ROLE "+role)
		t.Cleanup(func() { testkit.Execute(t, owner, fmt.Sprintf("DROP OWNED BY %[1]s; DROP ROLE %[1]s", role)) })
		text := ""
		for _, p := range admin.Purposes {
			text += testkit.Must(admin.Grants(name, name, p))(t)
		}
		testkit.RunPrinted(t, owner, text)
		for line := range strings.Lines(text) {
			if strings.HasPrefix(strings.TrimSpace(line), "--") && strings.Contains(line, name) {
				t.Errorf("%q stands in a comment: %s", name, line)
			}
		}
		if !testkit.Value[bool](t, owner, "SELECT has_schema_privilege($1::name, $1, 'USAGE')", name) {
			t.Errorf("role %q did not get its rights", name)
		}
	}
}

func TestGrantsRefuseNamesThatAreNone(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", "a\xff", "a\x00b", strings.Repeat("x", 64)} {
		for _, names := range [][2]string{{name, "pgleases"}, {"app", name}} {
			text, err := admin.Grants(names[0], names[1], admin.ForApplication)
			if !fails(err, "is out of range") {
				t.Errorf("role %q, schema %q: error %v, text %q", names[0], names[1], err, text)
			}
		}
	}
}

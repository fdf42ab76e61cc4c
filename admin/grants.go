package admin

import (
	"fmt"
	"io/fs"
	"strings"

	"github.com/jackc/pgx/v5"

	schedulesql "github.com/pgleases/pgleases/schedule/sql"
	enginesql "github.com/pgleases/pgleases/sql"
)

// A Purpose is what a role is for.
type Purpose string

// The purposes of roles.
const (
	ForClients  Purpose = "clients"  // runs clients
	ForReader   Purpose = "reader"   // looks: all that package admin reads
	ForGuard    Purpose = "guard"    // writes under Guard, and runs no clients
	ForOperator Purpose = "operator" // besides the rights of clients: drops leases, and calls new_era
	ForSteering Purpose = "steering" // looks, and steers clients and leases: drain, cordon, pause, freeze, pin, evict, drop

	ForSchedules Purpose = "schedules" // besides the rights of clients: runs and manages schedules, whose tables are made already
	// looks, and changes schedules and jobs, whose tables are made already, with schedule.Manage: pause, resume, delete, trigger, backfill, cancel, retry
	ForSteeringSchedules Purpose = "steering-schedules"
)

// Purposes are all of them.
var Purposes = []Purpose{ForClients, ForReader, ForGuard, ForOperator, ForSteering, ForSchedules, ForSteeringSchedules}

// Grants returns the GRANT statements that a role needs for a purpose, where another role owns the tables of the schema. The owner runs them, again after each
// migration. The errors: names that are none, an unknown purpose.
func Grants(role, schema string, purpose Purpose) (string, error) {
	if err := checkSchema(schema); err != nil {
		return "", err
	}
	if role == "" || len(role) > maxSchemaBytes {
		return "", fmt.Errorf("admin: role %q is out of range: an identifier of 1 to %d bytes", role, maxSchemaBytes)
	}
	// grants.sql has the rights of clients first, then, as comments, each under a line of its own, those of others.
	quoted, in := pgx.Identifier{role}.Sanitize(), pgx.Identifier{schema}.Sanitize()
	clients, others := clientsGrants()
	guard, others, _ := strings.Cut(others, "\n-- A role that drops")
	operator, steering, _ := strings.Cut(others, "\n-- A role that steers")
	schedules, steeringSchedules, _ := strings.Cut(read(schedulesql.Files, "grants.sql"), "\n-- A role that steers")
	named := strings.NewReplacer("SCHEMA pgleases ", "SCHEMA "+in+" ", "pgleases.", in+".",
		"pgleases_app", quoted, "TO worker;", "TO "+quoted+";", "TO operator;", "TO "+quoted+";", "TO steersman;", "TO "+quoted+";").Replace
	switch purpose {
	case ForClients:
		return named(clients), nil
	case ForGuard:
		return named(uncommented(guard)), nil
	case ForOperator:
		return named(clients) + named(uncommented(operator)), nil
	case ForSchedules:
		return named(clients + withoutHead(schedules) + "\n"), nil
	case ForSteering:
		reader, err := Grants(role, schema, ForReader)
		return reader + named(uncommented(steering)), err
	case ForSteeringSchedules:
		reader, err := Grants(role, schema, ForReader)
		return reader + named(uncommented(steeringSchedules)), err
	case ForReader:
		viewsOfSchedules := fmt.Sprintf("BEGIN IF to_regprocedure(%[3]s) IS NOT NULL THEN GRANT EXECUTE ON FUNCTION %[1]s.schedule_clock() TO %[2]s; END IF; END", in, quoted, literal(in+".schedule_clock()"))
		return fmt.Sprintf("GRANT USAGE ON SCHEMA %[1]s TO %[2]s;\nGRANT SELECT ON ALL TABLES IN SCHEMA %[1]s TO %[2]s;\n"+
			"-- For databases where PUBLIC may not execute functions.\n"+
			"GRANT EXECUTE ON FUNCTION %[1]s.timeline(), %[1]s.lock_list(pg_catalog.text, pg_catalog.text, int), "+
			"%[1]s.snapshot(pg_catalog.text[], boolean), %[1]s.leases_of(pg_catalog.text, pg_catalog.text) TO %[2]s;\n"+
			"DO %[3]s;\n"+
			"-- To see what other roles' sessions do, which pgleases doctor looks at:\n--   GRANT pg_monitor TO %[2]s;\n", in, quoted, literal(viewsOfSchedules)), nil
	}
	return "", fmt.Errorf("admin: purpose %q is none of %v", purpose, Purposes)
}

// clientsGrants returns the grants of clients, and what stands behind them.
func clientsGrants() (clients, others string) {
	clients, others, _ = strings.Cut(read(enginesql.Files, "grants.sql"), "\n-- A role that only writes")
	return withoutHead(clients) + "\n", others
}

// withoutHead is a text from its first GRANT on.
func withoutHead(text string) string { return text[strings.Index(text, "\nGRANT")+1:] }

// literal is a text as SQL has it.
func literal(text string) string { return "'" + strings.ReplaceAll(text, "'", "''") + "'" }

// read returns a file that is embedded.
func read(files fs.ReadFileFS, name string) string {
	text, err := files.ReadFile(name)
	if err != nil {
		panic(err) // a build that cannot work
	}
	return string(text)
}

// uncommented returns the statements that stand in comments.
func uncommented(text string) string {
	var b strings.Builder
	for line := range strings.SplitSeq(text, "\n") {
		if statement, ok := strings.CutPrefix(line, "--   "); ok {
			b.WriteString(statement + "\n")
		}
	}
	return b.String()
}

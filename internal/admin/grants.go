package admin

import (
	"fmt"
	"io/fs"
	"strings"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	consumersql "github.com/pgleases/pgleases/consumer/sql"
	"github.com/pgleases/pgleases/internal/store"
	schedulesql "github.com/pgleases/pgleases/schedule/sql"
	enginesql "github.com/pgleases/pgleases/sql"
)

// A Purpose is the use of a role, which decides its rights.
type Purpose string

// The purposes of roles.
const (
	ForApplication Purpose = "application" // runs clients
	ForGuard       Purpose = "guard"       // writes under Guard, and runs no clients
	ForReader      Purpose = "reader"      // reads everything
	// Reads everything, and calls the verbs on clients and leases, and new_server_generation.
	ForOperator Purpose = "operator"

	// Runs clients, and runs and manages schedules; their tables must exist.
	ForSchedules Purpose = "schedules"
	// Reads everything, and changes schedules and jobs with schedule.Manage; their tables must exist.
	ForScheduleOperators Purpose = "schedule-operators"

	// Only enqueues jobs, with schedule.NewEnqueuer; the tables of schedules must exist.
	ForEnqueuer Purpose = "enqueuer"

	// Runs clients and consumers; their tables must exist.
	ForConsumers Purpose = "consumers"
	// Reads everything, and changes consumers with consumer.Manage; their tables must exist.
	ForConsumerOperators Purpose = "consumer-operators"
)

// Purposes lists all purposes.
var Purposes = []Purpose{
	ForApplication, ForGuard, ForReader, ForOperator, ForSchedules, ForScheduleOperators, ForEnqueuer, ForConsumers,
	ForConsumerOperators,
}

// Grants returns the GRANT statements that a role needs for a purpose if another role owns the
// tables of the schema. They are the files in sql/grants, schedule/sql/grants and
// consumer/sql/grants, with these names. The owner runs them, again after each migration. Grants
// returns an error for an invalid name or an unknown purpose.
func Grants(role, schema string, purpose Purpose) (string, error) {
	if err := checkSchema(schema); err != nil {
		return "", err
	}
	if role == "" || len(role) > maxSchemaBytes || !utf8.ValidString(role) || strings.Contains(role, "\x00") {
		return "", fmt.Errorf("pgleases: role %q is out of range: an identifier of 1 to %d bytes of UTF-8",
			role, maxSchemaBytes)
	}
	var text string
	switch purpose {
	case ForApplication, ForGuard, ForReader:
		text = grants(enginesql.Files, purpose)
	case ForOperator:
		text = grants(enginesql.Files, ForReader) + grants(enginesql.Files, ForOperator)
	case ForSchedules:
		text = grants(enginesql.Files, ForApplication) + grants(schedulesql.Files, ForApplication)
	case ForScheduleOperators:
		text = grants(enginesql.Files, ForReader) + grants(schedulesql.Files, ForOperator)
	case ForEnqueuer:
		text = grants(schedulesql.Files, ForEnqueuer)
	case ForConsumers:
		text = grants(enginesql.Files, ForApplication) + grants(consumersql.Files, ForApplication)
	case ForConsumerOperators:
		text = grants(enginesql.Files, ForReader) + grants(consumersql.Files, ForOperator)
	default:
		return "", fmt.Errorf("pgleases: purpose %q is none of %v", purpose, Purposes)
	}
	quoted := pgx.Identifier{role}.Sanitize()
	return store.Named(text, schema, role,
		"pgleases_app", quoted,
		"pgleases_reader", quoted,
		"pgleases_operator", quoted,
	), nil
}

// grants returns the statements of a file of grants.
func grants(files fs.ReadFileFS, name Purpose) string {
	text, err := files.ReadFile("grants/" + string(name) + ".sql")
	if err != nil {
		panic(err) // the file is embedded
	}
	_, statements, _ := strings.Cut(string(text), "\nGRANT")
	return "GRANT" + statements
}

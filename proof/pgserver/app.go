package pgserver

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/sql"
)

const (
	// App is the role of clients that may do what sql/grants.sql gives and no more, under the name that it has there.
	App = "pgleases_app"

	tablesOwner = "pgleases_owner" // of the tables, as on docs/roles.md
)

// asOwner are the tests whose database stays empty, and whose clients stay those of a role that may do everything in it,
// where the clients of all others are App's; and why. So do those of a server that is the test's own (see Private).
var asOwner = map[string]string{
	"TestACrashAtAnyStatementLeavesNothingStuck/schema": "a client crashes when it migrates",
	"TestMigrationsMayRace":                             "migration",
	"TestASchemaThatDoesNotFitIsToldWithWhatToRun":      "migration",
	"TestTheTextOfTheSchemaRunsAsItIs":                  "migration",
	"TestTheLongestNamesWork":                           "its clients make a schema",
	"TestASchemaNameThatNeedsQuotingWorks":              "its clients make a schema",
	"TestARoleWithoutRightsIsToldWhere":                 "it makes a role with fewer rights",
	"TestEachRoleOfThePageMayDoItsPartAndNoMore":        "it makes all roles itself",

	// In internal/store and internal/migrations.
	"TestRacingMigrationsAllSucceed":                 "migration",
	"TestASchemaThatDoesNotFitIsNamed":               "migration",
	"TestAnySchemaNameServes":                        "schemas of its own",
	"TestARoleThatOwnsNothingRunsTheWholeProtocol":   "it makes the role itself",
	"TestAReadOnlyServerIsLeft":                      "its second server does not have the role",
	"TestTheSchemaIsAppliedOnTopOfItself":            "migration",
	"TestWhatThePageWarnsOfFails":                    "migration",
	"TestEachToolAppliesTheSchemaAndAClientRunsOnIt": "migration",
}

// MakeApp makes the role App, who can connect to every database and do nothing there that was not granted, and that of the
// tables' owner.
func (s *Server) MakeApp(ctx context.Context) error {
	err := s.maintain(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "CREATE ROLE "+tablesOwner+" NOLOGIN; CREATE ROLE "+App+" LOGIN")
		return err
	})
	if err != nil {
		return fmt.Errorf("pgtest: make the role %s: %w", App, err)
	}
	return nil
}

// isApps reports whether a test's database is for clients of App's.
func isApps(test string) bool {
	for name := range asOwner {
		if strings.HasPrefix(test+"/", name+"/") {
			return false
		}
	}
	return os.Getenv(EnvRole) != ""
}

// prepare makes the library's tables in an empty database, with the rights of App, who gets nothing from PUBLIC. For the
// application's own tables App owns a schema of its name, which the default search_path has first.
func prepare(ctx context.Context, databaseURL string) error {
	var text [3]string
	for i, name := range []string{"schema.sql", "functions.sql", "grants.sql"} {
		b, err := sql.Files.ReadFile(name)
		if err != nil {
			return err
		}
		text[i] = string(b)
	}
	direct, _ := DirectURL(databaseURL)
	return executeOn(ctx, direct, "REVOKE CREATE ON SCHEMA public FROM PUBLIC; CREATE SCHEMA "+App+" AUTHORIZATION "+App,
		"CREATE SCHEMA pgleases AUTHORIZATION "+tablesOwner+"; SET ROLE "+tablesOwner,
		"SET client_min_messages = warning", text[0], text[1],
		"REVOKE EXECUTE ON ALL FUNCTIONS IN SCHEMA pgleases FROM PUBLIC",
		text[2])
}

// executeOn sends each as one message, on a connection of its own.
func executeOn(ctx context.Context, databaseURL string, statements ...string) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	for _, statement := range statements {
		if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
			return err
		}
	}
	return nil
}

// OwnerURL returns the URL of the same database as a role that may do everything in it, for what a test does besides running
// clients, when databaseURL is App's. Else it returns databaseURL itself.
func OwnerURL(databaseURL string) string {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil || os.Getenv(EnvRole) == "" || config.User != App {
		return databaseURL
	}
	owners := os.Getenv(EnvDatabaseURL)
	if direct := os.Getenv(EnvDirectURL); direct != "" && !sameServer(databaseURL, owners) {
		owners = direct
	}
	url, err := withDatabase(owners, config.Database)
	if err != nil {
		return databaseURL
	}
	return url
}

// Package pgtest provides a PostgreSQL server for tests and example programs, without set-up.
//
// Which server that is, in this order:
//
//  1. the one that PGLEASES_TEST_DATABASE_URL, else DATABASE_URL, points to: a foreign server, in which pgtest only
//     makes and drops databases of its own;
//  2. one that is started from the machine's server programs (directory PGLEASES_TEST_POSTGRES_BIN, else PATH, else
//     where distributions put them) in a temporary folder (in memory, see WithDurable), on a free port of 127.0.0.1, and that ends with this
//     process: an owned server.
//
// A test takes a fresh database with [Database], or, to restart, kill or freeze the server, a server of its own with
// [Private]. A program uses [Start]. [PgBouncer] puts a pooler in front of either kind of server.
//
// initdb and postgres refuse to run as root; there, they run as the user postgres, else nobody.
//
// An owned server does not outlive its process on Linux, however that ends: the kernel signals it. On other systems a
// process that is killed leaves it behind. What a killed process left, its folder or its server, is removed by the
// next start of anything in this package.
//
// The package does not import "testing", so that programs can use it.
package pgtest

// The environment variables that pgtest reads.
const (
	// EnvDatabaseURL is the connection string of a foreign server; its user must be allowed to create databases.
	EnvDatabaseURL = "PGLEASES_TEST_DATABASE_URL"
	// EnvFallbackURL is read when EnvDatabaseURL is not set.
	EnvFallbackURL = "DATABASE_URL"
	// EnvDirectURL leads to the same server as EnvDatabaseURL, past the pooler that EnvDatabaseURL goes through.
	EnvDirectURL = "PGLEASES_TEST_DIRECT_URL"
	// EnvPostgresBin is the only directory in which server programs are looked for.
	EnvPostgresBin = "PGLEASES_TEST_POSTGRES_BIN"
)

// WaitFunc is the function of the goroutine that waits for a started server for as long as that runs. A leak detector
// has to let it pass while a shared server is up: goleak.IgnoreAnyFunction(pgtest.WaitFunc).
const WaitFunc = "github.com/pgleases/pgleases/internal/pgtest.(*process).run"

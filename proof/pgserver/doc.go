// Package pgtest provides a PostgreSQL server for tests and example programs, without set-up.
//
// Which server that is, in this order:
//
//  1. the one that PGLEASES_TEST_DATABASE_URL, else DATABASE_URL, points to: a foreign server, in which pgtest only
//     makes and drops databases of its own;
//  2. docker: one in a container of the image PGLEASES_TEST_POSTGRES_IMAGE (postgres:18-alpine), which is pulled if
//     need be, on a free port of 127.0.0.1; the container is removed with the server;
//  3. programs: one that is started from the machine's server programs (directory PGLEASES_TEST_POSTGRES_BIN, else
//     PATH, else where distributions put them) in a temporary folder (in memory, see WithDurable), on a free port of
//     127.0.0.1, and that ends with this process: an owned server;
//  4. embedded: one that is started in the same way from programs that embedded-postgres downloads, once for all, into
//     pgleases-postgres in the user's cache directory (root: in /var/cache).
//
// What cannot be used on this machine says why in one line, and the next is tried. PGLEASES_TEST_POSTGRES, set to
// docker, programs or embedded, has no other tried; PGLEASES_TEST_POSTGRES_BIN alone means programs. Servers of a test's own come
// from the last two, whichever is forced for the shared one. [Server.Describe] tells which was used.
//
// A test takes a fresh database with [Database], or, to restart, kill or freeze the server, a server of its own with
// [Private]. A program uses [Start]. [PgBouncer] puts a pooler in front of either kind of server.
//
// Tests connect as the user of that server's URL, a superuser. With PGLEASES_TEST_ROLE they connect as [App], who owns
// nothing: [Database] then has the library's tables, which another role made.
//
// initdb and postgres refuse to run as root; there, they run as the user postgres, else nobody.
//
// An owned server does not outlive its process on Linux, however that ends: the kernel signals it. On other systems a
// process that is killed leaves it behind. What a killed process left, its folder or its server, is removed by the
// next start of anything in this package, its container by the next start of one, or by the engine after two hours.
//
// The package does not import "testing" itself, so that programs can use it.
package pgserver

// The environment variables that pgtest reads.
const (
	// EnvDatabaseURL is the connection string of a foreign server; its user must be allowed to create databases.
	EnvDatabaseURL = "PGLEASES_TEST_DATABASE_URL"
	// EnvFallbackURL is read when EnvDatabaseURL is not set.
	EnvFallbackURL = "DATABASE_URL"
	// EnvDirectURL leads to the same server as EnvDatabaseURL, past the pooler that EnvDatabaseURL goes through.
	EnvDirectURL = "PGLEASES_TEST_DIRECT_URL"
	// EnvPostgres is the only way in which a server is started: docker, programs or embedded.
	EnvPostgres = "PGLEASES_TEST_POSTGRES"
	// EnvPostgresImage is the image to run in Docker: the official one, or one with its interface.
	EnvPostgresImage = "PGLEASES_TEST_POSTGRES_IMAGE"
	// EnvRole is App where tests' clients connect as that role, which command pgtest makes on a server of its own.
	EnvRole = "PGLEASES_TEST_ROLE"
	// EnvPostgresBin is the only directory in which server programs are looked for.
	EnvPostgresBin = "PGLEASES_TEST_POSTGRES_BIN"
)

// WaitFunc is the function of the goroutine that waits for a started server for as long as that runs. A leak detector
// has to let it pass while a shared server is up: goleak.IgnoreAnyFunction(pgserver.WaitFunc).
const WaitFunc = "github.com/pgleases/pgleases/proof/pgserver.(*process).run"

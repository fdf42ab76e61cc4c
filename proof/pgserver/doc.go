//go:build unix

// Package pgserver starts PostgreSQL servers that an attack may restart, kill, freeze, signal and
// fill. It also starts standbys and copies of them, gives them clocks of their own, and starts
// PgBouncer in front of them.
//
// The servers run the machine's installed programs, in a temporary folder, on a free port of
// 127.0.0.1. The programs are in the directory PGLEASES_TEST_POSTGRES_BIN if it is set, else on
// PATH, else where distributions install them. On Linux, no server outlives the process that
// started it, because the kernel signals the server. The next start removes the folders that killed
// processes left. initdb and postgres refuse to run as root. Under root they run as the user
// postgres, or nobody if there is no user postgres.
//
// A test that needs no server of its own gets a database from [Database], on a server that the
// whole test binary shares. Command pgserver starts a server for another command, and passes it in
// these variables:
//
//   - DATABASE_URL: the URL of the server on which [Database] creates databases, possibly through a
//     pooler. If it is not set, the first use starts a server.
//   - PGLEASES_TEST_DIRECT_URL: the URL of the same server without the pooler, if DATABASE_URL leads
//     through one.
//   - PGLEASES_TEST_ROLE: the role of the clients. It owns no tables. Another role created the
//     tables, and granted it the rights of sql/grants/application.sql.
//
// The package is for Unix, because other systems have no signals that freeze and kill servers.
package pgserver

// The environment variables that the package comment describes.
const (
	EnvDatabaseURL = "DATABASE_URL"
	EnvDirectURL   = "PGLEASES_TEST_DIRECT_URL"
	EnvRole        = "PGLEASES_TEST_ROLE"
)

//go:build unix

// Package pgserver starts PostgreSQL servers that an attack may restart, kill, freeze, signal and fill, standbys and copies of them,
// clocks of their own, and PgBouncer in front of them.
//
// They are started from the machine's own programs, in a temporary folder, on a free port of 127.0.0.1. The programs are
// looked for in the directory PGLEASES_TEST_POSTGRES_BIN, else on PATH, else where distributions put them. Nothing outlives
// the process that started it on Linux, however that ends: the kernel signals it. What a killed process left behind in its
// folder is removed at the next start. initdb and postgres refuse to run as root; there, they run as the user postgres, else
// nobody.
//
// A test that needs no server of its own takes a database with [Database], on a server that the whole test binary shares.
// Command pgserver starts a server for another command, which finds it through these variables:
//
//   - DATABASE_URL: the URL of the server on which [Database] makes databases, possibly through a pooler. Not set: it
//     starts one.
//   - PGLEASES_TEST_DIRECT_URL: the URL of the same server past the pooler, where DATABASE_URL leads through one.
//   - PGLEASES_TEST_ROLE: the role that clients connect as. It owns nothing; another role has made the tables, and gave
//     it what sql/grants/application.sql gives.
//
// The package is for Unix: other systems have no signals to freeze and kill servers with.
package pgserver

// The environment variables, as above.
const (
	EnvPostgresBin = "PGLEASES_TEST_POSTGRES_BIN"
	EnvDatabaseURL = "DATABASE_URL"
	EnvDirectURL   = "PGLEASES_TEST_DIRECT_URL"
	EnvRole        = "PGLEASES_TEST_ROLE"
)

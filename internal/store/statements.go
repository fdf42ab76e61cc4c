package store

import (
	"fmt"
	"io/fs"
	"reflect"
	"slices"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/sql"
)

// Statements are the texts of the SQL files for one schema, without their head comments. A field
// has the name of its file, in lower case.
type Statements struct {
	Schema string // see DDL

	Register, Superseder, Heartbeat, Report, Marker, Accept, Reject, Close string
	Join, Read, Release, Announce, Fence                                   string
	Evict, Tidy, Sample, Claim, Snapshot, Apply                            string
	Guard, Reaches, Owners                                                 string
	Liveness, Watch, EvictDisconnected                                     string

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
		f := fields.FieldByIndex(field.Index)
		if f.String() == "" {
			f.SetString(text(strings.ToLower(field.Name)))
		}
	}
}

// DDL returns everything that a migration runs.
func DDL(files fs.ReadFileFS, schema string) string { return Texts(files, schema)("schema") }

// Texts returns the texts of SQL files for a schema by the files' names, without .sql. See
// StatementsFor for their format.
func Texts(files fs.ReadFileFS, schema string) func(name string) string {
	return func(name string) string {
		b, err := files.ReadFile(name + ".sql")
		if err != nil {
			panic(fmt.Sprintf("statement %s is not embedded: %v", name, err)) // this build cannot work
		}
		return Named(withoutHead(string(b)), schema, "")
	}
}

// withoutHead cuts off the comment lines before the first statement.
func withoutHead(text string) string {
	for strings.HasPrefix(text, "--") || strings.HasPrefix(text, "\n") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

// Named returns SQL whose names are those of a schema instead of pgleases, and whose other words
// are replaced by others, in pairs. A name may contain anything. So it stands in quoted
// identifiers and in literals, but never in a comment, which a newline would end, nor in a body
// whose quote it contains. role is a name that occurs in the new words.
func Named(text, schema, role string, words ...string) string {
	quoted := pgx.Identifier{schema}.Sanitize()
	literal := strings.TrimSuffix(Literal(quoted), "'")
	words = append([]string{
		"'pgleases.", literal + ".",
		"pgleases.", quoted + ".",
		"SCHEMA pgleases ", "SCHEMA " + quoted + " ",
		"CREATE SCHEMA IF NOT EXISTS pgleases;", "CREATE SCHEMA IF NOT EXISTS " + quoted + ";",
		"$pgleases_body$", BodyTag("$pgleases_body$", schema, role),
	}, words...)
	replacer := strings.NewReplacer(words...)
	var b strings.Builder
	for line := range strings.Lines(text) {
		if !strings.HasPrefix(strings.TrimSpace(line), "--") {
			line = replacer.Replace(line)
		}
		b.WriteString(line)
	}
	return b.String()
}

// BodyTag returns a quote around the body of a function: tag, or a longer one, which occurs in
// none of the names, so that no name ends the body.
func BodyTag(tag string, names ...string) string {
	for slices.ContainsFunc(names, func(name string) bool { return strings.Contains(name, tag) }) {
		tag = tag[:len(tag)-1] + "_$"
	}
	return tag
}

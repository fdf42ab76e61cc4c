// Package sql embeds the SQL files of package schedule. It is internal to the module, and not an
// API. See package sql of the module's root.
package sql

import (
	"embed"
	"io/fs"
	"maps"
	"slices"
	"strings"
)

//go:embed *.sql functions/*.sql grants/*.sql
var embedded embed.FS

// Files has schema.sql followed by the files of functions, the grants of roles in grants, and one
// file for each statement of statements.sql.
var Files fs.ReadFileFS = files{embedded}

type files struct{ fs.ReadFileFS }

// ReadFile returns a file, including the files that Files adds.
func (f files) ReadFile(name string) ([]byte, error) {
	if text, ok := statements[strings.TrimSuffix(name, ".sql")]; ok {
		return []byte(text), nil
	}
	all, err := f.ReadFileFS.ReadFile(name)
	if name != "schema.sql" {
		return all, err
	}
	parts, err := fs.Glob(f, "functions/*.sql")
	for _, part := range parts { // in order: version.sql is the last
		text, _ := f.ReadFileFS.ReadFile(part) // Glob has found it
		all = append(all, text...)
	}
	return all, err
}

var statements = func() map[string]string {
	all := make(map[string]string)
	text, _ := embedded.ReadFile("statements.sql") // it is embedded
	for block := range strings.SplitSeq(string(text), "\n\n-- ") {
		name, _, _ := strings.Cut(block, ":")
		if _, statement, ok := strings.Cut(block, "\nSELECT "); ok {
			all[name] = "SELECT " + strings.TrimRight(statement, ";\n")
		}
	}
	return all
}()

// Statements returns the names of the statements.
func Statements() []string { return slices.Sorted(maps.Keys(statements)) }

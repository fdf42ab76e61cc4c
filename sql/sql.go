// Package sql embeds the SQL files of this module. It is internal to the module, and no API: the
// files change with the code. It is not under internal/ because people read the files, and run them
// with psql.
package sql

import (
	"embed"
	"path"
)

// Schema lists the files of schema, in the order of execution.
var Schema = []string{
	"server", "clients", "leases", "plans", "notify", "events", "samples", "expiry", "liveness", "locks",
	"operators", "application", "views", "version",
}

// Files contains schema.sql (the files of the folder schema, concatenated), the rights of roles in
// the folder grants, and each statement of the protocol, from the folder statements.
var Files = files{embedded}

//go:embed schema/*.sql statements/*.sql grants/*.sql
var embedded embed.FS

type files struct{ embed.FS }

// ReadFile also reads schema.sql, and statements without their folder.
func (f files) ReadFile(name string) (text []byte, err error) {
	if name != "schema.sql" {
		if path.Dir(name) == "." {
			name = "statements/" + name
		}
		return f.FS.ReadFile(name)
	}
	for _, part := range Schema {
		b, _ := f.FS.ReadFile("schema/" + part + ".sql") // it is embedded
		text = append(append(text, b...), '\n')
	}
	return text, nil
}

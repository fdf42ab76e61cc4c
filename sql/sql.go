// Package sql holds the schema and the statements of the protocol, one file each. Every file runs as it stands in psql.
package sql

import (
	"embed"
	"fmt"
	"io/fs"
	"strings"
)

//go:embed *.sql
var files embed.FS

// Grants is grants.sql, as it stands.
//
//go:embed grants.sql
var Grants string

// Statements are the files' texts for one schema, without their head comments.
type Statements struct {
	Schema string

	Register, Superseder, Heartbeat, Mark, Settle, Close string
	Join, Weight, Read, Release                          string
	Evict, Claim, Plan, Apply                            string
	Guard                                                string
}

// For returns the statements for a schema. The files write it as "pgleases." before a name, which stands for nothing
// else, and once as the schema to create.
func For(schema string) Statements {
	quoted := `"` + strings.ReplaceAll(schema, `"`, `""`) + `"`
	tag := "$pgleases_body$"
	for strings.Contains(schema, tag) { // the name stands inside the bodies
		tag = tag[:len(tag)-1] + "_$"
	}
	put := strings.NewReplacer("pgleases.", quoted+".", "CREATE SCHEMA IF NOT EXISTS pgleases;",
		"CREATE SCHEMA IF NOT EXISTS "+quoted+";", "$pgleases_body$", tag)
	text := func(name string) string {
		b, err := fs.ReadFile(files, name+".sql")
		if err != nil {
			panic(fmt.Sprintf("statement %s is not embedded: %v", name, err)) // a build that cannot work
		}
		return put.Replace(withoutHead(string(b)))
	}
	return Statements{
		Schema:   text("schema"),
		Register: text("register"), Superseder: text("superseder"), Heartbeat: text("heartbeat"), Mark: text("mark"),
		Settle: text("settle"), Close: text("close"),
		Join: text("join"), Weight: text("weight"), Read: text("read"), Release: text("release"),
		Evict: text("evict"), Claim: text("claim"), Plan: text("plan"), Apply: text("apply"),
		Guard: text("guard"),
	}
}

// withoutHead cuts the comment lines before the first statement.
func withoutHead(text string) string {
	for strings.HasPrefix(text, "--") || strings.HasPrefix(text, "\n") {
		_, text, _ = strings.Cut(text, "\n")
	}
	return text
}

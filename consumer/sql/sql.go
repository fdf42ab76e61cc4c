// Package sql embeds the SQL files of package consumer. It is internal to the module, and not an
// API. See package sql of the module's root.
//
// Statements on the user's own table have placeholders in braces, which package consumer replaces:
// the table, its columns id and partition, the key as text, the columns of the handler's struct, and
// the sum of their sizes.
package sql

import "embed"

// Files has schema.sql, the rights of roles in grants, and one file for each statement.
//
//go:embed *.sql grants/*.sql
var Files embed.FS

// Package sql embeds the SQL files of package audit.
package sql

import "embed"

// Files has one file for each statement.
//
//go:embed *.sql
var Files embed.FS

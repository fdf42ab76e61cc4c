// Package sql embeds the SQL files of package admin, which are written as those of the engine.
package sql

import "embed"

// Files are one file for each statement.
//
//go:embed *.sql
var Files embed.FS

// Package sql embeds the SQL files of this module. It is internal to the module, and no API: the files change with the code.
// It does not stand under internal/ because people read the files, and run them with psql.
package sql

import "embed"

// Files are schema.sql, functions.sql, the rights of roles in grants, and one file for each statement of the protocol.
//
//go:embed *.sql grants/*.sql
var Files embed.FS

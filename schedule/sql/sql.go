// Package sql embeds the SQL files of package schedule. It is internal to the module, and no API. See the package of the same name at the
// module's root.
package sql

import "embed"

// Files are schema.sql, functions.sql, the rights of roles in grants, and one file for each statement.
//
//go:embed *.sql grants/*.sql
var Files embed.FS

// Package migrations tests that migration tools apply the text of pgleases.Schema, told what docs/migrations.md says. It is a
// module of its own, so that nobody gets these tools with the library.
package migrations

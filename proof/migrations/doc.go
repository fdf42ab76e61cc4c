// Package migrations tests that migration tools apply the text of pgleases.Schema if they are
// configured as docs/migrations.md says. It is a package of module proof, so the library's users do
// not get these tools.
package migrations

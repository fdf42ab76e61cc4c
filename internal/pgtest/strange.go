package pgtest

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"

	"github.com/jackc/pgx/v5"
)

//go:embed strange.sql
var strange string

// MakeStrange creates a schema "strange" in a database, with other code under all names that the
// files of these patterns use: for a test of code that runs while that schema is on the
// search_path. A sequence records whether any of it was called: see [StrangeCalled]. It takes
// seconds.
func MakeStrange(ctx context.Context, conn *pgx.Conn, patterns ...string) error {
	seen := make(map[string]bool)
	var words []string
	for _, pattern := range patterns {
		names, err := filepath.Glob(pattern)
		if err != nil || len(names) == 0 {
			return fmt.Errorf("pgtest: files %s: %w", pattern, errors.Join(err, fs.ErrNotExist))
		}
		for _, name := range names {
			text, err := os.ReadFile(name)
			if err != nil {
				return err
			}
			for _, word := range regexp.MustCompile(`[a-z_0-9]+`).FindAllString(string(text), -1) {
				if !seen[word] {
					seen[word] = true
					words = append(words, word)
				}
			}
		}
	}
	const made = `
		CREATE SCHEMA strange;
		GRANT USAGE ON SCHEMA strange TO PUBLIC;
		CREATE SEQUENCE strange.calls;
		GRANT ALL ON SEQUENCE strange.calls TO PUBLIC;
		CREATE TABLE strange.words (word pg_catalog.text)`
	if _, err := conn.Exec(ctx, made, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("pgtest: make the schema strange: %w", err)
	}
	if _, err := conn.Exec(ctx, "INSERT INTO strange.words SELECT unnest($1::pg_catalog.text[])", words); err != nil {
		return fmt.Errorf("pgtest: words of strange code: %w", err)
	}
	if _, err := conn.Exec(ctx, strange, pgx.QueryExecModeSimpleProtocol); err != nil {
		return fmt.Errorf("pgtest: make strange code: %w", err)
	}
	return nil
}

// StrangeCalled is a query that returns whether any code of the schema "strange" was called.
const StrangeCalled = "SELECT is_called FROM strange.calls"

//go:build linux

package main

import (
	"context"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
	"github.com/pgleases/pgleases/schedule"
)

// No name, which the server repeats in its errors, makes a line of its own or moves the cursor.
func TestNamesForgeNoLine(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	database := pgtest.EmptyDatabase(t)
	pool := testkit.Pool(t, database)
	testkit.OK(t, schedule.Migrate(context.Background(), pool))
	testkit.OK(t, consumer.Migrate(context.Background(), pool))
	name := "w1\nFORGED: done\r\t\x1b[2J\u202e"
	why := []string{"--reason", name, "--actor", name}
	for _, words := range [][]string{
		{"drain", name}, {"undrain", name}, {"cordon", name}, {"uncordon", name}, {"pause", name}, {"resume", name}, {"resume", name}, {"freeze", name},
		{"unfreeze", name}, {"unfreeze", name}, {"pin", name + "/1", name}, {"unpin", name + "/1"}, {"evict", name}, {"drop", name}, {"replace", name, "--by", name + "2", "--partitions", "1"},
		{"schedules", "pause", name, name}, {"schedules", "resume", name, name}, {"schedules", "delete", name, name}, {"schedules", "trigger", name, name},
		{"schedules", "backfill", name, name, "2026-03-01T00:00:00Z", "2026-03-02T00:00:00Z"}, {"schedules", "retry", name, name, "2026-03-01T00:00:00Z"},
		{"jobs", "cancel", name, "1"}, {"jobs", "retry", name, "1"}, {"jobs", "retry-failed", name, name, "2026-03-01T00:00:00Z"},
		{"consumers", "pause", name}, {"consumers", "resume", name}, {"consumers", "retry", name, "1"}, {"consumers", "skip", name, "1"},
		{"consumers", "return", name, "1"}, {"consumers", "delete", name},
	} {
		expectNoForgedLine(t, database, append(words, why...)...)
	}
	for _, words := range [][]string{
		{"describe", name}, {"explain", name + "/1"}, {"explain", name}, {"locks", name}, {"events", name}, {"events", "--client", name}, {"events", "--cause", name}, {"explain", name + "/1", "--at", name}, {"events"}, {"overrides"}, {"list"}, {"clients"},
		{"schedules", "list", name}, {"schedules", "history", name, name}, {"jobs", "list", name}, {"jobs", "failed", name}, {"jobs", "show", name, "1"},
		{"consumers"}, {"consumers", "show", name}, {"consumers", "table", name, "--table", name}, {"status"}, {"schedules"}, {"doctor", "--role", name}, {"list", "--schema", name}, {"doctor", "--schema", name},
		{"run", name, "-n", "70000", "--", "true"}, {"run", "x", "--", name}, {"list", "--database", name}, {"list", "--database", "postgres://" + name + "@localhost:1/x"},
	} {
		expectNoForgedLine(t, database, words...)
	}
}

// expectNoForgedLine runs the command, and checks what it prints.
func expectNoForgedLine(t *testing.T, database string, arguments ...string) {
	t.Helper()
	c := command.Run(t, command.Database(database), arguments...)
	c.ExitCode()
	printed := c.Printed()
	unprintable(t, arguments[0], strings.ReplaceAll(printed, "\n\t", "\n")) // the driver indents addresses
	for line := range strings.Lines(printed) {
		if strings.HasPrefix(line, "FORGED") {
			t.Errorf("pgleases %q prints a forged line: %q", arguments, printed)
		}
	}
}

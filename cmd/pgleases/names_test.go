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
	why := []string{"--reason", forgery, "--actor", forgery}
	for _, line := range []string{
		"drain NAME", "undrain NAME", "cordon NAME", "uncordon NAME", "pause NAME", "resume NAME", "resume NAME",
		"freeze NAME", "unfreeze NAME", "unfreeze NAME", "pin NAME/1 NAME", "unpin NAME/1", "evict NAME", "drop NAME",
		"replace NAME --by NAME2 --partitions 1",
		"schedules pause NAME NAME", "schedules resume NAME NAME", "schedules delete NAME NAME",
		"schedules trigger NAME NAME", "schedules backfill NAME NAME 2026-03-01T00:00:00Z 2026-03-02T00:00:00Z",
		"schedules retry NAME NAME 2026-03-01T00:00:00Z",
		"jobs cancel NAME 1", "jobs retry NAME 1", "jobs retry-failed NAME NAME 2026-03-01T00:00:00Z",
		"consumers pause NAME", "consumers resume NAME", "consumers retry NAME 1", "consumers skip NAME 1",
		"consumers return NAME 1", "consumers delete NAME",
	} {
		expectNoForgedLine(t, database, line, why...)
	}
	for _, line := range []string{
		"describe NAME", "explain NAME/1", "explain NAME", "locks NAME", "events NAME", "events --client NAME",
		"events --cause NAME", "explain NAME/1 --at NAME", "events", "overrides", "list", "clients",
		"schedules list NAME", "schedules history NAME NAME", "jobs list NAME", "jobs failed NAME", "jobs show NAME 1",
		"consumers", "consumers show NAME", "consumers table NAME --table NAME",
		"status", "schedules", "doctor --role NAME", "list --schema NAME", "doctor --schema NAME",
		"run NAME -n 70000 -- true", "run x -- NAME",
		"list --database NAME", "list --database postgres://NAME@localhost:1/x",
	} {
		expectNoForgedLine(t, database, line)
	}
}

// So is the name of a client that owns what a run waits for.
func TestAnOwnerForgesNoLineOfARun(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound, `
		UPDATE pgleases.clients SET id = E'w1\nFORGED: done\r\t\x1b[2J\u202e' WHERE id = 'a';
		INSERT INTO pgleases.identities SELECT id, 1, 1, now() FROM pgleases.clients ON CONFLICT DO NOTHING;
		INSERT INTO pgleases.leases VALUES ('m', 1, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number) VALUES ('m', 11, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		SELECT 'm', 0, 11, 11, 3, id, now() FROM pgleases.clients WHERE session = 11`)
	expectNoForgedLine(t, database, "run m --try -- true")
	c := command.Run(t, command.Database(database), "run", "m", "--try", "--", "true")
	expectExit(t, c, 75, "owns partition 0")
}

// forgery ends its line, begins another one, and moves the cursor.
const forgery = "w1\nFORGED: done\r\t\x1b[2J\u202e"

// expectNoForgedLine runs a line of a command, in which NAME is the forgery, with further arguments,
// and checks what it prints.
func expectNoForgedLine(t *testing.T, database, line string, further ...string) {
	t.Helper()
	arguments := strings.Fields(line)
	for i, word := range arguments {
		arguments[i] = strings.ReplaceAll(word, "NAME", forgery)
	}
	arguments = append(arguments, further...)
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

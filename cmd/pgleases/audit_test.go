//go:build linux

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/audit"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// audited runs audit, and returns its report and its exit code.
func audited(t *testing.T, databaseURL string) (*audit.Report, int) {
	t.Helper()
	c := command.Run(t, command.Database(databaseURL), "audit", "-o", "json")
	code := c.ExitCode()
	report := only[audit.Report](t, c.Printed())
	return &report, code
}

// The clients are real. A reader audits them, in transactions that cannot write.
func TestAuditCertifiesAFleetAndConvictsAForgery(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	working(t, database)
	reader := newRole(t, database)
	execute(t, database, output1(t, database, "grants", reader, "--for=reader"))
	pool := testkit.Pool(t, as(t, database, reader), func(c *pgxpool.Config) {
		c.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
	})
	report := testkit.Must(audit.Run(t.Context(), pool, "pgleases", time.Hour))(t)
	if report.Violation != nil || len(report.Parts) != 5 || report.Parts[0].Counts[1].Number == 0 {
		t.Errorf("a fleet that works: %+v", report)
	}
	url := as(t, database, reader)
	if report, code := audited(t, url); code != 0 || report.Violation != nil {
		t.Errorf("a fleet that works: exit code %d, %+v", code, report)
	}
	expectPrinted(t, output1(t, url, "audit"), `UTC: no violation$`, "changes of owners")
	execute(t, database, `INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions)
		SELECT 'consumer/orders', 'given', f, f || 'b', '{[0,1)}' FROM unnest('{a,b}'::text[]) AS f`)
	c := command.Run(t, command.Database(url), "audit")
	expectExit(t, c, auditViolated, `partition 0 of lease "consumer/orders"`)
}

func TestAuditThatCannotReadSaysSo(t *testing.T) {
	t.Parallel()
	database := pgtest.FreshDatabase(t)
	for _, test := range []struct {
		url, args, says string
		code            int
	}{
		{database, "audit --schema=nowhere", `schema "nowhere" is missing in this database`, auditUnchecked},
		{as(t, database, newRole(t, database)), "audit", "pgleases grants ROLE --for=reader", auditUnchecked},
		{"postgres://127.0.0.1:1/none", "audit", "Set --database", auditUnchecked},
		{database, "audit --since=1s", "give 1m or more", supervise.Failed},
	} {
		c := command.Run(t, command.Database(test.url), strings.Fields(test.args)...)
		expectExit(t, c, test.code, test.says)
	}
}

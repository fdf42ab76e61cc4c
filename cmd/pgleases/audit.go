package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/audit"
)

// The exit codes of audit, besides 0.
const (
	auditViolated  = 1
	auditUnchecked = 2
)

func newAudit() *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "Check what the database has recorded", Args: cobra.NoArgs}
	output := outputFlag(cmd)
	since := span(24 * time.Hour)
	cmd.Flags().Var(&since, "since", "length of the period that is checked, until now, such as 1h or 7d")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if since < span(time.Minute) {
			return fmt.Errorf("--since %v: give 1m or more", &since)
		}
		var report *audit.Report
		err := withPool(cmd, func(ctx context.Context, pool *pgxpool.Pool, schema string) (err error) {
			report, err = audit.Run(ctx, pool, schema, time.Duration(since))
			return err
		})
		if err != nil {
			return supervise.Exit{Code: auditUnchecked, Err: err}
		}
		if err := output(report, auditText(report)); err != nil {
			return err
		}
		if report.Violation != nil {
			return supervise.Exit{Code: auditViolated}
		}
		return nil
	}
	return cmd
}

// auditText returns the certificate, or the violation.
func auditText(r *audit.Report) string {
	var b strings.Builder
	verdict := "no violation"
	if r.Violation != nil {
		verdict = "VIOLATION"
	}
	fmt.Fprintf(&b, "%s: %s to %s UTC: %s\n\n", shown(r.Schema), utc(r.From), utc(r.Until), verdict)
	rows := [][]any{}
	for _, p := range r.Parts {
		counts := mapped(p.Counts, func(c audit.Count) string { return fmt.Sprintf("%d %s", c.Number, c.Of) })
		rows = append(rows, []any{p.Name, utc(p.From), strings.Join(counts, ", ")})
		for _, text := range p.Unchecked {
			rows = append(rows, []any{"", "", "not checked: " + printable(text)})
		}
	}
	b.WriteString(table("RECORDS,COVER FROM,CHECKED", rows, func(row []any) []any { return row }))
	if v := r.Violation; v != nil {
		fmt.Fprintf(&b, "\n%s: %s\n", printable(v.Subject), printable(v.Text))
		for _, record := range v.Records {
			fmt.Fprintf(&b, "  %s\n", printable(record))
		}
	}
	return b.String()
}

func utc(at time.Time) string { return at.UTC().Format(time.DateTime) }

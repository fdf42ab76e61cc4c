package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule"
	schedulesql "github.com/pgleases/pgleases/schedule/sql"
)

// The verbs that make the tables, and those that say whether all is well.

const schedulesHelp = "also the tables of package schedule"

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "migrate",
		Short: "Create or update the tables",
		Long: `Create or update the tables, while clients run, and print what was done. Functions that are missing, or were changed by hand, are replaced,
unless newer code has made them. Nothing happens where all is so already. It needs a role that may make the schema, or owns it.

A transaction that uses the tables for long, as a dump, is waited for, for a minute.`,
		Args: cobra.NoArgs,
	}
	schedules := cmd.Flags().Bool("schedules", false, schedulesHelp)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withPool(cmd, func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
			ctx, cancel := context.WithTimeout(ctx, time.Minute)
			defer cancel()
			report := func(part store.Part, migrate func() error) error {
				return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
					done, err := part.Report(ctx, conn.Conn(), schema, migrate)
					if err == nil {
						_, err = fmt.Fprintln(cmd.OutOrStdout(), printable(done))
					}
					return err
				})
			}
			err := report(store.Engine, func() error { return pgleases.Migrate(ctx, pool, pgleases.WithSchema(schema)) })
			if err == nil && *schedules {
				err = report(store.Schedules(schedulesql.Files), func() error { return schedule.Migrate(ctx, pool, schedule.WithSchema(schema)) })
			}
			return err
		})
	}
	return cmd
}

func newSchema() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schema",
		Short: "Print the statements of migrate",
		Long: `Print the statements that migrate runs, for a migration tool, or for psql:

    pgleases schema | psql -v ON_ERROR_STOP=1 --single-transaction "$DATABASE_URL"`,
		Args: cobra.NoArgs,
	}
	schedules := cmd.Flags().Bool("schedules", false, schedulesHelp)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		schema, _ := cmd.Flags().GetString("schema")
		text, err := pgleases.Schema(pgleases.WithSchema(schema))
		if err == nil && *schedules {
			var more string
			more, err = schedule.Schema(schedule.WithSchema(schema))
			text += "\n" + more
		}
		if err == nil {
			_, err = io.WriteString(cmd.OutOrStdout(), strings.TrimRight(text, "\n")+"\n")
		}
		return err
	}
	return cmd
}

func newGrants() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "grants ROLE",
		Short: "Print the GRANT statements for a role",
		Long: `Print the GRANT statements that a role needs, where another role owns the tables. The owner runs them, again after each migration:

    pgleases grants app | psql -v ON_ERROR_STOP=1 "$DATABASE_URL"

What for:

    application         run clients, and pgleases run
    guard               write under Guard, without a client
    reader              read everything: all verbs that change nothing
    operator            read everything, operate clients and leases, and call new_server_generation
    schedules           run clients, and run and manage schedules; run migrate --schedules first
    schedule-operators  read everything, and change schedules and jobs; run migrate --schedules first`,
		Args: asUsed,
	}
	var purposes []string
	for _, p := range admin.Purposes {
		purposes = append(purposes, string(p))
	}
	purpose := choiceFlag(cmd, "for", "", string(admin.ForApplication), "what the role is for", purposes...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		schema, _ := cmd.Flags().GetString("schema")
		text, err := admin.Grants(args[0], schema, admin.Purpose(purpose.value))
		if err == nil {
			_, err = io.WriteString(cmd.OutOrStdout(), text)
		}
		return err
	}
	return cmd
}

// The exit codes of doctor.
const (
	exitWarnings = 1
	exitFaults   = 2
)

var doctorHelp = `Look for what is wrong with the database, its tables and the fleet: one line for each check, and what to do on the next. It writes nothing.

A note is what may be meant so, or cannot be seen. Of other roles' sessions only members of pg_monitor are told what they do.

The checks: ` + strings.Join(admin.Checks, ", ") + `.

Exit codes:

    0    all is well, but for notes
    1    there are warnings: it works, but not as well as it could, or not for long
    2    there are faults: something does not work
    125  this command failed: bad flags`

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check the database, the tables and the fleet",
		Long:  doctorHelp,
		Args:  cobra.NoArgs,
	}
	output := outputFlag(cmd)
	role := cmd.Flags().String("role", "", "whose rights are looked at: the role of the clients (default: the one that connects)")
	long := cmd.Flags().Duration("long", time.Minute, "from when on it is told that a handoff, a wait, an idle transaction or an expired client's row lasts;\nof a transaction that works, after ten times that")
	skip := cmd.Flags().StringSlice("skip", nil, "checks that are not to count, with commas between")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		for _, check := range *skip {
			if !slices.Contains(admin.Checks, check) {
				return fmt.Errorf("--skip %q: give some of %s", check, strings.Join(admin.Checks, ", "))
			}
		}
		if *long < time.Millisecond {
			return fmt.Errorf("--long %v: give 1ms or more", *long)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			found := a.Doctor(ctx, admin.DoctorOptions{Role: *role, Long: *long})
			found = slices.DeleteFunc(found, func(f admin.Finding) bool { return slices.Contains(*skip, f.Check) })
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			var rows [][]any
			for _, f := range found {
				rows = append(rows, []any{f.Level, f.Check, printable(f.Text)})
				if f.Remedy != "" {
					rows = append(rows, []any{"", "", "> " + printable(f.Remedy)})
				}
			}
			err := output(found, table("LEVEL,CHECK,FOUND", rows, func(row []any) []any { return row }))
			is := func(level admin.Level) bool {
				return slices.ContainsFunc(found, func(f admin.Finding) bool { return f.Level == level })
			}
			switch {
			case err != nil:
				return err
			case is(admin.Fault):
				return supervise.Exit{Code: exitFaults}
			case is(admin.Warning):
				return supervise.Exit{Code: exitWarnings}
			}
			return nil
		})
	}
	return cmd
}

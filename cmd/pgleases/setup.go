package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/consumer"
	consumersql "github.com/pgleases/pgleases/consumer/sql"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule"
	schedulesql "github.com/pgleases/pgleases/schedule/sql"
)

// The verbs that create the tables, and doctor, which checks them.

// parts are the packages whose tables migrate creates with a flag.
var parts = []struct {
	flag, name string
	files      fs.ReadFileFS
	migrate    func(ctx context.Context, pool *pgxpool.Pool, schema string) error
	schema     func(schema string) (string, error)
}{
	{"schedules", "schedule", schedulesql.Files,
		func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
			return schedule.Migrate(ctx, pool, schedule.WithSchema(schema))
		}, func(schema string) (string, error) { return schedule.Schema(schedule.WithSchema(schema)) }},
	{"consumers", "consumer", consumersql.Files,
		func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
			return consumer.Migrate(ctx, pool, consumer.WithSchema(schema))
		}, func(schema string) (string, error) { return consumer.Schema(consumer.WithSchema(schema)) }},
}

func partFlags(cmd *cobra.Command) {
	for _, p := range parts {
		cmd.Flags().Bool(p.flag, false, "also the tables of package "+p.name)
	}
}

func newMigrate() *cobra.Command {
	cmd := &cobra.Command{Use: "migrate", Short: "Create or update the tables", Args: cobra.NoArgs}
	partFlags(cmd)
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
			err := report(store.Engine, func() error {
				return pgleases.Migrate(ctx, pool, pgleases.WithSchema(schema))
			})
			for _, p := range parts {
				wanted, _ := cmd.Flags().GetBool(p.flag)
				if wanted && err == nil {
					err = report(store.PartOf(p.name, p.files), func() error { return p.migrate(ctx, pool, schema) })
				}
			}
			return err
		})
	}
	return cmd
}

func newSchema() *cobra.Command {
	cmd := &cobra.Command{Use: "schema", Short: "Print the statements of migrate", Args: cobra.NoArgs}
	partFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		schema, _ := cmd.Flags().GetString("schema")
		text, err := pgleases.Schema(pgleases.WithSchema(schema))
		for _, p := range parts {
			wanted, _ := cmd.Flags().GetBool(p.flag)
			if wanted && err == nil {
				more, other := p.schema(schema)
				text, err = text+"\n"+more, other
			}
		}
		if err == nil {
			_, err = io.WriteString(cmd.OutOrStdout(), strings.TrimRight(text, "\n")+"\n")
		}
		return err
	}
	return cmd
}

// A Build is what version prints in JSON.
type Build struct {
	Version string `json:"version"` // of the module
	Commit  string `json:"commit"`  // empty if it was not built from a repository
	Schema  int    `json:"schema"`  // version of the tables
	Go      string `json:"go"`
}

func thisBuild() Build {
	b := Build{"unknown", "", store.Version, runtime.Version()}
	if info, ok := debug.ReadBuildInfo(); ok {
		b.Version = cmp.Or(info.Main.Version, b.Version)
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				b.Commit = s.Value
			}
		}
	}
	return b
}

func newVersion() *cobra.Command {
	cmd := &cobra.Command{Use: "version", Short: "Print version, commit and schema version", Args: cobra.NoArgs}
	output := outputFlag(cmd)
	cmd.RunE = func(*cobra.Command, []string) error {
		b := thisBuild()
		const text = "pgleases %s\ncommit %s\nschema version %d\n%s\n"
		return output(b, fmt.Sprintf(text, b.Version, orDash(b.Commit), b.Schema, b.Go))
	}
	return cmd
}

func newGrants() *cobra.Command {
	cmd := &cobra.Command{Use: "grants ROLE", Short: "Print the GRANT statements for a role", Args: asUsed}
	all := mapped(admin.Purposes, func(p admin.Purpose) string { return string(p) })
	purpose := choiceFlag(cmd, "for", "", string(admin.ForApplication), "use of the role", all...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		schema, _ := cmd.Flags().GetString("schema")
		text, err := admin.Grants(args[0], schema, admin.Purpose(purpose.value))
		fmt.Fprint(cmd.OutOrStdout(), text) // empty after an error
		return err
	}
	return cmd
}

// exitCodes are those of doctor; the worst level decides.
var exitCodes = map[admin.Level]int{admin.LevelWarning: 1, admin.LevelFault: 2}

// skipFlag adds the flag for the checks of doctor that a verb leaves out.
func skipFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringSlice("skip", nil, "checks to leave out, with commas between")
}

// checkSkipped returns an error for a name that no check has.
func checkSkipped(skip []string) error {
	for _, check := range skip {
		if !slices.Contains(admin.Checks, check) {
			return fmt.Errorf("--skip %q: give names out of %s", check, strings.Join(admin.Checks, ", "))
		}
	}
	return nil
}

// withoutChecks returns the findings of the checks that are not left out.
func withoutChecks(found []admin.Finding, skip []string) []admin.Finding {
	return slices.DeleteFunc(found, func(f admin.Finding) bool { return slices.Contains(skip, f.Check) })
}

func newDoctor() *cobra.Command {
	cmd := &cobra.Command{Use: "doctor", Short: "Check the database, the tables and the fleet", Args: cobra.NoArgs}
	output := outputFlag(cmd)
	role := cmd.Flags().String("role", "", "role of the clients, whose rights are checked "+
		"(default: the role that connects, and those of clients)")
	long := cmd.Flags().Duration("long", time.Minute, "minimum age of a handoff, a wait, an idle transaction "+
		"or an expired session that is reported; 10 times that for a transaction that works "+
		"or a row of a consumer, 60 times for a blocked key")
	skip := skipFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkSkipped(*skip); err != nil {
			return err
		}
		if *long < time.Millisecond {
			return fmt.Errorf("--long %v: give 1ms or more", *long)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			found := a.Doctor(ctx, admin.DoctorOptions{Role: *role, Long: *long})
			found = withoutChecks(found, *skip)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			rows, code := [][]any{}, 0
			for _, f := range found {
				code = max(code, exitCodes[f.Level])
				rows = append(rows, []any{f.Level, f.Check, printable(f.Text)})
				for line := range strings.Lines(f.Remedy) {
					rows = append(rows, []any{"", "", "> " + printable(strings.TrimSpace(line))})
				}
			}
			err := output(found, table("LEVEL,CHECK,FOUND", rows, func(row []any) []any { return row }))
			if err == nil && code > 0 {
				err = supervise.Exit{Code: code}
			}
			return err
		})
	}
	return cmd
}

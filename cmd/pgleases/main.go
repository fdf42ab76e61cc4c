// Command pgleases runs programs under leases, and looks at leases, from a shell: see docs/cli.md,
// which is made from its help.
//
// look.go has the verbs that look, operate.go those of operators and those that show what happened,
// schedules.go and jobs.go those on schedules and jobs, setup.go those that make the tables and
// doctor; what they know comes from package admin. table.go prints. serve.go is the dashboard.
//
// run.go reads the flags of run, which package supervise does.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
)

func main() {
	out, root := &written{to: os.Stdout}, newRoot()
	root.SetOut(out)
	err := cmp.Or(root.Execute(), out.err)
	if err == nil {
		return
	}
	e := supervise.Exit{Code: supervise.Failed, Err: err}
	errors.As(err, &e)
	if e.Err != nil {
		fmt.Fprintln(os.Stderr, "pgleases:", lines(told(e.Err)))
	}
	os.Exit(e.Code)
}

// written is stdout, and the first error of writing to it, as of a disk that is full: what was not
// written is no success, whatever printed it.
type written struct {
	to  *os.File
	err error
}

func (w *written) Write(text []byte) (n int, err error) {
	n, err = w.to.Write(text)
	w.err = cmp.Or(w.err, err)
	return n, err
}

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err != nil || info.Mode()&os.ModeCharDevice != 0
}

// told is what people are told of an error.
func told(err error) string {
	return strings.TrimPrefix(strings.TrimPrefix(err.Error(), "pgleases: "), "admin: ")
}

// newRoot returns the tree of commands.
func newRoot() *cobra.Command {
	version := "unknown"
	if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" {
		version = build.Main.Version
	}
	root := &cobra.Command{
		Use:     "pgleases",
		Version: version,
		Short:   "Manage leases on PostgreSQL",
		Long: `Manage leases on PostgreSQL.

The database is the one of --database, else of the variable DATABASE_URL, else of the PG* variables that psql reads.

A name that is empty, or has quotes, backslashes or characters that cannot be printed, is shown quoted, as a string of Go.

Exit codes, but for run and doctor, which have their own: 0, or 125 where the command failed; stderr says why.`,
		SilenceErrors: true, // main tells them
		SilenceUsage:  true,
	}
	root.PersistentFlags().String(
		"database", "",
		"connection string, a URL or keywords and values, which others may read in the list of processes\n(default: the variable DATABASE_URL, then PG*)",
	)
	root.PersistentFlags().String("schema", "pgleases", "schema of the tables")
	root.PersistentFlags().BoolP("verbose", "v", false, "log successful steps too")
	root.AddCommand(newRun(), newList(), newDescribe(), newClients(), newWatch(), newExplain(), newLocks(), newEvents(), newOverrides(), newSchedules(), newJobs(),
		newMigrate(), newSchema(), newGrants(), newDoctor(), newServe(), newKeeper())
	root.AddCommand(newOperations()...)
	return root
}

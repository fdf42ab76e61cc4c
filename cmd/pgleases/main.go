// Command pgleases runs programs under leases, and looks at leases, from a shell: see docs/cli.md, which is made from its help.
//
// look.go has the verbs that look, steer.go those that steer and tell what happened, schedules.go and jobs.go those on schedules and jobs,
// setup.go those that make the tables and doctor; what they know comes from package admin. table.go prints. serve.go is the dashboard.
//
// In the order of a run: run.go opens a client and has Lease.Run call for each partition; child.go starts a keeper for the
// partition, and tells it for how long the ownership can be trusted; keep.go is the keeper, a process that starts the program, and
// kills all that came of it in time. tree_linux.go and tree_bsd.go are what differs between systems.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strings"

	"github.com/spf13/cobra"
)

// The exit codes that are not the program's own. Those of env(1) and timeout(1), and EX_TEMPFAIL of sysexits(3).
const (
	exitNotOwned  = 75  // nothing was owned in time, or it was lost before the program ended
	exitFailed    = 125 // pgleases itself failed
	exitCannotRun = 126 // the program cannot be executed
	exitNotFound  = 127 // there is no such program
	exitSignal    = 128 // plus the number of the signal
)

// An exit is an error with an exit code of its own. Without err there is nothing to tell.
type exit struct {
	code int
	err  error
}

func (e exit) Error() string { return fmt.Sprint(e.err) }
func (e exit) Unwrap() error { return e.err }

func main() {
	out, root := &written{to: os.Stdout}, newRoot()
	root.SetOut(out)
	err := cmp.Or(root.Execute(), out.err)
	if err == nil {
		return
	}
	e := exit{code: exitFailed, err: err}
	errors.As(err, &e)
	if e.err != nil {
		fmt.Fprintln(os.Stderr, "pgleases:", lines(told(e.err)))
	}
	os.Exit(e.code)
}

// written is stdout, and the first error of writing to it, as of a disk that is full: what was not written is no success, whatever printed it.
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
	root := &cobra.Command{
		Use:   "pgleases",
		Short: "Leases on PostgreSQL, from a shell",
		Long: `Leases on PostgreSQL, from a shell.

The database is the one of --database, else of the variable DATABASE_URL, else of the PG* variables that psql reads.

A name that is not all printable characters, or is empty, is shown quoted, as a string of Go.

Exit codes, but for run and doctor, which have their own: 0, or 125 where the command failed; stderr says why.`,
		SilenceErrors: true, // main tells them
		SilenceUsage:  true,
	}
	root.PersistentFlags().String(
		"database", "",
		"connection string, a URL or keywords and values, which others may read in the list of processes\n(default: the variable DATABASE_URL, then PG*)",
	)
	root.PersistentFlags().String("schema", "pgleases", "schema of the tables")
	root.PersistentFlags().BoolP("verbose", "v", false, "log also what goes well")
	root.AddCommand(newRun(), newList(), newDescribe(), newClients(), newWatch(), newExplain(), newLocks(), newEvents(), newWishes(), newSchedules(), newJobs(),
		newMigrate(), newSchema(), newGrants(), newDoctor(), newServe(), newVersion())
	root.AddCommand(newSteering()...)
	if keeper := newKeeper(); keeper != nil {
		root.AddCommand(keeper)
	}
	return root
}

func newVersion() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		Run: func(cmd *cobra.Command, _ []string) {
			version := "unknown"
			if build, ok := debug.ReadBuildInfo(); ok && build.Main.Version != "" {
				version = build.Main.Version
			}
			fmt.Fprintln(cmd.OutOrStdout(), "pgleases", version)
		},
	}
}

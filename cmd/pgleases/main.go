// Command pgleases runs programs under leases, and shows and changes leases: see docs/cli.md,
// which a test generates from the command's help.
//
// The texts of the help are in help.txt, which help.go reads. look.go has the verbs that show
// leases and clients, status.go all of them on one screen, events.go and past.go those that read
// the past, operate.go those of operators and overrides, audit.go the audit,
// schedules.go, jobs.go and consumers.go those of schedules, jobs and consumers, setup.go those
// that create the tables, and doctor; all of them use package admin. table.go prints. serve.go is
// the dashboard.
//
// run.go reads the flags of run; package supervise does the work.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"strings"
	_ "time/tzdata" // for an image or a system without time zones

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // for an image or a system without certificate authorities

	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/wrap"
)

func init() { cobra.EnableCommandSorting = false }

func main() {
	// A keeper has no tree of commands, because there may be many.
	if len(os.Args) > 1 && os.Args[1] == supervise.KeepVerb {
		code, _ := exitOf(supervise.Keep(os.Args[2:]))
		os.Exit(code)
	}
	out, root := &written{to: os.Stdout}, newRoot()
	root.SetOut(out)
	err := root.Execute()
	if err == nil && out.err != nil {
		err = fmt.Errorf("%w\nOnly the output failed: if the verb changes something, the change was made", out.err)
	}
	if err == nil {
		return
	}
	code, text := exitOf(err)
	if text != "" { // even a write of nothing waits for one that is blocked
		fmt.Fprint(os.Stderr, text)
	}
	os.Exit(code)
}

// exitOf returns the exit code for an error, and what stderr has to say.
func exitOf(err error) (code int, text string) {
	e := supervise.Exit{Code: supervise.Failed, Err: err}
	errors.As(err, &e)
	if e.Err != nil {
		text = fmt.Sprintln("pgleases:", lines(safeText(e.Err)))
	}
	return e.Code, text
}

// written is stdout, and the first error of writing to it, for example because a disk is full. The
// command fails after such an error, whichever code has written.
type written struct {
	to  *os.File
	err error
}

func (w *written) Write(text []byte) (n int, err error) {
	n, err = w.to.Write(text)
	w.err = cmp.Or(w.err, err)
	return n, err
}

// safeText returns the text of an error for users. The words of others are one line each in it,
// because they repeat names, which must not forge a line.
func safeText(err error) string {
	text := wrap.Text(err) // the command itself is named already
	for _, words := range foreignWords(err) {
		if words != "" {
			text = strings.ReplaceAll(text, words, escaped(words))
		}
	}
	return text
}

// foreignWords returns what the server has worded of an error, and names of the connection string.
func foreignWords(err error) (all []string) {
	switch e := err.(type) {
	case *pgconn.PgError:
		return []string{e.Message, e.Detail, e.Hint}
	case *pgconn.ConnectError:
		all = []string{e.Config.User, e.Config.Database}
	}
	switch e := err.(type) {
	case interface{ Unwrap() error }:
		all = append(all, foreignWords(e.Unwrap())...)
	case interface{ Unwrap() []error }:
		for _, one := range e.Unwrap() {
			all = append(all, foreignWords(one)...)
		}
	}
	return all
}

// newRoot returns the tree of commands.
func newRoot() *cobra.Command {
	root := &cobra.Command{Use: "pgleases", Version: thisBuild().Version, Short: "Manage leases on PostgreSQL"}
	root.SilenceErrors, root.SilenceUsage = true, true // main prints errors
	flags := root.PersistentFlags()
	flags.String("database", "", "connection string, a URL or keywords and values; "+
		"other users may see it in the list of processes (default: DATABASE_URL, then PG*)")
	flags.String("schema", "pgleases", "schema of the tables")
	flags.BoolP("verbose", "v", false, "log successful steps too")
	for _, group := range []struct {
		title string
		verbs []*cobra.Command
	}{
		{"Inspect", []*cobra.Command{
			newStatus(), newList(), newDescribe(), newClients(), newWatch(), newExplain(), newLocks(), newEvents(),
			newOverrides(), newAudit(),
		}},
		{"Run", []*cobra.Command{newRun()}},
		{"Change", newOperations()},
		{"Schedules, jobs, consumers", []*cobra.Command{newSchedules(), newJobs(), newConsumers()}},
		{"Set up", []*cobra.Command{newMigrate(), newSchema(), newGrants(), newDoctor(), newServe(), newVersion()}},
	} {
		root.AddGroup(&cobra.Group{ID: group.title, Title: group.title + ":"})
		for _, verb := range group.verbs {
			verb.GroupID = group.title
		}
		root.AddCommand(group.verbs...)
	}
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), "FlagUsages ", "FlagUsagesWrapped 80 "))
	addHelp(root)
	return root
}

package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/logqueue"
)

const graceMax = 365 * 24 * time.Hour

// atLeast logs records of a level or above.
type atLeast struct {
	slog.Handler
	level slog.Level
}

func (h atLeast) Enabled(_ context.Context, level slog.Level) bool { return level >= h.level }

func (h atLeast) WithAttrs(attrs []slog.Attr) slog.Handler {
	return atLeast{h.Handler.WithAttrs(attrs), h.level}
}

func (h atLeast) WithGroup(name string) slog.Handler {
	return atLeast{h.Handler.WithGroup(name), h.level}
}

// lastWord prints the error of a run behind its log. It returns an error with the exit code and
// without a text, also if nobody reads stderr.
func lastWord(log *logqueue.Handler, err error) error {
	log.Flush(logqueue.FlushFor)
	if err == nil {
		return nil
	}
	code, text := exitOf(err)
	written := make(chan struct{})
	go func() {
		defer close(written)
		fmt.Fprint(os.Stderr, text)
	}()
	select {
	case <-written:
	case <-time.After(logqueue.FlushFor):
	}
	return supervise.Exit{Code: code}
}

func newRun() *cobra.Command {
	var r supervise.Config
	cmd := &cobra.Command{
		Use:   "run LEASE [flags] -- PROGRAM [ARGUMENT ...]",
		Short: "Run a program under a lease",
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash == 1 && len(args) > 1, isBehindDashes(dash, args):
				return nil
			case dash == 0 || len(args) == 0:
				return errors.New("the lease is missing: pgleases run LEASE -- PROGRAM")
			case dash > 1 || dash < 0 && len(args) > 1:
				return fmt.Errorf("%q is neither the lease nor behind --: pgleases run LEASE -- PROGRAM", args[1])
			default:
				return fmt.Errorf("the program is missing: pgleases run %s -- PROGRAM", args[0])
			}
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			r.Lease, r.Program = args[0], args[1:]
			if isBehindDashes(cmd.ArgsLenAtDash(), args) {
				r.Program = args[2:]
			}
			if err := validate(&r, cmd.Flags().Changed); err != nil {
				return err
			}
			database, _ := cmd.Flags().GetString("database")
			r.URL = databaseURL(database)
			r.Schema, _ = cmd.Flags().GetString("schema")
			r.Unreachable = unreachable
			// A process of another group cannot read a terminal.
			r.Stdin = r.Partitions == 1 && !term.IsTerminal(int(os.Stdin.Fd()))
			level := slog.LevelWarn
			if verbose, _ := cmd.Flags().GetBool("verbose"); verbose {
				level = slog.LevelInfo
			}
			// The program runs whether anyone reads stderr or not.
			lines := logqueue.New(slog.NewTextHandler(os.Stderr, nil), logqueue.Waiting)
			r.Log, r.ClientLog = slog.New(lines), slog.New(atLeast{lines, level})
			return lastWord(lines, supervise.Run(r))
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&r.Partitions, "partitions", "n", 1, "partitions of the lease, 1 to 65536; "+
		"the same for all, and fixed when the lease is created")
	flags.DurationVar(&r.TTL, "ttl", 6*time.Second, "time that a process that crashed keeps its partitions: 1s to 10m")
	flags.DurationVar(&r.Grace, "grace", 5*time.Second, "time from SIGTERM to SIGKILL, 0 to 8760h")
	flags.BoolVar(&r.Cgroup, "cgroup", true, "run the program in its own control group, if possible")
	flags.BoolVar(&r.Once, "once", false, "do not restart the program: exit with its exit code (one partition only)")
	flags.BoolVar(&r.Try, "try", false, "do not wait: exit with 75 if no partition can be owned now")
	flags.DurationVar(&r.Wait, "wait", 0, "exit with 75 if no partition was owned after this time (default: no limit)")
	flags.StringVar(&r.Status, "status-socket", "", "Unix socket that shows what is owned, by HTTP")
	flags.StringVar(&r.ID, "id", "", "client ID (default: random)")
	return cmd
}

// isBehindDashes reports whether the lease stands between two --, as one that begins with a dash.
func isBehindDashes(dash int, args []string) bool {
	return dash == 0 && len(args) > 2 && args[1] == "--"
}

func validate(r *supervise.Config, given func(flag string) bool) error {
	switch waits := given("wait"); {
	case r.Grace < 0:
		return fmt.Errorf("--grace %v is negative: give 0 or more", r.Grace)
	case r.Grace > graceMax: // avoids an overflow
		return fmt.Errorf("--grace %v is too long: give %v at most", r.Grace, graceMax)
	case r.ID == "" && given("id"): // for example, a variable that is not set
		return errors.New("--id is empty: give 1 to 255 bytes, or no --id for a random one")
	case waits && r.Wait <= 0:
		return fmt.Errorf("--wait %v: give a time above 0, or --try", r.Wait)
	case waits && r.Try:
		return errors.New("--try and --wait: give one of them")
	case r.Status == "" && given("status-socket"):
		return errors.New("--status-socket is empty: give a path")
	case r.Once && r.Partitions != 1:
		return fmt.Errorf("--once with -n %d: there would be %d exit codes; use -n 1", r.Partitions, r.Partitions)
	}
	var err error
	if r.Status != "" {
		r.Status, err = filepath.Abs(r.Status)
		if err != nil {
			return err
		}
	}
	path, err := exec.LookPath(r.Program[0])
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EISDIR):
		err = fmt.Errorf("program %q: %w: is it executable?", r.Program[0], err)
		return supervise.Exit{Code: supervise.CannotRun, Err: err}
	case err != nil:
		err = fmt.Errorf("program %q: %w: give a program in PATH, or a path with a slash", r.Program[0], err)
		return supervise.Exit{Code: supervise.NotFound, Err: err}
	}
	r.Program[0] = path
	return nil
}

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
)

const runHelp = `Run a program under a lease: one process of it for each partition that this command owns, on all machines together.

With one partition, the default, that is leader election: start the command on as many machines as you like, and the program runs on
one of them. When that machine stops, crashes, freezes or is cut off from the database, another one starts it.

The program is executed without a shell, in a process group of its own. When it ends, with whatever exit code, it is started again after
100 ms, the next time after 200 ms, and so on up to 30 s; once it has run for a minute, after 100 ms again. It inherits stdout and stderr, and stdin if there is one partition and stdin is no
terminal. Its environment has these besides:

    PGLEASES_LEASE       the lease's name
    PGLEASES_PARTITION   the partition: 0 to PGLEASES_PARTITIONS - 1
    PGLEASES_PARTITIONS  how many partitions the lease has
    PGLEASES_EPOCH       the fencing token: it rises with every change of owner, and when a process comes back

How the program ends:

  - When the partition is wanted elsewhere, or this command is asked to end: SIGTERM to the program's process group, SIGKILL to all that came
    of the program after --grace, and the partition is handed over when all of it is gone. It stays owned meanwhile, as long as that takes.
  - When the database does not answer: SIGTERM 3/20 of the TTL before trust in the ownership ends, SIGKILL a twentieth of the TTL before (at
    least 100 ms). No other client takes over before trust has ended. An outage costs nothing that is shorter than a fifth of the TTL, with a
    TTL of 2 s or more: with --ttl 30s the database may restart for 6 s.
  - When this command crashes, also by SIGKILL: SIGKILL at once. When it is stopped (SIGSTOP): as when the database does not answer.
  - When the program's own first process has ended: SIGKILL at once to all that it left running. So have it stay in the foreground.

Each program has a keeper, a process of this same binary that takes some 3 MB, which does the killing. On Linux it also finds processes that have left the process
group or were orphaned, and if it is killed itself, the program is killed by the kernel and this command kills the rest. If this command may
create a control group (cgroup v2) below its own, the program runs in one, and the kernel kills it as a whole. --cgroup=false prevents that.

SIGTERM, SIGINT and SIGHUP end this command as said above, with exit code 128 and the number of the signal; a second one does not wait
for --grace. For systemd set SuccessExitStatus=143.

Exit codes:

    75   nothing was owned in time (--try, --wait); or it was lost before the program ended (--once)
    125  this command failed: bad flags, no database, another process has its client ID
    126  the program cannot be executed
    127  there is no such program
    128  and the number of a signal: this command got it, or with --once the program ended by it
    else with --once, the program's

` + supervise.Limits + `

Where it matters, write in a transaction that checks the epoch first; a partition that was lost is refused with SQLSTATE PL001:

    SELECT pgleases.guard('LEASE', PGLEASES_PARTITION, PGLEASES_EPOCH)

It does not work on Windows.`

const runExample = `  pgleases run reports -- ./make-reports --daily
  pgleases run shards -n 16 --id "$HOSTNAME" -- sh -c 'exec ./consume --shard "$PGLEASES_PARTITION"'
  pgleases run nightly --try --once -- ./backup   # from cron on every machine: no two at once`

const graceMax = 365 * 24 * time.Hour

func newRun() *cobra.Command {
	var r supervise.Config
	cmd := &cobra.Command{
		Use:     "run LEASE [flags] -- PROGRAM [ARGUMENT ...]",
		Short:   "Run a program under a lease",
		Long:    runHelp,
		Example: runExample,
		Args: func(cmd *cobra.Command, args []string) error {
			switch dash := cmd.ArgsLenAtDash(); {
			case dash == 1 && len(args) > 1:
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
			if err := validate(&r, cmd.Flags().Changed); err != nil {
				return err
			}
			database, _ := cmd.Flags().GetString("database")
			r.URL = databaseURL(database)
			r.Schema, _ = cmd.Flags().GetString("schema")
			r.Unreachable = func(err error) error { return unreachable(err, r.URL) }
			r.Stdin = r.Partitions == 1 && !isTerminal(os.Stdin) // a process of another group may not read a terminal
			level := slog.LevelWarn
			if verbose, _ := cmd.Flags().GetBool("verbose"); verbose {
				level = slog.LevelInfo
			}
			r.Log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
			return supervise.Run(r)
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&r.Partitions, "partitions", "n", 1, "partitions of the lease, 1 to 65536; the same for all, and fixed when the lease is made")
	flags.DurationVar(&r.TTL, "ttl", 6*time.Second, "how long a process that crashed keeps its partitions: 1s to 10m")
	flags.DurationVar(&r.Grace, "grace", 5*time.Second, "from SIGTERM to SIGKILL, 0 to 8760h")
	flags.BoolVar(&r.Cgroup, "cgroup", true, "run the program in a control group of its own, if possible")
	flags.BoolVar(&r.Once, "once", false, "do not start the program again: exit with its exit code (one partition only)")
	flags.BoolVar(&r.Try, "try", false, "exit with 75 as soon as it is clear that others have it; one that crashed has it for its TTL, and is then waited for")
	flags.DurationVar(&r.Wait, "wait", 0, "exit with 75 when nothing was owned after this time (default: wait for ever); give more than the TTL\nwhere all give up: else nobody is there to take over from one that crashed")
	flags.StringVar(&r.ID, "id", "", "client ID, unique among the live ones; one that outlives the process, as a host's name, keeps partitions\nwhere they are (default: random)")
	return cmd
}

func validate(r *supervise.Config, given func(flag string) bool) error {
	switch waits := given("wait"); {
	case r.Grace < 0:
		return fmt.Errorf("--grace %v is negative: give 0 or more", r.Grace)
	case r.Grace > graceMax: // sums with it would not fit
		return fmt.Errorf("--grace %v is too long: give %v at most", r.Grace, graceMax)
	case r.ID == "" && given("id"): // of a variable that is not set
		return errors.New("--id is empty: give 1 to 255 bytes, or no --id for a random one")
	case waits && r.Wait <= 0:
		return fmt.Errorf("--wait %v: give a time above 0, or --try", r.Wait)
	case waits && r.Try:
		return errors.New("--try and --wait: give one of them")
	case r.Once && r.Partitions != 1:
		return fmt.Errorf("--once with -n %d: there would be %d exit codes; use -n 1", r.Partitions, r.Partitions)
	}
	path, err := exec.LookPath(r.Program[0])
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EISDIR):
		return supervise.Exit{Code: supervise.CannotRun, Err: fmt.Errorf("program %q: %w: is it executable?", r.Program[0], err)}
	case err != nil:
		return supervise.Exit{Code: supervise.NotFound, Err: fmt.Errorf("program %q: %w: give a program in PATH, or a path with a slash", r.Program[0], err)}
	}
	r.Program[0] = path
	return nil
}

// newKeeper returns the verb that run starts itself with, once for each program.
func newKeeper() *cobra.Command {
	return &cobra.Command{
		Use:                supervise.KeepVerb,
		Hidden:             true,
		DisableFlagParsing: true,
		RunE:               func(_ *cobra.Command, args []string) error { return supervise.Keep(args) },
	}
}

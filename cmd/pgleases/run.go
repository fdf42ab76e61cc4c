package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
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
  - When this command dies, also by SIGKILL: SIGKILL at once. When it is stopped (SIGSTOP): as when the database does not answer.
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
    128  and the number of a signal: this command got it, or with --once the program died of it
    else with --once, the program's

What is not covered. In these cases the program may run for a while beside its successor, or, where it hangs, has none:

  - All is frozen together: a container, a virtual machine, a cgroup, a suspended machine. What is frozen cannot be killed; it is killed
    when it thaws.
  - Neither this command nor the keeper can act, each being stopped or killed: pkill -9 -f with the program's name finds both. Where
    the keeper is killed, the kernel kills the program, but not what it started. (systemd's KillMode=control-group, and the end of a
    container, kill all.)
  - The machine is so busy that what is killed does not run for as long as there is from SIGKILL to the end of the trust: a twentieth of the
    TTL. Give a longer --ttl.
  - A program that hangs: this command watches processes, not their work. It stays the owner. Have the program end itself.
  - What is not a descendant of the program: a container that it starts through a daemon, a job of at or of systemd-run, a session on
    another machine.
  - A process that may not be killed, being of another user (sudo), or cannot be, waiting in the kernel (a hung NFS). A hand-over waits
    for it, but trust in an ownership ends all the same.
  - Elsewhere than on Linux: processes that leave the program's process group, and the death of the keeper.

Where it matters, write in a transaction that checks the epoch first; a partition that was lost is refused with SQLSTATE PL001:

    SELECT pgleases.guard('LEASE', PGLEASES_PARTITION, PGLEASES_EPOCH)

It does not work on Windows.`

const runExample = `  pgleases run reports -- ./make-reports --daily
  pgleases run shards -n 16 --id "$HOSTNAME" -- sh -c 'exec ./consume --shard "$PGLEASES_PARTITION"'
  pgleases run nightly --try --once -- ./backup   # from cron on every machine: no two at once`

const (
	backoffMin   = 100 * time.Millisecond
	backoffMax   = 30 * time.Second
	backoffReset = time.Minute // of a program that ran that long, the next start waits backoffMin

	graceMax = 365 * 24 * time.Hour
)

// A runner is one call of `pgleases run`.
type runner struct {
	database, schema, id string
	verbose              bool
	lease                string
	partitions           int
	ttl, grace           time.Duration
	once, try, cgroup    bool
	wait                 time.Duration // 0: for ever
	program              []string

	log      *slog.Logger
	children *supervisor
	ran      atomic.Bool
	result   chan int // with once: the program's exit code
}

func newRun() *cobra.Command {
	r := &runner{result: make(chan int, 1)}
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
			r.lease, r.program = args[0], args[1:]
			r.database, _ = cmd.Flags().GetString("database")
			r.schema, _ = cmd.Flags().GetString("schema")
			r.verbose, _ = cmd.Flags().GetBool("verbose")
			if err := r.validate(cmd.Flags().Changed); err != nil {
				return err
			}
			return r.run()
		},
	}
	flags := cmd.Flags()
	flags.IntVarP(&r.partitions, "partitions", "n", 1, "partitions of the lease, 1 to 65536; the same for all, and fixed when the lease is made")
	flags.DurationVar(&r.ttl, "ttl", 6*time.Second, "how long a process that died keeps its partitions: 1s to 10m")
	flags.DurationVar(&r.grace, "grace", 5*time.Second, "from SIGTERM to SIGKILL, 0 to 8760h")
	flags.BoolVar(&r.cgroup, "cgroup", true, "run the program in a control group of its own, if possible")
	flags.BoolVar(&r.once, "once", false, "do not start the program again: exit with its exit code (one partition only)")
	flags.BoolVar(&r.try, "try", false, "exit with 75 as soon as it is clear that others have it; one that died has it for its TTL, and is then waited for")
	flags.DurationVar(&r.wait, "wait", 0, "exit with 75 when nothing was owned after this time (default: wait for ever); give more than the TTL\nwhere all give up: else nobody is there to take over from one that died")
	flags.StringVar(&r.id, "id", "", "client ID, unique among the live ones; one that outlives the process, as a host's name, keeps partitions\nwhere they are (default: random)")
	return cmd
}

func (r *runner) validate(given func(flag string) bool) error {
	switch waits := given("wait"); {
	case r.grace < 0:
		return fmt.Errorf("--grace %v is negative: give 0 or more", r.grace)
	case r.grace > graceMax: // sums with it would not fit
		return fmt.Errorf("--grace %v is too long: give %v at most", r.grace, graceMax)
	case r.id == "" && given("id"): // of a variable that is not set
		return errors.New("--id is empty: give 1 to 255 bytes, or no --id for a random one")
	case waits && r.wait <= 0:
		return fmt.Errorf("--wait %v: give a time above 0, or --try", r.wait)
	case waits && r.try:
		return errors.New("--try and --wait: give one of them")
	case r.once && r.partitions != 1:
		return fmt.Errorf("--once with -n %d: there would be %d exit codes; use -n 1", r.partitions, r.partitions)
	}
	path, err := exec.LookPath(r.program[0])
	switch {
	case errors.Is(err, os.ErrPermission), errors.Is(err, syscall.EISDIR):
		return exit{exitCannotRun, fmt.Errorf("program %q: %w: is it executable?", r.program[0], err)}
	case err != nil:
		return exit{exitNotFound, fmt.Errorf("program %q: %w: give a program in PATH, or a path with a slash", r.program[0], err)}
	}
	r.program[0] = path
	return nil
}

func (r *runner) options() []pgleases.Option {
	opts := []pgleases.Option{pgleases.WithTTL(r.ttl), pgleases.WithSchema(r.schema), pgleases.WithLogger(r.log)}
	if r.id != "" {
		opts = append(opts, pgleases.WithClientID(r.id))
	}
	return opts
}

func (r *runner) run() error {
	level := slog.LevelWarn
	if r.verbose {
		level = slog.LevelInfo
	}
	r.log = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))

	asked := make(chan os.Signal, 2)
	notifyUnlessIgnored(asked)
	var err error
	if r.children, err = newSupervisor(r); err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		sig := (<-asked).(syscall.Signal)
		r.log.Info("asked to end", slog.String("signal", sig.String()))
		cancel(exit{code: exitSignal + int(sig)})
		sig = (<-asked).(syscall.Signal)
		r.log.Warn("asked again: what runs is killed", slog.String("signal", sig.String()))
		close(r.children.hurry)
	}()
	err = r.work(ctx)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// notifyUnlessIgnored has the signals that ask to end sent to c, but for those that are to be ignored: nohup has SIGHUP ignored.
func notifyUnlessIgnored(c chan<- os.Signal) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// work runs the program until ctx ends, or the client, or with once the program. The client is closed when it returns.
func (r *runner) work(ctx context.Context) error {
	url := databaseURL(r.database)
	if _, err := store.ParseConfig(url); err != nil {
		return exit{exitFailed, err}
	}
	client, err := pgleases.Open(ctx, url, r.options()...)
	if err != nil {
		return unreachable(err, url)
	}
	// Bounded all the same: by the end of the work, which the grace bounds, and by that of the trust where there is no database.
	defer func() {
		if err := client.Close(context.Background()); err != nil {
			r.log.Warn("not all was handed over: it is free after the TTL", slog.Any("error", err))
		}
	}()
	lease, err := client.Lease(ctx, r.lease, r.partitions)
	if errors.Is(err, pgleases.ErrPartitionCount) {
		err = fmt.Errorf("%w\nGive that number with -n, or stop all and forget the lease: SELECT %s.drop_lease('%s', 'another number', partitions => %d)", err,
			pgx.Identifier{r.schema}.Sanitize(), strings.ReplaceAll(r.lease, "'", "''"), r.partitions)
	}
	if err != nil {
		return err
	}
	if r.try || r.wait > 0 {
		if err := r.awaitOwnership(ctx, client, lease); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() {
		ended <- lease.Run(context.Background(), func(ctx context.Context, p pgleases.Partition) error {
			r.keepRunning(ctx, lease, p)
			return nil
		})
	}()
	select {
	case err := <-ended: // another process has the ID, as a rule
		return err
	case code := <-r.result:
		if code != 0 {
			return exit{code: code}
		}
		return nil
	case <-ctx.Done():
		_ = client.Close(context.Background()) // which has Run return
		<-ended
		return context.Cause(ctx)
	}
}

// awaitOwnership returns when something is owned, and exitNotOwned after the time for that.
func (r *runner) awaitOwnership(ctx context.Context, client *pgleases.Client, lease *pgleases.Lease) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	none := exit{exitNotOwned, fmt.Errorf("lease %q: others have it", r.lease)}
	if r.try {
		go func() {
			if err := r.othersHaveIt(ctx, client.ID()); err != nil {
				cancel(err)
				return
			}
			cancel(none)
		}()
	}
	if r.wait > 0 {
		defer time.AfterFunc(r.wait, func() { cancel(none) }).Stop()
	}
	if err := lease.Wait(ctx); err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	} else if err != nil {
		return err
	}
	return nil
}

// othersHaveIt returns when nothing is to be had: living others own all partitions, none is on its way here, and they are as many as the
// partitions at least. Who died is waited for: where all gave up at once, nobody would be there to take over. It looks every 50 ms, and
// returns the error where it cannot.
func (r *runner) othersHaveIt(ctx context.Context, id string) error {
	config, err := store.ParseConfig(databaseURL(r.database)) // as the client does: it may have settings of a pool
	if err != nil {
		return err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	schema := pgx.Identifier{r.schema}.Sanitize()
	query := fmt.Sprintf(`WITH others AS (SELECT id FROM %[1]s.clients WHERE id <> $2 AND expires_at > clock_timestamp())
		SELECT (SELECT count(*) FROM %[1]s.members_status WHERE lease = $1 AND client IN (SELECT id FROM others)) >= count(*)
		       AND bool_and(owner IN (SELECT id FROM others) AND moving_to IS DISTINCT FROM $2) IS TRUE AND count(owner) = count(*)
		FROM %[1]s.status WHERE lease = $1`, schema)
	for {
		var others bool
		err := conn.QueryRow(ctx, query, pgx.QueryExecModeExec, r.lease, id).Scan(&others)
		if err != nil || others {
			return err
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// keepRunning runs the program, again and again, while the partition is owned and not wanted elsewhere: until ctx ends.
func (r *runner) keepRunning(ctx context.Context, lease *pgleases.Lease, p pgleases.Partition) {
	if r.ran.Swap(true) && r.once {
		return // owned again, after its only run
	}
	log := r.log.With(slog.String("lease", r.lease), slog.Int("partition", p.Number), slog.Int64("epoch", p.Epoch))
	for backoff := backoffMin; ; backoff = min(2*backoff, backoffMax) {
		log.Info("program starts")
		began := time.Now()
		code, err := r.children.run(ctx, lease, p)
		if err != nil {
			log.Error("program cannot be started", slog.Any("error", err))
			code = exitFailed
		}
		if ctx.Err() != nil {
			level := slog.LevelWarn
			if errors.Is(context.Cause(ctx), pgleases.ErrClosed) || errors.Is(context.Cause(ctx), pgleases.ErrHandover) && !r.once {
				level = slog.LevelInfo
			}
			log.Log(ctx, level, "program was ended", slog.Any("cause", context.Cause(ctx)))
		}
		if r.once {
			r.result <- code
		}
		if r.once || ctx.Err() != nil {
			return
		}
		if time.Since(began) >= backoffReset {
			backoff = backoffMin
		}
		log.Warn("program ended", slog.Int("exit_code", code), slog.Duration("again_after", backoff))
		select {
		case <-time.After(backoff):
		case <-ctx.Done():
			return
		}
	}
}

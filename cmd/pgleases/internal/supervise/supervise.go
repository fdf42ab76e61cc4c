package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/connect"
)

// The exit codes of the command itself: those of env(1) and timeout(1), and EX_TEMPFAIL of
// sysexits(3).
const (
	NotOwned  = 75  // no partition was owned in time, or it was lost before the program ended
	Failed    = 125 // pgleases itself failed
	CannotRun = 126 // the program cannot be executed
	NotFound  = 127 // the program does not exist
	Signaled  = 128 // plus the number of the signal
)

const (
	backoffMin   = 100 * time.Millisecond
	backoffMax   = 30 * time.Second
	backoffReset = time.Minute // after a run of this time, the next start waits backoffMin
	quiet        = time.Second // time that a run waits for its first partition before it says that it waits
)

// Config is one call of `pgleases run`.
type Config struct {
	URL, Schema, ID   string // ID: "" for a random one
	Lease             string
	Partitions        int
	TTL, Grace        time.Duration
	Once, Try, Cgroup bool
	Wait              time.Duration // 0: no limit
	Status            string        // the absolute path of the status socket; "": none
	Program           []string      // its path and its arguments
	Stdin             bool          // the program inherits stdin
	Log, ClientLog    *slog.Logger
	Unreachable       func(error) error // adds a remedy if no database answers
}

// killLead is the time from the kill of all processes to the end of trust.
func (c Config) killLead() time.Duration { return max(c.TTL/20, 100*time.Millisecond) }

// endLead is the time from SIGTERM to the end of trust.
func (c Config) endLead() time.Duration { return c.killLead() + min(c.TTL/10, c.Grace) }

// Exit is an error with its own exit code. Without Err, the command prints no message.
type Exit struct {
	Code int
	Err  error
}

func (e Exit) Error() string { return fmt.Sprint(e.Err) }
func (e Exit) Unwrap() error { return e.Err }

type runner struct {
	Config
	children *supervisor
	status   *status // nil: none
	ran      atomic.Bool
	result   chan int // with Once: the program's exit code
}

// Run runs the program until a signal asks to end, and with Once until the program has ended. It
// returns an Exit with the exit code, or another error for the exit code Failed.
func Run(c Config) (err error) {
	r := &runner{Config: c, result: make(chan int, 1)}
	asked := make(chan os.Signal, 2)
	notifyUnlessIgnored(asked)
	if r.children, err = newSupervisor(r); err != nil {
		return err
	}
	if c.Status != "" {
		if r.status, err = newStatus(c.Status); err != nil {
			return err
		}
		defer r.status.close()
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		sig := (<-asked).(syscall.Signal)
		r.Log.Info("asked to end", slog.String("signal", sig.String()))
		cancel(Exit{Code: Signaled + int(sig)})
		sig = (<-asked).(syscall.Signal)
		r.Log.Warn("asked again: programs are killed", slog.String("signal", sig.String()))
		close(r.children.hurry)
	}()
	err = r.work(ctx)
	return cmp.Or(context.Cause(ctx), err)
}

// notifyUnlessIgnored sends the signals that ask to end to c, except ignored ones: nohup ignores
// SIGHUP.
func notifyUnlessIgnored(c chan<- os.Signal) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP} {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// work runs the program until ctx ends, or the client ends, or with Once the program ends. It
// closes the client before it returns.
func (r *runner) work(ctx context.Context) error {
	opts := []pgleases.Option{pgleases.WithTTL(r.TTL), pgleases.WithSchema(r.Schema), pgleases.WithLogger(r.ClientLog)}
	if r.ID != "" {
		opts = append(opts, pgleases.WithClientID(r.ID))
	}
	client, err := pgleases.Open(ctx, r.URL, opts...)
	if err != nil {
		return r.Unreachable(err)
	}
	// Without a timeout, but bounded: the grace bounds the work, and the end of trust bounds it
	// without a database.
	defer func() {
		if err := client.Close(context.Background()); err != nil {
			r.Log.Warn("not all partitions were handed over: they are free after the TTL", slog.Any("error", err))
		}
	}()
	lease, err := client.Lease(ctx, r.Lease, r.Partitions)
	if errors.Is(err, pgleases.ErrPartitionCount) {
		err = fmt.Errorf("%w\nGive that number with -n, or stop all processes and drop the lease: pgleases drop %q --partitions %d --reason 'another number'", err, r.Lease, r.Partitions)
	}
	if err != nil {
		return err
	}
	r.status.serve(client, lease)
	standing := time.AfterFunc(quiet, func() { r.sayStanding(ctx, client, lease) })
	defer standing.Stop()
	if r.Try || r.Wait > 0 {
		if err := r.awaitOwnership(ctx, client, lease); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() {
		ended <- lease.Run(context.Background(), func(ctx context.Context, p pgleases.Partition) error {
			r.keepRunning(ctx, lease, p)
			standing.Reset(quiet)
			return nil
		})
	}()
	select {
	case err := <-ended: // usually because another process has the ID
		return err
	case code := <-r.result:
		return Exit{Code: code}
	case <-ctx.Done():
		_ = client.Close(context.Background()) // this ends lease.Run
		<-ended
		return context.Cause(ctx)
	}
}

// awaitOwnership returns when a partition is owned. It returns NotOwned after Wait, and with Try as
// soon as this client gets no partition.
func (r *runner) awaitOwnership(ctx context.Context, client *pgleases.Client, lease *pgleases.Lease) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	none := func(why error) error { return Exit{NotOwned, fmt.Errorf("lease %q: %w", r.Lease, why)} }
	if r.Try {
		go func() {
			s, err := r.look(ctx, client.ID(), true)
			cancel(cmp.Or(err, none(s.why)))
		}()
	}
	if r.Wait > 0 {
		defer time.AfterFunc(r.Wait, func() { cancel(none(fmt.Errorf("no partition was owned in %v", r.Wait))) }).Stop()
	}
	return lease.Wait(ctx)
}

// sayStanding logs why this client owns no partition.
func (r *runner) sayStanding(ctx context.Context, client *pgleases.Client, lease *pgleases.Lease) {
	if lease.Stats().Owned > 0 { // otherwise its program may end during the look
		return
	}
	s, err := r.look(ctx, client.ID(), false)
	level, message := slog.LevelWarn, "no partition is owned"
	if err == nil && s.owned {
		level, message = slog.LevelInfo, "standing by: live clients own all partitions"
	}
	if lease.Stats().Owned == 0 && ctx.Err() == nil && lease.Err() == nil {
		r.Log.Log(ctx, level, message, slog.String("lease", r.Lease), slog.Any("reason", cmp.Or(err, s.why)),
			slog.String("command", fmt.Sprintf("pgleases explain '%s/%d'", r.Lease, s.partition)))
	}
}

// A standing is why this client owns no partition.
type standing struct {
	owned     bool // other live clients own all partitions
	final     bool // the same, no partition is moving here, and the others are enough; or an operator has paused the lease or drained this client
	partition int  // the first one without a live owner, or 0
	why       error
}

// look returns the standing of this client, at once or when it is final. It polls every 50 ms. An
// expired session is no live owner: if all machines gave up at once, no client would take over.
func (r *runner) look(ctx context.Context, id string, final bool) (s standing, err error) {
	config, err := connect.ParseConfig(r.URL) // as the client does, because it may have settings of a pool
	if err != nil {
		return s, err
	}
	conn, err := pgx.ConnectConfig(ctx, config.ConnConfig)
	if err != nil {
		return s, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	query := fmt.Sprintf(`WITH others AS (SELECT id FROM %[1]s.clients WHERE id <> $2 AND expires_at > clock_timestamp()), override AS (
			SELECT CASE max(verb) WHEN 'pause' THEN 'an operator has paused it' WHEN 'drain' THEN 'an operator has drained this client' END AS why
			FROM %[1]s.overrides WHERE until > clock_timestamp() AND (verb = 'pause' AND lease = $1 OR verb = 'drain' AND client = $2)), owners AS (
			SELECT min(partition) FILTER (WHERE owner IN (SELECT id FROM others) IS NOT TRUE) AS free, max(owner) FILTER (WHERE partition = 0) AS owner,
			       bool_and(moving_to IS DISTINCT FROM $2) AND count(*) <= (
			       SELECT count(*) FROM %[1]s.members_status WHERE lease = $1 AND client IN (SELECT id FROM others)) AS enough
			FROM %[1]s.status WHERE lease = $1)
		SELECT free IS NULL AND why IS NULL AND owner IS NOT NULL, free IS NULL AND enough IS TRUE OR why IS NOT NULL, coalesce(free, 0),
		       coalesce(why, 'no live client owns partition ' || free, 'client "' || owner || '" owns partition 0', 'it has no partitions') FROM override, owners`, pgx.Identifier{r.Schema}.Sanitize())
	for {
		var why string
		if err := conn.QueryRow(ctx, query, pgx.QueryExecModeExec, r.Lease, id).Scan(&s.owned, &s.final, &s.partition, &why); err != nil {
			return s, err
		}
		if s.why = errors.New(why); s.final || !final {
			return s, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// keepRunning runs the program, again after each end, until ctx ends: while the partition is owned
// and not moving to another client.
func (r *runner) keepRunning(ctx context.Context, lease *pgleases.Lease, p pgleases.Partition) {
	if r.ran.Swap(true) && r.Once {
		return // with Once, there is only one run
	}
	log := r.Log.With(slog.String("lease", r.Lease), slog.Int("partition", p.Number), slog.Int64("epoch", p.Epoch))
	if !r.Once {
		log.Info("program starts") // restarts are logged as ends
	}
	for backoff := backoffMin; ; backoff = min(2*backoff, backoffMax) {
		began := time.Now()
		code := r.children.run(ctx, lease, p, log)
		r.logEnd(context.Cause(ctx), log)
		if r.Once {
			r.result <- code
		}
		if r.Once || ctx.Err() != nil {
			return
		}
		if time.Since(began) >= backoffReset {
			backoff = backoffMin
		}
		trusted := func() bool { return time.Until(lease.TrustDeadline()) > r.endLead() }
		if trusted() {
			log.Warn("program ended", slog.Int("exit_code", code), slog.Duration("again_after", backoff))
		} else { // the keeper ended it, or would end the next one at once
			log.Warn("program was ended", slog.String("cause", "the database does not answer, so the ownership may end soon"))
		}
		for again := false; !again; again = trusted() {
			select {
			case <-time.After(backoff):
			case <-ctx.Done():
				return
			}
		}
	}
}

// logEnd logs why the ownership, and with it the program, was ended; nil: it ended by itself.
func (r *runner) logEnd(cause error, log *slog.Logger) {
	level := slog.LevelWarn
	if errors.Is(cause, pgleases.ErrClosed) || errors.Is(cause, pgleases.ErrHandoff) && !r.Once {
		level = slog.LevelInfo
	}
	if cause != nil {
		log.Log(context.Background(), level, "program was ended", slog.Any("cause", cause))
	}
}

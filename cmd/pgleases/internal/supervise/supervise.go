package supervise

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/connect"
	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/wrap"
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

	sameRequest = 200 * time.Millisecond // signals within this time are one request to end

	lookForID  = 250 * time.Millisecond
	closeLimit = 3 * time.Second  // for handoffs after the last program has ended; the client then needs up to 2 s
	killLimit  = 10 * time.Second // for killed processes to end, when the command was asked to end
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
	asked    atomic.Int32 // the signal that asked to end; 0: it was not asked
	result   chan int     // with Once: the program's exit code
	failed   chan error   // an Exit: the program cannot be started

	mu         sync.Mutex        // guards the rest
	running    int               // programs, with the pauses before they are started again
	unkillable map[int]time.Time // the partitions whose program was killed and is still there, since when
}

// Run runs the program until a signal asks to end, and with Once until the program has ended. It
// returns an Exit with the exit code, or another error for the exit code Failed.
func Run(c Config) (err error) {
	code, apart, err := runApart()
	if apart || err != nil {
		return cmp.Or(err, error(Exit{Code: code}))
	}
	if err := bridge.CheckLease(c.Lease, c.Partitions, c.options()); err != nil { // without a database too
		return err
	}
	r := newRunner(c)
	asked := make(chan os.Signal, 2)
	notifyUnlessIgnored(asked)
	// Without this, a line for a stderr whose reader has gone would end the process. Ignoring the
	// signal would do too, but the program would inherit that.
	signal.Notify(make(chan os.Signal, 1), syscall.SIGPIPE)
	r.children, err = newSupervisor(r)
	if err != nil {
		return err
	}
	if c.Status != "" {
		r.status, err = newStatus(c.Status)
		if err != nil {
			return err
		}
		defer r.status.close()
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	defer cancel(nil)
	go func() {
		sig := (<-asked).(syscall.Signal)
		r.asked.Store(int32(sig))
		cancel(Exit{Code: Signaled + int(sig)})
		r.Log.Info("asked to end", slog.String("signal", sig.String()))
		sig = nextRequest(asked)
		close(r.children.hurry)
		r.Log.Warn("asked again: programs are killed", slog.String("signal", sig.String()))
	}()
	err = r.work(ctx)
	return cmp.Or(context.Cause(ctx), err)
}

// nextRequest returns the signal of the next request to end. One request may come twice: timeout(1)
// sends its signal to the command, and then to the command's process group.
func nextRequest(asked <-chan os.Signal) syscall.Signal {
	for first := time.Now(); ; {
		sig := (<-asked).(syscall.Signal)
		if time.Since(first) >= sameRequest {
			return sig
		}
	}
}

// options returns the options of the client.
func (c Config) options() []pgleases.Option {
	options := []pgleases.Option{
		pgleases.WithTTL(c.TTL),
		pgleases.WithSchema(c.Schema),
		pgleases.WithLogger(c.ClientLog),
	}
	if c.ID != "" {
		options = append(options, pgleases.WithClientID(c.ID))
	}
	return options
}

func newRunner(c Config) *runner {
	return &runner{
		Config:     c,
		result:     make(chan int, 1),
		failed:     make(chan error, 1),
		unkillable: make(map[int]time.Time),
	}
}

// notifyUnlessIgnored sends the signals that ask to end to c, except ignored ones: nohup ignores
// SIGHUP. Images of containers ask with SIGQUIT too.
func notifyUnlessIgnored(c chan<- os.Signal) {
	for _, sig := range []os.Signal{syscall.SIGTERM, syscall.SIGINT, syscall.SIGHUP, syscall.SIGQUIT} {
		if !signal.Ignored(sig) {
			signal.Notify(c, sig)
		}
	}
}

// work runs the program until ctx ends, or the client ends, or with Once the program ends. It
// closes the client before it returns.
func (r *runner) work(ctx context.Context) error {
	began := time.Now()
	client, err := r.open(ctx)
	if err != nil {
		return err
	}
	defer r.close(client)
	lease, err := client.Lease(ctx, r.Lease, r.Partitions)
	if errors.Is(err, pgleases.ErrPartitionCount) {
		const command = "pgleases drop %s --partitions %d --reason 'another number'"
		drop := fmt.Sprintf(command, shell.Word(r.Lease), r.Partitions)
		err = fmt.Errorf("%w\nGive that number with -n, or stop all processes and drop the lease: %s", err, drop)
	}
	if err != nil {
		return err
	}
	r.status.serve(client, lease)
	standing := time.AfterFunc(quiet, func() { r.sayStanding(ctx, client, lease) })
	defer standing.Stop()
	if r.Try || r.Wait > 0 {
		if err := r.awaitOwnership(ctx, client, lease, began.Add(r.Wait)); err != nil {
			return err
		}
	}
	ended := make(chan error, 1)
	go func() {
		ended <- lease.Run(context.Background(), func(ctx context.Context, p pgleases.Partition) error {
			r.runs(1)
			defer r.runs(-1)
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
	case err := <-r.failed:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// open opens the client.
func (r *runner) open(ctx context.Context) (*pgleases.Client, error) {
	if r.ID != "" && (r.Once || r.Try || r.Wait > 0) {
		claim, err := r.awaitID(ctx)
		if err != nil {
			return nil, err
		}
		defer claim.Close(context.WithoutCancel(ctx)) // others find the client instead
	}
	client, err := pgleases.Open(ctx, r.URL, r.options()...)
	if err != nil {
		return nil, r.Unreachable(err)
	}
	return client, nil
}

// close ends all programs and hands the partitions over. It returns when that is done, or soon
// after all programs have ended: without a database, partitions cannot be handed over, and
// another client takes them after the TTL. A second signal shortens the wait.
func (r *runner) close(client *pgleases.Client) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	closed := make(chan struct{})
	defer close(closed)
	go func() {
		defer cancel()
		look := time.NewTicker(20 * time.Millisecond)
		defer look.Stop()
		for hurry := false; !r.programsEnded(hurry); {
			select {
			case <-look.C:
			case <-closed:
				return
			}
			select {
			case <-r.children.hurry:
				hurry = true
			default:
			}
		}
		select {
		case <-time.After(closeLimit):
		case <-r.children.hurry:
		case <-closed:
		}
	}()
	if err := client.Close(ctx); err != nil {
		r.Log.Warn("not all partitions were handed over: they are free after the TTL", slog.Any("error", err))
	}
}

// programsEnded reports whether no program runs, except those that could not be killed for a
// while.
func (r *runner) programsEnded(hurry bool) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	stuck := 0
	for _, since := range r.unkillable {
		if hurry || time.Since(since) >= killLimit {
			stuck++
		}
	}
	return stuck == r.running
}

// cannotKill records that processes of a program were killed and are still there. The partition
// stays owned as long as they are.
func (r *runner) cannotKill(partition int, processes string) {
	r.mu.Lock()
	since, known := r.unkillable[partition]
	if !known {
		since = time.Now()
	}
	r.unkillable[partition] = since
	r.mu.Unlock()
	r.Log.Error("processes of the program were killed and are still there, so the partition waits for them",
		slog.String("lease", r.Lease), slog.Int("partition", partition), slog.String("processes", processes))
}

// canKill records that no process of a program is left.
func (r *runner) canKill(partition int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.unkillable, partition)
}

// runs counts a program that is about to run, or has ended.
func (r *runner) runs(more int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.running += more
}

// notOwned is the end of a run that has got no partition.
func (r *runner) notOwned(why error) error {
	return Exit{NotOwned, fmt.Errorf("lease %q: %w", r.Lease, why)}
}

// awaitOwnership returns when a partition is owned. With Wait it returns NotOwned at that time,
// and with Try as soon as this client gets no partition.
func (r *runner) awaitOwnership(
	ctx context.Context, client *pgleases.Client, lease *pgleases.Lease, until time.Time,
) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	if r.Try {
		go func() {
			s, err := r.look(ctx, client.ID(), true)
			cancel(cmp.Or(err, r.notOwned(s.why)))
		}()
	}
	if r.Wait > 0 {
		late := time.AfterFunc(time.Until(until), func() {
			cancel(r.notOwned(fmt.Errorf("no partition was owned in %v", r.Wait)))
		})
		defer late.Stop()
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
			slog.String("command", "pgleases explain "+shell.Word(fmt.Sprintf("%s/%d", r.Lease, s.partition))))
	}
}

// A standing is why this client owns no partition.
type standing struct {
	owned bool // other live clients own all partitions
	// Other live clients own all partitions, no partition is moving here, and the others are enough;
	// or an operator has paused the lease or drained this client.
	final     bool
	partition int // the first one without a live owner, or 0
	why       error
}

// A standing's fields, of the lease $1 and the client $2. An expired session is no live owner: if
// all machines gave up at once, no client would take over.
const selectStanding = `
	WITH others AS (
		SELECT id FROM %[1]s.clients WHERE id <> $2 AND expires_at > clock_timestamp()
	), override AS (
		SELECT CASE max(verb)
		       WHEN 'pause' THEN 'an operator has paused it'
		       WHEN 'drain' THEN 'an operator has drained this client' END AS why
		FROM %[1]s.overrides
		WHERE until > clock_timestamp() AND (verb = 'pause' AND lease = $1 OR verb = 'drain' AND client = $2)
	), owners AS (
		SELECT min(partition) FILTER (WHERE owner IN (SELECT id FROM others) IS NOT TRUE) AS free,
		       max(owner) FILTER (WHERE partition = 0) AS owner,
		       bool_and(moving_to IS DISTINCT FROM $2) AND count(*) <= (
		           SELECT count(*) FROM %[1]s.members_status
		           WHERE lease = $1 AND client IN (SELECT id FROM others)
		       ) AS enough
		FROM %[1]s.status WHERE lease = $1
	)
	SELECT free IS NULL AND why IS NULL AND owner IS NOT NULL,
	       free IS NULL AND enough IS TRUE OR why IS NOT NULL,
	       coalesce(free, 0),
	       coalesce(why, 'no live client owns partition ' || free,
	                'client ' || to_json(owner) || ' owns partition 0', 'it has no partitions')
	FROM override, owners`

// look returns the standing of this client, at once or when it is final. It polls every 50 ms.
func (r *runner) look(ctx context.Context, id string, final bool) (s standing, err error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return s, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	query := fmt.Sprintf(selectStanding, pgx.Identifier{r.Schema}.Sanitize())
	for {
		var why string
		row := conn.QueryRow(ctx, query, pgx.QueryExecModeExec, r.Lease, id)
		if err := row.Scan(&s.owned, &s.final, &s.partition, &why); err != nil {
			return s, err
		}
		s.why = errors.New(why)
		if s.final || !final {
			return s, nil
		}
		time.Sleep(50 * time.Millisecond)
	}
}

// connect returns a connection to the database, besides those of the client.
func (r *runner) connect(ctx context.Context) (*pgx.Conn, error) {
	config, err := connect.ParseConfig(r.URL) // as the client does, because it may have settings of a pool
	if err != nil {
		return nil, err
	}
	return pgx.ConnectConfig(ctx, config.ConnConfig)
}

// errClaimed says that another command is about to open a client with the ID.
var errClaimed = errors.New("another command claims the ID")

// awaitID returns when no live client has this command's ID. A client with that ID would end the
// run in progress of the other one, and one that ran before from cron is no reason to. With Try
// it returns NotOwned at once instead, and with Wait at that time. Until the connection that it
// returns is closed, no other command that waits gets the ID: two that start in the same instant
// both find no client.
func (r *runner) awaitID(ctx context.Context) (claim *pgx.Conn, err error) {
	began := time.Now()
	told, seen := false, false
	for {
		conn, host, pid, err := r.claimID(ctx)
		switch {
		case conn != nil:
			return conn, nil
		case ctx.Err() != nil:
			return nil, context.Cause(ctx)
		case err != nil && !errors.Is(err, errClaimed) && !seen: // later, this run waits as a client does
			return nil, r.Unreachable(err)
		}
		seen = true
		why := fmt.Errorf("a live client has the ID %q: host %q, pid %d", r.ID, host, pid)
		if errors.Is(err, errClaimed) {
			why = fmt.Errorf("another command that starts has the ID %q", r.ID)
		}
		switch {
		case r.Try:
			return nil, r.notOwned(why)
		case r.Wait > 0 && time.Since(began) >= r.Wait:
			return nil, r.notOwned(fmt.Errorf("no partition was owned in %v: %w", r.Wait, why))
		case !told && time.Since(began) >= quiet:
			told = true
			r.Log.Info("standing by: a live client has the ID", slog.String("lease", r.Lease), slog.Any("reason", why))
		}
		select {
		case <-time.After(lookForID):
		case <-ctx.Done():
		}
	}
}

// claimID returns a connection if no live client has this command's ID: its transaction keeps
// other commands from claiming the ID. Otherwise it returns the process of the client, or
// errClaimed.
func (r *runner) claimID(ctx context.Context) (claim *pgx.Conn, host string, pid int, err error) {
	conn, err := r.connect(ctx)
	if err != nil {
		return nil, "", 0, err
	}
	defer func() {
		if claim == nil {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	_, err = conn.Exec(ctx, "BEGIN")
	if err != nil {
		return nil, "", 0, err
	}
	clients := pgx.Identifier{r.Schema, "clients"}.Sanitize()
	var claimed, exists bool
	err = conn.QueryRow(ctx, `
		SELECT pg_catalog.pg_try_advisory_xact_lock(pg_catalog.hashtextextended($1, 0)),
		       pg_catalog.to_regclass($2) IS NOT NULL`,
		pgx.QueryExecModeExec, "pgleases run "+r.ID+" "+clients, clients).Scan(&claimed, &exists)
	switch {
	case err != nil:
		return nil, "", 0, err
	case !claimed:
		return nil, "", 0, errClaimed
	case !exists: // the client creates the tables
		return conn, "", 0, nil
	}
	query := `SELECT host, pid FROM ` + clients + `
		WHERE id = $1 AND incarnation >= 0 AND expires_at > pg_catalog.clock_timestamp()
		ORDER BY incarnation DESC LIMIT 1`
	err = conn.QueryRow(ctx, query, pgx.QueryExecModeExec, r.ID).Scan(&host, &pid)
	if errors.Is(err, pgx.ErrNoRows) {
		return conn, "", 0, nil
	}
	return nil, host, pid, err
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
		code, err := r.children.run(ctx, lease, p, log)
		r.logEnd(context.Cause(ctx), code, log)
		if err != nil { // another machine may be able to
			select {
			case r.failed <- err:
			default: // it has failed for another partition
			}
			return
		}
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
			log.Warn("program was ended",
				slog.String("cause", "the database does not answer, so the ownership may end soon"))
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

// logEnd logs why the ownership, and with it the program, was ended, with the program's exit code and
// whether somebody wanted it; nil: it ended by itself.
func (r *runner) logEnd(cause error, code int, log *slog.Logger) {
	if cause == nil {
		return
	}
	why, inOrder := r.endOf(cause)
	level := slog.LevelWarn
	if inOrder {
		level = slog.LevelInfo
	}
	log.Log(context.Background(), level, "program was ended", slog.String("cause", why), slog.Int("exit_code", code),
		slog.Bool("in_order", inOrder))
}

// endOf returns why an ownership ended, and whether that is in order. With Once a move is not,
// because the program does not start again elsewhere.
func (r *runner) endOf(cause error) (why string, inOrder bool) {
	asked := syscall.Signal(r.asked.Load())
	switch {
	case errors.Is(cause, pgleases.ErrClosed) && asked != 0:
		return "signal " + signalName(asked), true
	case errors.Is(cause, pgleases.ErrClosed):
		return "this command ends", true
	case errors.Is(cause, pgleases.ErrHandoff):
		return wrap.Text(cause), !r.Once
	}
	return wrap.Text(cause), errors.Is(cause, pgleases.ErrEvicted)
}

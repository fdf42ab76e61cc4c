//go:build unix && !aix

package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// freezeOf makes the test binary a process that stops itself: a freezer as JSON.
const freezeOf = "PGLEASES_CONSUMER_FREEZE"

func init() {
	if text := os.Getenv(freezeOf); text != "" {
		f := freezer{}
		if err := errors.Join(json.Unmarshal([]byte(text), &f), f.run()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// A freezer is a process that stops once, as SIGSTOP does, at a step of its work.
type freezer struct {
	URL     string
	Handler string   // Each or AtLeastOnce
	At      []string // statements of one connection, of which the last is where it stops; or a step of its handler
	After   bool     // before it reads the answer
	Fails   int64    // the ID of a row whose first attempt fails
	Letter  bool     // it has no other attempt
	Suspect bool     // owners before have crashed with rows in hand
	Long    bool     // its TTL passes by its own clock too

	stopped atomic.Bool
	ends    <-chan struct{}
}

// stop stops the process until it gets SIGCONT.
func (f *freezer) stop() {
	if f.stopped.CompareAndSwap(false, true) {
		continued := make(chan os.Signal, 1)
		signal.Notify(continued, syscall.SIGCONT)
		_ = syscall.Kill(os.Getpid(), syscall.SIGSTOP)
		<-continued // another thread may get SIGSTOP, and this one run on for a moment
	}
}

// step stops at a step of the handler.
func (f *freezer) step(name string) {
	if f.At[0] == name {
		f.stop()
	}
}

// A freezing is a connection. After the process has continued, that of its client gets no answer, so
// that the process does not learn what it has lost.
type freezing struct {
	net.Conn
	of    *freezer
	met   int
	armed atomic.Bool
	deaf  bool
}

func (c *freezing) Write(b []byte) (int, error) {
	if c.met < len(c.of.At) && strings.Contains(string(b), c.of.At[c.met]) {
		if c.met++; c.met == len(c.of.At) && !c.of.After {
			c.of.stop()
		}
		c.armed.Store(c.met == len(c.of.At))
	}
	return c.Conn.Write(b)
}

func (c *freezing) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if c.armed.Load() && c.of.After && n > 0 {
		c.of.stop()
	}
	if c.deaf && c.of.stopped.Load() {
		<-c.of.ends
	}
	return n, err
}

func (f *freezer) run() error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { // until the test closes its standard input
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	f.ends = ctx.Done()
	pool, err := f.pool(false)
	if err != nil {
		return err
	}
	own, err := f.pool(true)
	if err != nil {
		return err
	}
	ttl := time.Minute
	if f.Long {
		ttl = 2 * time.Second
	}
	client, err := pgleases.NewClient(ctx, own,
		pgleases.WithoutMigration(), pgleases.WithClientID("frozen"),
		pgleases.WithTTL(ttl), pgleases.WithHeartbeat(ttl/4))
	if err != nil {
		return err
	}
	handle := func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		f.step("handler")
		if err := effect(ctx, tx, row); err != nil {
			return err
		}
		f.step("handled")
		if row.ID == f.Fails && (row.Attempt == 1 || f.Letter) {
			return errors.New("not yet")
		}
		return nil
	}
	h := consumer.Each(handle)
	if f.Handler == "AtLeastOnce" {
		h = consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Order]) error {
			for i, row := range rows {
				if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return handle(ctx, tx, row) }); err != nil {
					return consumer.RowError(i, err)
				}
			}
			return nil
		})
	}
	opts := append(freezerOptions(f.Letter), consumer.WithMaxRunning(1),
		consumer.WithLogger(slog.New(slog.NewTextHandler(os.Stderr, nil))))
	c, err := consumer.New(ctx, client, pool, "orders", outbox, h, opts...)
	if err != nil {
		return err
	}
	err = c.Run(ctx)
	if errors.Is(err, context.Canceled) { // it was told to end
		err = nil
	}
	return errors.Join(err, client.Close(context.Background()))
}

func (f *freezer) pool(deaf bool) (*pgxpool.Pool, error) {
	config, err := pgtest.ParseConfig(f.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = 2 // one is the listener's, so that all work is done on the other
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	config.ConnConfig.DialFunc = func(ctx context.Context, network, address string) (net.Conn, error) {
		conn, err := new(net.Dialer).DialContext(ctx, network, address)
		return &freezing{Conn: conn, of: f, deaf: deaf}, err
	}
	return pgxpool.NewWithConfig(context.Background(), config)
}

func freezerOptions(letter bool) []consumer.Option {
	opts := []consumer.Option{
		consumer.WithoutMigration(), consumer.WithPoll(20 * time.Millisecond), consumer.WithBatch(5, 1<<20),
		consumer.WithIdleTimeout(time.Second), backoff(10*time.Millisecond, 10*time.Millisecond),
	}
	if letter {
		opts = append(opts, attempts(1), consumer.WithOnFailure(consumer.OnFailureDeadLetter))
	}
	return opts
}

// A process may stop at any step, for longer than its TTL, and continue beside the next owner. By
// its own clock it is still the owner, because the test lets its TTL pass in the database only.
func TestFrozenAtEachStep(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	const (
		open    = "guard_many"
		begin   = "consumer_begin"
		read    = `"pgleases version"`
		remove  = "DELETE FROM public.outbox"
		charge  = ".consumer_blocked AS b (consumer"
		suspect = "SET crashes = b.crashes OPERATOR"
		blocked = `.version OPERATOR`
		letter  = "consumer_dead_letters"
		outside = "AtLeastOnce"
	)
	for name, f := range map[string]*freezer{
		"before the begin":          {At: []string{open}},
		"at the begin":              {At: []string{begin}},
		"after the begin":           {At: []string{begin, "commit"}, After: true},
		"before the read":           {At: []string{read}},
		"after the read":            {At: []string{read}, After: true},
		"in the handler":            {At: []string{"handler"}},
		"at the end of the handler": {At: []string{"handled"}},
		"before the commit":         {At: []string{remove}},
		"after the commit":          {At: []string{remove}, After: true},

		"outside, after the read": {Handler: outside, At: []string{read, "commit"}, After: true},
		"outside, after the read, for its TTL": {
			Handler: outside, At: []string{read, "commit"}, After: true, Long: true,
		},
		"outside, in the handler":     {Handler: outside, At: []string{"handled"}},
		"outside, before the removal": {Handler: outside, At: []string{read, "commit", open}},
		"outside, at the removal":     {Handler: outside, At: []string{remove, "commit"}},
		"outside, after the removal":  {Handler: outside, At: []string{remove, "commit"}, After: true},

		"before the charge":        {At: []string{read, open}, Fails: 3},
		"at the charge":            {At: []string{charge}, Fails: 3},
		"after the charge":         {At: []string{charge, "commit"}, After: true, Fails: 3},
		"before the retry":         {At: []string{blocked}, Fails: 3},
		"in the retry":             {At: []string{blocked}, After: true, Fails: 3},
		"before the retry commits": {At: []string{blocked, remove}, Fails: 3},
		"after the retry":          {At: []string{blocked, remove}, After: true, Fails: 3},
		"before the dead letter":   {At: []string{read, open}, Fails: 3, Letter: true},
		"at the dead letter":       {At: []string{letter, "commit"}, Fails: 3, Letter: true},
		"after the dead letter":    {At: []string{letter, "commit"}, After: true, Fails: 3, Letter: true},

		"before the suspect's charge":       {At: []string{suspect}},
		"at the suspect's charge":           {At: []string{suspect, "commit"}},
		"after the suspect's charge":        {At: []string{suspect, "commit"}, After: true},
		"before the suspect":                {At: []string{blocked}, Suspect: true},
		"with the suspect in hand":          {At: []string{blocked}, After: true, Suspect: true},
		"before the suspect commits":        {At: []string{suspect, "commit", remove}},
		"outside, with the suspect in hand": {Handler: outside, At: []string{suspect, "commit", "commit", open}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f.Suspect = f.Suspect || slices.Contains(f.At, suspect)
			f.check(t)
		})
	}
}

func (f *freezer) check(t *testing.T) {
	db := newDirectDatabase(t)
	db.insert(40, 10)
	if f.Suspect {
		db.crashed(1, 20, 20)
	}
	f.URL = db.url
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	t.Cleanup(cancel)
	process := exec.CommandContext(ctx, os.Args[0])
	process.Env = append(os.Environ(), freezeOf+"="+string(testkit.Must(json.Marshal(f))(t)))
	process.Stderr = t.Output()
	in := testkit.Must(process.StdinPipe())(t)
	testkit.OK(t, process.Start())
	t.Cleanup(func() {
		_ = process.Process.Kill()
		_ = process.Wait() // it was killed, or has ended
	})
	stops := make(chan error, 1)
	go func() {
		var status syscall.WaitStatus
		_, err := syscall.Wait4(process.Process.Pid, &status, syscall.WUNTRACED, nil)
		if err == nil && !status.Stopped() {
			err = fmt.Errorf("it did not stop: %v", status)
		}
		stops <- err
	}()
	testkit.OK(t, testkit.Receive(t, "it stops", stops))
	if !f.Long {
		db.expire("frozen", "")
	}
	epoch := one[int64](db, "SELECT max(epoch) FROM pgleases.partitions")
	held, out := make(chan struct{}), make(chan struct{})
	var first atomic.Bool
	next := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if (f.Suspect || row.ID == f.Fails || row.ID > 40) && first.CompareAndSwap(false, true) {
			close(held)
			<-out
		}
		if f.Letter && row.ID == f.Fails {
			return errors.New("not yet")
		}
		return effect(ctx, tx, row)
	}), append(freezerOptions(f.Letter), consumer.WithIdleTimeout(10*time.Second))...).run()
	if f.Fails == 0 && !f.Suspect { // all that the process does then comes after the work of the next owner
		db.empty("the next owner has handled all")
	}
	db.insert(40, 10)
	testkit.Receive(t, "the next owner has a row in hand", held)
	testkit.OK(t, process.Process.Signal(syscall.SIGCONT))
	close(out)
	db.empty("all is handled")
	testkit.OK(t, in.Close())
	testkit.OK(t, process.Wait())
	testkit.OK(t, next.end())
	want := int64(80)
	if f.Letter {
		want--
		expect(t, db.count("pgleases.consumer_dead_letters"), 1, "dead letters")
	}
	expect(t, one[int64](db, "SELECT count(DISTINCT id) FROM public.effects"), want, "rows with effects")
	if f.Handler == "" {
		db.exact(want)
		expect(t, db.count(`(
			SELECT epoch < max(epoch) OVER (PARTITION BY pgleases.partition_for(customer, 8) ORDER BY n) AS late
			FROM public.effects
		) AS e WHERE late`), 0, "rows handled after the next owner's")
	} else { // for a receiver that keeps the highest epoch of each partition, and drops what it has
		expect(t, db.count(`(
			SELECT id < lag(id) OVER (PARTITION BY customer ORDER BY n) AS back FROM (
				SELECT id, customer, min(n) AS n FROM (
					SELECT *, epoch = max(epoch) OVER (PARTITION BY pgleases.partition_for(customer, 8) ORDER BY n) AS latest
					FROM public.effects
				) AS e WHERE latest GROUP BY 1, 2
			) AS e
		) AS e WHERE back`), 0, "rows out of order")
	}
	if f.Long {
		expect(t, db.count("public.effects WHERE epoch <= $1", epoch), 0, "rows that were sent after the TTL")
	}
	most := 1
	if f.Fails > 0 {
		most = 2
	}
	if got := one[int](db, "SELECT max(attempt) FROM public.effects"); got > most {
		t.Errorf("attempt %d, want at most %d", got, most)
	}
	expect(t, db.count("pgleases.consumer_blocked"), 0, "blocked rows")
}

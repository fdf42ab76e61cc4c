//go:build unix

package proof_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
	"github.com/pgleases/pgleases/schedule"
)

// onceBack is how long after its client has connected again everything goes on at the latest. It is
// the second that docs/database-failover.md promises, and half a second for the work itself.
const onceBack = time.Second + time.Second/2

// trusted is the TTL of the clients.
const trusted = 2 * time.Second

// All connections fall silent, as after a failover whose old server is gone. New connections work at
// once, or after a cut that is longer than the TTL. All that works with a client, in a process or
// under the command, goes on within one bound after its client has connected again. That holds for
// what waited meanwhile, and for what begins then.
func TestAllWorkGoesOnSoonAfterACut(t *testing.T) {
	t.Parallel()
	command := built(t)
	for _, cut := range []time.Duration{0, 5 * time.Second} {
		t.Run(cut.String(), func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) { allWorkGoesOn(t, command, cut) })
		})
	}
}

func allWorkGoesOn(t *timeguard.Try, command string, cut time.Duration) {
	server := pgserver.Private(t)
	proxy := newProxy(t, server.URL())
	p := newApplication(t, server.URL(), proxy)
	c := startCommand(t, command, proxy.URL())
	rows := p.rows()
	again := make(map[string]func(context.Context) error)
	for name, work := range rows {
		testkit.OK(t, work(t.Context())) // it works before the cut
		again[name+", begun afterwards"] = work
	}
	rows["a tick"] = p.tick
	if cut > trusted { // otherwise the program just goes on
		rows["a program of the command"] = func(ctx context.Context) error { return c.restarted(ctx, p) }
	}
	p.fill(t)
	proxy.Freeze()
	tally.Fault(t, "silent connections, after a cut of "+cut.String())
	waiting := begun(t, rows)
	time.Sleep(cut) // the length of the cut, not a wait for a condition
	proxy.Reroute()
	back := p.back(t)
	afterwards := begun(t, again)
	var table []string
	for _, at := range []map[string]time.Time{waiting(), afterwards()} {
		for name := range at {
			since := back
			if name == "a program of the command" { // it has a client of its own
				since = c.back
			}
			took := goesOnSoon(t, name, since, at[name])
			table = append(table, fmt.Sprintf("%s: %v", name, took.Round(time.Millisecond)))
		}
	}
	slices.Sort(table)
	t.Logf("after a cut of %v, since its client was back: %s", cut, strings.Join(table, "; "))
	tally.Checked(t, "calls and work over a cut", len(rows)+len(again))
	proxy.Cut() // otherwise the end of the pool waits for the silent connections
}

// goesOnSoon checks one row against the bound, and returns how long it took.
func goesOnSoon(t *timeguard.Try, name string, back, at time.Time) time.Duration {
	t.Helper()
	took := at.Sub(back)
	if took > onceBack {
		from := timeguard.Now() - timeguard.Instant(time.Since(back))
		t.MissedAt(from, from+timeguard.Instant(took), onceBack,
			"%s went on %v after its client was back, not within %v", name, took, onceBack)
	}
	return took
}

// begun begins all rows at once. The function that it returns waits for them, and returns when each
// has succeeded.
func begun(t *timeguard.Try, rows map[string]func(context.Context) error) func() map[string]time.Time {
	type result struct {
		name string
		at   time.Time
		err  error
	}
	results := make(chan result, len(rows))
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	for name, work := range rows {
		go func() {
			err := work(ctx)
			results <- result{name, time.Now(), err}
		}()
	}
	return func() map[string]time.Time {
		at := make(map[string]time.Time)
		for range rows {
			r := <-results
			if r.err != nil {
				t.Errorf("%s: %v", r.name, r.err)
			}
			at[r.name] = r.at
		}
		return at
	}
}

// An application is a process that uses everything that works on its pool.
type application struct {
	direct, pool *pgxpool.Pool // past the proxy, and through it
	client       *pgleases.Client
	lease        *pgleases.Lease
	others       *pgleases.Lease // of a client past the proxy, which evicts the client in the cut
	locks        *lock.Locks
	jobs         *schedule.Kind[int]
	apart        *schedule.Jobs[int] // enqueues past the proxy
	n            chan int            // numbers of what is done
}

func newApplication(t *timeguard.Try, url string, proxy *faults.Proxy) *application {
	p := &application{direct: testkit.Pool(t, url, size(12)), n: make(chan int, 1)}
	p.n <- 0
	p.pool = testkit.Pool(t, proxy.URL(), advised, size(12))
	p.client = newClient(t, p.pool, pgleases.WithTTL(trusted), pgleases.WithHeartbeat(500*time.Millisecond))
	p.lease = joined(t, p.client, "work", 4)
	p.locks = lock.New(p.client, p.pool)
	queue := consumer.Queue{Table: "public.orders", Key: "customer", Partitions: 8}
	testkit.OK(t, consumer.Migrate(t.Context(), p.direct))
	testkit.Execute(t, p.direct, consumer.TableSQL("orders", "", queue))
	testkit.Execute(t, p.direct, "CREATE TABLE public.effects (n int); CREATE TABLE public.ticks (at timestamptz)")
	rows := testkit.Must(consumer.New(t.Context(), p.client, p.pool, "orders", queue,
		consumer.Each(func(context.Context, pgx.Tx, consumer.Row[struct{}]) error { return nil })))(t)
	s := testkit.Must(schedule.New(t.Context(), p.client, p.pool, "cut"))(t)
	p.jobs = schedule.InTx(s, "job", func(ctx context.Context, tx pgx.Tx, r schedule.Run[int]) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.effects VALUES ($1)", r.Args)
		return err
	})
	ticks := schedule.InTx(s, "tick", func(ctx context.Context, tx pgx.Tx, r schedule.Run[struct{}]) error {
		_, err := tx.Exec(ctx, "INSERT INTO public.ticks VALUES ($1)", r.At)
		return err
	})
	testkit.OK(t, ticks.Add("second", struct{}{}, schedule.Every(time.Second), schedule.WithMissed(schedule.MissedAll)))
	p.apart = schedule.JobsOf[int](testkit.Must(schedule.NewEnqueuer(p.direct, "cut"))(t), "job")
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	go func() { ended <- rows.Run(ctx) }()
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		for range 2 {
			if err := <-ended; !errors.Is(err, context.Canceled) {
				t.Errorf("Run: %v", err)
			}
		}
	})
	other := newClient(t, p.direct, pgleases.WithClientID("other"), pgleases.WithTTL(trusted))
	p.others = joined(t, other, "work", 4)
	until(t, "they share", func() bool { return shared(p.lease, p.others) }, p.lease, p.others)
	return p
}

// advised are the settings of a pool that docs/database-failover.md advises.
func advised(config *pgxpool.Config) {
	config.PingTimeout = time.Second
	config.BeforeClose = func(conn *pgx.Conn) {
		if conn.IsClosed() {
			_ = conn.PgConn().Conn().Close()
		}
	}
}

// rows are what works with the client, each of which can be done at any time.
func (p *application) rows() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"a row of a consumer": func(ctx context.Context) error {
			var id int64
			const insert = `INSERT INTO public.orders (customer, payload)
				SELECT 'customer ' || $1::int, '{}' RETURNING id`
			err := p.direct.QueryRow(ctx, insert, p.number()).Scan(&id)
			if err != nil {
				return err
			}
			return p.becomes(ctx, "SELECT NOT EXISTS (SELECT FROM public.orders WHERE id = $1)", id)
		},
		"a job": func(ctx context.Context) error {
			n := p.number()
			if _, err := p.apart.Enqueue(ctx, n); err != nil {
				return err
			}
			return p.becomes(ctx, "SELECT EXISTS (SELECT FROM public.effects WHERE n = $1)", n)
		},
		"Enqueue": func(ctx context.Context) error { _, err := p.jobs.Enqueue(ctx, p.number()); return err },
		"a named lock": func(ctx context.Context) error {
			held, err := p.locks.Acquire(ctx, fmt.Sprint("lock ", p.number()))
			if err != nil {
				return err
			}
			return held.Release(ctx)
		},
		"Lease.Owner": p.owner,
	}
}

// owner asks for the owner of a partition until it gets an answer, because a question whose answer
// is lost returns an error. The client knows what it owns itself, so it asks for another partition.
func (p *application) owner(ctx context.Context) error {
	for {
		owner, owned, err := p.lease.Owner(ctx, p.others.Values()[0])
		switch {
		case err == nil && (!owned || owner.ID != "other"):
			return fmt.Errorf("the owner is %+v", owner)
		case err == nil || ctx.Err() != nil:
			return err
		}
		pause(ctx, 10*time.Millisecond)
	}
}

// tick waits for a tick after now.
func (p *application) tick(ctx context.Context) error {
	return p.becomes(ctx, "SELECT EXISTS (SELECT FROM public.ticks WHERE at > $1)", time.Now())
}

// number returns a number that was not used before.
func (p *application) number() int {
	n := <-p.n + 1
	p.n <- n
	return n
}

// becomes waits until a query is true.
func (p *application) becomes(ctx context.Context, query string, args ...any) error {
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	for is := false; ; {
		err := p.direct.QueryRow(ctx, query, args...).Scan(&is)
		if err != nil || is {
			return err
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return fmt.Errorf("not so: %s: %w", query, context.Cause(ctx))
		}
	}
}

// fill opens all connections that the pool may have, so that all of them fall silent.
func (p *application) fill(t *timeguard.Try) {
	t.Helper()
	var conns []*pgxpool.Conn
	for range p.pool.Config().MaxConns {
		conns = append(conns, testkit.Must(p.pool.Acquire(t.Context()))(t))
	}
	for _, conn := range conns {
		conn.Release()
	}
}

// back waits until the client has connected again, and returns when that was.
func (p *application) back(t *timeguard.Try) time.Time {
	t.Helper()
	waitFor(t, patience, "the client has connected again", func() bool { return p.client.Stats().Reconnects > 0 })
	return time.Now()
}

// A supervised is a process of the command that runs a program.
type supervised struct {
	program chan string
	back    time.Time // when its client had connected again
}

func startCommand(t *timeguard.Try, path, url string) *supervised {
	t.Helper()
	cmd := exec.Command(path, "run", "programs", "-n", "1", "--ttl", trusted.String(), "--id", "command",
		"--", "sh", "-c", `echo "it runs"; exec sleep 1000`)
	cmd.Env = append(os.Environ(), "DATABASE_URL="+url)
	out := testkit.Must(cmd.StdoutPipe())(t)
	testkit.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGKILL)
		_ = cmd.Wait()
	})
	c := &supervised{program: lines(out)}
	testkit.OK(t, next(t.Context(), c.program, "it runs"))
	return c
}

// restarted waits until its client has sent a heartbeat again, and until its program runs again.
func (c *supervised) restarted(ctx context.Context, beside *application) (err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	const lives = "SELECT EXISTS (SELECT FROM pgleases.clients WHERE id = 'command' AND expires_at > clock_timestamp())"
	err = beside.becomes(ctx, "SELECT NOT ("+lives+")") // it expires in the cut
	if err != nil {
		return err
	}
	err = beside.becomes(ctx, lives)
	if err != nil {
		return err
	}
	c.back = time.Now()
	return next(ctx, c.program, "it runs")
}

// lines returns what is read, line by line.
func lines(from io.Reader) chan string {
	all := make(chan string, 1000)
	go func() {
		defer close(all)
		for scanner := bufio.NewScanner(from); scanner.Scan(); {
			all <- scanner.Text()
		}
	}()
	return all
}

// next waits for the next line with a text.
func next(ctx context.Context, from chan string, text string) error {
	for {
		select {
		case line, more := <-from:
			switch {
			case !more:
				return fmt.Errorf("the command has ended, before it printed %q", text)
			case strings.Contains(line, text):
				return nil
			}
		case <-ctx.Done():
			return fmt.Errorf("the command does not print %q: %w", text, context.Cause(ctx))
		}
	}
}

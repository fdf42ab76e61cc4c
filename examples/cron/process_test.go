//go:build unix

package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

const (
	// envProcess makes this test binary a process that runs jobs, with the client ID that it holds.
	envProcess = "PGLEASES_CRON_PROCESS"
	jobCount   = 20
	testTTL    = 2 * time.Second
	// patience bounds what a test waits for. The 100 latest ticks are made up for, so that none is missing on a machine that is busy for less than that.
	patience = 4 * time.Minute
)

func TestMain(m *testing.M) {
	if id := os.Getenv(envProcess); id != "" {
		if err := work(id, os.Getenv("DATABASE_URL")); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// effects is what the jobs write. It has no unique key on purpose: a tick that was run twice shall be seen, not prevented.
// frozen has the ticks in the middle of which a process froze.
const testTables = `
CREATE TABLE effects (job text, tick timestamptz, worker text, ran_at timestamptz DEFAULT clock_timestamp());
CREATE TABLE frozen (job text, tick timestamptz, worker text)`

// work is a process: jobs at every second. Told so by a line, it freezes in the middle of a job.
func work(id, url string) error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	var freeze atomic.Bool
	go func() {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			freeze.Store(true)
		}
		os.Exit(1) // the end of the input is that of the test
	}()
	declare := func(s *schedule.Scheduler) error {
		job := schedule.InTx(s, "job", func(ctx context.Context, tx pgx.Tx, r schedule.Run[bool]) error {
			_, err := tx.Exec(ctx, "INSERT INTO effects (job, tick, worker) VALUES ($1, $2, $3)", r.Name, r.At, id)
			if err == nil && freeze.CompareAndSwap(true, false) {
				err = freezeHere(ctx, url, r.Name, r.At, id)
			}
			return err
		}, schedule.Idle(time.Second)) // so long a process that is frozen in a job delays the next owner
		for i := range jobCount {
			if err := job.Add(fmt.Sprintf("job-%02d", i), true, schedule.Every(time.Second), schedule.MissedAll, schedule.OverlapBuffer); err != nil {
				return err
			}
		}
		return nil
	}
	return run(ctx, url, declare, pgleases.WithClientID(id), pgleases.WithTTL(testTTL))
}

func freezeHere(ctx context.Context, url, job string, tick time.Time, id string) error {
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	defer conn.Close(ctx)
	_, err = conn.Exec(ctx, "INSERT INTO frozen (job, tick, worker) VALUES ($1, $2, $3)", job, tick, id)
	if err != nil {
		return err
	}
	thawed := make(chan os.Signal, 1)
	signal.Notify(thawed, syscall.SIGCONT)
	defer signal.Stop(thawed)
	if err := syscall.Kill(os.Getpid(), syscall.SIGSTOP); err != nil {
		return err
	}
	<-thawed // the stop may come after Kill has returned, and this must not get as far as its commit before
	return nil
}

func TestEveryTickRunsOnceThroughCloseKillAndFreeze(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	url, _ := database(t)
	conn := connect(t, ctx, url)
	if _, err := conn.Exec(ctx, testTables); err != nil {
		t.Fatal(err)
	}
	h := history{t, ctx, url, conn}

	// A new job has missed nothing, so the faults wait until each was run once.
	one, two, three := h.start("one"), h.start("two"), h.start("three")
	h.eventually("all jobs run, on all processes", `
		SELECT count(DISTINCT job) = $1 AND count(DISTINCT worker) = 3 FROM effects`, jobCount)
	begin := time.Now()

	three.terminate()
	h.allRunAt(time.Now())
	three = h.start("three")
	h.eventually("the restarted process runs jobs", `
		SELECT EXISTS (SELECT FROM effects WHERE worker = 'three' AND tick > $1)`, time.Now())

	two.kill()
	h.allRunAt(time.Now())
	two = h.start("two")
	h.eventually("the new process runs jobs", `
		SELECT EXISTS (SELECT FROM effects WHERE worker = 'two' AND tick > $1)`, time.Now())

	if _, err := io.WriteString(one.input, "freeze\n"); err != nil {
		t.Fatal(err)
	}
	h.eventually("a process is frozen", `SELECT EXISTS (SELECT FROM frozen)`)
	h.eventually("its session has expired", `SELECT NOT EXISTS (SELECT FROM pgleases.clients WHERE id = 'one')`)
	h.allRunAt(time.Now())
	if err := one.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	h.eventually("the thawed process runs jobs", `
		SELECT EXISTS (SELECT FROM effects WHERE worker = 'one' AND tick > $1)`, time.Now())

	end := time.Now()
	h.allRunAt(end)
	for _, p := range []*process{one, two, three} {
		p.terminate()
	}
	h.check("all jobs ran to the end", `
		SELECT count(*) = $1 FROM (SELECT job FROM effects GROUP BY job HAVING min(tick) <= $2 AND max(tick) >= $3) AS whole`,
		jobCount, begin, end)
	h.check("no tick ran twice", `
		SELECT count(*) = 0 FROM (SELECT FROM effects GROUP BY job, tick HAVING count(*) > 1) AS twice`)
	h.check("no tick is missing", `
		SELECT count(*) = 0 FROM (SELECT FROM effects GROUP BY job
			HAVING count(DISTINCT tick) <> extract(epoch FROM max(tick) - min(tick)) + 1) AS incomplete`)
	h.check("what ran is recorded, and nothing else", `
		SELECT count(*) = 0 FROM effects AS e FULL JOIN (SELECT * FROM pgleases.history WHERE fate = 'done') AS h ON h.name = e.job AND h.until = e.tick
		WHERE e.job IS NULL OR h.name IS NULL`)
	h.check("no tick has another fate", "SELECT count(*) = 0 FROM pgleases.history WHERE fate <> 'done'")
	h.check("a tick runs under no lower epoch than those before it", `
		SELECT count(*) = 0 FROM (SELECT epoch < max(epoch) OVER (PARTITION BY name ORDER BY until) AS late
			FROM pgleases.history) AS runs WHERE late`)
	h.check("another process ran the tick in which one froze", `
		SELECT count(*) = 1 FROM frozen JOIN effects USING (job, tick) WHERE effects.worker <> frozen.worker`)
	var runs, late int
	var latest time.Duration
	err := conn.QueryRow(ctx, `
		SELECT count(*), count(*) FILTER (WHERE ran_at > tick + interval '0.5 s'), max(ran_at - tick)
		FROM effects`).Scan(&runs, &late, &latest)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d ticks, %d of them more than half a second late, the latest by %v", runs, late, latest)
}

// A history is a test's processes and database.
type history struct {
	t    *testing.T
	ctx  context.Context
	url  string
	conn *pgx.Conn
}

func connect(t *testing.T, ctx context.Context, url string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(ctx)) })
	return conn
}

// check fails the test where the query does not say true.
func (h *history) check(what, query string, args ...any) {
	h.t.Helper()
	if !h.ask(query, args...) {
		h.t.Errorf("%s: no", what)
	}
}

func (h *history) ask(query string, args ...any) (holds bool) {
	h.t.Helper()
	if err := h.conn.QueryRow(h.ctx, query, args...).Scan(&holds); err != nil {
		h.t.Fatal(err)
	}
	return holds
}

// eventually waits until the query says true.
func (h *history) eventually(what, query string, args ...any) {
	h.t.Helper()
	again := time.NewTicker(20 * time.Millisecond)
	defer again.Stop()
	for !h.ask(query, args...) {
		select {
		case <-again.C:
		case <-h.ctx.Done():
			h.t.Fatalf("%s: not in time", what)
		}
	}
}

// allRunAt waits until all jobs have run at the first tick from then on.
func (h *history) allRunAt(then time.Time) {
	h.t.Helper()
	h.eventually("all jobs run", `
		SELECT count(DISTINCT job) = $1 FROM effects WHERE tick >= $2 AND tick < $2::timestamptz + interval '1 s'`, jobCount, then)
}

// A process is a process that runs jobs.
type process struct {
	h     *history
	id    string
	cmd   *exec.Cmd
	input io.Writer
	done  chan struct{} // closed when it is gone
	err   error         // how it ended; read it after done
}

func (h *history) start(id string) *process {
	h.t.Helper()
	program, err := os.Executable()
	if err != nil {
		h.t.Fatal(err)
	}
	p := &process{h: h, id: id, cmd: exec.Command(program), done: make(chan struct{})}
	p.cmd.Env = append(os.Environ(), envProcess+"="+id, "DATABASE_URL="+h.url)
	// A group of its own, without the terminal's Ctrl-C. When this process ends it is an orphan, which the system
	// continues where it is frozen; then it finds its input at the end.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var log strings.Builder
	p.cmd.Stderr = &log
	if p.input, err = p.cmd.StdinPipe(); err != nil {
		h.t.Fatal(err)
	}
	if err := p.cmd.Start(); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	h.t.Cleanup(func() {
		p.kill()
		if h.t.Failed() {
			h.t.Logf("what %s logged:\n%s", id, &log)
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // an error tells that it is gone
	<-p.done
}

// terminate ends it as a process manager does, and checks that it ends in good order.
func (p *process) terminate() {
	p.h.t.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.h.t.Fatal(err)
	}
	select {
	case <-p.done:
		if p.err != nil {
			p.h.t.Errorf("%s ended with %v", p.id, p.err)
		}
	case <-p.h.ctx.Done():
		p.h.t.Fatalf("%s did not end", p.id)
	}
}

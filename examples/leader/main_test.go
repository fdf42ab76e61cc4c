//go:build unix

package main

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// envProcess makes this test binary the program.
const envProcess = "PGLEASES_LEADER_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(envProcess) != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // its end is that of the test
			os.Exit(1)
		}()
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The TTL is short, so that the test is; on a busy machine a leader may lose its trust, and another leads, before its crash or end.
func TestOneLeadsAndAnotherAfterItsCrashOrEnd(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	e := election{url: pgtest.Database(t), said: make(chan line, 1000), processes: make(map[string]*process)}
	conn := testkit.Must(pgx.Connect(ctx, e.url))(t)
	defer conn.Close(context.WithoutCancel(ctx))

	// They start together: creating the tables must bear that.
	for _, id := range []string{"one", "two"} {
		e.start(ctx, t, id)
	}
	ready := make(map[string]bool)
	for len(ready) < len(e.processes) {
		ready[e.next(ctx, t).who] = true
	}
	first, last := e.leader(ctx, t, conn, row{Leader: "no leader yet"})
	e.start(ctx, t, "three")
	for standby := regexp.MustCompile(`^three: standby: (one|two) leads under epoch \d+$`); ; {
		if l := e.next(ctx, t); standby.MatchString(l.who + ": " + l.what) {
			break
		}
	}
	who := exec.CommandContext(ctx, testkit.Must(os.Executable())(t), "-who")
	who.Env = first.cmd.Env
	testkit.Must(who.StdinPipe())(t) // see TestMain
	if text, err := who.Output(); err != nil || !regexp.MustCompile(`^(one|two|three) leads under epoch \d+\n$`).Match(text) {
		t.Errorf("-who printed %q, %v", text, err)
	}
	rename := func(from, to string) {
		testkit.Must(conn.Exec(ctx, "ALTER TABLE pgleases_leader."+from+" RENAME TO "+to))(t)
	}
	rename("leader_ticks", "elsewhere")
	for failed := (line{}); ; { // it leads on: two ticks in a row fail
		l := e.next(ctx, t)
		l.what, _, _ = strings.Cut(l.what, ":")
		if l == failed {
			break
		}
		if failed = (line{}); l.what == "a tick failed" {
			failed = l
		}
	}
	rename("elsewhere", "leader_ticks")
	_ = first.cmd.Process.Kill()
	<-first.done

	second, last := e.leader(ctx, t, conn, last)
	second.terminate(ctx, t)

	third, last := e.leader(ctx, t, conn, last)
	third.terminate(ctx, t)

	if left := read(ctx, t, conn); left.Epoch < last.Epoch || left.Leader != third.id {
		t.Errorf("the last leader was %s, of epoch %d or a later one; the row has %+v", third.id, last.Epoch, left)
	}
	var clean bool
	err := conn.QueryRow(ctx, `
		SELECT NOT EXISTS (SELECT FROM pgleases.clients)
		AND NOT EXISTS (SELECT FROM pgleases.partitions WHERE owner IS NOT NULL)`).Scan(&clean)
	if err != nil || !clean {
		t.Errorf("a client or an owner was left behind, %v", err)
	}
}

// An election is the processes and what they say.
type election struct {
	url       string
	said      chan line
	processes map[string]*process
}

// A line is what a process printed.
type line struct{ who, what string }

// A process is the program in a process of its own.
type process struct {
	id   string
	cmd  *exec.Cmd
	done chan struct{} // closed when it is gone
	err  error         // how it ended; read it after done
}

func (e *election) start(ctx context.Context, t *testing.T, id string) {
	t.Helper()
	program := testkit.Must(os.Executable())(t)
	p := &process{id: id, done: make(chan struct{})}
	p.cmd = exec.Command(program, "-id="+id, "-ttl=2s")
	p.cmd.Env = append(os.Environ(), envProcess+"=1", "DATABASE_URL="+e.url)
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // without the terminal's Ctrl-C
	var log strings.Builder
	p.cmd.Stderr = &log
	testkit.Must(p.cmd.StdinPipe())(t)
	output := testkit.Must(p.cmd.StdoutPipe())(t)
	testkit.OK(t, p.cmd.Start())
	go func() {
		for lines := bufio.NewScanner(output); lines.Scan(); {
			who, what, _ := strings.Cut(lines.Text(), ": ")
			e.said <- line{who, what}
		}
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill() // an error tells that it is gone
		<-p.done
		if t.Failed() {
			t.Logf("what %s logged:\n%s", id, &log)
		}
	})
	e.processes[id] = p
}

// next returns what is said next.
func (e *election) next(ctx context.Context, t *testing.T) line {
	t.Helper()
	select {
	case l := <-e.said:
		t.Logf("%s: %s", l.who, l.what)
		return l
	case <-ctx.Done():
		t.Fatal("no process prints anything")
		return line{}
	}
}

// terminate ends a process as a process manager does, and checks that it ends in good order.
func (p *process) terminate(ctx context.Context, t *testing.T) {
	t.Helper()
	testkit.OK(t, p.cmd.Process.Signal(syscall.SIGTERM))
	select {
	case <-p.done:
		if p.err != nil {
			t.Errorf("%s ended with %v", p.id, p.err)
		}
	case <-ctx.Done():
		t.Fatalf("%s did not end", p.id)
	}
}

// A row is the table's.
type row struct {
	Epoch  int64
	Leader string
	Ticks  int64
}

func read(ctx context.Context, t *testing.T, conn *pgx.Conn) row {
	t.Helper()
	rows := testkit.Must(conn.Query(ctx, "SELECT epoch, leader, ticks FROM pgleases_leader.leader_ticks"))(t)
	return testkit.Must(pgx.CollectExactlyOneRow(rows, pgx.RowToStructByPos[row]))(t)
}

// leader waits until a process that lives has advanced the row under an epoch higher than the last, and returns it with the row as it
// is then.
func (e *election) leader(ctx context.Context, t *testing.T, conn *pgx.Conn, last row) (*process, row) {
	t.Helper()
	again := time.NewTicker(5 * time.Millisecond)
	defer again.Stop()
	for before := last.Epoch; ; {
		r := read(ctx, t, conn)
		if r.Leader != last.Leader && r.Epoch <= last.Epoch || r.Epoch < last.Epoch || r.Ticks < last.Ticks {
			t.Fatalf("%+v follows %+v", r, last)
		}
		last = r
		if p := e.processes[r.Leader]; p != nil && r.Epoch > before && !p.ended() {
			return p, r
		}
		select {
		case <-again.C:
		case <-ctx.Done():
			t.Fatalf("no process leads and ticks: %+v", r)
		}
	}
}

// ended reports whether a process is gone.
func (p *process) ended() bool {
	select {
	case <-p.done:
		return true
	default:
		return false
	}
}

//go:build unix

package pgserver_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/proof/pgserver"
)

// envHelper makes the test binary a program that provides a server, and a pooler, and then waits to be ended.
const envHelper = "PGTEST_HELPER"

func TestMain(m *testing.M) {
	if how := os.Getenv(envHelper); how != "" {
		if err := helper(how); err != nil {
			fmt.Println("error:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(pgserver.Main(m))
}

func helper(how string) error {
	ctx := context.Background()
	opts := []pgserver.Option{pgserver.WithPrivate()}
	if how == "shared" {
		opts = nil
	}
	s, err := pgserver.Start(ctx, opts...)
	if err != nil {
		return err
	}
	fmt.Println("server", s.URL())
	for _, pid := range s.Pids() {
		fmt.Println("pid", pid)
	}
	switch how {
	case "bouncer":
		b, err := pgserver.PgBouncer(ctx, s.URL())
		if err != nil {
			return err
		}
		fmt.Println("server", b.URL())
	case "paused":
		if err := s.Pause(); err != nil {
			return err
		}
	case "exit":
		return nil // without Stop
	}
	fmt.Println("ready")
	select {}
}

// startHelper returns the running helper, the URLs of what it started, and the pids of its server's processes.
func startHelper(t *testing.T, how, tempDir string) (cmd *exec.Cmd, urls []string, pids []int) {
	t.Helper()
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd = exec.Command(program)
	cmd.Env = append(os.Environ(), envHelper+"="+how, "TMPDIR="+tempDir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for lines := bufio.NewScanner(out); lines.Scan(); {
		word, rest, _ := strings.Cut(lines.Text(), " ")
		switch word {
		case "server":
			urls = append(urls, rest)
		case "pid":
			pid, _ := strconv.Atoi(rest)
			pids = append(pids, pid)
		case "ready":
			return cmd, urls, pids
		case "error:":
			t.Fatal("the helper: ", rest)
		}
	}
	if how != "exit" {
		t.Fatal("the helper ended")
	}
	return cmd, urls, pids
}

func eventually(t *testing.T, within time.Duration, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", within, what)
		}
	}
}

func alive(pid int) bool {
	if stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
		_, state, _ := strings.Cut(string(stat), ") ")
		return !strings.HasPrefix(state, "Z") // where nobody reaps orphans
	}
	return !errors.Is(syscall.Kill(pid, 0), syscall.ESRCH)
}

// anyAlive reports whether one of the processes lives on. One that was killed may take a moment to go.
func anyAlive(pids []int) bool {
	for deadline := time.Now().Add(5 * time.Second); slices.ContainsFunc(pids, alive); {
		if time.Now().After(deadline) {
			return true
		}
		time.Sleep(time.Millisecond)
	}
	return false
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// connect opens a connection that works through a pooler in transaction mode too.
func connect(t *testing.T, url string) *pgx.Conn {
	t.Helper()
	conn, err := tryConnect(testContext(t), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close(context.Background()) })
	return conn
}

func tryConnect(ctx context.Context, url string) (*pgx.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	return pgx.ConnectConfig(ctx, config)
}

func query(t *testing.T, conn *pgx.Conn, sql string) string {
	t.Helper()
	var text string
	if err := conn.QueryRow(testContext(t), sql).Scan(&text); err != nil {
		t.Fatal(err)
	}
	return text
}

func exec1(t *testing.T, conn *pgx.Conn, sql string) {
	t.Helper()
	if _, err := conn.Exec(testContext(t), sql); err != nil {
		t.Fatal(err)
	}
}

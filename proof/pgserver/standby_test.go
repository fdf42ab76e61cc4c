//go:build unix

package pgserver_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/proof/pgserver"
)

func TestAStandbyFollowsAndIsPromoted(t *testing.T) {
	t.Parallel()
	primary := pgserver.Private(t, pgserver.WithSettings(map[string]string{"max_connections": "250"}))
	conn := connect(t, primary.URL())
	exec1(t, conn, "CREATE TABLE before AS SELECT n FROM generate_series(1, 10000) AS n")
	exec1(t, conn, "CREATE UNLOGGED TABLE mark AS SELECT 1 AS n")
	standby := newStandby(t, primary, pgserver.WithSettings(map[string]string{"application_name": "the standby"}))
	second := newStandby(t, primary)
	exec1(t, conn, "CREATE TABLE since AS SELECT 1 AS n")

	read := connect(t, standby.URL())
	eventually(t, 10*time.Second, "the standby has what was written since", func() bool {
		return query(t, read, "SELECT to_regclass('since') IS NOT NULL") == "t"
	})
	for sql, want := range map[string]string{
		"SELECT pg_is_in_recovery()":                       "t",
		"SELECT count(*) FROM before":                      "10000",
		"SHOW max_connections":                             "250", // else it could not follow
		"SELECT current_setting('application_name', true)": "the standby",
	} {
		if got := query(t, read, sql); got != want {
			t.Errorf("%s: %s, want %s", sql, got, want)
		}
	}
	if _, err := read.Exec(t.Context(), "CREATE TABLE refused ()"); err == nil {
		t.Error("a standby took a write")
	}

	began := time.Now()
	if err := standby.Promote(testContext(t)); err != nil {
		t.Fatal(err)
	}
	t.Log("promoted in", time.Since(began))
	exec1(t, read, "CREATE TABLE after AS SELECT 1 AS n")
	if left := query(t, read, "SELECT count(*) FROM mark"); left != "0" {
		t.Error("an unlogged table survived the promotion")
	}
	timeline := "SELECT left(pg_walfile_name(pg_current_wal_lsn()), 8)"
	if old, now := query(t, conn, timeline), query(t, read, timeline); old != "00000001" || now != "00000002" {
		t.Errorf("timelines %s and %s", old, now)
	}
	exec1(t, conn, "CREATE TABLE apart AS SELECT 1 AS n") // the old primary goes on, and the second standby with it
	reread := connect(t, second.URL())
	eventually(t, 10*time.Second, "the other standby follows the old primary", func() bool {
		return query(t, reread, "SELECT to_regclass('apart') IS NOT NULL") == "t"
	})
	if query(t, read, "SELECT to_regclass('apart') IS NULL") != "t" {
		t.Error("the new primary got what was written on the old one")
	}
	if err := standby.Restart(testContext(t), pgserver.Fast); err != nil {
		t.Fatal(err)
	}
	if query(t, connect(t, standby.URL()), "SELECT pg_is_in_recovery()") != "f" {
		t.Error("a promoted server restarts as a standby")
	}
	if err := primary.Promote(testContext(t)); err == nil {
		t.Error("a primary was promoted")
	}
}

func TestAStandbyOfAStandby(t *testing.T) {
	t.Parallel()
	primary := pgserver.Private(t)
	middle := newStandby(t, primary)
	config, err := pgx.ParseConfig(middle.URL())
	if err != nil {
		t.Fatal(err)
	}
	last := newStandby(t, primary, pgserver.WithSettings(map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres", config.Port),
	}))
	if err := middle.Promote(testContext(t)); err != nil {
		t.Fatal(err)
	}
	exec1(t, connect(t, middle.URL()), "CREATE TABLE since AS SELECT 1 AS n")
	read := connect(t, last.URL())
	eventually(t, 10*time.Second, "the last one follows onto the new timeline", func() bool {
		return query(t, read, "SELECT to_regclass('since') IS NOT NULL") == "t"
	})
}

func TestAStandbyLeavesNothing(t *testing.T) {
	dir := reachableTempDir(t)
	t.Setenv("TMPDIR", dir)
	primary := pgserver.Private(t)
	before := len(entries(t, dir))
	standby, err := primary.Standby(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	pids := standby.Pids()
	if err := standby.Stop(); err != nil {
		t.Fatal(err)
	}
	if anyAlive(pids) {
		t.Errorf("some of %v live", pids)
	}
	_, err = primary.Standby(testContext(t), pgserver.WithSettings(map[string]string{"no_such_setting": "1"}))
	if err == nil || !strings.Contains(err.Error(), `unrecognized configuration parameter "no_such_setting"`) {
		t.Errorf("error %v does not show the standby's log", err)
	}
	if n := len(entries(t, dir)); n != before {
		t.Errorf("%d folders, %d before", n, before)
	}
}

// A helper (see startHelper) that has a standby too.
func init() {
	if os.Getenv(envHelper) != "standby" {
		return
	}
	ctx := context.Background()
	primary, err := pgserver.Start(ctx, pgserver.WithPrivate())
	if err == nil {
		var standby *pgserver.Server
		if standby, err = primary.Standby(ctx); err == nil {
			for _, pid := range append(primary.Pids(), standby.Pids()...) {
				fmt.Println("pid", pid)
			}
			fmt.Println("server", standby.URL())
			fmt.Println("ready")
			select {}
		}
	}
	fmt.Println("error:", err)
	os.Exit(1)
}

func TestNoStandbyOutlivesItsParent(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("only Linux has a death signal")
	}
	t.Parallel()
	dir := reachableTempDir(t)
	cmd, urls, pids := startHelper(t, "standby", dir)
	if query(t, connect(t, urls[0]), "SELECT pg_is_in_recovery()") != "t" {
		t.Error("no standby")
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, "all processes gone", func() bool { return !anyAlive(pids) && !mentioned(dir) })
}

func TestNoStandbyOfAForeignServer(t *testing.T) {
	t.Setenv(pgserver.EnvDatabaseURL, pgserver.Private(t).URL())
	foreign, err := pgserver.Start(testContext(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := foreign.Standby(testContext(t)); !errors.Is(err, pgserver.ErrNotOwned) {
		t.Errorf("a standby: %v", err)
	}
	if err := foreign.Promote(testContext(t)); !errors.Is(err, pgserver.ErrNotOwned) {
		t.Errorf("promoted: %v", err)
	}
}

// newStandby starts a standby, stopped with the test.
func newStandby(t *testing.T, of *pgserver.Server, opts ...pgserver.Option) *pgserver.Server {
	t.Helper()
	began := time.Now()
	s, err := of.Standby(testContext(t), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Log(s.Describe(), "started in", time.Since(began))
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s, the end of its log:\n%s", s.Describe(), s.Log())
		}
		if err := s.Stop(); err != nil {
			t.Error(err)
		}
	})
	return s
}

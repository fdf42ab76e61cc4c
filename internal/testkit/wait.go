package testkit

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest"
)

// A T is a test. Those of package rapid do not implement testing.TB.
type T interface {
	Helper()
	Fatal(args ...any)
}

// OK ends the test if there is an error.
func OK(t T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Must returns a value, or ends the test if there is an error: value := testkit.Must(call())(t).
func Must[V any](value V, err error) func(T) V {
	return func(t T) V {
		t.Helper()
		OK(t, err)
		return value
	}
}

// Pool returns a pool on a database, closed with the test. A test that failed may have a transaction
// open, for which Close would wait without an end.
func Pool(t testing.TB, databaseURL string, configure ...func(*pgxpool.Config)) *pgxpool.Pool {
	t.Helper()
	config, err := pgtest.ParseConfig(databaseURL)
	OK(t, err)
	for _, f := range configure {
		f(config)
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	OK(t, err)
	t.Cleanup(func() {
		closed := make(chan struct{})
		go func() { pool.Close(); close(closed) }()
		select {
		case <-closed:
		case <-time.After(Patience):
			t.Errorf("a connection was not released within %v", Patience)
		}
	})
	return pool
}

// StrayPool returns a pool of the owner whose first connections cannot write, as those that were
// opened while their address led to a standby. They are the next ones that it lends. It leads past a
// pooler, which would lend such sessions to others.
func StrayPool(t testing.TB, databaseURL string, strays int) *pgxpool.Pool {
	t.Helper()
	var opened atomic.Int64
	past, _ := pgtest.DirectURL(pgtest.OwnerURL(databaseURL))
	pool := Pool(t, past, func(c *pgxpool.Config) {
		c.MaxConns = int32(strays) + 1
		c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
			if opened.Add(1) > int64(strays) {
				return nil
			}
			_, err := conn.Exec(ctx, "SET default_transaction_read_only = on")
			return err
		}
	})
	conns := make([]*pgxpool.Conn, strays)
	for i := range conns {
		conns[i] = Must(pool.Acquire(t.Context()))(t)
	}
	for _, conn := range conns {
		conn.Release()
	}
	return pool
}

// Execute runs statements. Without arguments, one text may contain several.
func Execute(t testing.TB, pool *pgxpool.Pool, statements string, args ...any) {
	t.Helper()
	if len(args) == 0 {
		args = []any{pgx.QueryExecModeSimpleProtocol}
	}
	if _, err := pool.Exec(context.Background(), statements, args...); err != nil {
		t.Fatalf("%s: %v", statements, err)
	}
}

// Value returns the one value of a query.
func Value[T any](t testing.TB, pool *pgxpool.Pool, query string, args ...any) (value T) {
	t.Helper()
	if err := pool.QueryRow(context.Background(), query, args...).Scan(&value); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
	return value
}

// BlocksRead returns how many blocks the server reads for a query, in memory or not. The test needs
// a database of its own (pgtest.FreshDatabase). In one that was emptied, each entry of an index for a
// deleted row is read again, until every transaction of the server that was open then has ended.
func BlocksRead(t testing.TB, db interface {
	QueryRow(ctx context.Context, query string, args ...any) pgx.Row
}, query string, args ...any) int {
	t.Helper()
	var plans []struct {
		Plan struct {
			Hit  int `json:"Shared Hit Blocks"`
			Read int `json:"Shared Read Blocks"`
		}
	}
	OK(t, db.QueryRow(t.Context(), "EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) "+query, args...).Scan(&plans))
	return plans[0].Plan.Hit + plans[0].Plan.Read
}

// SameAsFile compares a text with a file that has been made of it; if write, it writes the file
// first. advice says what to do about a difference.
func SameAsFile(t testing.TB, path, text string, write bool, advice string) {
	t.Helper()
	if write {
		OK(t, os.WriteFile(path, []byte(text), 0o644))
	}
	want := string(Must(os.ReadFile(path))(t))
	if want != text {
		have, had := strings.Split(text, "\n"), strings.Split(want, "\n")
		missing := slices.DeleteFunc(slices.Clone(had), func(l string) bool { return slices.Contains(have, l) })
		added := slices.DeleteFunc(have, func(l string) bool { return slices.Contains(had, l) })
		t.Errorf("%s differs: %s\nmissing: %q\nadded: %q", path, advice, missing, added)
	}
}

// Until polls until a condition is true for which there is no notification: every few milliseconds,
// and less often in a long wait. It fails at once if a program has ended that the test needs.
func Until(t testing.TB, what string, is func() bool) {
	t.Helper()
	for began := time.Now(); !is(); {
		err := lacks(t)
		if err != nil && !is() { // what the program did last may have made it true
			t.Fatalf("not so: %s: %v", what, err)
		}
		waited := time.Since(began)
		if waited > Patience {
			t.Fatalf("not so within %v: %s", Patience, what)
		}
		time.Sleep(min(5*time.Millisecond+waited/16, 50*time.Millisecond))
	}
}

// Becomes waits until the one value of a query is as wanted.
func Becomes[V comparable](t testing.TB, pool *pgxpool.Pool, what string, want V, query string, args ...any) {
	t.Helper()
	got := want
	defer func() {
		if got != want {
			t.Logf("it is %v, not %v: %s", got, want, query)
		}
	}()
	Until(t, what, func() bool { got = Value[V](t, pool, query, args...); return got == want })
}

// Receive waits for a value that should arrive soon. It fails at once if a program has ended that
// the test needs, unless the value arrives right after that.
func Receive[T any](t testing.TB, what string, from <-chan T) T {
	t.Helper()
	late := time.After(Patience)
	look := time.NewTicker(50 * time.Millisecond)
	defer look.Stop()
	for ended := error(nil); ; {
		select {
		case value := <-from:
			return value
		case <-late:
			t.Fatalf("not so within %v: %s", Patience, what)
		case <-look.C:
			if ended != nil {
				t.Fatalf("not so: %s: %v", what, ended)
			}
			ended = lacks(t)
		}
	}
}

// Modes returns the modes of pgx in which statements reach that database, also through a pooler.
func Modes(databaseURL string) []pgx.QueryExecMode {
	modes := []pgx.QueryExecMode{pgx.QueryExecModeExec, pgx.QueryExecModeSimpleProtocol}
	if _, pooled := pgtest.DirectURL(databaseURL); !pooled { // the others prepare statements
		modes = append(modes,
			pgx.QueryExecModeCacheStatement,
			pgx.QueryExecModeCacheDescribe,
			pgx.QueryExecModeDescribeExec,
		)
	}
	return modes
}

package fence_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// docs/fence.md shows lines of these examples and tests word for word.

func billGuarded(
	ctx context.Context, elsewhere *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition, order, cents int,
) error {
	const fences = fence.Schema("pgleases")
	return pgx.BeginFunc(ctx, elsewhere, func(tx pgx.Tx) error {
		if err := fences.Check(ctx, tx, fence.Name(lease.Name(), p.Number), p.Epoch); err != nil {
			return err // fence.ErrFenced: a newer owner writes; roll back
		}
		const bill = "INSERT INTO bills (number, cents) VALUES ($1, $2) ON CONFLICT (number) DO NOTHING"
		_, err := tx.Exec(ctx, bill, order, cents)
		return err
	})
}

// The comment of package fence shows these lines.
var _ = func(ctx context.Context, elsewhere *pgxpool.Pool, lease *pgleases.Lease, p pgleases.Partition) error {
	const fences = fence.Schema("pgleases")

	err := pgx.BeginFunc(ctx, elsewhere, func(tx pgx.Tx) error {
		if err := fences.Check(ctx, tx, fence.Name(lease.Name(), p.Number), p.Epoch); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, "UPDATE ...")
		return err
	})
	return err
}

// The leases are in one database, the bills in another.
func ExampleSchema_Check() {
	x := new(pgtest.Example)
	defer x.End()
	ctx, cancel := context.WithTimeout(context.Background(), testkit.Patience)
	defer cancel()
	open := func(url string) *pgxpool.Pool {
		pool, err := pgtest.NewPool(ctx, url)
		x.Check(err)
		x.Cleanup(pool.Close)
		return pool
	}
	const bills = "CREATE TABLE bills (number bigint PRIMARY KEY, cents bigint NOT NULL)"
	leases, elsewhere := open(pgtest.ExampleURL()), open(pgtest.ExampleURL(bills))
	if _, err := elsewhere.Exec(ctx, fence.Schema("pgleases").SQL()); err != nil { // once, or in a migration
		log.Fatal(err)
	}
	client, err := pgleases.NewClient(ctx, leases)
	x.Check(err)
	defer func() { x.Check(client.Close(ctx)) }()
	lease, err := client.Lease(ctx, "orders", 128)
	x.Check(err)
	x.Check(lease.Wait(ctx))
	older, _ := lease.Partition(7)
	newer := older
	newer.Epoch++ // as after a takeover from a process that was frozen before its call, and continues

	fmt.Println("the owner:", billGuarded(ctx, elsewhere, lease, newer, 42, 1999))
	fmt.Println("the owner before:", errors.Is(billGuarded(ctx, elsewhere, lease, older, 43, 1999), fence.ErrFenced))
	// Output:
	// the owner: <nil>
	// the owner before: true
}

// bill is a service that keeps its data in a database of its own. Its handler fences each call.
func bill(elsewhere *pgxpool.Pool) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		epoch, err := strconv.ParseInt(r.Header.Get("Lease-Epoch"), 10, 64)
		if err != nil {
			http.Error(w, "Lease-Epoch: "+err.Error(), http.StatusBadRequest)
			return
		}
		err = pgx.BeginFunc(r.Context(), elsewhere, func(tx pgx.Tx) error {
			name, key := r.Header.Get("Lease-Partition"), r.Header.Get("Idempotency-Key")
			if err := fence.Schema("pgleases").Check(r.Context(), tx, name, epoch); err != nil {
				return err
			}
			_, err := tx.Exec(r.Context(), "INSERT INTO bills (key) VALUES ($1) ON CONFLICT DO NOTHING", key)
			return err
		})
		switch {
		case errors.Is(err, fence.ErrFenced):
			http.Error(w, err.Error(), http.StatusConflict)
		case err != nil:
			http.Error(w, err.Error(), http.StatusInternalServerError)
		}
	}
}

func TestHTTPReceiverRefusesLowerEpoch(t *testing.T) {
	t.Parallel()
	pool := newFence(t)
	testkit.Execute(t, pool, "CREATE TABLE bills (key text PRIMARY KEY)")
	server := httptest.NewServer(bill(pool))
	defer server.Close()
	call := func(partition, epoch, key string) int {
		r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, http.NoBody))(t)
		r.Header = http.Header{"Lease-Partition": {partition}, "Lease-Epoch": {epoch}, "Idempotency-Key": {key}}
		answer := testkit.Must(server.Client().Do(r))(t)
		defer answer.Body.Close()
		testkit.Must(io.Copy(io.Discard, answer.Body))(t)
		return answer.StatusCode
	}
	for _, c := range []struct {
		partition, epoch, key string
		want                  int
	}{
		{"orders/7", "4611686018427387905", "order-1", 200}, {"orders/7", "4611686018427387906", "order-2", 200},
		{"orders/7", "4611686018427387905", "order-3", 409}, {"orders/8", "1", "order-4", 200},
		{"orders/7", "4611686018427387906", "order-2", 200}, // a crash has repeated the call
		{"orders/7", "", "order-5", 400},
	} {
		if got := call(c.partition, c.epoch, c.key); got != c.want {
			t.Errorf("%+v: status %d", c, got)
		}
	}
	if n := testkit.Value[int](t, pool, "SELECT count(*) FROM bills"); n != 3 {
		t.Errorf("%d bills", n)
	}
}

// The script of docs/fence.md, on a Redis server of its own.
func TestRedisScriptRefusesLowerEpoch(t *testing.T) {
	t.Parallel()
	program, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal("redis-server is not installed: apt-get install redis-server")
		}
		t.Skip("redis-server is not installed")
	}
	page := string(testkit.Must(os.ReadFile("../docs/fence.md"))(t))
	_, script, _ := strings.Cut(page, "```lua\n")
	script, _, found := strings.Cut(script, "\n```")
	if !found {
		t.Fatal("the page has no script")
	}
	socket := filepath.Join(testkit.Must(os.MkdirTemp("", "fence"))(t), "s") // a short path
	server := exec.Command(program,
		"--port", "0", "--unixsocket", socket, "--save", "", "--daemonize", "no", "--dir", filepath.Dir(socket))
	testkit.OK(t, server.Start())
	var conn net.Conn
	t.Cleanup(func() {
		if conn != nil {
			conn.Close()
		}
		_ = server.Process.Kill()
		_ = server.Wait()
		testkit.OK(t, os.RemoveAll(filepath.Dir(socket)))
	})
	testkit.Until(t, "Redis answers", func() bool {
		conn, err = net.Dial("unix", socket)
		return err == nil
	})
	r := bufio.NewReader(conn)
	do := func(words ...string) string {
		t.Helper()
		message := fmt.Sprintf("*%d\r\n", len(words))
		for _, word := range words {
			message += fmt.Sprintf("$%d\r\n%s\r\n", len(word), word)
		}
		testkit.Must(io.WriteString(conn, message))(t)
		line := strings.TrimSpace(testkit.Must(r.ReadString('\n'))(t))
		if strings.HasPrefix(line, "$") && line != "$-1" {
			return strings.TrimSpace(testkit.Must(r.ReadString('\n'))(t))
		}
		return line
	}
	set := func(name, key, epoch, value string) string { return do("EVAL", script, "2", name, key, epoch, value) }
	// Neighbors above 2^53 are one number for Lua.
	const older, newer = "4611686018427387905", "4611686018427387906"
	for _, c := range []struct{ epoch, value, want string }{
		{"9", "a", "+OK"},
		{"10", "b", "+OK"},
		{"9", "c", "-FENCED"},
		{older, "d", "+OK"},
		{newer, "e", "+OK"},
		{newer, "f", "+OK"},
		{older, "g", "-FENCED"},
		{"10", "h", "-FENCED"},
		{"-99999999999999999999", "i", "-FENCED"},
		{"05555555555555555555", "j", "-FENCED"},
		{"9e99999999999999999999", "k", "-FENCED"},
		{"0", "l", "-FENCED"},
		{"", "m", "-FENCED"},
	} {
		if got := set("{orders/7}:epoch", "{orders/7}:total", c.epoch, c.value); !strings.HasPrefix(got, c.want) {
			t.Errorf("%+v: %s", c, got)
		}
	}
	got := set("{orders/7}:epoch", "{orders/7}:total", older, "g")
	if !strings.Contains(got, older) || !strings.Contains(got, newer) {
		t.Errorf("the error does not show both epochs: %s", got)
	}
	if got := do("GET", "{orders/7}:total"); got != "f" {
		t.Errorf("the value is %s", got)
	}
	if got := set("{orders/8}:epoch", "{orders/8}:total", "1", "a"); got != "+OK" {
		t.Errorf("of another partition: %s", got)
	}
}

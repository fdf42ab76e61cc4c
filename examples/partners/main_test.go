package main

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A partner is a receiver that notes what it has taken.
type partner struct {
	mu     sync.Mutex // guards the following fields
	answer http.HandlerFunc
	bodies []string
	keys   map[string]string // by body
}

// newPartner starts a partner, and stores its URL under a name.
func newPartner(t *testing.T, pool *pgxpool.Pool, name string, answer http.HandlerFunc) *partner {
	t.Helper()
	p := &partner{answer: answer, keys: make(map[string]string)}
	server := httptest.NewServer(p)
	t.Cleanup(server.Close)
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	testkit.Execute(t, pool, "INSERT INTO partners VALUES ($1, $2)", name, server.URL)
	return p
}

func (p *partner) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body := new(strings.Builder)
	_ = r.Write(body)
	_, text, _ := strings.Cut(body.String(), "\r\n\r\n")
	p.mu.Lock()
	answer := p.answer
	p.bodies = append(p.bodies, text)
	if before := p.keys[text]; before != "" && before != r.Header.Get("Idempotency-Key") {
		p.bodies = append(p.bodies, "another key")
	}
	p.keys[text] = r.Header.Get("Idempotency-Key")
	p.mu.Unlock()
	answer(w, r)
}

// becomes sets another answer.
func (p *partner) becomes(answer http.HandlerFunc) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// calls returns the bodies of the calls so far, each once if it came several times in a row.
func (p *partner) calls() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []string
	for _, body := range p.bodies {
		if len(all) == 0 || all[len(all)-1] != body {
			all = append(all, body)
		}
	}
	return strings.Join(all, " ")
}

func answers(status int) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(status)
	}
}

// start starts the program in a database with the page's tables.
func start(t *testing.T) *pgxpool.Pool {
	t.Helper()
	page := string(testkit.Must(os.ReadFile("../../docs/consumer.md"))(t))
	_, block, _ := strings.Cut(page, "```sql\nCREATE TABLE partners")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/consumer.md has no table partners")
	}
	pool := testkit.Pool(t, pgtest.EmptyDatabase(t))
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, "CREATE TABLE partners"+block, pgx.QueryExecModeSimpleProtocol)
	client := clients.New(t, pool)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- deliverAll(ctx, client, pool) }()
	t.Cleanup(func() { stop(); testkit.Receive(t, "it ends", ended) })
	return pool
}

// insert inserts deliveries to a partner, whose payloads are numbers.
func insert(t *testing.T, pool *pgxpool.Pool, name string, n int) {
	t.Helper()
	testkit.Execute(t, pool,
		"INSERT INTO deliveries (partner, payload) SELECT $1, to_jsonb(n) FROM generate_series(1, $2) AS n", name, n)
}

// A partner that is down holds up no other one, even in its partition, and gets its rows in order when
// it is back.
func TestPartnerThatIsDownHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	pool := start(t)
	const beside = `SELECT 'p' || n FROM generate_series(1, 100000) AS n
		WHERE pgleases.partition_for('p' || n, 1024) = pgleases.partition_for('down', 1024) LIMIT 1`
	up := testkit.Value[string](t, pool, beside)
	down, other := newPartner(t, pool, "down", answers(503)), newPartner(t, pool, up, answers(204))
	insert(t, pool, "down", 3)
	testkit.Becomes(t, pool, "its first row has failed", true,
		"SELECT count(*) > 0 FROM pgleases.consumer_blocked WHERE key = 'down'")
	insert(t, pool, up, 3)
	testkit.Becomes(t, pool, "the other has its rows", 3, "SELECT count(*) FROM deliveries")
	if got := other.calls(); got != "1 2 3" {
		t.Errorf("the other got %s", got)
	}
	if got := down.calls(); got != "1" {
		t.Errorf("the one that is down was asked for %s", got)
	}
	down.becomes(answers(200))
	testkit.Becomes(t, pool, "it is back", 0, "SELECT count(*) FROM deliveries")
	if got := down.calls(); got != "1 2 3" {
		t.Errorf("it got %s", got)
	}
	if n := testkit.Value[int](t, pool, "SELECT count(*) FROM pgleases.consumer_dead_letters"); n != 0 {
		t.Errorf("%d rows are dead", n)
	}
}

// What becomes of a row after each answer.
func TestAnswerDecidesWhatBecomesOfTheRow(t *testing.T) {
	t.Parallel()
	pool := start(t)
	newPartner(t, pool, "taken", answers(202))
	newPartner(t, pool, "busy", answers(429))
	newPartner(t, pool, "gone", answers(410))
	newPartner(t, pool, "never", answers(422))
	newPartner(t, pool, "down", answers(503))
	testkit.Execute(t, pool, "INSERT INTO partners VALUES ('refused', 'http://localhost:1')")
	names := []string{"taken", "busy", "gone", "never", "down", "refused"}
	for _, name := range names {
		insert(t, pool, name, 1)
	}
	testkit.Becomes(t, pool, "each row has its answer",
		`busy f partner busy answered 429 Too Many Requests, down t partner down answered 503 Service Unavailable, `+
			`refused t Post "http://localhost:1"`,
		`SELECT coalesce(string_agg(concat_ws(' ', key, attempts > 0, split_part(error, ': ', 1)), ', ' ORDER BY key),
			'') FROM pgleases.consumer_blocked`)
	testkit.Becomes(t, pool, "two are dead",
		"gone partner gone answered 410 Gone, never partner never answered 422 Unprocessable Entity",
		"SELECT coalesce(string_agg(key || ' ' || error, ', ' ORDER BY key), '') FROM pgleases.consumer_dead_letters")
	testkit.Becomes(t, pool, "one is handled", "busy down refused",
		"SELECT coalesce(string_agg(partner, ' ' ORDER BY partner), '') FROM deliveries")
}

// A redirect is no delivery, because a client that follows it may send a GET without the body.
func TestRedirectIsNotFollowed(t *testing.T) {
	t.Parallel()
	pool := start(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		name := strconv.Itoa(status)
		moved := newPartner(t, pool, name, func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/" {
				http.Redirect(w, r, "/elsewhere", status)
			}
		})
		row := consumer.Row[Delivery]{Key: name, Value: Delivery{Payload: json.RawMessage("1")}}
		err := deliver(t.Context(), pool, row)
		if err == nil || !strings.Contains(err.Error(), "answered "+name) {
			t.Errorf("the answer %s is %v", name, err)
		}
		if got := moved.calls(); got != "1" {
			t.Errorf("the partner with the answer %s got %q", name, got)
		}
	}
}

// A call ends with its context, and that is a failed attempt.
func TestCallEndsWithItsTimeout(t *testing.T) {
	t.Parallel()
	pool := start(t)
	hangs := make(chan struct{})
	newPartner(t, pool, "hangs", func(http.ResponseWriter, *http.Request) { <-hangs })
	t.Cleanup(func() { close(hangs) })
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	row := consumer.Row[Delivery]{Key: "hangs", Value: Delivery{Payload: json.RawMessage("1")}}
	go func() { ended <- deliver(ctx, pool, row) }()
	select {
	case err := <-ended:
		t.Fatalf("it ended before its context with %v", err)
	case <-time.After(200 * time.Millisecond):
	}
	stop()
	err := testkit.Receive(t, "the call ends", ended)
	if !errors.Is(err, context.Canceled) || strings.Contains(err.Error(), "snoozed") {
		t.Errorf("it ended with %v", err)
	}
}

// A partner that keeps asking to wait has failed once, so that an operator is alerted. Then it gets the
// time that it asks for.
func TestPatienceWithBusyPartnerEnds(t *testing.T) {
	t.Parallel()
	answer := &http.Response{StatusCode: http.StatusTooManyRequests, Status: "429 Too Many Requests"}
	const plain = "partner busy answered 429 Too Many Requests"
	for _, c := range []struct {
		age     time.Duration
		attempt int
		want    string
	}{
		{0, 1, plain + ": snoozed for 1m0s"},
		{2 * time.Hour, 1, plain},
		{2 * time.Hour, 2, plain + ": snoozed for 1m0s"},
	} {
		row := consumer.Row[Delivery]{Key: "busy", Attempt: c.attempt}
		row.Value.CreatedAt = time.Now().Add(-c.age)
		err := verdict(row, answer)
		if err == nil || err.Error() != c.want {
			t.Errorf("attempt %d after %v: %v, not %s", c.attempt, c.age, err, c.want)
		}
	}
	at := time.Now().Add(5 * time.Minute).UTC().Format(http.TimeFormat)
	for text, most := range map[string]time.Duration{
		"-1": time.Second, "86400": 10 * time.Minute, "soon": time.Minute, at: 5 * time.Minute,
	} {
		got := retryAfter(http.Header{"Retry-After": {text}})
		if got > most || got < most-10*time.Second && got < time.Second {
			t.Errorf("Retry-After: %s is %v, not %v", text, got, most)
		}
	}
}

// After an outage of more than an hour, a busy partner has the time that it asks for, and its key counts
// as blocked.
func TestBusyPartnerIsAwaitedAfterAnOutage(t *testing.T) {
	t.Parallel()
	pool := start(t)
	newPartner(t, pool, "busy", answers(429))
	testkit.Execute(t, pool,
		"INSERT INTO deliveries (partner, payload, created_at) VALUES ('busy', '1', now() - interval '2 hours')")
	testkit.Becomes(t, pool, "its row has failed once and then waits",
		"1 t partner busy answered 429 Too Many Requests: snoozed for 7s",
		`SELECT coalesce(min(concat_ws(' ', attempts, next_at - failed_at > interval '6 s', error)), '')
		FROM pgleases.consumer_blocked`)
	if n := testkit.Value[int](t, pool, "SELECT blocked_keys FROM pgleases.consumers_status"); n != 1 {
		t.Errorf("%d keys count as blocked", n)
	}
}

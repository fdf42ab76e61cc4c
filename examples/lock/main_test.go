package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// database returns a database with the page's table.
func database(t *testing.T) (url string, watch *pgxpool.Pool) {
	t.Helper()
	page := string(testkit.Must(os.ReadFile("../../docs/locks.md"))(t))
	_, block, _ := strings.Cut(page, "```sql\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/locks.md has no table")
	}
	url = pgtest.EmptyDatabase(t)
	watch = testkit.Pool(t, url)
	testkit.OK(t, pgleases.Migrate(t.Context(), watch))
	testkit.Execute(t, watch, block, pgx.QueryExecModeSimpleProtocol)
	return url, watch
}

// start starts the program. deliver delivers an event, and returns the status.
func start(t *testing.T, databaseURL string, work worker) (
	deliver func(event string) int, stop func(), ended chan error,
) {
	t.Helper()
	listener := testkit.Must(net.Listen("tcp", "localhost:0"))(t)
	ctx, stop := context.WithCancel(t.Context())
	ended = make(chan error, 1)
	go func() { ended <- run(ctx, databaseURL, listener, work) }()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return func(event string) int {
		answer, err := http.Post("http://"+listener.Addr().String()+"/events/"+event, "", nil)
		if err != nil {
			t.Error(err)
			return 0
		}
		_ = answer.Body.Close()
		return answer.StatusCode
	}, stop, ended
}

// expect expects a status.
func expect(t *testing.T, what string, got, want int) {
	t.Helper()
	if got != want {
		t.Errorf("%s returned %d, not %d", what, got, want)
	}
}

// Two processes get one event at the same time. One of them works, and the other refuses.
func TestEventIsHandledOnce(t *testing.T) {
	t.Parallel()
	databaseURL, _ := database(t)
	began, finish := make(chan string, 10), make(chan bool)
	first, stopFirst, firstEnded := start(t, databaseURL, func(_ context.Context, event string) error {
		began <- event
		<-finish
		return nil
	})
	second, stopSecond, secondEnded := start(t, databaseURL, func(_ context.Context, event string) error {
		t.Error("the second works on event ", event)
		return nil
	})
	status := make(chan int, 1)
	go func() { status <- first("1") }()
	testkit.Receive(t, "the first works", began)
	expect(t, "a delivery to the second", second("1"), http.StatusConflict)
	stopFirst() // the request in hand ends all the same
	close(finish)
	expect(t, "the delivery to the first", testkit.Receive(t, "the first answers", status), http.StatusOK)
	testkit.OK(t, testkit.Receive(t, "the first ends", firstEnded))
	expect(t, "a later delivery to the second", second("1"), http.StatusOK)
	stopSecond()
	testkit.OK(t, testkit.Receive(t, "the second ends", secondEnded))
}

// A process that has lost its lock in the work records no event, and another one does the work again.
func TestLostLockRecordsNothing(t *testing.T) {
	t.Parallel()
	databaseURL, watch := database(t)
	began, finish := make(chan string, 10), make(chan bool)
	first, _, ended := start(t, databaseURL, func(_ context.Context, event string) error {
		began <- event
		<-finish // ignores its context
		return nil
	})
	status := make(chan int, 1)
	go func() { status <- first("1") }()
	testkit.Receive(t, "the first works", began)
	testkit.Execute(t, watch, "SELECT pgleases.evict_client(id, 'why') FROM pgleases.clients")
	again, finishAgain := make(chan string, 10), make(chan bool)
	second, stop, secondEnded := start(t, databaseURL, func(_ context.Context, event string) error {
		again <- event
		<-finishAgain
		return nil
	})
	testkit.Becomes(t, watch, "the lock is free", 0, "SELECT count(*) FROM pgleases.locks")
	statusAgain := make(chan int, 1)
	go func() { statusAgain <- second("1") }()
	testkit.Receive(t, "the second works", again)
	close(finish) // late
	answer := testkit.Receive(t, "the first answers", status)
	expect(t, "the delivery to the first", answer, http.StatusInternalServerError)
	if err := testkit.Receive(t, "the first ends", ended); err == nil {
		t.Error("the first ended without an error")
	}
	const done = "SELECT count(*) FROM done"
	if n := testkit.Value[int](t, watch, done); n != 0 {
		t.Error("the first has recorded the event")
	}
	close(finishAgain)
	answer = testkit.Receive(t, "the second answers", statusAgain)
	expect(t, "the delivery to the second", answer, http.StatusOK)
	stop()
	testkit.OK(t, testkit.Receive(t, "the second ends", secondEnded))
	if n := testkit.Value[int](t, watch, done); n != 1 {
		t.Errorf("%d events are done", n)
	}
}

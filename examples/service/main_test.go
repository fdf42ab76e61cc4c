package main

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A service is the program under test, with a pool to watch it.
type service struct {
	t       *testing.T
	watch   *pgxpool.Pool
	address string
	stop    context.CancelFunc
	ended   chan error
}

// start starts the program in a database with the page's tables.
func start(t *testing.T, send mailer) *service {
	t.Helper()
	page := string(testkit.Must(os.ReadFile("../../docs/service.md"))(t))
	_, block, _ := strings.Cut(page, "```sql\n")
	block, _, found := strings.Cut(block, "```")
	if !found {
		t.Fatal("docs/service.md has no table")
	}
	databaseURL := pgtest.EmptyDatabase(t)
	s := &service{t: t, watch: testkit.Pool(t, databaseURL), ended: make(chan error, 1)}
	testkit.OK(t, schedule.Migrate(t.Context(), s.watch))
	testkit.Execute(t, s.watch, block, pgx.QueryExecModeSimpleProtocol)
	listener := testkit.Must(net.Listen("tcp", "localhost:0"))(t)
	s.address = listener.Addr().String()
	ctx, stop := context.WithCancel(t.Context())
	s.stop = stop
	go func() { s.ended <- run(ctx, databaseURL, listener, send) }()
	t.Cleanup(http.DefaultClient.CloseIdleConnections)
	return s
}

// order sends an order, and returns the status of the answer.
func (s *service) order(customer string) (int, error) {
	answer, err := http.PostForm("http://"+s.address+"/orders", url.Values{"customer": {customer}})
	if err != nil {
		return 0, err
	}
	return answer.StatusCode, answer.Body.Close()
}

// get returns the status of an answer.
func (s *service) get(path string) int {
	s.t.Helper()
	answer := testkit.Must(http.Get("http://" + s.address + path))(s.t)
	testkit.OK(s.t, answer.Body.Close())
	return answer.StatusCode
}

// A client that was not closed would leave its row until its TTL has passed.
func (s *service) closed() {
	s.t.Helper()
	if n := testkit.Value[int](s.t, s.watch, "SELECT count(*) FROM pgleases.clients"); n != 0 {
		s.t.Error("the client was not closed")
	}
}

func TestOrderIsMailed(t *testing.T) {
	t.Parallel()
	sent := make(chan string, 1)
	s := start(t, func(_ context.Context, r schedule.Run[Mail]) error {
		sent <- r.Args.To
		return nil
	})
	if status, err := s.order("ada@example.com"); err != nil || status != http.StatusCreated {
		t.Errorf("the order returned %d, %v", status, err)
	}
	if to := testkit.Receive(t, "the mail is sent", sent); to != "ada@example.com" {
		t.Errorf("it went to %s", to)
	}
	if status := s.get("/livez"); status != http.StatusOK {
		t.Errorf("the probe returned %d", status)
	}
	s.stop()
	testkit.OK(t, testkit.Receive(t, "it ends", s.ended))
	s.closed()
}

func TestOrdersAreCounted(t *testing.T) {
	t.Parallel()
	s := start(t, sendMail)
	testkit.Must(s.order("ada"))(t)
	testkit.Becomes(t, s.watch, "the schedule is there", 1, "SELECT count(*) FROM pgleases.schedules")
	operator := testkit.Must(schedule.Manage(t.Context(), s.watch, "shop"))(t)
	testkit.Must(operator.Trigger(t.Context(), "nightly"))(t)
	testkit.Becomes(t, s.watch, "they are counted", 1, "SELECT coalesce(max(orders), 0)::int FROM reports")
	s.stop()
	testkit.OK(t, testkit.Receive(t, "it ends", s.ended))
}

// When the signal comes, a request and a job are in hand. Both end well, no other begins, and then the
// client is closed.
func TestWorkInHandEndsFirst(t *testing.T) {
	t.Parallel()
	began, finish := make(chan string, 10), make(chan bool)
	s := start(t, func(_ context.Context, r schedule.Run[Mail]) error {
		began <- r.Args.To
		<-finish
		return nil
	})
	testkit.Must(s.order("first"))(t)
	testkit.Receive(t, "the first mail is in hand", began)
	locked := testkit.Must(s.watch.Begin(t.Context()))(t)
	defer func() { _ = locked.Rollback(context.Background()) }()
	testkit.Must(locked.Exec(t.Context(), "LOCK TABLE orders"))(t)
	status := make(chan int, 1)
	go func() {
		got, err := s.order("second")
		if err != nil {
			t.Error(err)
		}
		status <- got
	}()
	testkit.Becomes(t, s.watch, "the second request waits for the table", 1,
		"SELECT count(*) FROM pg_locks WHERE relation = 'orders'::regclass AND NOT granted")

	s.stop()
	testkit.Until(t, "no other request is taken", func() bool {
		connection, err := net.Dial("tcp", s.address)
		if err == nil {
			_ = connection.Close()
		}
		return err != nil
	})
	testkit.OK(t, locked.Rollback(t.Context()))
	if got := testkit.Receive(t, "the second request ends", status); got != http.StatusCreated {
		t.Errorf("the request in hand returned %d", got)
	}
	if len(s.ended) > 0 {
		t.Error("the program ended before its job")
	}
	close(finish)
	testkit.OK(t, testkit.Receive(t, "it ends", s.ended))
	s.closed()
	const outcomes = "SELECT string_agg(outcome, ' ') FROM pgleases.history"
	if got := testkit.Value[string](t, s.watch, outcomes); got != "succeeded" {
		t.Errorf("the jobs have %s", got)
	}
	if n := testkit.Value[int](t, s.watch, "SELECT count(*) FROM pgleases.jobs"); n != 1 {
		t.Errorf("%d mails are left to the next process", n)
	}
}

// A program whose client has ended does not serve on without sending mails.
func TestServerEndsWithItsClient(t *testing.T) {
	t.Parallel()
	s := start(t, sendMail)
	testkit.Becomes(t, s.watch, "it is a member", 1, "SELECT count(*) FROM pgleases.members")
	testkit.Execute(t, s.watch, "SELECT pgleases.evict_client(id, 'why') FROM pgleases.clients")
	err := testkit.Receive(t, "it ends", s.ended)
	if !errors.Is(err, pgleases.ErrEvicted) {
		t.Errorf("it ended with %v", err)
	}
	if _, err := net.Dial("tcp", s.address); err == nil {
		t.Error("it listens on")
	}
}

// A program without its server does not run on either.
func TestProgramEndsWithItsServer(t *testing.T) {
	t.Parallel()
	listener := testkit.Must(net.Listen("tcp", "localhost:0"))(t)
	testkit.OK(t, listener.Close())
	err := run(t.Context(), pgtest.EmptyDatabase(t), listener, sendMail)
	if !errors.Is(err, net.ErrClosed) {
		t.Errorf("it ended with %v", err)
	}
}

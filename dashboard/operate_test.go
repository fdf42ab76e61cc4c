package dashboard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// answer is the answer to a POST.
type answer struct {
	status     int
	Kind, Text string
	Job        string // of ask
	Moves      []admin.Move
}

// sent sends a POST.
func sent(h http.Handler, path, body string, headers ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(body))
	r.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func post(t *testing.T, h http.Handler, path, body string, headers ...string) answer {
	t.Helper()
	w := sent(h, path, body, headers...)
	a := answer{status: w.Code}
	if strings.HasPrefix(w.Header().Get("Content-Type"), "application/json") {
		if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
			t.Fatalf("%s: %v", w.Body, err)
		}
	} else {
		a.Text = w.Body.String()
	}
	return a
}

// A user with AccessReadOnly has no buttons, and all requests for changes are refused.
func TestWhoOnlyLooksChangesNothing(t *testing.T) {
	t.Parallel()
	viewer := newHandler(t, idle(t), asViewer)
	operator := newHandler(t, idle(t), asOperator)
	for _, path := range []string{"/data/preview", "/data/apply"} {
		a := post(t, viewer, path, `{"verb":"drain","subject":"a","reason":"why"}`)
		if a.status != 403 || a.Kind != "denied" {
			t.Errorf("%s: %+v", path, a)
		}
	}
	for name, h := range map[string]http.Handler{
		"without Authorize":      newHandler(t, idle(t), dashboard.Options{}),
		"an access that is none": newHandler(t, idle(t), as(dashboard.AccessOperator+1, "")),
	} {
		if a := post(t, h, "/data/apply", `{}`); a.status != 403 {
			t.Errorf("%s: %+v", name, a)
		}
	}
	page := do(t, viewer, "GET", "/").Body.String()
	other := do(t, operator, "GET", "/").Body.String()
	for _, what := range []string{"<dialog", "operate.js"} {
		if strings.Contains(page, what) {
			t.Errorf("a viewer has %s", what)
		}
		if !strings.Contains(other, what) {
			t.Errorf("an operator has no %s", what)
		}
	}
	if !strings.Contains(page, "This page needs JavaScript") {
		t.Error("without JavaScript the page does not say what to do")
	}
	if !strings.Contains(page, "read-only") || strings.Contains(other, "read-only") {
		t.Error("the page does not say that its user is an operator")
	}
}

func TestWhatIsNoChangeIsRefused(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), asOperator)
	asForm := []string{"Content-Type", "application/x-www-form-urlencoded"}
	asText := []string{"Content-Type", "text/plain"}
	crossSite := []string{"Sec-Fetch-Site", "cross-site"}
	sameSite := []string{"Sec-Fetch-Site", "same-site"}
	for _, test := range []struct {
		path, body string
		headers    []string
		status     int
		text       string
	}{
		{"/data/apply", `{`, nil, 400, "The request is invalid"},
		{"/data/apply", `{"verb":"drain","actor":"root"}`, nil, 400, `unknown field "actor"`},
		{"/data/apply", `{} {}`, nil, 400, "more than one value"},
		{"/data/apply", `{"reason":"` + strings.Repeat("x", 17<<10) + `"}`, nil, 413, "longer than 16384 bytes"},
		{"/data/apply", `{"verb":"drain","subject":"a","reason":" \n"}`, nil, 422, `"": give a name and a reason`},
		{"/data/preview", `{"verb":"drain","subject":"a","lasts":"soon"}`, nil, 400, `duration "soon" is invalid`},
		{"/data/preview", `{"verb":"drain","subject":"a","lasts":"-2h"}`, nil, 400, `duration "-2h" is invalid`},
		{"/data/preview", `{"verb":"lose","subject":"a"}`, nil, 422, `verb "lose" is none of`},
		{"/data/ask", `{"verb":"pause_job","job":"7","reason":"why"}`, nil, 400, "is not a verb on schedules or jobs"},
		// The page does not show this one.
		{"/data/ask", `{"verb":"retry_failed","kind":"mail","reason":"why"}`, nil, 400, "is not a verb on schedules"},
		{"/data/preview", `{"verb":"drain","subject":"a"}`, asText, 415, "is not application/json"},
		{"/data/preview", `verb=drain`, asForm, 415, "is not application/json"},
		{"/data/preview", `{}`, crossSite, 403, "a page of another site"},
		{"/data/preview", `{}`, sameSite, 403, "a page of another site"},
		{"/", `{}`, crossSite, 403, "a page of another site"}, // also where nothing is changed as yet
		// The same happens if a proxy changes the host, and the browser sends only the origin.
		{
			"/data/apply", `{}`, []string{"Origin", "https://evil.example"}, 403,
			`the page is of "https://evil.example", and the request of "example.com". If a proxy`,
		},
	} {
		a := post(t, h, test.path, test.body, test.headers...)
		if a.status != test.status || !strings.Contains(a.Text, test.text) {
			t.Errorf("%s %.60s %v: %+v, want %d %q", test.path, test.body, test.headers, a, test.status, test.text)
		}
	}
	for _, path := range []string{"/data/preview", "/data/apply"} {
		if w := do(t, h, "GET", path); w.Code != 405 || w.Header().Get("Allow") != "POST" {
			t.Errorf("GET %s: %d", path, w.Code)
		}
	}
	w := do(t, h, "POST", "/", "Sec-Fetch-Site", "same-origin")
	if w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST /: %d %q", w.Code, w.Header().Get("Allow"))
	}
	expect(t, "explain", do(t, h, "GET", "/data/explain?lease=orders&partition=x"), 400, "is not a number")
}

func TestConfirmedChangeNamesItsOperator(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	pool := newPool(t, url)
	join(t, newClient(t, pool, "one"), "orders", 8)
	join(t, newClient(t, pool, "two"), "orders", 8)
	operators := newPool(t, pgtest.OwnerURL(url))
	a := testkit.Must(admin.New(operators))(t)
	var may atomic.Int32
	may.Store(int32(dashboard.AccessOperator))
	h := newHandler(t, operators, dashboard.Options{
		Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.Access(may.Load()), "ann" },
	})
	calm := func(owned ...int) (s *admin.Snapshot) {
		t.Helper()
		testkit.Until(t, fmt.Sprint("they own ", owned), func() bool {
			s = testkit.Must(a.Snapshot(t.Context()))(t)
			m := s.Lease("orders").Members
			return len(m) == 2 && m[0].Owned == owned[0] && m[1].Owned == owned[1] && s.Lease("orders").Due.IsZero()
		})
		return s
	}
	calm(4, 4)
	p := post(t, h, "/data/preview", `{"verb":"drain","subject":"one","lasts":"2h"}`)
	if p.status != 200 || len(p.Moves) != 1 {
		t.Fatalf("preview: %+v", p)
	}
	m := p.Moves[0]
	if m.From != "one" || m.To != "two" || m.Partitions.Count() != 4 || m.Kind != admin.MoveAsked {
		t.Fatalf("preview: %+v", p)
	}
	const apply = `{"verb":"drain","subject":"one","lasts":"2h","reason":"its <b>disk"}`
	may.Store(int32(dashboard.AccessReadOnly)) // between the preview and this
	if got := post(t, h, "/data/apply", apply); got.status != 403 {
		t.Errorf("of who may not any more: %+v", got)
	}
	may.Store(int32(dashboard.AccessDenied))
	if got := post(t, h, "/data/apply", apply); got.status != 403 {
		t.Errorf("of who is denied: %+v", got)
	}
	may.Store(int32(dashboard.AccessOperator))
	if s := calm(4, 4); len(s.Overrides) != 0 {
		t.Fatalf("overrides of who may not: %+v", s.Overrides)
	}
	if got := post(t, h, "/data/apply", apply); got.status != 200 {
		t.Fatalf("apply: %+v", got)
	}
	s := calm(0, 8)
	if len(s.Overrides) != 1 {
		t.Fatalf("overrides %+v", s.Overrides)
	}
	drain := s.Overrides[0]
	if !strings.HasPrefix(drain.Actor, "ann (") || drain.Reason != "its <b>disk" || drain.Until.Sub(s.At) < time.Hour {
		t.Errorf("the drain is %+v", drain)
	}
	got := post(t, h, "/data/preview", `{"verb":"drain","subject":"two"}`)
	if got.status != 409 || got.Kind != "last" {
		t.Errorf("of the last: %+v", got)
	}
	got = post(t, h, "/data/preview", `{"verb":"drain","subject":"two","force":true}`)
	if got.status != 200 || len(got.Moves) != 1 || got.Moves[0].To != "" {
		t.Errorf("of the last, forced: %+v", got)
	}
	got = post(t, h, "/data/preview", `{"verb":"drain","subject":"none"}`)
	if got.status != 422 || got.Kind != "refused" || !strings.Contains(got.Text, `client "none" is not known`) {
		t.Errorf("of a client that is unknown: %+v", got)
	}
	got = post(t, h, "/data/ask", `{"verb":"pause_schedule","group":"g","schedule":"s","reason":"why"}`)
	if got.status != 404 || !strings.Contains(got.Text, `package schedule in schema "pgleases" is missing`) {
		t.Errorf("a schedule where there are none: %+v", got)
	}
	expect(t, "explain", do(t, h, "GET", "/data/explain?lease=orders&partition=0"), 200, `It is owned by \"two\"`)
	expect(t, "explain", do(t, h, "GET", "/data/explain?lease=orders&partition=8"), 404, "no such partition")
	expect(t, "events of a lease", do(t, h, "GET", "/data/happened?lease=orders"), 200,
		`"cause":"handed over"`, `"cause":"drain"`)
}

// If it is unknown whether the commit arrived, the answer says so.
func TestAnAnswerThatNeverComesIsToldApart(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `INSERT INTO pgleases.leases VALUES ('orders', 4, 5, 1, 0, 'infinity', now())`)
	c := new(testkit.Wire)
	h := newHandler(t, testkit.Pool(t, pgtest.OwnerURL(url), c.Carry), asOperator)
	const body = `{"verb":"freeze","subject":"orders","reason":"why"}`
	c.Mute("commit\x00") // not "read committed"
	answered := make(chan answer)
	go func() { answered <- post(t, h, "/data/apply", body) }()
	hangs := time.NewTicker(10 * time.Millisecond)
	defer hangs.Stop()
	for c.Left() > 0 {
		select {
		case <-hangs.C:
		case got := <-answered:
			t.Fatalf("before the commit: %+v", got)
		}
	}
	c.Cut()
	got := <-answered
	const unknown = "it is not known whether that was done"
	if got.status != 502 || got.Kind != "unknown" || !strings.Contains(got.Text, unknown) {
		t.Errorf("at the commit: %+v", got)
	}
	if got := post(t, h, "/data/apply", body); got.status != 502 || got.Kind != "failed" {
		t.Errorf("before it: %+v", got)
	}
	got = post(t, h, "/data/preview", `{"verb":"unfreeze","subject":"orders"}`)
	if got.status != 502 || got.Kind != "failed" {
		t.Errorf("of a preview: %+v", got)
	}
}

// stuck sends a request to a server, and reads only the beginning of the answer.
func stuck(
	t *testing.T, pool *pgxpool.Pool, write time.Duration, say, want string,
) (url, from string, ended chan string) {
	t.Helper()
	server, ended := serveNarrow(t, dashboard.HandlerWith(pool, asOperator, time.Second, patience, write))
	return server.URL, doNotRead(t, server, say, want), ended
}

// The answer is small enough to be read within the time limit of questions about the past, and does not fit into the
// buffers of a connection.
func TestWhoDoesNotReadItsAnswerKeepsNobodyFromAsking(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.events (cause, actor, reason)
		SELECT 'drain', 'ann', repeat('x', 4000) FROM generate_series(1, 100)`)
	const happened = "GET /data/happened HTTP/1.1\r\nHost: x\r\n\r\n"
	for name, write := range map[string]time.Duration{
		"that is waited for": time.Hour,
		"that is given up":   time.Second,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			begin := "HTTP/1.1 200"
			if write < patience { // on a busy machine, the time may be over before anything arrives
				begin = ""
			}
			server, from, ended := stuck(t, newPool(t, pgtest.OwnerURL(url)), write, happened, begin)
			if write < patience {
				if of := testkit.Receive(t, "its place is free", ended); of != from {
					t.Errorf("the connection of %s has ended, and not that of %s", of, from)
				}
				return
			}
			client := &http.Client{Timeout: patience}
			answer := testkit.Must(client.Get(server + "/data/explain?lease=none&partition=0"))(t)
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusNotFound {
				t.Error(answer.Status)
			}
		})
	}
}

func TestASlowSenderKeepsNoOperatorWaiting(t *testing.T) {
	t.Parallel()
	const preview = "POST /data/preview HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n" +
		"Content-Length: 99\r\nExpect: 100-continue\r\n\r\n"
	server, _, _ := stuck(t, idle(t), time.Hour, preview, "HTTP/1.1 100")
	client := &http.Client{Timeout: patience}
	answer, err := client.Post(server+"/data/preview", "application/json", strings.NewReader("{"))
	testkit.OK(t, err)
	_ = answer.Body.Close()
	if answer.StatusCode != http.StatusBadRequest {
		t.Error(answer.Status)
	}
}

// The time limit of the body does not apply to the answer.
func TestALateAnswerIsThatOfTheDatabase(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := testkit.Pool(t, nowhere, func(config *pgxpool.Config) {
			config.ConnConfig.DialFunc = func(ctx context.Context, _, _ string) (net.Conn, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}
		})
		h := dashboard.HandlerWith(pool, asOperator, time.Second, time.Second, 100*time.Millisecond)
		client := serveInMemory(t, h)
		var all sync.WaitGroup
		for range 3 { // the last of which waits for two
			all.Go(func() {
				body := strings.NewReader(`{"verb":"drain","subject":"a"}`)
				answer, err := client.Post("http://memory/data/preview", "application/json", body)
				if err != nil {
					t.Error(err)
					return
				}
				defer answer.Body.Close()
				text, err := io.ReadAll(answer.Body)
				isLate := strings.Contains(string(text), "deadline exceeded")
				if err != nil || answer.StatusCode != http.StatusBadGateway || !isLate {
					t.Errorf("%s %q, %v", answer.Status, text, err)
				}
			})
		}
		all.Wait()
	})
}

// pipes is a listener whose connections are in memory, so that they exist in simulated time.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	conn, open := <-p
	if !open {
		return nil, net.ErrClosed
	}
	return conn, nil
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.UnixAddr{Name: "memory", Net: "unix"} }

// serveInMemory returns a client whose connections lead to a server with that handler, until the test
// ends.
func serveInMemory(t *testing.T, h http.Handler) *http.Client {
	t.Helper()
	listener := make(pipes)
	server := &http.Server{Handler: h}
	var served sync.WaitGroup
	served.Go(func() { _ = server.Serve(listener) }) // it ends with the listener
	transport := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		listener <- theirs
		return ours, nil
	}}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		close(listener)
		served.Wait()
		_ = server.Close() // of the connections
	})
	return &http.Client{Transport: transport}
}

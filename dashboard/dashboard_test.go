package dashboard_test

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/pgtest"
)

func newAdmin(t *testing.T, pool *pgxpool.Pool, opts ...admin.Option) *admin.Admin {
	t.Helper()
	a, err := admin.New(pool, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func newHandler(t *testing.T, a *admin.Admin, o dashboard.Options) http.Handler {
	t.Helper()
	h, err := dashboard.Handler(a, o)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// idle is an Admin that is never asked.
func idle(t *testing.T) *admin.Admin {
	t.Helper()
	pool, err := pgxpool.New(t.Context(), "postgres://nobody@127.0.0.1:1/none")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return newAdmin(t, pool)
}

func do(t *testing.T, h http.Handler, method, target string, headers ...string) *httptest.ResponseRecorder {
	t.Helper()
	r := httptest.NewRequest(method, target, nil)
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func TestBadOptionsAreRefused(t *testing.T) {
	t.Parallel()
	if _, err := dashboard.Handler(nil, dashboard.Options{}); err == nil || err.Error() != "dashboard: admin is nil" {
		t.Error(err)
	}
	if _, err := dashboard.Handler(idle(t), dashboard.Options{MaxViewers: -1}); err == nil || !strings.Contains(err.Error(), "MaxViewers -1 is out of range") {
		t.Error(err)
	}
}

func TestEachAnswerForbidsWhatThePageDoesNotNeed(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{Title: `<script>alert("x")</script>`, Authorize: func(r *http.Request) (dashboard.Access, string) {
		if r.Header.Get("As") == "nobody" {
			return dashboard.Denied, ""
		}
		return dashboard.ReadOnly, `<b>eve</b>`
	}})
	for _, test := range []struct {
		method, path, as string
		status           int
		kind             string
	}{
		{"GET", "/", "", 200, "text/html; charset=utf-8"},
		{"GET", "/dashboard.js", "", 200, "text/javascript; charset=utf-8"},
		{"GET", "/dashboard.css", "", 200, "text/css; charset=utf-8"},
		{"GET", "/icon.svg", "", 200, "image/svg+xml"},
		{"GET", "/page.html", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/ops/leases/", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/../dashboard.go", "", 404, "text/plain; charset=utf-8"},
		{"PUT", "/", "", 405, "text/plain; charset=utf-8"},
		{"GET", "/", "nobody", 403, "text/plain; charset=utf-8"},
		{"GET", "/dashboard.js", "nobody", 403, "text/plain; charset=utf-8"},
		{"GET", "/stream", "nobody", 403, "text/plain; charset=utf-8"},
		{"HEAD", "/stream", "nobody", 403, "text/plain; charset=utf-8"},
	} {
		w := do(t, h, test.method, test.path, "As", test.as)
		name := test.method + " " + test.path + " " + test.as
		if w.Code != test.status || w.Header().Get("Content-Type") != test.kind {
			t.Errorf("%s: %d %s, want %d %s", name, w.Code, w.Header().Get("Content-Type"), test.status, test.kind)
		}
		policy := w.Header().Get("Content-Security-Policy")
		for _, want := range []string{
			"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "base-uri 'none'", "form-action 'none'",
			"frame-ancestors 'none'",
		} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: policy %q lacks %s", name, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q", name, policy)
		}
		for header, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin", "Access-Control-Allow-Origin": ""} {
			if got := w.Header().Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
	}
	page := do(t, h, "GET", "/").Body.String()
	if !strings.Contains(page, "&lt;script&gt;alert") || !strings.Contains(page, "&lt;b&gt;eve&lt;/b&gt;") {
		t.Errorf("names in the page are not text:\n%s", page)
	}
	if inline := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son\w+=|javascript:`).FindString(page); inline != "" {
		t.Errorf("the page has inline %q", inline)
	}
	for _, match := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(match[1], "/") || strings.Contains(match[1], ":") {
			t.Errorf("URL %s is not relative", match[1])
		}
	}
}

func TestFilesAreSentAgainOnlyWhereTheyChanged(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	first := do(t, h, "GET", "/dashboard.js")
	tag := first.Header().Get("ETag")
	if again := do(
		t, h, "GET", "/dashboard.js", "If-None-Match", tag,
	); tag == "" || again.Code != http.StatusNotModified || first.Header().Get("Cache-Control") != "private, no-cache" {
		t.Errorf("tag %q: %d", tag, again.Code)
	}
	if other := do(t, h, "GET", "/dashboard.css").Header().Get("ETag"); other == tag {
		t.Error("two files have one tag")
	}
}

// What comes from another site's page changes nothing: also not what will change something one day.
func TestRequestsOfOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	for _, headers := range [][]string{{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://evil.example"}} {
		if w := do(t, h, "POST", "/", headers...); w.Code != http.StatusForbidden {
			t.Errorf("%v: %d", headers, w.Code)
		}
	}
	if w := do(t, h, "POST", "/", "Sec-Fetch-Site", "same-origin"); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("same origin: %d %q", w.Code, w.Header().Get("Allow"))
	}
}

func TestItWorksUnderAnyPrefix(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	for _, prefix := range []string{"/leases", "/ops/a b/leases"} {
		server := httptest.NewServer(http.StripPrefix(prefix, h))
		asked := server.URL + strings.ReplaceAll(prefix, " ", "%20")
		for _, path := range []string{"", "/"} {
			response, err := server.Client().Get(asked + path) // follows
			if err != nil {
				t.Fatal(err)
			}
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			if response.StatusCode != 200 || !strings.Contains(string(body), "dashboard.js") || !strings.HasSuffix(response.Request.URL.Path, prefix+"/") {
				t.Errorf("prefix %q, path %q: %d at %s", prefix, path, response.StatusCode, response.Request.URL)
				continue
			}
			script, _ := response.Request.URL.Parse("dashboard.js")
			if file, err := server.Client().Get(script.String()); err != nil || file.StatusCode != 200 {
				t.Errorf("prefix %q: the script at %s: %v", prefix, script, err)
			} else {
				_ = file.Body.Close()
			}
		}
		server.Close()
	}
}

// A viewer reads a stream.
type viewer struct {
	t      *testing.T
	events chan event // closed at the end of the stream
	end    func()
}

type event struct {
	topic string
	data  []byte
}

// connect opens a stream, and returns its status too.
func connect(t *testing.T, url string, headers ...string) (*viewer, int) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, url+"/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(headers); i += 2 {
		r.Header.Set(headers[i], headers[i+1])
	}
	response, err := http.DefaultTransport.RoundTrip(r)
	if err != nil {
		t.Fatal(err)
	}
	v := &viewer{t: t, events: make(chan event)}
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(v.events)
		lines := bufio.NewReader(response.Body)
		var e event
		for {
			line, err := lines.ReadBytes('\n')
			if err != nil {
				return
			}
			switch text := strings.TrimSuffix(string(line), "\n"); {
			case strings.HasPrefix(text, "event: "):
				e.topic = text[7:]
			case strings.HasPrefix(text, "data: "):
				e.data = []byte(text[6:])
			case text == "":
				select {
				case v.events <- e:
				case <-ctx.Done():
					return
				}
			}
		}
	})
	v.end = sync.OnceFunc(func() {
		cancel()
		_ = response.Body.Close()
		reading.Wait()
	})
	t.Cleanup(v.end)
	return v, response.StatusCode
}

// next reads on until is says so, and returns that event.
func (v *viewer) next(what string, is func(event) bool) (event, error) {
	late := time.After(patience)
	for {
		select {
		case e, more := <-v.events:
			if !more {
				return e, fmt.Errorf("the stream has ended before: %s", what)
			}
			if is(e) {
				return e, nil
			}
		case <-late:
			return event{}, fmt.Errorf("never so: %s", what)
		}
	}
}

func (v *viewer) until(what string, is func(event) bool) event {
	v.t.Helper()
	e, err := v.next(what, is)
	if err != nil {
		v.t.Fatal(err)
	}
	return e
}

func (v *viewer) untilTopic(topic string) event {
	v.t.Helper()
	return v.until("topic "+topic, func(e event) bool { return e.topic == topic })
}

// ended waits for the end of the stream.
func (v *viewer) ended() {
	v.t.Helper()
	late := time.After(patience)
	for {
		select {
		case _, more := <-v.events:
			if !more {
				return
			}
		case <-late:
			v.t.Fatal("the stream did not end")
		}
	}
}

type status struct {
	Seen    bool
	Age     int64 `json:"age_ms"`
	Stale   bool
	Failure string
}

func (v *viewer) untilStatus(what string, is func(status) bool) {
	v.t.Helper()
	v.until(what, func(e event) bool {
		var s status
		if e.topic != "status" {
			return false
		}
		if err := json.Unmarshal(e.data, &s); err != nil {
			v.t.Fatal(err)
		}
		return is(s)
	})
}

func serve(t *testing.T, h http.Handler) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server
}

func TestTheStreamTellsWhatIsThere(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t), nil)
	one := newClient(t, pool, "one\n\ndata: \u202e<b>")
	join(t, one, "orders", 8)
	server := serve(t, newHandler(t, newAdmin(t, pool, admin.WithInterval(100*time.Millisecond)), dashboard.Options{}))
	v, code := connect(t, server.URL)
	if code != 200 {
		t.Fatal(code)
	}
	var clients []struct {
		ID   string
		Slot int
	}
	if err := json.Unmarshal(v.untilTopic("clients").data, &clients); err != nil || len(clients) != 1 || clients[0].ID != one.ID() || clients[0].Slot != 0 {
		t.Errorf("clients %+v, %v", clients, err)
	}
	owned := func(want string) func(event) bool {
		return func(e event) bool { return e.topic == "leases" && strings.Contains(string(e.data), want) }
	}
	v.until("it owns all", owned(`"owned":8,"coming":0,"going":0`)) // else nothing would be handed over to the next
	v.untilStatus("it is live", func(s status) bool { return s.Seen && !s.Stale && s.Failure == "" })
	two := newClient(t, pool, "two")
	join(t, two, "orders", 8)
	shares, even, told := owned(`"owned":4,"coming":0,"going":0`), false, false
	v.until("two owns four, and the events say so", func(e event) bool { // each is sent once, in any order
		even = even || shares(e)
		told = told || e.topic == "events" && strings.Contains(string(e.data), `"cause":"joined"`) && strings.Contains(
			string(e.data), `"cause":"handed over"`,
		) && strings.Contains(string(e.data), `"to":"two"`)
		return even && told
	})
	late, _ := connect(t, server.URL)
	late.until("who comes later sees the events", func(e event) bool { return e.topic == "events" && strings.Contains(string(e.data), `"to":"two"`) })
	late.untilTopic("health")
}

func TestOneViewerTooManyIsToldSo(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t), nil)
	server := serve(t, newHandler(t, newAdmin(t, pool), dashboard.Options{MaxViewers: 2}))
	one, _ := connect(t, server.URL)
	two, _ := connect(t, server.URL)
	one.untilTopic("leases")
	two.untilTopic("leases")
	response, err := http.Get(server.URL + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(response.Body)
	_ = response.Body.Close()
	if response.StatusCode != 503 || response.Header.Get("Retry-After") != "15" || !strings.HasPrefix(string(body), "2 pages are open") {
		t.Errorf("%d, %q", response.StatusCode, body)
	}
	if head, err := http.Head(server.URL + "/stream"); err != nil || head.StatusCode != 503 {
		t.Errorf("HEAD: %v, %v", head, err)
	}
	one.end()
	awaitRoom(t, server.URL)
}

// awaitRoom waits until one more viewer may look.
func awaitRoom(t *testing.T, url string) {
	t.Helper()
	look := time.NewTicker(10 * time.Millisecond)
	defer look.Stop()
	late := time.After(patience)
	for {
		head, err := http.Head(url + "/stream")
		if err == nil && head.StatusCode == 200 && head.Header.Get("Content-Type") == "text/event-stream" {
			return
		}
		select {
		case <-look.C:
		case <-late:
			t.Fatalf("there is no room: %v, %v", head, err)
		}
	}
}

func TestWhoMayNotLookAnyMoreIsShownNothingMore(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t), nil)
	var out atomic.Bool
	h := dashboard.HandlerWith(newAdmin(t, pool), dashboard.Options{MaxViewers: 9, Authorize: func(r *http.Request) (dashboard.Access, string) {
		if out.Load() && r.Header.Get("As") == "eve" {
			return dashboard.Denied, ""
		}
		return dashboard.ReadOnly, ""
	}}, time.Minute, 20*time.Millisecond)
	server := serve(t, h)
	ann, _ := connect(t, server.URL, "As", "ann")
	eve, _ := connect(t, server.URL, "As", "eve")
	eve.untilTopic("leases")
	out.Store(true)
	eve.ended()
	ann.untilTopic("status")
	ann.untilTopic("status")
	if _, code := connect(t, server.URL, "As", "eve"); code != 403 {
		t.Errorf("eve gets %d", code)
	}
}

// scatter makes a lease whose partitions are each a range of its own, as 64 clients have them that share nothing evenly.
func scatter(t *testing.T, url string, partitions int) {
	t.Helper()
	exec(t, url, `INSERT INTO pgleases.clients SELECT s, 'client-' || s, 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now() FROM generate_series(1, 64) AS s`,
		fmt.Sprintf(`INSERT INTO pgleases.leases VALUES ('wide', %d, 5, 1, 0, 'infinity', now())`, partitions),
		`INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number) SELECT 'wide', s, 1, now(), 1 FROM generate_series(1, 64) AS s`,
		fmt.Sprintf(`INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
			SELECT 'wide', p, 1 + p %% 64, 1 + p %% 64, 3, 'client-' || 1 + p %% 64, now() FROM generate_series(0, %d) AS p`, partitions-1))
}

// narrow has what is written, and not read, fill up soon.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, is := conn.(*net.TCPConn); is {
		_ = tcp.SetWriteBuffer(4096)
	}
	return conn, err
}

func TestAViewerThatDoesNotReadLosesItsPlace(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	scatter(t, url, 65536)
	h := dashboard.HandlerWith(newAdmin(t, newPool(t, url, nil)), dashboard.Options{MaxViewers: 1,
		Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.ReadOnly, "" }}, 200*time.Millisecond, time.Minute)
	server := httptest.NewUnstartedServer(h)
	server.Listener = narrow{server.Listener}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(conn, "GET /stream HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 12)
	if _, err := io.ReadFull(conn, first); err != nil || string(first) != "HTTP/1.1 200" {
		t.Fatalf("%q, %v", first, err)
	}
	awaitRoom(t, server.URL) // conn is still open, and reads nothing
}

func TestWhatWasSeenStaysWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	join(t, newClient(t, newPool(t, url, nil), "one"), "orders", 8)
	c := new(cable)
	server := serve(t, newHandler(t, newAdmin(t, newPool(t, url, c), admin.WithInterval(100*time.Millisecond)), dashboard.Options{}))
	v, _ := connect(t, server.URL)
	owned := func(e event) bool { return e.topic == "leases" && strings.Contains(string(e.data), `"owned":8`) }
	v.until("one owns all", owned)
	v.untilStatus("it is live", func(s status) bool { return s.Seen && !s.Stale })
	c.set(true)
	v.untilStatus("it is stale", func(s status) bool { return s.Seen && s.Stale && s.Failure != "" })
	v.end()
	again, _ := connect(t, server.URL) // the one viewer has gone, and comes back
	again.until("what was seen", owned)
	var before int64
	again.untilStatus("it is stale", func(s status) bool { before = s.Age; return s.Seen && s.Stale && s.Failure != "" })
	again.untilStatus("it grows older", func(s status) bool { return s.Stale && s.Age > before })
	c.set(false)
	again.untilStatus("it is live again", func(s status) bool { return s.Seen && !s.Stale && s.Failure == "" })
}

// A connection that hangs, as behind a pooler, keeps nobody from looking on, also where the pool has no other.
func TestAConnectionThatHangsStopsNoLooks(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"lock_list(", ".events AS", "LISTEN"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			url, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t)) // the health examination listens only there
			u, err := neturl.Parse(url)
			if err != nil {
				t.Fatal(err)
			}
			query := u.Query()
			query.Set("pool_max_conns", "1")
			u.RawQuery = query.Encode()
			c := new(cable)
			c.hang.Store(text)
			h := dashboard.HandlerWith(newAdmin(t, newPool(t, u.String(), c), admin.WithInterval(100*time.Millisecond)), dashboard.Options{MaxViewers: 1,
				Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.ReadOnly, "" }}, time.Minute, time.Minute)
			dashboard.SetAnswers(h, 3*time.Second) // an examination of a busy machine has to come as far as to listen
			v, _ := connect(t, serve(t, h).URL)
			v.until("it hangs", func(event) bool { return c.hangs.Load() })
			c.hang.Store("")
			exec(t, url, "INSERT INTO pgleases.leases VALUES ('made meanwhile', 1, 5, 1, 0, 'infinity', now())")
			v.until("a look", func(e event) bool { return e.topic == "leases" && strings.Contains(string(e.data), "made meanwhile") })
		})
	}
}

// A middleware that hides what the connection can do is told apart from a database that is away.
func TestAWriterWithoutDeadlinesIsRefused(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	if w := do(t, h, "GET", "/stream"); w.Code != 500 || !strings.Contains(w.Body.String(), "Unwrap") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// However many look, the database is asked the same.
func TestAHundredViewersAskNoMoreThanOne(t *testing.T) {
	t.Parallel()
	const viewers, partitions, looks, interval = 100, 10_000, 20, 200 * time.Millisecond
	url := pgtest.MigratedDatabase(t)
	scatter(t, url, partitions)
	c := new(cable)
	a := newAdmin(t, newPool(t, url, c), admin.WithInterval(interval))
	server := serve(t, newHandler(t, a, dashboard.Options{}))
	began := time.Now()
	var all sync.WaitGroup
	var bytes atomic.Int64
	for range viewers {
		v, code := connect(t, server.URL)
		if code != 200 {
			t.Fatal(code)
		}
		all.Go(func() {
			seen := false
			for range looks {
				e, err := v.next("the next look", func(e event) bool {
					bytes.Add(int64(len(e.data)))
					seen = seen || e.topic == "leases" && strings.Contains(string(e.data), `"partitions":10000`)
					return e.topic == "ages"
				})
				if err != nil || len(e.data) > 64*12 {
					t.Errorf("ages of 64 clients are %d bytes, %v", len(e.data), err)
					return
				}
			}
			if !seen {
				t.Error("a viewer was not told of the lease")
			}
		})
	}
	all.Wait()
	elapsed := time.Since(began)
	sent := c.sent.Load()
	// A look is a snapshot, the locks, and the events in a transaction of two messages and its ends: and there are no more of them than the clock allows. The rest are
	// connections, and an examination each half minute.
	most := 6*(int64(elapsed/interval)+2) + 100 + 50*int64(elapsed/(30*time.Second))
	if sent > most || sent < looks {
		t.Errorf("%d messages to the database in %v, want at most %d", sent, elapsed, most)
	}
	began = time.Now()
	if _, err := a.Snapshot(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d viewers of %d partitions in %v: %d messages to the database, %.1f MB to the viewers; a look takes %v", viewers, partitions, elapsed.Round(time.Millisecond),
		sent, float64(bytes.Load())/1e6, time.Since(began).Round(time.Millisecond))
}

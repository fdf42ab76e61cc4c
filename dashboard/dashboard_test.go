package dashboard_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/http/httptest"
	neturl "net/url"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func newHandler(t *testing.T, pool *pgxpool.Pool, o dashboard.Options) http.Handler {
	t.Helper()
	return testkit.Must(dashboard.Handler(pool, o))(t)
}

const nowhere = "postgres://nobody@127.0.0.1:1/none"

// idle returns a pool that is not used.
func idle(t *testing.T) *pgxpool.Pool {
	t.Helper()
	return testkit.Pool(t, nowhere)
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
	if _, err := dashboard.Handler(nil, dashboard.Options{}); err == nil || err.Error() != "dashboard: pool is nil" {
		t.Error(err)
	}
	_, err := dashboard.Handler(idle(t), dashboard.Options{Schema: strings.Repeat("s", 64)})
	if err == nil || !strings.HasPrefix(err.Error(), "dashboard: schema name \"sss") {
		t.Error(err)
	}
}

func TestEachAnswerForbidsWhatThePageDoesNotNeed(t *testing.T) {
	t.Parallel()
	authorize := func(r *http.Request) (dashboard.Access, string) {
		if r.Header.Get("As") == "nobody" {
			return dashboard.AccessDenied, ""
		}
		return dashboard.AccessReadOnly, `<b>eve</b>`
	}
	h := newHandler(t, idle(t), dashboard.Options{Title: `<script>alert("x")</script>`, Authorize: authorize})
	foreign := map[string][]string{
		"another site":   {"Sec-Fetch-Site", "cross-site"},
		"another scheme": {"Origin", "https://example.com"},
	}
	for _, test := range []struct {
		method, path, as string
		status           int
		kind             string
	}{
		{"GET", "/", "", 200, "text/html; charset=utf-8"},
		{"GET", "/static/main.js", "", 200, "text/javascript; charset=utf-8"},
		{"GET", "/static/dashboard.css", "", 200, "text/css; charset=utf-8"},
		{"GET", "/static/icon.svg", "", 200, "image/svg+xml"},
		{"GET", "/leases", "", 200, "text/html; charset=utf-8"},
		{"GET", "/leases/consumer~2Fmails/17?since=24h", "", 200, "text/html; charset=utf-8"},
		{"GET", "/events?lease=a&from=x", "", 200, "text/html; charset=utf-8"},
		{"GET", "/static/page.html", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/static/none.js", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/static/../dashboard.go", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/main.js", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/data/none", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/ops/leases/", "", 404, "text/plain; charset=utf-8"},
		{"GET", "/../dashboard.go", "", 404, "text/plain; charset=utf-8"},
		{"PUT", "/", "", 405, "text/plain; charset=utf-8"},
		{"GET", "/", "nobody", 403, "text/plain; charset=utf-8"},
		{"GET", "/static/main.js", "nobody", 403, "text/plain; charset=utf-8"},
		{"GET", "/data/poll", "", 200, "application/json"},
		{"GET", "/data/poll", "nobody", 403, "text/plain; charset=utf-8"},
		{"POST", "/data/apply", "another site", 403, "application/json"},
		{"POST", "/", "another scheme", 403, "application/json"},
	} {
		w := do(t, h, test.method, test.path, append(foreign[test.as], "As", test.as)...)
		name := test.method + " " + test.path + " " + test.as
		if w.Code != test.status || w.Header().Get("Content-Type") != test.kind {
			t.Errorf("%s: %d %s, want %d %s", name, w.Code, w.Header().Get("Content-Type"), test.status, test.kind)
		}
		policy := w.Header().Get("Content-Security-Policy")
		for _, want := range []string{
			"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'",
			"base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'",
		} {
			if !strings.Contains(policy, want) {
				t.Errorf("%s: policy %q lacks %s", name, policy, want)
			}
		}
		if strings.Contains(policy, "unsafe") {
			t.Errorf("%s: policy %q", name, policy)
		}
		for header, want := range map[string]string{
			"X-Content-Type-Options":       "nosniff",
			"X-Frame-Options":              "DENY",
			"Referrer-Policy":              "no-referrer",
			"Cross-Origin-Resource-Policy": "same-origin",
			"Access-Control-Allow-Origin":  "",
			"Cache-Control":                "no-store",
		} {
			if got := w.Header().Get(header); got != want {
				t.Errorf("%s: %s is %q, want %q", name, header, got, want)
			}
		}
	}
	page := do(t, h, "GET", "/").Body.String()
	if !strings.Contains(page, "&lt;script&gt;alert") || !strings.Contains(page, "&lt;b&gt;eve&lt;/b&gt;") {
		t.Errorf("names in the page are not text:\n%s", page)
	}
	inlined := regexp.MustCompile(`(?i)<script>|<style|\sstyle=|\son\w+=|javascript:`)
	if inline := inlined.FindString(page); inline != "" {
		t.Errorf("the page has inline %q", inline)
	}
	for _, match := range regexp.MustCompile(`(?:href|src)="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		if strings.HasPrefix(match[1], "/") || strings.Contains(match[1], ":") {
			t.Errorf("URL %s is not relative", match[1])
		}
	}
}

// A long address does not make the page long: each part of it adds a folder to all URLs of the page.
func TestALongAddressGetsNoPage(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	longest := strings.Repeat("/"+strings.Repeat("~2F", 255), 3)
	for address, want := range map[string]int{
		"/leases" + longest:                       200,
		"/leases/a/b/c/d":                         200, // the page says that there is no such screen
		"/leases" + strings.Repeat("/a", 400_000): 414,
	} {
		w := do(t, h, "GET", address)
		if w.Code != want || w.Body.Len() > 10_000 {
			t.Errorf("%.20s: %d and %d bytes, want %d", address, w.Code, w.Body.Len(), want)
		}
	}
}

// The page of each address finds its files, and they the data, under any path of the application.
func TestItWorksUnderAnyPrefix(t *testing.T) {
	t.Parallel()
	h := newHandler(t, idle(t), dashboard.Options{})
	links := regexp.MustCompile(`(?:href|src)="([^"]+)"`)
	for _, prefix := range []string{"/leases", "/ops/a b/leases"} {
		server := serve(t, http.StripPrefix(prefix, h))
		asked := server.URL + strings.ReplaceAll(prefix, " ", "%20")
		for _, address := range []string{
			"/", "/leases", "/leases/", "/leases/consumer~2Fmails/17", "/leases/a%2Fb/17", "/schedules/~2E~2E/%C3%A4",
		} {
			// http.StripPrefix does not remove a prefix with a space from an address with an escaped slash.
			if strings.Contains(prefix, " ") && strings.Contains(address, "%2F") {
				continue
			}
			response, err := server.Client().Get(asked + address)
			testkit.OK(t, err)
			body, _ := io.ReadAll(response.Body)
			_ = response.Body.Close()
			found := links.FindAllStringSubmatch(string(body), -1)
			if response.StatusCode != 200 || len(found) < 10 {
				t.Errorf("%s%s: %d with %d links", prefix, address, response.StatusCode, len(found))
			}
			for _, match := range found {
				file := testkit.Must(response.Request.URL.Parse(match[1]))(t)
				if !strings.Contains(match[1], "static/") {
					continue
				}
				if got := do(t, http.StripPrefix(prefix, h), "GET", file.EscapedPath()); got.Code != 200 {
					t.Errorf("%s%s: the file %s: %d", prefix, address, file, got.Code)
				}
			}
		}
		// Relative URLs would lead elsewhere.
		without, err := server.Client().Get(asked)
		testkit.OK(t, err)
		_ = without.Body.Close()
		if without.StatusCode != 404 {
			t.Errorf("prefix %q without a slash: %d", prefix, without.StatusCode)
		}
	}
}

var browser = &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: 200}}

// A viewer polls as the page does.
type viewer struct {
	t      *testing.T
	url    string
	shows  neturl.Values              // versions, by part
	leases map[string]json.RawMessage // by name
	parts  map[string]string          // the others
	status status
}

type status struct {
	Seen    bool
	Age     int64 `json:"age_ms"`
	Stale   bool
	Failure string
}

func (s status) live() bool { return s.Seen && !s.Stale && s.Failure == "" }

func (s status) away() bool { return s.Seen && s.Stale && s.Failure != "" }

func newViewer(t *testing.T, url string) *viewer {
	return &viewer{
		t:      t,
		url:    url,
		shows:  make(neturl.Values),
		leases: make(map[string]json.RawMessage),
		parts:  make(map[string]string),
	}
}

// poll returns the status, and the length of the answer.
func (v *viewer) poll() (code, length int, err error) {
	response, err := browser.Get(v.url + "/data/poll?" + v.shows.Encode())
	if err != nil {
		return 0, 0, err
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		return response.StatusCode, len(body), err
	}
	var answer struct {
		Status status
		Parts  map[string]struct {
			Version string
			Content json.RawMessage
		}
	}
	if err := json.Unmarshal(body, &answer); err != nil {
		return 0, 0, err
	}
	v.status = answer.Status
	for name, p := range answer.Parts {
		v.shows.Set(name, p.Version)
		if name != "leases" {
			v.parts[name] = string(p.Content)
			continue
		}
		var told struct {
			Names   []string
			Changed []json.RawMessage
		}
		err = json.Unmarshal(p.Content, &told)
		for _, text := range told.Changed {
			var l struct{ Name string }
			err = errors.Join(err, json.Unmarshal(text, &l))
			v.leases[l.Name] = text
		}
		isGone := func(name string, _ json.RawMessage) bool { return !slices.Contains(told.Names, name) }
		maps.DeleteFunc(v.leases, isGone)
	}
	return response.StatusCode, len(body), err
}

// until polls until is returns true.
func (v *viewer) until(what string, is func() bool) {
	v.t.Helper()
	testkit.Until(v.t, what, func() bool {
		if code, _, err := v.poll(); err != nil || code != http.StatusOK {
			v.t.Fatalf("%s: %d, %v", what, code, err)
		}
		return is()
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

func TestThePollsTellWhatIsThere(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	one := newClient(t, pool, "one\n\ndata: \u202e<b>")
	join(t, one, "orders", 8)
	server := serve(t, newHandler(t, pool, dashboard.Options{}))
	v := newViewer(t, server.URL)
	owned := func(want string) func() bool {
		return func() bool { return strings.Contains(string(v.leases["orders"]), want) }
	}
	v.until("it owns all", owned(`"owned":8,"incoming":0,"outgoing":0`)) // else the next would be handed none
	var clients []struct {
		ID   string
		Slot int
	}
	testkit.OK(t, json.Unmarshal([]byte(v.parts["clients"]), &clients))
	if len(clients) != 1 || clients[0].ID != one.ID() || clients[0].Slot != 0 {
		t.Errorf("clients %+v", clients)
	}
	if !v.status.live() {
		t.Errorf("status %+v", v.status)
	}
	join(t, newClient(t, pool, "two"), "orders", 8)
	v.until("two owns four", owned(`"owned":4,"incoming":0,"outgoing":0`))
	v.until("the events say so", func() bool {
		told := v.parts["events"]
		return strings.Contains(told, `"cause":"joined"`) &&
			strings.Contains(told, `"cause":"handed over"`) && strings.Contains(told, `"to":"two"`)
	})
	v.until("the health", func() bool { return v.parts["health"] != "" })
}

// scatter creates a lease for 64 clients in which each partition is a separate range.
func scatter(t *testing.T, url string, partitions int) {
	t.Helper()
	exec(t, url, fmt.Sprintf(`
		INSERT INTO pgleases.clients
		SELECT s, 'client-' || s, 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now()
		FROM generate_series(1, 64) AS s;
		INSERT INTO pgleases.leases VALUES ('wide', %[1]d, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number)
		SELECT 'wide', s, 1, now(), 1 FROM generate_series(1, 64) AS s;
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		SELECT 'wide', p, 1 + p %% 64, 1 + p %% 64, 3, 'client-' || 1 + p %% 64, now()
		FROM generate_series(0, %[1]d - 1) AS p`, partitions))
}

// narrow makes the buffers of a connection small.
type narrow struct{ net.Listener }

func (l narrow) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if tcp, is := conn.(*net.TCPConn); is {
		_ = tcp.SetWriteBuffer(4096)
	}
	return conn, err
}

// serveNarrow serves over connections with small buffers. ended receives the address of each viewer
// whose connection has ended.
func serveNarrow(t *testing.T, h http.Handler) (server *httptest.Server, ended chan string) {
	t.Helper()
	server, ended = httptest.NewUnstartedServer(h), make(chan string, 2000)
	server.Listener = narrow{server.Listener}
	server.Config.ConnState = func(conn net.Conn, state http.ConnState) {
		if state == http.StateClosed {
			ended <- conn.RemoteAddr().String()
		}
	}
	server.Start()
	t.Cleanup(func() {
		server.CloseClientConnections()
		server.Close()
	})
	return server, ended
}

// A wideServer serves a lease, already read, whose text is many times larger than the buffers.
func wideServer(t *testing.T, write time.Duration) (*httptest.Server, *viewer, chan string) {
	t.Helper()
	url := pgtest.MigratedDatabase(t)
	scatter(t, url, 16384)
	h := dashboard.HandlerWith(newPool(t, url), asViewer, 300*time.Millisecond, patience, write)
	server, ended := serveNarrow(t, h)
	v := newViewer(t, server.URL)
	v.until("the lease", func() bool { return len(v.leases["wide"]) > 1<<17 })
	return server, v, ended
}

const poll = "GET /data/poll HTTP/1.1\r\nHost: x\r\n\r\n"

// doNotRead sends a request from an address that it returns, and reads only the beginning of the
// answer.
func doNotRead(t *testing.T, server *httptest.Server, say, want string) (from string) {
	t.Helper()
	conn := testkit.Must(net.Dial("tcp", server.Listener.Addr().String()))(t)
	t.Cleanup(func() { _ = conn.Close() })
	testkit.OK(t, conn.(*net.TCPConn).SetReadBuffer(4096))
	testkit.Must(io.WriteString(conn, say))(t)
	begin := make([]byte, len(want))
	if _, err := io.ReadFull(conn, begin); err != nil || string(begin) != want {
		t.Fatalf("%q, %v, want %q", begin, err, want)
	}
	return conn.LocalAddr().String()
}

// Viewers that do not read cost only their connections, because all share the same bytes.
func TestAThousandViewersThatDoNotReadCostLittle(t *testing.T) { // not in parallel: it measures what the process has
	testkit.OnlyInCI(t)
	const viewers, most = 1000, 50 << 20
	server, first, _ := wideServer(t, time.Hour)
	used := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapInuse + m.StackInuse)
	}
	before := used()
	for i := range viewers {
		doNotRead(t, server, poll, "HTTP/1.1 200")
		if (i+1)%100 != 0 {
			continue
		}
		cost := used() - before
		if cost > most {
			t.Fatalf("%d viewers cost %.1f MB, want at most %d", i+1, float64(cost)/(1<<20), most>>20)
		}
		if i+1 == viewers {
			t.Logf("%d viewers cost %.1f MB", viewers, float64(cost)/(1<<20))
		}
	}
	if code, _, err := first.poll(); code != http.StatusOK { // other viewers still get answers
		t.Error(code, err)
	}
}

func TestAViewerThatDoesNotReadIsGivenUp(t *testing.T) {
	t.Parallel()
	server, _, ended := wideServer(t, 2*time.Second)
	from := doNotRead(t, server, poll, "") // on a busy machine, the time may be over before anything arrives
	for testkit.Receive(t, "its connection ends", ended) != from {
	}
}

func TestWhatWasSeenStaysWhileTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	join(t, newClient(t, newPool(t, url), "one"), "orders", 8)
	c := new(testkit.Wire)
	server := serve(t, newHandler(t, testkit.Pool(t, url, c.Carry), dashboard.Options{}))
	v := newViewer(t, server.URL)
	owned := func(v *viewer) bool { return strings.Contains(string(v.leases["orders"]), `"owned":8`) }
	v.until("one owns all", func() bool { return owned(v) && v.status.live() })
	c.Cut()
	v.until("it is stale", func() bool { return v.status.away() })
	later := newViewer(t, server.URL) // who comes only now sees that, too
	later.until("what was seen", func() bool { return owned(later) && later.status.away() })
	before := later.status.Age
	later.until("it grows older", func() bool { return later.status.Stale && later.status.Age > before })
	c.Mend()
	later.until("it is live again", func() bool { return later.status.live() })
}

// If a connection hangs, for example behind a pooler, viewers still get answers, even if the pool
// has no other connection.
func TestAConnectionThatHangsStopsNoLooks(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, text := range []string{"lock_list(", ".events AS", "LISTEN"} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			url, _ := pgtest.DirectURL(pgtest.MigratedDatabase(t)) // the health examination listens only there
			u := testkit.Must(neturl.Parse(url))(t)
			query := u.Query()
			query.Set("pool_max_conns", "1")
			u.RawQuery = query.Encode()
			c := new(testkit.Wire)
			c.Mute(text)
			// on a busy machine, a check of the health needs time to get to LISTEN
			pool := testkit.Pool(t, u.String(), c.Carry)
			h := dashboard.HandlerWith(pool, asViewer, 100*time.Millisecond, 3*time.Second, time.Minute)
			v := newViewer(t, serve(t, h).URL)
			v.until("it hangs", func() bool { return c.Left() == 0 })
			exec(t, url, "INSERT INTO pgleases.leases VALUES ('made meanwhile', 1, 5, 1, 0, 'infinity', now())")
			v.until("a look", func() bool { return v.leases["made meanwhile"] != nil })
		})
	}
}

// The number of viewers does not change the number of queries. Without viewers there are no
// queries.
func TestAHundredViewersAskNoMoreThanOne(t *testing.T) {
	t.Parallel()
	const viewers, partitions, looks, interval = 100, 1_000, 3, 200 * time.Millisecond
	url := pgtest.MigratedDatabase(t)
	scatter(t, url, partitions)
	c := new(testkit.Wire)
	pool := testkit.Pool(t, url, c.Carry)
	server := serve(t, dashboard.HandlerWith(pool, asViewer, interval, patience, patience))
	began := time.Now()
	var all sync.WaitGroup
	for range viewers {
		v := newViewer(t, server.URL)
		all.Go(func() {
			again := time.NewTicker(interval / 2)
			defer again.Stop()
			for seen, last := 0, ""; seen < looks; <-again.C {
				_, length, err := v.poll()
				if err != nil {
					t.Error(err)
					return
				}
				if ages := v.parts["ages"]; ages != last {
					if last != "" && length > 4096 {
						t.Errorf("a second in which nothing moves is %d bytes for 64 clients", length)
						return
					}
					seen, last = seen+1, ages
				}
			}
			if v.leases["wide"] == nil {
				t.Error("a viewer was not told of the lease")
			}
		})
	}
	all.Wait()
	elapsed := time.Since(began)
	sent := c.Counted()
	// A read is a snapshot, the locks, and the events in a transaction of 2 messages, with its begin
	// and end. The clock bounds the number of reads. The other messages are those of connections, and
	// of a check of the health every 30 s.
	most := 6*(int(elapsed/interval)+2) + 100 + 50*int(elapsed/(30*time.Second))
	if sent > most || sent < looks {
		t.Errorf("%d messages to the database in %v, want at most %d", sent, elapsed, most)
	}
	again := time.NewTicker(interval)
	defer again.Stop()
	late := time.After(patience)
	for quiet := 0; quiet < 4; quiet++ {
		before := c.Counted()
		select {
		case <-again.C:
		case <-late:
			t.Fatal("queries without a viewer")
		}
		if c.Counted() != before {
			quiet = 0
		}
	}
	t.Logf("%d viewers of %d partitions in %v: %d messages", viewers, partitions, elapsed.Round(time.Millisecond), sent)
}

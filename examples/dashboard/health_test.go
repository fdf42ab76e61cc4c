package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

var checkedAge = regexp.MustCompile(`"checked_ms":\d+`)

// untroubled serves what a handler does, but findings of doctor are all ok, and old if isOld is true.
func untroubled(h http.Handler, isOld *atomic.Bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := httptest.NewRecorder()
		h.ServeHTTP(answer, r)
		for key, values := range answer.Header() {
			if key != "Content-Length" {
				w.Header()[key] = values
			}
		}
		w.WriteHeader(answer.Code)
		body := answer.Body.Bytes()
		for _, level := range []string{"fault", "warning", "note"} {
			body = bytes.ReplaceAll(body, []byte(`"level":"`+level+`"`), []byte(`"level":"ok"`))
		}
		if isOld.Load() {
			body = checkedAge.ReplaceAll(body, []byte(`"checked_ms":91000`))
		}
		_, _ = w.Write(body)
	})
}

const verdict = `document.querySelector(".verdict").textContent`

// The headline does not claim health beside a red tile, although doctor has not looked again, or of data that is old.
func TestTheHeadlineAgreesWithTheTiles(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	wire, isOld := new(testkit.Wire), new(atomic.Bool)
	x := newTab(t, 1280, 900)
	dashboard := must(pages(testkit.Pool(t, databaseURL, wire.Carry), newLogin("secret", "look")))
	server := newServer(t, untroubled(dashboard, isOld))
	x.signIn(server.URL, "")
	x.until(`/^All is well\. Checked .* ago, \d+ checks\.$/.test(` + verdict + `)`)
	x.until(`document.querySelector(".verdict.good") !== null`)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.clients
		VALUES (-7, 'gone', 1, now() - interval '1 minute', '1 hour', 'host', 7, now())`)
	x.until(`document.querySelector("#summary > .bad") !== null`)
	text := eval[string](x, verdict+` + document.querySelector(".verdict").className`)
	if !regexp.MustCompile(`^Not well: clients, 1 expired\. Checked .*verdict bad$`).MatchString(text) {
		t.Errorf("beside a red tile the headline is %q", text)
	}
	testkit.Execute(t, pool, "DELETE FROM pgleases.clients WHERE id = 'gone'")
	x.until(`document.querySelector("#summary > .bad") === null && document.querySelector(".verdict.good") !== null`)
	isOld.Store(true)
	x.until(matches(verdict, `^It is not known whether all is well, because it was last checked at \d\d:\d\d:\d\d\. `+
		`Checked 91 s ago`))
	isOld.Store(false)
	x.until(`document.querySelector(".verdict.good") !== null`)
	wire.Cut()
	x.until(`document.querySelector("#state").dataset.kind === "stale"`)
	x.until(matches(verdict, `^It is not known whether all is well, because this is from \d\d:\d\d:\d\d\.`),
		`document.querySelector(".verdict.good") === null`)
}

// A page that opens during an outage does not say that it checks the health, but that this is not known.
func TestTheHeadlineOfAPageThatOpensInAnOutage(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	wire, isStuck := new(testkit.Wire), new(atomic.Bool)
	dashboard := must(pages(testkit.Pool(t, databaseURL, wire.Carry), newLogin("secret", "look")))
	server := newServer(t, stuck(dashboard, "/data/consumers", isStuck.Load))
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "")
	x.until(count("#finding-list li") + ` > 0`)
	isStuck.Store(true)
	wire.Cut()
	x.until(isStale)
	x.run(chromedp.Reload())
	x.until(matches(verdict, `^It is not known whether all is well, because this is from \d\d:\d\d:\d\d\.`))
}

// stuck serves what a handler does, but does not answer a path while is says so.
func stuck(h http.Handler, path string, is func() bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, path) && is() {
			_, _ = io.Copy(io.Discard, r.Body) // otherwise the server does not see that the browser goes
			<-r.Context().Done()
			return
		}
		h.ServeHTTP(w, r)
	})
}

// A tile does not claim that there are no locks, if they cannot be read.
func TestATileSaysThatItCannotBeRead(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	testkit.Execute(t, newPool(t, pgtest.OwnerURL(databaseURL)),
		"ALTER FUNCTION pgleases.lock_list RENAME TO lock_list_of_before")
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "")
	x.until(some("#summary > div", `^Locks held\?cannot be read`))
}

// A question that gets no answer, as when a firewall forgets its connection, is asked again, so an old answer
// does not stay on a page that is live.
func TestAQuestionWithoutAnAnswerIsAskedAgain(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	isStuck := new(atomic.Bool)
	once := func() bool { return isStuck.CompareAndSwap(true, false) }
	x := newTab(t, 1280, 900)
	handler := must(pages(pool, newLogin("secret", "look")))
	x.signIn(newServer(t, stuck(handler, "/data/consumers", once)).URL, "locks")
	isStuck.Store(true)
	eval[bool](x, impatient)
	x.turnTo("consumers")
	x.until(textOf("main .note") + ` === "This database has no tables of package consumer."`)
}

// impatient shortens the limits of the page for its questions and changes, but not that for a poll.
const impatient = `(() => {
	const timeout = AbortSignal.timeout;
	AbortSignal.timeout = ms => timeout.call(AbortSignal, ms > 10_000 ? ms / 20 : ms);
	return true;
})()`

// A change and its preview that get no answer do not keep the operator waiting.
func TestAChangeWithoutAnAnswerIsGivenUp(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	path := new(atomic.Value)
	path.Store("/data/preview")
	handler := must(pages(operators(t, databaseURL), newLogin("secret", "look")))
	x := newTab(t, 1280, 900)
	x.signIn(newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		stuck(handler, path.Load().(string), func() bool { return true }).ServeHTTP(w, r)
	})).URL, "leases/orders")
	eval[bool](x, impatient)
	x.open("Operate orders", "freeze")
	x.until(failure + ` === "This cannot be previewed. The dashboard does not answer."`)
	path.Store("/data/apply")
	x.clickOn(again)
	x.shows(previewed)
	eval[bool](x, `(document.querySelector("#operate-reason").value = "why") !== ""`)
	x.click("#operate-go")
	x.until(failure + `.startsWith("It is not known whether this was done: ")`)
}

// If no samples come, the tiles say so, and since when. They do not show old samples as if they were of now.
func TestCurvesSaySinceWhenNoSamplesCame(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	x := newTab(t, 1280, 900)
	shows := func(label, pattern string) {
		t.Helper()
		x.until(fmt.Sprintf(`[...document.querySelectorAll("#summary > div")].some(e =>
			e.children[0].textContent === %q && /^24 h: %s$/.test(e.querySelector(".curve")?.textContent))`, label, pattern))
	}
	samples := func(kind, from, to string) {
		t.Helper()
		testkit.Execute(t, pool, `
			INSERT INTO pgleases.samples (at, kind, name, value)
			SELECT at, $1, '', 0
			FROM generate_series(date_trunc('minute', now()) - $2::interval,
				date_trunc('minute', now()) - $3::interval, interval '1 minute') AS at`, kind, from, to)
	}
	again := func() { x.signIn(serve(t, pool), "") } // another server, which has not kept an answer
	again()
	shows("Clients", "no samples were taken")
	samples("leases", "3 hours", "2 hours")
	again()
	shows("Leases", `up to 0, no samples since .*\d\d:\d\d:00`)
	shows("Clients", `no samples since .*\d\d:\d\d:00`)
	samples("clients", "1 hour", "0")
	again()
	shows("Clients", "up to 0")
	shows("Leases", `up to 0, no samples since .*\d\d:\d\d:00`)
	if eval[bool](x, `[...document.querySelectorAll("#summary > div")].some(e =>
		e.children[0].textContent === "Locks held" && e.querySelector(".curve"))`) {
		t.Error("there is a curve of what has no samples")
	}
}

// After the last heartbeat of the last owner, the band does not go on in its color.
func TestTheBandOfAFleetThatDiedHasNoOwner(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.clients
		VALUES (1, 'last', 1, now() - interval '20 minutes', '1 minute', 'host', 7, now());
		INSERT INTO pgleases.leases VALUES ('l', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number) VALUES ('l', 1, 1, now(), 1);
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
		SELECT 'l', n, 1, 1, 3, 'last', now() FROM generate_series(0, 1) AS n;
		INSERT INTO pgleases.events (at, lease, cause, to_id, partitions)
		VALUES (now() - interval '40 minutes', 'l', 'given', 'last', '{[0,2)}')`)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/l")
	x.until(rows(".legend .who") + `.includes("no live owner")`)
	eval[bool](x, `(document.querySelector(".numbers").open = true)`)
	x.until(rows(".numbers tbody tr") + `.length === 2`)
	got := eval[[]string](x, `[...document.querySelectorAll(".numbers tbody tr")].map(e =>
		[1, 3, 5].map(n => e.children[n].textContent).join())`)
	if got[0] != "no live owner,now,last heard" || !strings.HasPrefix(got[1], "last") {
		t.Errorf("the owners are %q", got)
	}
}

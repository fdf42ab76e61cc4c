package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
)

// ownerOf is an expression for what a lease's map says about a partition, to who hears it too.
func ownerOf(lease string, partition int) string {
	return fmt.Sprintf(`(() => {
		const map = document.querySelector(".map");
		if (!map || document.querySelector("h1 .name").textContent !== %q) return "";
		map.dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
		for (let i = 0; i < %d; i++) map.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowRight"}));
		return map.getAttribute("aria-valuetext");
	})()`, lease, partition)
}

// rows is an expression for the texts of what a selector finds.
func rows(selector string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(%q)].map(e => e.textContent)`, selector)
}

func TestAFleetIsShownOfWhichOneIsKilled(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	var leases []*pgleases.Lease
	for _, id := range []string{"one", "two", "three"} {
		leases = append(leases, join(t, openClient(t, pool, id), "orders", 64))
	}
	kill := startWorker(t, "victim", "orders", databaseURL)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/orders")
	owned := func(id string, n int) string {
		return fmt.Sprintf(`[...document.querySelectorAll(".lease tbody tr")].some(e =>
			e.querySelector(".name").textContent === %q && e.children[1].textContent === "%d")`, id, n)
	}
	x.until(owned("victim", 16) + " && " + owned("one", 16))
	x.turnTo("clients")
	x.until(`document.querySelectorAll("#client-rows tr").length === 4`)
	x.until(rows("#client-rows .process") + `.filter(text => / of=(one|two|three)$/.test(text)).length === 3`)
	kill()
	x.until(`document.querySelectorAll("#client-rows tr").length === 3`)
	x.turnTo("events")
	x.until(some("#event-list li", `taken over.* orders \d+ partitions? .* from .?victim to `))
	x.until(some("#event-list li", `evicted.* .?victim`))
	x.show("leases/orders")
	x.until(`document.querySelectorAll(".lease tbody tr").length === 3`)
	total := 0
	x.until(`[...document.querySelectorAll(".lease tbody tr")]
		.reduce((n, e) => n + Number(e.children[1].textContent), 0) === 64`)
	for i, id := range []string{"one", "two", "three"} {
		values := leases[i].Values()
		total += len(values)
		x.until(owned(id, len(values)))
		for _, p := range []int{values[0], values[len(values)-1]} {
			if got, want := eval[string](x, ownerOf("orders", p)), fmt.Sprintf("Partition %d: %s", p, id); got != want {
				t.Errorf("the map says %q, want %q", got, want)
			}
		}
	}
	if total != 64 {
		t.Errorf("%d partitions are owned", total)
	}
	// The band shows that they had no owner between the eviction and the next owner.
	x.until(some(".band-events li", `evicted.*victim`), textOf(".legend")+`.includes("no owner")`)
	// What an operator wants is seen where it acts.
	a := testkit.Must(admin.New(pool))(t)
	drain := admin.Change{Verb: admin.VerbDrain, Subject: "two", Actor: "ann", Reason: "<b>new disk</b>"}
	testkit.OK(t, a.Apply(t.Context(), drain))
	x.until(owned("two", 0))
	for _, address := range []string{"", "clients/two"} {
		x.show(address)
		x.until(`document.querySelector("#override-list").checkVisibility()`,
			some("#override-list li", `drain.*two by .*ann.*: <b>new disk<.b>, until it is taken back Undrain$`))
	}
	x.turnTo("clients")
	x.until(rows("#client-rows tr") + `.filter(text => text.includes("override: drain")).length === 1`)
}

// hostile are names that would do something, or show something else than they are, if they were more than text.
var hostile = []string{
	`<img src=x onerror="window.hacked=1"><svg onload="window.hacked=1">`,
	"</script><script>window.hacked=1</script>",
	"\u202edrowssap\u2066 \u200b\n\r\x1b[2J\t" + `"'&amp;` + "`${window.hacked=1}`",
	"__proto__",
	strings.Repeat("W", 255),
}

func TestNamesThatAreMarkupAreInert(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	for _, id := range hostile {
		c := openClient(t, pool, id)
		for _, name := range hostile[:2] {
			join(t, c, name, 16)
		}
		join(t, c, "single "+hostile[2], 1)
		held := testkit.Must(lock.New(c, pool).Acquire(t.Context(), "lock "+id[:min(len(id), 200)]))(t)
		t.Cleanup(func() { _ = held.Release(t.Context()) })
	}
	x := newTab(t, 390, 800)
	x.signIn(serve(t, operators(t, databaseURL)), "locks")
	x.until(`document.querySelectorAll("#lock-rows tr").length === 5`)
	x.turnTo("clients")
	x.until(`document.querySelectorAll("#client-rows tr").length === 5`)
	x.run(chromedp.SendKeys("#filter", "drowssap", chromedp.ByQuery)) // by what is seen
	x.until(`document.querySelectorAll("#client-rows tr").length === 1`)
	const shown = `document.querySelector("#client-rows .name").textContent`
	got := eval[string](x, shown)
	want := `\u{202e}drowssap\u{2066} \u{200b}\n\r\u{1b}[2J\t` + hostile[2][strings.Index(hostile[2], `"'`):]
	if got != want {
		t.Errorf("a name is shown as %q, want %q", got, want)
	}
	inert := func() {
		t.Helper()
		if eval[bool](x, `"hacked" in window ||
			document.querySelector("main img, main script, main svg:not(.plot svg)") !== null`) {
			t.Error("a name is markup")
		}
		text := eval[string](x, `document.body.textContent + document.title`)
		if strings.ContainsAny(text, "\u202e\u2066\u200b\x1b") {
			t.Errorf("what is hidden in names is in the page: %q", text)
		}
		if !eval[bool](x, `[...document.querySelectorAll(".name")].every(e =>
			e.tagName === "BDI" && getComputedStyle(e).unicodeBidi === "isolate")`) {
			t.Error("a name is not isolated")
		}
		noScroll(x)
	}
	// In what an operator does.
	x.click("#client-rows [aria-haspopup]")
	x.until(textOf("#operate-title .name") + ` === ` + shown)
	x.click("#operate-verbs input[value=drain]")
	x.until(previewed, count("#operate-preview .name")+` > 2`)
	x.confirm("for \u202e<img src=x onerror='window.hacked=1'>")
	inert()
	// In addresses: each link leads to the thing of its name, and so does its address when it is opened anew.
	x.click("#client-rows th a")
	for i := range 2 {
		x.until(fmt.Sprintf(`document.querySelector("h1 .name")?.textContent === %q`, got),
			rows("#override-list li")+`.some(text => text.includes("for \\u{202e}<img src=x"))`,
			count("#share-rows tr")+` === 3`, count("#event-list li")+` > 2`)
		inert()
		if i == 0 {
			x.run(chromedp.Reload())
		}
	}
	for _, lease := range append([]string{"single " + hostile[2]}, hostile[:2]...) {
		x.turnTo("leases")
		x.until(`document.querySelectorAll("#lease-rows tr").length === 3`)
		x.clickOn(fmt.Sprintf(`[...document.querySelectorAll("#lease-rows th a")].find(e =>
			e.textContent.slice(0, 7) === %q.slice(0, 7))`, lease))
		for i := range 2 {
			x.until(count(".lease tbody tr")+` === 5`, count(".band-events li")+` > 4`)
			inert()
			if i == 0 {
				x.run(chromedp.Reload())
			}
		}
	}
	x.until(`document.querySelectorAll(".lease tbody tr").length === 5`)
	eval[bool](x, `(() => {
		document.querySelector(".map").dispatchEvent(new KeyboardEvent("keydown", {key: "Home"}));
		[...document.querySelectorAll(".lease .act")].find(e => e.textContent === "Why?" && !e.hidden).click();
		return true;
	})()`)
	x.until(rows(".reasons li") + `.some(text => text.startsWith("It is owned by"))`)
	x.clickOn(`[...document.querySelectorAll(".lease .line a")].find(e => !e.hidden)`)
	x.until(textOf("h1")+` === "0"`, count("#owner-rows tr")+` > 0`, some(".reasons li", `^It is owned by`))
	inert()
	x.turnTo("leases")
	x.open(`Operate `+hostile[1], "pin")
	x.until(previewed + ` && document.querySelectorAll("#operate-fields option").length === 5`)
	inert()
}

func noScroll(x tab) {
	x.Helper()
	wide := eval[[]string](x, `document.documentElement.scrollWidth <= innerWidth ? [] : [
		document.documentElement.scrollWidth + " of " + innerWidth,
		...[...document.querySelectorAll("body *")].filter(e => e.getBoundingClientRect().right > innerWidth)
			.map(e => e.tagName + "." + e.className)]`)
	if len(wide) > 0 {
		x.Errorf("the page scrolls sideways: %q", wide)
	}
	outside := eval[[]string](x, `[...document.querySelectorAll("button")].filter(e => e.checkVisibility())
		.map(e => [e.getAttribute("aria-label") || e.textContent, e.getBoundingClientRect()])
		.filter(([, at]) => at.left < 0 || at.right > innerWidth)
		.map(([text, at]) => text.slice(0, 40) + " at " + at.left + " to " + at.right)`)
	if len(outside) > 0 {
		x.Errorf("buttons lie outside of the screen of %d pixels: %q", eval[int](x, "innerWidth"), outside)
	}
}

// press sends keys to what has the focus.
func (x tab) press(keys ...string) {
	x.Helper()
	for _, key := range keys {
		x.run(chromedp.KeyEvent(key))
	}
}

func TestTheKeyboardReachesAll(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	one := openClient(t, pool, "one")
	join(t, one, "orders", 40)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/orders")
	x.until(`document.querySelectorAll(".lease tbody tr").length === 1`)
	x.press(kb.Tab)
	if got := eval[string](x, `document.activeElement.textContent`); got != "Skip to the content" {
		t.Errorf("the first Tab leads to %q", got)
	}
	x.press(kb.Enter)
	x.until(`document.activeElement.id === "main"`)
	x.until(`document.querySelectorAll(".lease tbody tr").length === 1`)
	x.press(kb.Tab)
	x.until(`document.activeElement.textContent === "Leases"`)
	x.press(kb.Tab)
	x.until(`document.activeElement.matches(".key input")`)
	x.press(kb.Tab)
	x.until(`document.activeElement.getAttribute("aria-label") === "Operate orders"`)
	x.press(kb.Tab)
	x.until(`document.activeElement.matches(".map[role=slider]")`)
	if !eval[bool](x, `getComputedStyle(document.activeElement).outlineStyle === "solid"`) {
		t.Error("one does not see where the focus is")
	}
	x.press(kb.End, kb.ArrowLeft)
	x.until(`document.activeElement.getAttribute("aria-valuetext") === "Partition 38: one"`,
		`document.activeElement.getAttribute("aria-valuenow") === "38"`)
	if got := eval[string](x, `document.querySelector(".cell").textContent`); got != "Partition 38: one" {
		t.Errorf("who sees is shown %q", got)
	}
	x.press(kb.Tab, kb.Enter)
	x.until(rows(".reasons li") + `.some(text => text.includes("so its share is 40.00 of 40 partitions"))`)
	x.press(kb.Tab)
	x.until(`document.activeElement.textContent === "Its past"`)
	x.press(kb.Tab)
	x.until(`document.activeElement.matches("button.who[aria-pressed=false]")`)
	x.press(kb.Enter)
	x.until(`document.activeElement.matches("button.who[aria-pressed=true]")`)
	// What changes takes the focus from nothing.
	join(t, openClient(t, pool, "another"), "orders", 40)
	x.until(`document.querySelectorAll(".lease tbody tr").length === 2`)
	if got := eval[string](x, `document.activeElement.textContent`); got != "one" {
		t.Errorf("the focus went to %q", got)
	}
	x.expectNames("table, section, nav, [role=slider], input, button, canvas:not([aria-hidden])")
	x.expectTableHeads()
}

func TestThePageSaysSinceWhenItIsStale(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	c := new(testkit.Wire)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, testkit.Pool(t, databaseURL, c.Carry)), "leases/orders")
	x.until(ownerOf("orders", 7) + ` === "Partition 7: one"`)
	c.Cut()
	x.until(isStale)
	x.bannerSays(`^The database does not answer .* What you see is from \d\d:\d\d:\d\d\.$`)
	x.until(`document.querySelector("#banner-failure").textContent.includes("the wire is cut")`)
	if got := eval[string](x, ownerOf("orders", 7)); got != "Partition 7: one" {
		t.Errorf("of what was seen it says %q", got)
	}
	c.Mend()
	x.until(isLive, noBanner)
}

// The page tells the dashboard's own end, its return, and the end of a session apart.
func TestThePageSaysWhenTheDashboardIsAway(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	login := newLogin("secret", "look")
	server, front := fronted(t, must(pages(pool, login)))
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "leases/orders")
	x.until(`document.querySelectorAll(".lease tbody tr").length === 1`)
	// A proxy's own answers say nothing about who one is.
	for _, status := range []int{
		http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusNotFound, http.StatusMisdirectedRequest,
	} {
		front.Store(answering(status, ""))
		server.CloseClientConnections()
		x.bannerSays(`^The dashboard does not answer\. .* What you see is from \d\d:\d\d:\d\d\.$`)
		x.until(isStale, `document.querySelector("#main").classList.contains("stale")`)
		x.until(`document.querySelectorAll(".lease tbody tr").length === 1`)
		front.Store(nil)
		x.until(isLive, noBanner)
	}
	login.mu.Lock()
	clear(login.sessions)
	login.mu.Unlock()
	server.CloseClientConnections()
	x.bannerSays(`^You may not look any more\.`)
}

// As when a firewall forgets a connection, or a machine wakes up elsewhere.
func TestThePageGivesUpAPollThatDoesNotEnd(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	client := openClient(t, pool, "one")
	join(t, client, "orders", 8)
	server, front := fronted(t, must(pages(pool, newLogin("secret", "look"))))
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "leases")
	x.until(count("#lease-rows tr")+` === 1`, isLive)
	hangs := http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	front.Store(&hangs)
	join(t, client, "more", 8)
	x.bannerSays(`^The dashboard does not answer\.`)
	front.Store(nil)
	x.until(count("#lease-rows tr")+` === 2`, isLive)
}

// Another process answers, of another database: at first it knows nothing itself. What it does not have does not stay on the page.
func TestThePageOfAServerThatRestartsShowsWhatThatHas(t *testing.T) {
	t.Parallel()
	_, before := database(t)
	join(t, openClient(t, before, "one"), "orders", 8)
	databaseURL, after := database(t)
	join(t, openClient(t, after, "two"), "invoices", 8)
	login, reachable := newLogin("secret", "look"), make(chan struct{})
	next := must(pages(testkit.Pool(t, databaseURL, func(config *pgxpool.Config) {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
		config.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			select {
			case <-reachable:
				return new(net.Dialer).DialContext(ctx, network, addr)
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
	}), login)).ServeHTTP
	server, front := fronted(t, must(pages(before, login)))
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "clients")
	x.until(rows("#client-rows tr") + `.some(text => text.includes("one"))`)
	x.turnTo("events")
	x.until(rows("#event-list li") + `.some(text => text.includes("orders"))`)
	front.Store((*http.HandlerFunc)(&next))
	x.until(matches(textOf("#state-text"), `^Stale since `)) // before its first look has failed
	close(reachable)
	x.until(isLive)
	x.turnTo("clients")
	x.until(every("#client-rows tr", "two"), count("#client-rows tr")+` === 1`)
	x.turnTo("leases")
	x.until(every("#lease-rows tr", "invoices"), count("#lease-rows tr")+` === 1`)
	x.turnTo("events")
	x.until(rows("#event-list li") + `.some(text => text.includes("invoices"))`)
	if eval[bool](x, `document.body.textContent.includes("orders")`) {
		t.Error("what the server before had is still on the page")
	}
}

// fronted serves a handler behind a proxy that may answer in its place.
func fronted(t *testing.T, handler http.Handler) (*httptest.Server, *atomic.Pointer[http.HandlerFunc]) {
	t.Helper()
	front := new(atomic.Pointer[http.HandlerFunc])
	server := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if f := front.Load(); f != nil {
			(*f)(w, r)
			return
		}
		handler.ServeHTTP(w, r)
	}))
	return server, front
}

// answering is a proxy that answers all with a status, and has one go to a location.
func answering(status int, location string) *http.HandlerFunc {
	f := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if location != "" {
			w.Header().Set("Location", location)
		}
		w.WriteHeader(status)
	})
	return &f
}

// A login in front has an end: the page says so, keeps what was typed, and goes on when somebody has signed in elsewhere.
func TestExpiredLoginKeepsTypedText(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	for _, id := range []string{"one", "two"} {
		join(t, openClient(t, pool, id), "orders", 8)
	}
	server, front := fronted(t, must(pages(operators(t, databaseURL), newLogin("secret", "look"))))
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "clients/one")
	x.until(rows("#share-rows tr td:nth-child(2)") + `.join() === "4"`)
	for _, test := range []struct {
		expired      *http.HandlerFunc
		button, verb string
	}{
		{answering(http.StatusFound, "/login"), "Operate one", "drain"},
		{answering(http.StatusUnauthorized, ""), "Undrain one", ""},
	} {
		x.open(test.button, test.verb)
		x.until(previewed)
		x.run(chromedp.SendKeys("#operate-reason", "typed before", chromedp.ByQuery))
		front.Store(test.expired)
		server.CloseClientConnections()
		x.bannerSays(`^You may not look any more\. Sign in again, in another tab`)
		x.click("#operate-go")
		x.until(failure + `.includes("You may not do this any more. Sign in again, in another tab")`)
		x.click("#operate-preview button")
		x.until(failure+`.startsWith("This cannot be previewed. You may not do this any more.")`, again+` !== null`)
		if got := eval[string](x, `document.querySelector("#operate-reason").value`); got != "typed before" {
			t.Errorf("what was typed is %q", got)
		}
		front.Store(nil)
		x.until(isLive, noBanner)
		x.click("#operate-preview button")
		x.confirm("typed before")
	}
}

// contrasts is an expression for the texts that stand out too little from what is behind them.
const contrasts = `(() => {
	const parse = s => s.match(/[\d.]+/g).map(Number);
	const linear = v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
	const light = rgb => [0.2126, 0.7152, 0.0722].reduce((sum, part, i) => sum + part * linear(rgb[i]), 0);
	const found = [];
	const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	for (let n; n = walk.nextNode();) {
		const e = n.parentElement;
		if (!n.textContent.trim() || !e.checkVisibility() || e.closest("noscript, .skip")) continue;
		let ground = e;
		while (ground && (parse(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) ground = ground.parentElement;
		const colors = [getComputedStyle(e).color, getComputedStyle(ground).backgroundColor];
		const [a, b] = colors.map(color => light(parse(color))).sort((a, b) => b - a);
		const contrast = (a + 0.05) / (b + 0.05);
		if (contrast < 4.5) found.push(n.textContent.trim() + " " + contrast.toFixed(2));
	}
	return found;
})()`

func TestOnlyWhoIsSignedInSeesTheLeases(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	at := serve(t, pool)
	client := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	get := func(path string, cookies ...*http.Cookie) int {
		r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodGet, at+path, nil))(t)
		for _, c := range cookies {
			r.AddCookie(c)
		}
		response := testkit.Must(client.Do(r))(t)
		_ = response.Body.Close()
		return response.StatusCode
	}
	for _, path := range []string{
		"/ops/leases/",
		"/ops/leases/leases/orders",
		"/ops/leases/data/poll",
		"/ops/leases/data/past",
		"/ops/leases/static/main.js",
	} {
		if code := get(path); code != http.StatusForbidden {
			t.Errorf("%s: %d", path, code)
		}
	}
	post := func(path, password string, cookies ...*http.Cookie) *http.Response {
		form := strings.NewReader(url.Values{"password": {password}}.Encode())
		r := testkit.Must(http.NewRequestWithContext(t.Context(), http.MethodPost, at+path, form))(t)
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for _, c := range cookies {
			r.AddCookie(c)
		}
		response := testkit.Must(client.Do(r))(t)
		_ = response.Body.Close()
		return response
	}
	if r := post("/login", "guess"); r.StatusCode != http.StatusForbidden || len(r.Cookies()) > 0 {
		t.Errorf("a wrong password: %d %v", r.StatusCode, r.Cookies())
	}
	in := post("/login", "secret").Cookies()
	if len(in) != 1 || get("/ops/leases/", in...) != http.StatusOK {
		t.Errorf("signed in: %v", in)
	}
	post("/logout", "", in...)
	if code := get("/ops/leases/", in...); code != http.StatusForbidden {
		t.Errorf("signed out: %d", code)
	}
}

// The address of a thing leads to it, whatever its name is, also through a proxy that decodes paths and removes dots.
func TestAddressesHoldAnyName(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	names := []string{
		"..", ".", "a/b//c", "%2F..%2e", "~41", "key?x=1&y=2#z", "ä ö/ü", "line\nbreak", `back\slash "quoted"`,
		strings.Repeat("é", 127),
	}
	c := openClient(t, pool, "../one")
	for _, name := range names {
		join(t, c, name, 3)
	}
	inner := must(pages(pool, newLogin("secret", "look")))
	cleaning := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		clean := path.Clean(r.URL.Path)
		if strings.HasSuffix(r.URL.Path, "/") && clean != "/" {
			clean += "/"
		}
		r.URL.Path, r.URL.RawPath = clean, ""
		inner.ServeHTTP(w, r)
	}))
	x := newTab(t, 1280, 900)
	x.signIn(cleaning.URL, "leases")
	x.until(fmt.Sprintf(`document.querySelectorAll("#lease-rows tr").length === %d`, len(names)))
	for _, name := range names {
		x.turnTo("leases")
		shown := eval[string](x, fmt.Sprintf(`(() => {
			const row = [...document.querySelectorAll("#lease-rows tr")].find(e => e.key === %s);
			const text = row.querySelector("th").textContent;
			row.querySelector("a").click();
			return text;
		})()`, testkit.Must(json.Marshal(name))(t)))
		for _, again := range []bool{true, false} {
			isShown := fmt.Sprintf(`document.querySelector("h1 .name")?.textContent === %s`,
				testkit.Must(json.Marshal(shown))(t))
			x.until(isShown, count(".lease tbody tr")+` === 1`, count(".band-events li")+` > 1`)
			if again {
				x.run(chromedp.Reload())
			}
		}
		eval[bool](x, `document.querySelector(".map")
			.dispatchEvent(new KeyboardEvent("keydown", {key: "End"})) || true`)
		x.clickOn(`[...document.querySelectorAll(".lease .line a")].find(e => !e.hidden)`)
		x.until(textOf("h1")+` === "2"`, count("#owner-rows tr")+` === 1`,
			textOf("#owner-rows tr")+`.includes("../one")`)
	}
	x.click("#owner-rows a")
	x.until(textOf("h1")+` === "../one"`, count("#share-rows tr")+fmt.Sprintf(` === %d`, len(names)))
}

// A key is one of a lease, and not of a partition or of all leases.
func TestAKeyNeedsALease(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/orders?key=k")
	x.until(textOf("main")+`.includes("Owner of the key")`, count(".facts-list a")+` > 0`)
	x.show("leases?key=k")
	x.until(count("#lease-rows tr") + ` === 1`)
	for n := range 2 { // the key is in one of them at most
		x.show(fmt.Sprintf("leases/orders/%d?key=k", n))
		x.until(textOf(".facts-list a") + fmt.Sprintf(` === "%d"`, n))
	}
}

// A lease that is dropped and made again with fewer partitions has no cursor on one that it had.
func TestTheCursorIsOnAPartitionOfTheLease(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	testkit.Execute(t, pool, `INSERT INTO pgleases.leases VALUES ('l', 100, 5, 1, 0, 'infinity', now())`)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/l")
	x.until(count(".map") + ` === 1`)
	x.until(ownerOf("l", 60) + ` === "Partition 60: no owner yet"`)
	testkit.Execute(t, pool, `UPDATE pgleases.leases SET partitions = 50`)
	const now = `document.querySelector(".map").ariaValueNow`
	x.until(`document.querySelector(".map").ariaValueMax === "49"`, now+` === "0"`)
	x.until(textOf(".lease .cell") + `.startsWith("Point at a partition")`)
}

// The map of a lease to which the chosen client does not belong is not dimmed.
func TestOnlyAMemberIsHighlighted(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	join(t, openClient(t, pool, "two"), "invoices", 8)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/orders")
	const alpha = `document.querySelector(".map")?.getContext("2d").getImageData(2, 2, 1, 1).data[3]`
	x.until(alpha + ` === 255`)
	x.click("button.who")
	x.until(textOf("button.who[aria-pressed=true]")+` === "one"`, alpha+` === 255`)
	x.turnTo("leases")
	x.until(count("#lease-rows tr") + ` === 2`)
	x.clickOn(`[...document.querySelectorAll("#lease-rows a")].find(e => e.textContent === "invoices")`)
	x.until(textOf("h1")+` === "invoices"`, alpha+` === 255`)
}

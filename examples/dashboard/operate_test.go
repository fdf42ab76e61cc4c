package main

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// operators is a pool whose role may operate.
func operators(t *testing.T, url string) *pgxpool.Pool {
	t.Helper()
	return newPool(t, pgtest.OwnerURL(url))
}

// open opens the dialog by the button that has a label, for who hears it, and chooses a verb; empty: the one that it begins with.
func (x tab) open(label, verb string) {
	x.Helper()
	button := fmt.Sprintf(`[...document.querySelectorAll("button")].find(e =>
		e.getAttribute("aria-label") === %q)`, label)
	x.until(button + ` !== undefined`)
	x.clickOn(button)
	x.until(`document.querySelector("#operate").open`)
	if verb != "" {
		x.click(fmt.Sprintf("#operate-verbs input[value=%s]", verb))
	}
}

// set sets a field of the dialog by its label, as one does who types.
func (x tab) set(label, value string) {
	x.Helper()
	if !eval[bool](x, fmt.Sprintf(`(() => {
		const e = [...document.querySelectorAll("#operate label")].find(e => e.textContent.startsWith(%q))?.querySelector("input, select");
		if (!e) return false;
		e.value = %q;
		return e.dispatchEvent(new Event("change", {bubbles: true})) && e.value === %q;
	})()`, label, value, value)) {
		x.Fatalf("there is no field %q that takes %q", label, value)
	}
}

const (
	previewed = `!document.querySelector("#operate-go").disabled`
	isClosed  = `!document.querySelector("#operate").open`
	failure   = `document.querySelector("#operate-failure").textContent`
	preview   = `document.querySelector("#operate-preview").textContent`
	again     = `document.querySelector("#operate-preview button")`
	toldText  = `document.querySelector("#told").textContent`
)

// shows waits until an expression is true of the dialog. It previews again if the server was too busy: where the least TTL is a second, a preview has a
// quarter of it.
func (x tab) shows(expression string) {
	x.Helper()
	for {
		x.until(expression + ` || ` + failure + ` !== ""`)
		text := eval[string](x, failure)
		if text == "" {
			return
		}
		if !strings.Contains(strings.ToLower(text), "try again") {
			x.Fatal(text)
		}
		x.until(again + ` !== null`)
		x.clickOn(again)
	}
}

// confirm gives a reason and confirms.
func (x tab) confirm(reason string) {
	x.Helper()
	eval[bool](x, fmt.Sprintf(`(document.querySelector("#operate-reason").value = %q) !== ""`, reason))
	for !eval[bool](x, isClosed) {
		x.shows(previewed)
		x.click("#operate-go")
		x.until(isClosed + ` || ` + failure + ` !== ""`)
	}
	x.until(toldText + `.includes("is written down")`)
}

func owns(id, is string) string {
	return fmt.Sprintf(`[...document.querySelectorAll(".lease tbody tr")].some(e =>
		e.querySelector(".name").textContent === %q && Number(e.children[1].textContent) %s)`, id, is)
}

// The verbs keep their promises when they are given on the page, while a process is killed and comes back all the time.
func TestAFleetUnderAttackIsOperatedThroughThePage(t *testing.T) {
	t.Parallel()
	databaseURL, _ := database(t)
	for _, id := range []string{"ann", "bob", "eve"} {
		startWorker(t, id, "orders", databaseURL)
	}
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, operators(t, databaseURL)), "leases/orders")
	x.until(owns("ann", "> 0") + " && " + owns("bob", "> 0") + " && " + owns("eve", "> 0"))
	kill := startWorker(t, "victim", "orders", databaseURL)
	x.until(owns("victim", "> 0"))
	attack := func() {
		kill()
		kill = startWorker(t, "victim", "orders", databaseURL)
	}

	x.turnTo("clients")
	x.open("Operate ann", "drain")
	x.shows(matches(preview, `^\d+ partitions? would move\. 1 owner is asked to hand over`))
	x.confirm("her host goes")
	attack()
	x.until(`[...document.querySelectorAll("#client-rows tr")].some(e =>
		e.textContent.includes("ann") && e.children[2].textContent === "0")`)
	x.turnTo("")
	x.until(some("#override-list li", `drain.*ann by operator \(.*\): her host goes, until it is taken back`))
	x.open("Undrain ann", "")
	x.confirm("it stays")
	x.show("leases/orders")
	x.until(owns("ann", "> 0"))

	x.open("Operate orders", "pin")
	x.set("Partition", "5")
	x.set("Client", "bob")
	x.set("It stands", "2h")
	x.confirm("its data is near")
	x.until(ownerOf("orders", 5) + ` === "Partition 5: bob"`)
	x.open("Operate orders", "freeze")
	x.confirm("nothing moves now")
	kill()
	// What was an expired session's is given all the same.
	x.until(`document.querySelector(".map").map.at.every(h => h?.owner && h.owner !== "victim")`)
	kill = startWorker(t, "victim", "orders", databaseURL)
	x.until(owns("victim", "=== 0"))
	x.open("Unpin orders, partition 5", "")
	x.confirm("it is over")
	x.open("Unfreeze orders", "")
	x.confirm("go on")
	x.until(owns("victim", "> 0"))

	x.open("Operate orders", "pause")
	x.shows(preview + `.includes("64 partitions would have no owner.")`)
	x.confirm("maintenance")
	x.until(owns("ann", "=== 0"), owns("bob", "=== 0"), owns("eve", "=== 0"), owns("victim", "=== 0"))
	attack()
	x.until(`document.querySelector(".legend").textContent.includes("no owner, paused")`)
	x.open("Resume orders", "")
	x.confirm("done")
	x.show("clients/eve")
	x.open("Operate eve", "evict")
	x.confirm("it hangs")
	x.until(rows("#event-list li") + `.some(text => /^[^a-z]*evict .*eve by operator \(.*\): it hangs$/.test(text))`)
	x.turnTo("clients")
	x.until(`document.querySelectorAll("#client-rows tr").length === 3`)
	x.until(`[...document.querySelectorAll("#client-rows tr")]
		.reduce((n, e) => n + Number(e.children[2].textContent), 0) === 64`)
}

// If a change that was previewed fails, the page says why: for example the database, or the end of the session.
func TestFailedChangeIsPreviewedAgain(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	for _, id := range []string{"one", "two"} {
		join(t, openClient(t, pool, id), "orders", 8)
	}
	testkit.OK(t, join(t, openClient(t, pool, "three"), "old", 2).Leave(t.Context()))
	login, c := newLogin("secret", "look"), new(testkit.Wire)
	server := newServer(t, must(pages(testkit.Pool(t, pgtest.OwnerURL(databaseURL), c.Carry), login)))
	a := testkit.Must(admin.New(pool))(t)
	overrides := func(want int) {
		t.Helper()
		if s, err := a.Snapshot(t.Context()); err != nil || len(s.Overrides) != want {
			t.Errorf("overrides %+v, %v; want %d", s.Overrides, err, want)
		}
	}
	x, other := newTab(t, 1280, 900), newTab(t, 1280, 900)
	for _, y := range []tab{x, other} {
		y.signIn(server.URL, "leases/orders")
		y.until(owns("one", "=== 4") + " && " + owns("two", "=== 4"))
	}
	x.turnTo("clients")
	x.open("Operate one", "drain")
	x.until(previewed)
	other.open("Operate orders", "freeze")
	other.confirm("not now")
	x.run(chromedp.SendKeys("#operate-reason", "a disk\r", chromedp.ByQuery))
	x.until(isClosed)
	overrides(2)
	other.until(owns("one", "=== 0"))

	other.open("Operate orders", "")
	if eval[bool](other, `document.querySelector("#operate-verbs input[value=drop]") !== null`) {
		t.Error("a lease at work can be dropped")
	}
	other.click("#operate-cancel")
	other.turnTo("leases")
	other.open("Operate old", "drop")
	other.until(preview + ` === "2 partitions would be forgotten. Nobody works on the lease."`)
	other.confirm("of last year")
	other.until(`[...document.querySelectorAll("#lease-rows tr")].every(e => !e.textContent.includes("old"))`)

	x.open("Operate two", "drain")
	x.until(failure + `.includes("is the last that works on") && document.querySelector("#operate-go").disabled`)
	x.click("#operate-force")
	x.until(previewed, preview+`.includes("8 partitions would have no owner.")`)
	c.Cut() // in the middle of it
	x.run(chromedp.SendKeys("#operate-reason", "a fire\r", chromedp.ByQuery))
	x.until(failure + `.startsWith("Nothing was done.")`)
	x.until(`document.activeElement.textContent === "Preview again" && document.querySelector("#operate-go").disabled`)
	c.Mend()
	overrides(2)
	// The pool may still have broken connections.
	x.until(`(document.querySelector("#operate-preview button")?.click(), ` + previewed + `)`)
	// Between the preview and this the operator has become somebody who only looks, and then nobody.
	login.mu.Lock()
	for secret, signed := range login.sessions {
		signed.user = "viewer"
		login.sessions[secret] = signed
	}
	login.mu.Unlock()
	x.click("#operate-go")
	x.until(failure + ` === "Nothing was done. You may look, and change nothing."`)
	login.mu.Lock()
	clear(login.sessions)
	login.mu.Unlock()
	x.click("#operate-verbs input[value=cordon]")
	x.until(failure + `.includes("You may not do this any more.")`)
	overrides(2)
}

// A page of another origin has a browser send no verb, though it has the operator's cookie.
func TestAnotherSiteCannotOperate(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	handler := must(pages(operators(t, databaseURL), newLogin("secret", "look")))
	var mu sync.Mutex // guards what follows
	answers := make(map[string]int)
	server := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		told := &watched{ResponseWriter: w}
		handler.ServeHTTP(told, r)
		if r.Method != http.MethodGet && r.Header.Get("Origin") != "" && !strings.HasSuffix(r.URL.Path, "/login") {
			mu.Lock()
			answers[r.Method+" "+r.Header.Get("Content-Type")] = told.status
			mu.Unlock()
		}
	}))
	evil := newServer(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, `<form method=post enctype=text/plain action="%s/ops/leases/data/apply">
			<input name='{"verb":"freeze","subject":"orders","reason":"' value='"}'></form>`, server.URL)
	}))
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "")
	x.run(chromedp.Navigate(evil.URL))
	for _, kind := range []string{"application/json", "text/plain"} {
		var sent string
		apply := fmt.Sprintf(`fetch("%s/ops/leases/data/apply", {
			method: "POST",
			credentials: "include",
			mode: %q === "text/plain" ? "no-cors" : "cors",
			headers: {"Content-Type": %q},
			body: "{}",
		}).then(a => a.type, e => "refused")`, server.URL, kind, kind)
		x.run(chromedp.Evaluate(apply, &sent, chromedp.EvalAsValue, awaited))
		if sent != "refused" && sent != "opaque" {
			t.Errorf("%s: the other site reads %q", kind, sent)
		}
	}
	x.run(chromedp.Evaluate(`document.forms[0].submit()`, nil))
	x.until(`document.body.textContent.includes("cross-origin")`)
	mu.Lock()
	defer mu.Unlock()
	if len(answers) != 2 {
		t.Errorf("answers %v", answers)
	}
	for request, status := range answers {
		if status != http.StatusForbidden {
			t.Errorf("%s: %d", request, status)
		}
	}
}

// watched knows the status of an answer.
type watched struct {
	http.ResponseWriter
	status int
}

func (w *watched) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *watched) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// The dialog is led by the keyboard, told to who hears, and read on a phone.
func TestTheDialogIsForAll(t *testing.T) {
	t.Parallel()
	databaseURL, pool := database(t)
	for _, id := range []string{"one", "two"} {
		join(t, openClient(t, pool, id), "orders", 40)
	}
	x := newTab(t, 390, 800)
	x.signIn(serve(t, operators(t, databaseURL)), "clients")
	x.until(`[...document.querySelectorAll("#client-rows tr")].every(e => e.children[2].textContent === "20")`,
		count("#client-rows tr")+` === 2`)
	x.run(chromedp.Focus(`button[aria-label="Operate one"]`, chromedp.ByQuery))
	x.press(kb.Enter)
	x.until(`document.activeElement.matches("#operate-verbs input[value=drain]")`,
		`document.querySelector("#operate-go").disabled`)
	x.press(kb.Escape)
	x.until(isClosed + ` && document.activeElement.getAttribute("aria-label") === "Operate one"`)
	// Who opens it again at once has the preview: what tells of the end of the one before comes later.
	eval[bool](x, `(() => {
		const button = document.activeElement;
		button.click();
		document.querySelector("#operate").close();
		document.activeElement.click();
		document.querySelector("#operate-verbs input[value=drain]").click();
		return true;
	})()`)
	x.until(previewed)
	x.press(kb.Escape)
	x.until(isClosed + ` && document.activeElement.getAttribute("aria-label") === "Operate one"`)
	x.press(kb.Enter, " ")
	x.until(previewed)
	x.press(kb.Enter) // without a reason
	x.until(`document.activeElement.id === "operate-reason" && document.querySelector("#operate").open`)
	unnamed := eval[[]string](x, `[...document.querySelectorAll("#operate :is(input, select, button, fieldset)")]
		.filter(e => !(e.labels?.length || e.matches("button") && e.textContent ||
			e.matches("fieldset") && e.querySelector("legend")?.textContent))
		.map(e => e.outerHTML)`)
	if len(unnamed) > 0 {
		t.Errorf("without a name for who hears: %q", unnamed)
	}
	for element, role := range map[string]string{
		"#operate-preview": "status",
		"#operate-failure": "alert",
		"#told":            "status",
	} {
		got := eval[string](x, fmt.Sprintf(`document.querySelector(%q).getAttribute("role")`, element))
		if got != role {
			t.Errorf("%s has the role %q, want %q", element, got, role)
		}
	}
	if !eval[bool](x, `(dialog => dialog.matches(":modal") &&
		document.getElementById(dialog.getAttribute("aria-labelledby")).textContent === "Operate on client one"
		)(document.querySelector("#operate"))`) {
		t.Error("the dialog does not say what it is")
	}
	readable(x)
	x.run(chromedp.SendKeys("#operate-reason", "a disk\r", chromedp.ByQuery))
	x.until(isClosed, toldText+`.includes("Drain of one is written down")`,
		`document.activeElement.getAttribute("aria-label") === "Operate one"`)
	x.show("clients/one")
	x.until(`document.querySelector("button[aria-label='Undrain one']") !== null`)
	x.run(chromedp.Focus(`button[aria-label="Undrain one"]`, chromedp.ByQuery))
	x.press(kb.Enter)
	x.until(previewed)
	x.run(chromedp.SendKeys("#operate-reason", "it stays\r", chromedp.ByQuery))
	x.until(isClosed + ` && document.querySelectorAll("#override-list li").length === 0`) // and the button with it
	x.until(`document.activeElement !== document.body`)
}

func TestEventsAreFoundByLeaseClientAndCause(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	one, two := openClient(t, pool, "one"), openClient(t, pool, "two")
	for _, name := range []string{"orders", "orders/old", "invoices"} {
		join(t, one, name, 4)
		join(t, two, name, 4)
	}
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "events")
	x.until(rows("#event-list li") + `.filter(text => text.includes("joined")).length === 6`)
	x.run(chromedp.SendKeys("#event-lease", "orders", chromedp.ByQuery))
	x.until(`location.search === "?lease=orders"`, every("#event-list li", ` orders `))
	x.run(chromedp.SendKeys("#event-client", "two", chromedp.ByQuery))
	x.until(rows("#event-list li") + `.every(text => text.includes("two"))`)
	x.choose("#event-cause", "joined")
	x.until(rows("#event-list li")+`.length === 1`, every("#event-list li", `joined orders.* to .*two`))
	// The page offers each cause that there is, and any.
	if causes := eval[int](x, `document.querySelector("#event-cause").options.length`); causes != len(admin.Causes)+1 {
		t.Errorf("the page offers %d causes, and there are %d", causes, len(admin.Causes))
	}
	// The address holds the filter.
	address := eval[string](x, `location.search`)
	x.show("events" + address)
	x.until(rows("#event-list li")+`.length === 1`, `document.querySelector("#event-cause").value === "joined"`,
		`document.querySelector("#event-client").value === "two"`)
	// What comes is found too, and a client of another name is not.
	join(t, openClient(t, pool, "two more"), "orders", 4)
	x.show("events?lease=orders&cause=joined")
	x.until(rows("#event-list li") + `.length === 3`)
	for address, want := range map[string]string{
		"events?since=soon": `The events cannot be read: ` +
			`The period "soon" is invalid: give since=1h`,
		"events?lease=none":                    "No event matches from ",
		"events?from=2026-01-01T00:00:00Z&to=": "out of range, which is 1 minute to 31 days",
	} {
		x.show(address)
		x.until(fmt.Sprintf(`document.querySelector("#events-note").textContent.includes(%q)`, want))
	}
}

// readable has light and dark looked at: enough contrast, and nothing to scroll sideways.
func readable(x tab) {
	x.Helper()
	for _, scheme := range []string{"light", "dark"} {
		media := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}
		x.run(emulation.SetEmulatedMedia().WithFeatures(media))
		x.until(fmt.Sprintf(`matchMedia("(prefers-color-scheme: %s)").matches`, scheme))
		if found := eval[[]string](x, contrasts); len(found) > 0 {
			x.Errorf("%s: too little contrast: %q", scheme, found)
		}
		noScroll(x)
	}
}

package main

import (
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pgleases/pgleases/internal/testkit"
)

// The hours in which no client lived are the worst, so the strip of time shows them.
func TestOutageOfAllClientsIsSeenAndHeard(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	testkit.Must(pool.Exec(t.Context(), `INSERT INTO pgleases.events (at, cause, reason) VALUES ('2026-03-01 05:00:06Z', 'no live client', 'from 2026-03-01T03:30:00Z to 2026-03-01T05:00:00Z')`))(t)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "?from=2026-03-01T03:00:00Z&to=2026-03-01T04:00:00Z")
	x.until(`document.querySelectorAll(".plot .outage").length === 1`)
	x.until(`/no client lived from 1 Mar, 03:30:00 to 1 Mar, 05:00:00, for 90 min/.test(document.querySelector(".strip").textContent)`)
	x.run(chromedp.Focus(".plots", chromedp.ByQuery))
	const said = `document.querySelector(".plots").getAttribute("aria-valuetext")`
	x.press(kb.Home)
	x.until(said + ` === "1 Mar, 03:00:00. Nothing."`)
	x.press(kb.End)
	x.until(said + ` === "1 Mar, 03:59:00. Clients: no client lived."`)
	eval[bool](x, `(document.querySelector(".numbers").open = true)`)
	x.until(`document.querySelectorAll(".numbers tbody tr").length === 30`)
	x.press(kb.Enter)
	x.until(`location.pathname.endsWith("/events") && ` + rows("#event-list li") + `.length === 1`)
	x.until(rows("#event-list li") + `.every(text => /no live client from 1 Mar, 03:30:00 to 1 Mar, 05:00:00, for 90 min$/.test(text))`)
	x.isNamed()
	readable(x)
}

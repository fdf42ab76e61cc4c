package main

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"

	"github.com/pgleases/pgleases/internal/testkit"
)

// The hours in which no client lived are the worst, so the strip of time shows them.
func TestOutageOfAllClientsIsSeenAndHeard(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.events (at, cause, reason)
		VALUES ('2026-03-01 05:00:06Z', 'no live client', 'from 2026-03-01T03:30:00Z to 2026-03-01T05:00:00Z')`)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "?from=2026-03-01T03:00:00Z&to=2026-03-01T04:00:00Z")
	x.until(`document.querySelectorAll(".plot .outage").length === 1`)
	x.until(matches(textOf(".strip"), `no client lived from 1 Mar, 03:30:00 to 1 Mar, 05:00:00, for 90 min`))
	x.run(chromedp.Focus(".plots", chromedp.ByQuery))
	const said = `document.querySelector(".plots").getAttribute("aria-valuetext")`
	x.press(kb.Home)
	x.until(said + ` === "1 Mar, 03:00:00. Nothing."`)
	x.press(kb.End)
	x.until(said + ` === "1 Mar, 03:59:00. Clients: no client lived."`)
	eval[bool](x, `(document.querySelector(".strip .numbers").open = true)`)
	x.until(`document.querySelectorAll(".strip .numbers tbody tr").length === 30`)
	x.press(kb.Enter)
	x.until(`location.pathname.endsWith("/events") && ` + rows("#event-list li") + `.length === 1`)
	x.until(every("#event-list li", `no live client from 1 Mar, 03:30:00 to 1 Mar, 05:00:00, for 90 min$`))
	x.isNamed()
	readable(x)
}

// The tiles of the overview and of a consumer show their last 24 hours, with gaps, and as a table.
func TestCurvesShowTheLastDay(t *testing.T) {
	t.Parallel()
	pool := startFleet(t)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.samples (at, kind, name, value)
		SELECT date_trunc('minute', now()) - n * interval '1 minute', k.kind, k.name,
			CASE k.kind WHEN 'oldest' THEN 60 ELSE 1 END * (n % 200)
		FROM generate_series(1, 1200) AS n, (VALUES ('clients', ''), ('leases', ''), ('unowned', ''), ('waiting', ''),
			('failing', ''), ('late', ''), ('locks', ''),
			('waiting', 'outbox'), ('oldest', 'outbox'), ('blocked', 'outbox')) AS k (kind, name)
		WHERE n NOT BETWEEN 400 AND 500 ON CONFLICT DO NOTHING`)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "")
	x.until(`document.querySelectorAll("#summary .curve path").length === 6`)
	// One gap makes two parts of each.
	x.until(`[...document.querySelectorAll("#summary .curve path")].every(e =>
		e.getAttribute("d").split("M").length === 3)`)
	x.until(rows("#summary .curve") + `.map(text => text.replace("24 h: up to ", "")).join() ===
		"199,199,199,199,398,199"`)
	x.isNamed()
	eval[bool](x, `(document.querySelector(".curves .numbers").open = true)`)
	x.until(rows(".curves tbody tr")+`.length > 78`, some(".curves tbody tr", "no sample"))
	x.isNamed()
	readable(x)

	x.show("consumers/outbox")
	x.until(`document.querySelectorAll(".summary .curve path").length === 3`)
	x.until(rows(".summary .curve") + `.join() === "24 h: up to 199,24 h: up to 3 h,24 h: up to 199"`)
	x.isNamed()
	readable(x)
	x.show("consumers/none")
	x.until(`document.querySelector("main").textContent.includes('There is no consumer "none".')`)
}

// Events are shown also if they come more often than answers do.
func TestEventsAreShownBetweenOthers(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	handler := must(pages(pool, newLogin("secret", "look")))
	server, front := fronted(t, handler)
	slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasSuffix(r.URL.Path, "/data/happened"):
			select {
			case <-time.After(2500 * time.Millisecond): // the time that an answer takes
			case <-r.Context().Done():
				return
			}
		case strings.HasSuffix(r.URL.Path, "/data/poll"):
			_, _ = pool.Exec(r.Context(), "INSERT INTO pgleases.events (lease, cause) VALUES ('l', 'joined')")
		}
		handler.ServeHTTP(w, r)
	})
	front.Store(&slow)
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "events")
	x.until(rows("#event-list li") + `.length > 3`)
	first := eval[int](x, rows("#event-list li")+`.length`)
	x.until(fmt.Sprintf(rows("#event-list li")+`.length > %d`, first))
}

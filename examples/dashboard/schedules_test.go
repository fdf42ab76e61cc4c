package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// row is an expression for the row of a list whose head begins with a text.
func row(list, head string) string {
	return fmt.Sprintf(`[...document.querySelectorAll("%s tbody tr")].find(e =>
		e.querySelector("th").textContent.startsWith(%q))`, list, head)
}

// Schedules and jobs are seen and operated as they run.
func TestSchedulesAndJobsAreSeenAndOperated(t *testing.T) {
	t.Parallel()
	databaseURL, _ := database(t)
	owner := newPool(t, pgtest.OwnerURL(databaseURL))
	s := testkit.Must(schedule.New(t.Context(), openClient(t, owner, "runner"), owner, "billing"))(t)
	type none struct{}
	reports := schedule.InTx(s, "reports", func(context.Context, pgx.Tx, schedule.Run[none]) error { return nil })
	bad := schedule.InTx(s, "bad", func(context.Context, pgx.Tx, schedule.Run[none]) error {
		return schedule.Discard(errors.New("<img src=x onerror='window.hacked=1'>\u202e"))
	})
	for i := range 60 {
		testkit.OK(t, reports.Add(fmt.Sprintf("close-%02d", i), none{}, schedule.Every(time.Hour)))
	}
	for _, name := range []string{hostile[1], hostile[4]} {
		testkit.OK(t, reports.Add(name, none{}, schedule.Every(time.Hour)))
	}
	testkit.OK(t, bad.Add("broken", none{}, schedule.Every(time.Hour)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	id := testkit.Must(reports.Enqueue(t.Context(), none{}, schedule.WithDelay(time.Hour)))(t)

	x := newTab(t, 1280, 900)
	x.signIn(serve(t, owner), "schedules")
	x.until(rows("#group-rows tr") + `.some(text => text.startsWith("billing63"))`)
	const note = `document.querySelector("#schedule-list .note").textContent`
	// Pages, and a search.
	x.until(count("#schedule-list tbody tr")+` === 50`, note+` === "Page 1, and there are more."`)
	x.run(chromedp.Click(`#schedule-list .pages .act`, chromedp.ByQuery))
	x.until(count("#schedule-list tbody tr")+` === 13`, note+` === "Page 2."`)
	x.run(chromedp.SendKeys("#schedule-list .prefix", "close-07", chromedp.ByQuery))
	x.until(count("#schedule-list tbody tr")+` === 1`,
		row("#schedule-list", "close-07")+`.children[1].textContent.startsWith("planned")`)

	x.open("Operate close-07", "pause_schedule")
	x.confirm("its <b>reports are open")
	x.until(row("#schedule-list", "close-07") + `.children[1].textContent.startsWith("pausedby operator (")`)
	x.open("Operate close-07", "resume_schedule")
	x.confirm("they are closed")
	x.until(row("#schedule-list", "close-07") + `.children[1].textContent.startsWith("planned")`)
	x.open("Operate close-07", "trigger_schedule")
	x.confirm("now")
	x.until(toldText + `.includes("It is job ")`)
	x.clickOn(row("#schedule-list", "close-07") + `.querySelector("a")`)
	x.until(`location.pathname.endsWith("/schedules/billing/close-07")`,
		some("#history tbody tr", `job .*succeeded|succeeded.*job `))
	x.until(rows(".next li") + `.length === 5`)
	changes := rows("#change-list li")
	x.until(changes+`.length === 3`,
		matches(changes+`[0]`, `schedule triggered close-07 job \d+ by operator \(.*\): now$`),
		matches(changes+`[1]`, `schedule resumed close-07 catch_up false by operator \(.*\): they are closed$`),
		changes+`[2].endsWith(": its <b>reports are open")`)
	x.run(chromedp.NavigateBack())
	x.until(`location.search === "?prefix=close-07"`, count("#schedule-list tbody tr")+` === 1`)

	// One is deleted, and it is the one that was shown.
	x.choose("#schedule-list .prefix", "spare")
	spare := func() {
		testkit.OK(t, reports.Put(t.Context(), "spare", none{}, schedule.Every(time.Hour)))
	}
	spare()
	x.until(row("#schedule-list", "spare") + ` !== undefined`)
	eval[bool](x, `(window.spare = `+row("#schedule-list", "spare")+`) !== undefined`)
	x.open("Operate spare", "delete_schedule")
	x.until(matches(preview,
		`^Deleted is spare of group billing, of kind reports, by the rule .*1h.*, due next at .*\.$`))
	testkit.OK(t, s.Delete(t.Context(), "spare"))
	spare()
	x.run(chromedp.SendKeys("#operate-reason", "not needed\r", chromedp.ByQuery))
	x.until(failure+`.startsWith("Nothing was done: since the preview something has changed.")`,
		failure+`.includes("is not the one that was seen")`)
	eval[bool](x, `document.querySelector("#operate").close() || true`)
	x.until(`!window.spare.isConnected`)
	x.open("Operate spare", "delete_schedule")
	x.confirm("not needed")
	x.until(row("#schedule-list", "spare") + ` === undefined`)

	// What fails is found, and run once more.
	testkit.Must(s.Trigger(t.Context(), "broken"))(t)
	x.show("jobs/billing?state=failed")
	x.until(`document.querySelector("#job-list tbody tr")?.textContent
		.includes("<img src=x onerror='window.hacked=1'>\\u{202e}") === true`)
	retry := eval[string](x, `document.querySelector("#job-list tbody [aria-haspopup]").getAttribute("aria-label")`)
	x.open(retry, "")
	x.confirm("once more")
	x.until(some("#job-list tbody tr", "retried as "), count("#job-list tbody tr")+` === 2`)
	x.choose("#job-list .which", "")
	x.open(fmt.Sprintf("Cancel job %d", id), "")
	x.confirm("not needed")
	x.until(row("#job-list", fmt.Sprint(id)) + ` === undefined`)
	if j, err := s.Job(t.Context(), id); err != nil || j.Outcome != schedule.OutcomeCanceled {
		t.Errorf("%+v, %v", j, err)
	}

	// Names are text, and all can be read, also on a phone.
	for _, name := range hostile[1:5:5] {
		if name == hostile[2] || name == hostile[3] {
			continue
		}
		x.show("schedules/billing?prefix=" + url.QueryEscape(name[:1]))
		x.until(row("#schedule-list", name) + ` !== undefined`)
		x.run(chromedp.EmulateViewport(390, 800))
		readable(x)
		x.clickOn(row("#schedule-list", name) + `.querySelector("a")`)
		x.until(fmt.Sprintf(`document.querySelector("h1 .name")?.textContent === %q`, name),
			textOf(".facts-list")+`.includes("reports")`)
		if eval[bool](x, `"hacked" in window || document.querySelector("main img, main svg, main script") !== null`) {
			t.Error("a name is markup")
		}
		readable(x)
	}
	x.show("schedules/billing/none")
	x.until(`document.querySelector("main .failure").textContent.includes('schedule "none"')`)
	x.show("schedules/none")
	x.until(`document.querySelector("#schedule-list .note").textContent !== ""`)
}

// The calendar of a schedule has a cell for each of 30 days, which is read by the keyboard and as a table.
func TestCalendarShowsTheWorstOfEachDay(t *testing.T) {
	t.Parallel()
	pool := startFleet(t)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.history
			(source, schedule, group_name, name, kind, since, until, ticks, outcome, ended_at)
		SELECT 'tick', s.id, 'billing', s.name, s.kind, at, at, n, outcome, at
		FROM pgleases.schedules AS s,
			(VALUES (10, 3, 'succeeded'), (10, 2, 'skipped'), (11, 4, 'succeeded'), (12, 1, 'succeeded'),
				(12, 1, 'unknown'), (40, 1, 'failed')) AS v (days, n, outcome),
			LATERAL (SELECT date_trunc('day', now()) + interval '12 hours' - v.days * interval '1 day' AS at) AS a
		WHERE s.name = 'invoices'`)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "schedules/billing/invoices")
	x.until(`document.querySelectorAll(".calendar .day").length === 30`)
	const kinds = `[...document.querySelectorAll(".calendar .swatch")].map(e => e.className.replace("swatch ", ""))`
	for day, kind := range map[int]string{-11: "warn", -12: "good", -13: "bad", -14: "", 0: ""} {
		x.until(fmt.Sprintf(kinds+`.at(%d) === %q`, day, kind))
	}
	x.run(chromedp.Focus(".calendar", chromedp.ByQuery))
	const said = `document.querySelector(".calendar").getAttribute("aria-valuetext")`
	x.press(kb.End, kb.ArrowUp, kb.ArrowLeft, kb.ArrowLeft, kb.ArrowLeft)
	x.until(`/^\w+,? \d+ \w+: 2 skipped, 3 succeeded$/.test(` + said + `)`)
	x.press(kb.ArrowLeft, kb.ArrowLeft)
	x.until(said + `.endsWith(": 1 unknown, 1 succeeded")`)
	x.press(kb.Home)
	x.until(said + `.endsWith(": no tick")`)
	eval[bool](x, `(document.querySelector(".calendar ~ .numbers").open = true)`)
	x.until(rows(".calendar ~ .numbers tbody tr") + `.length === 30`)
	x.isNamed()
	readable(x)
	x.run(chromedp.EmulateViewport(390, 800))
	readable(x)
	x.show("schedules/billing/none")
	x.until(`document.querySelector("main .failure").textContent.includes('schedule "none"')`)
}

// Jobs are shown by kind and key, and the address holds both.
func TestJobsAreFilteredByKindAndKey(t *testing.T) {
	t.Parallel()
	pool := startFleet(t)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.jobs (group_name, key, partition, kind, name, trigger, args, priority, at, due)
		SELECT 'mail', 'customer ' || n % 2, 0, 'goodbye', '', 'api', '{}', 1, now(), now() + '1 hour'
		FROM generate_series(1, 60) AS n`)
	const note = `document.querySelector("#job-list .note").textContent`
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "jobs/mail?kind=goodbye")
	x.until(count("#job-list tbody tr")+` === 50`, `document.querySelector("#job-kind").value === "goodbye"`)
	x.clickOn(nextPage)
	x.until(count("#job-list tbody tr")+` === 10`, note+` === "Page 2."`)
	x.run(chromedp.SendKeys("#job-key", "customer 1", chromedp.ByQuery))
	x.until(`location.search === "?kind=goodbye&key=customer+1"`, count("#job-list tbody tr")+` === 30`)
	x.isNamed()
	readable(x)
	x.show("jobs/mail?kind=goodbye&key=none")
	x.until(note+` === "There is no such job."`, `document.querySelector("#job-key").value === "none"`)
	x.show("jobs/mail?kind=goodbye&state=failed")
	x.until(note + ` === "There is no such job."`)
	x.run(chromedp.EmulateViewport(390, 800))
	readable(x)
}

const nextPage = `[...document.querySelectorAll("#job-list .pages button")].find(e => e.textContent === "Next page")`

// What is cut is told.
func TestListsSayWhereTheyEnd(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	const group = `{"name":"g%d","schedules":0,"late":0,"blocked":0,"paused":0,"failing":0,"jobs":0,"stuck":0,` +
		`"outcomes":[]}`
	const job = `{"id":%d,"kind":"k","name":"","state":"due","outcome":"","at":"2026-01-01T00:00:00Z"}`
	const groups = `{"status":{"seen":true},"parts":{"schedules":{"version":"x",` +
		`"content":{"groups":[%s],"failure":""}}}}`
	var all []string
	for i := range 100 {
		all = append(all, fmt.Sprintf(group, i))
	}
	var jobs []string
	for i := range 50 {
		jobs = append(jobs, fmt.Sprintf(job, i))
	}
	more := new(atomic.Bool)
	more.Store(true)
	server, front := fronted(t, must(pages(pool, newLogin("secret", "look"))))
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "")
	made := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		switch {
		case strings.HasSuffix(r.URL.Path, "/data/jobs"):
			fmt.Fprintf(w, `{"rows":[%s],"more":%t}`, strings.Join(jobs, ","), more.Load())
		case strings.HasSuffix(r.URL.Path, "/data/poll"):
			fmt.Fprintf(w, groups, strings.Join(all, ","))
		default:
			fmt.Fprint(w, `{"rows":[]}`)
		}
	})
	x.turnTo("schedules")
	front.Store(&made)
	x.until(textOf("#main .note") + ` === "No more than the first 100 groups by name are shown."`)
	x.turnTo("jobs")
	for i := range 19 {
		x.until(fmt.Sprintf(`document.querySelector("#job-list .note")?.textContent ===
			"Page %d, and there are more."`, i+1))
		x.clickOn(nextPage)
	}
	x.until(`document.querySelector("#job-list .note").textContent === "Page 20, and there are more."`)
	more.Store(false)
	x.until(`document.querySelector("#job-list .note").textContent === "Page 20. No more than 1,000 are found."`)
}

// An answer may be lost after a verb was carried out. The browser then sends it again by itself, some
// times. Nothing is done twice, also by a second press, and the page says that it is not known.
func TestALostAnswerOfAVerbDoesNothingTwice(t *testing.T) {
	t.Parallel()
	databaseURL, _ := database(t)
	owner := newPool(t, pgtest.OwnerURL(databaseURL))
	client := openClient(t, owner, "runner")
	join(t, client, "orders", 8)
	s := testkit.Must(schedule.New(t.Context(), client, owner, "billing"))(t)
	type none struct{}
	reports := schedule.InTx(s, "reports", func(context.Context, pgx.Tx, schedule.Run[none]) error { return nil })
	testkit.OK(t, reports.Put(t.Context(), "close", none{}, schedule.Every(time.Hour)))
	testkit.Execute(t, owner, `
		INSERT INTO pgleases.schedule_groups VALUES ('billing', 128) ON CONFLICT DO NOTHING -- as Run does`)
	handler := must(pages(owner, newLogin("secret", "look")))
	server, front := fronted(t, handler)
	loses := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/ask") || strings.HasSuffix(r.URL.Path, "/apply") {
			handler.ServeHTTP(httptest.NewRecorder(), r)
			panic(http.ErrAbortHandler)
		}
		handler.ServeHTTP(w, r)
	})
	front.Store(&loses)
	x := newTab(t, 1280, 900)
	x.signIn(server.URL, "")
	for _, verb := range []struct{ screen, label, verb, want string }{
		{"schedules", "Operate close", "trigger_schedule",
			"It is not known whether this was done: see the jobs and the history"},
		{"leases", "Operate orders", "freeze", "It is not known whether this was done: see the overrides"},
	} {
		x.turnTo(verb.screen)
		x.open(verb.label, verb.verb)
		x.until(previewed)
		x.run(chromedp.SendKeys("#operate-reason", "why\r", chromedp.ByQuery))
		x.until(failure + fmt.Sprintf(`.startsWith(%q) && document.querySelector("#operate-go").disabled`, verb.want))
		x.run(chromedp.SendKeys("#operate-reason", "\r", chromedp.ByQuery)) // again
		eval[bool](x, `document.querySelector("#operate").close() || true`)
	}
	const ofClose = "SELECT count(*) FROM pgleases.jobs_status WHERE name = 'close'"
	if jobs := testkit.Value[int](t, owner, ofClose); jobs != 1 {
		t.Errorf("%d jobs", jobs)
	}
}

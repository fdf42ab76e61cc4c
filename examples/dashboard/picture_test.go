package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/schedule"
)

// startFleet runs five workers with leases, a lock, a consumer, two groups of schedules, and a day of past.
func startFleet(t *testing.T) *pgxpool.Pool {
	t.Helper()
	databaseURL, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(databaseURL))
	outbox := consumer.Queue{Table: "outbox", Key: "customer", Partitions: 44, Time: "created_at"}
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	testkit.Must(pool.Exec(t.Context(), consumer.TableSQL("outbox", "", outbox)))(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	var billing *schedule.Scheduler
	for i, id := range []string{"worker-1", "worker-2", "worker-3", "worker-4", "eu-west-1a"} {
		pool := newPool(t, pgtest.OwnerURL(databaseURL))
		client := openClient(t, pool, id)
		join(t, client, "orders", 66)
		if i < 3 {
			join(t, client, "invoices", 24)
			join(t, client, "leader", 1)
		}
		if i > 2 {
			join(t, client, "exports", 512)
		}
		if i > 1 {
			continue
		}
		c := testkit.Must(consumer.New(ctx, client, pool, "outbox", outbox, consumer.Each(forward)))(t)
		running.Go(func() { _ = c.Run(ctx) })
		first, mail := newSchedulers(t, client, pool)
		running.Go(func() { _ = first.Run(ctx) })
		running.Go(func() { _ = mail.Run(ctx) })
		if i == 0 {
			billing = first
			held := testkit.Must(lock.New(client, pool).Acquire(t.Context(), "schema-upgrade"))(t)
			t.Cleanup(func() { _ = held.Release(context.Background()) })
		}
	}
	testkit.Becomes(t, pool, "the schedules are declared", 3, "SELECT count(*)::int FROM pgleases.schedules")
	giveWork(t, pool, billing)
	makePast(t, pool)
	return pool
}

// forward is a consumer's handler, which fails for two customers.
func forward(_ context.Context, _ pgx.Tx, row consumer.Row[struct{}]) error {
	if row.Key == "customer-2" || row.Key == "customer-5" {
		return errors.New("post https://billing.example/v2/charges: 422: currency \"EURO\" is not known")
	}
	return nil
}

// makePast writes a day of events and ticks before those of the fleet: its transactions are older.
func makePast(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	// The lease is older than the fleet.
	testkit.Execute(t, pool, `
		UPDATE pgleases.events SET tx = '1', at = at - interval '26 hours' WHERE lease = 'orders' AND cause = 'given';
		INSERT INTO pgleases.events (tx, at, lease, cause, from_id, to_id, partitions)
		SELECT (600 - 2 * n)::text::xid8, clock_timestamp() - n * interval '7 minutes', 'orders',
			CASE WHEN n % 4 = 0 THEN 'given' ELSE 'handed over' END, 'worker-' || 1 + (n * 5 + 1) % 4,
			'worker-' || 1 + (n * 5 - 4) % 4, int4multirange(int4range(n * 11 % 56, n * 11 % 56 + 11))
		FROM generate_series(1, 200) AS n;
		INSERT INTO pgleases.events (tx, at, cause, from_id, reason)
		SELECT (599 - 2 * n)::text::xid8, clock_timestamp() - n * interval '7 minutes' - interval '75 seconds',
			'evicted', 'worker-' || 1 + (n * 5 + 1) % 4, 'host eu-west-1, pid 4711'
		FROM generate_series(4, 200, 4) AS n`)
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.history
			(source, schedule, group_name, name, kind, since, until, ticks, outcome, error, attempts, started_at, ended_at)
		SELECT 'tick', s.id, s.group_name, s.name, s.kind, t, t, 1,
			CASE WHEN bad THEN 'failed' WHEN n % 17 = 0 THEN 'skipped' ELSE 'succeeded' END,
			CASE WHEN bad THEN 'sftp: connect 10.1.2.3:22: connection refused' END, 1,
			CASE WHEN n % 17 > 0 THEN t END, t + (3 + n * 37 % 23) * interval '1 second'
		FROM pgleases.schedules AS s, generate_series(1, 120) AS n,
			LATERAL (SELECT clock_timestamp() - n * interval '11 minutes' AS t, n < 6 AND s.name = 'invoices' AS bad) AS t
		ORDER BY t;
		UPDATE pgleases.schedules
		SET failures = 5, error = E'sftp: connect 10.1.2.3:22: connection refused\n\tat transfer.go:17',
			succeeded = now() - interval '66 minutes', rule = '@every 11m0s', due = now() + interval '5 minutes'
		WHERE name = 'invoices'`)
	testkit.Execute(t, pool, `
		INSERT INTO outbox (customer, payload) SELECT 'customer-' || n % 9, '{}' FROM generate_series(1, 60) AS n;
		INSERT INTO pgleases.consumer_dead_letters (consumer, id, partition, key, content, attempts, error)
		SELECT 'outbox', 9000 + n, n, 'customer-7' || n, '{}', 20,
			'post https://billing.example/v2/charges: 410: the account is closed'
		FROM generate_series(1, 3) AS n`)
}

type none struct{}

// newSchedulers returns a scheduler of each of the groups billing and mail.
func newSchedulers(t *testing.T, client *pgleases.Client, pool *pgxpool.Pool) (billing, mail *schedule.Scheduler) {
	t.Helper()
	billing = testkit.Must(schedule.New(t.Context(), client, pool, "billing", schedule.WithPartitions(1)))(t)
	reports := schedule.InTx(billing, "report", handle)
	for _, name := range []string{"close-the-day", "dunning", "invoices"} {
		testkit.OK(t, reports.Add(name, none{}, schedule.Cron("0 2 1 1 *", "Europe/Berlin")))
	}
	mail = testkit.Must(schedule.New(t.Context(), client, pool, "mail", schedule.WithPartitions(1)))(t)
	schedule.InTx(mail, "welcome", handle)
	return billing, mail
}

func handle(context.Context, pgx.Tx, schedule.Run[none]) error { return nil }

// giveWork triggers schedules, pauses one, and enqueues jobs.
func giveWork(t *testing.T, pool *pgxpool.Pool, billing *schedule.Scheduler) {
	t.Helper()
	for range 5 {
		testkit.Must(billing.Trigger(t.Context(), "close-the-day"))(t)
	}
	testkit.OK(t, billing.Pause(t.Context(), "dunning"))
	welcome := schedule.JobsOf[none](testkit.Must(schedule.NewEnqueuer(pool, "mail"))(t), "welcome")
	for i := range 52 {
		var opts []schedule.JobOption
		if i >= 40 {
			opts = append(opts, schedule.WithDelay(1<<40))
		}
		testkit.Must(welcome.Enqueue(t.Context(), none{}, opts...))(t)
	}
}

// A screen has an address, an expression that is true when it is drawn, and the name of its picture for
// each size.
type screen struct {
	address, drawn string
	pictures       map[string]string
}

var allScreens = []screen{
	{"", count(".plot svg") + ` === 4 && ` + count("#finding-list li") + ` > 0`,
		map[string]string{"light": "dashboard-light", "half": "operate"}},
	{"leases", `document.querySelectorAll("#lease-rows tr").length === 7`, nil},
	{"leases/orders", count(".band-events li") + ` > 8 && ` + count(".lease tbody tr") + ` === 5`,
		map[string]string{"dark": "dashboard-dark"}},
	{"leases/exports?since=24h", `document.querySelectorAll(".band-events li").length > 1`, nil},
	{"leases/orders/17?since=24h", `document.querySelectorAll("#owner-rows tr").length > 4`, nil},
	{"leases/orders?key=customer-7", `document.querySelectorAll("#owner-rows tr").length > 4`, nil},
	{"clients", `document.querySelectorAll("#client-rows tr").length === 5`, nil},
	{"clients/worker-2", `document.querySelectorAll("#event-list li").length > 8`, nil},
	{"consumers", `document.querySelectorAll("#consumer-rows tr").length === 1`, nil},
	{"consumers/outbox", count("#blocked-rows tr") + ` === 2 && ` + count("#letter-rows tr") + ` === 3`,
		map[string]string{"phone": "dashboard-phone"}},
	{"schedules", count("#failing-list tbody tr") + ` === 1 && ` + count("#schedule-list tbody tr") + ` === 3`, nil},
	{"schedules/billing/invoices", count(".tick") + ` === 100 && ` + count("#history tbody tr") + ` === 50`, nil},
	{"jobs/mail", `document.querySelectorAll("#job-list tbody tr").length === 12`, nil},
	{"locks", `document.querySelectorAll("#lock-rows tr").length === 1`, nil},
	{"events?since=24h", `document.querySelectorAll("#event-list li").length > 200`, nil},
	{"leases/none", `document.querySelector("main").textContent.includes("There is no lease of this name.")`, nil},
	{"leases/orders/66", `document.querySelector("main .failure").textContent.includes("no such partition")`, nil},
	{"leases/orders/x", `document.querySelector("main .failure").textContent.includes("is not a number")`, nil},
	{"leases/orders/1/2", textOf("main") + `.includes("There is no such page: leases/orders/1/2.")`, nil},
	{"leases/orders?since=soon", textOf("main .failure") + `.includes('The period "soon" is invalid') && ` +
		count(".lease tbody tr") + ` === 5`, nil},
	{"clients/none", `document.querySelector("main").textContent.includes("No client with this ID is live.")`, nil},
	{"consumers/none", `document.querySelector("main").textContent.includes('There is no consumer "none".')`, nil},
}

// Each screen can be read in light and dark, on a large and a small screen and on a phone, and says by its title
// what it shows. With -write, the test makes the pictures of README and of docs/dashboard.md anew.
func TestEachScreenCanBeReadAtEachSize(t *testing.T) {
	t.Parallel()
	pool := startFleet(t)
	url := serve(t, pool)
	x := newTab(t, 1440, 900)
	x.signIn(url, "")
	for _, size := range []struct {
		name, scheme  string
		width, height int64
	}{
		{"light", "light", 1440, 900},
		{"dark", "dark", 1440, 900},
		{"small", "light", 1024, 768},
		{"half", "light", 1240, 620},
		{"phone", "light", 390, 844},
		{"dark phone", "dark", 390, 844},
	} {
		media := []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: size.scheme}}
		x.run(chromedp.EmulateViewport(size.width, size.height, chromedp.EmulateScale(2)),
			emulation.SetEmulatedMedia().WithFeatures(media))
		for _, s := range allScreens {
			x.show(s.address)
			x.until(s.drawn)
			// What is painted is sharp.
			x.until(`[...document.querySelectorAll(".map, .band")].every(e =>
				!e.checkVisibility() || e.width === Math.round(e.clientWidth * 2))`)
			if found := eval[[]string](x, contrasts); len(found) > 0 {
				t.Errorf("%s, %s: too little contrast: %q", s.address, size.name, found)
			}
			noScroll(x)
			if tall := eval[int](x, "document.documentElement.scrollHeight"); size.width == 1440 && tall > 1800 {
				t.Errorf("%s is %d pixels high, which is more than two screens", s.address, tall)
			}
			first, _, _ := strings.Cut(s.address, "?")
			for part := range strings.SplitSeq(first, "/") {
				if title := eval[string](x, "document.title"); !strings.Contains(strings.ToLower(title), part) {
					t.Errorf("%s has the title %q, without %q", s.address, title, part)
				}
			}
			x.isNamed()
			if picture := s.pictures[size.name]; picture != "" && *write {
				var png []byte
				x.run(chromedp.CaptureScreenshot(&png))
				testkit.OK(t, os.WriteFile("../../docs/"+picture+".png", png, 0o644))
			}
		}
	}
}

// isNamed checks that what one can use, and each table, has a name for those who hear the page.
func (x tab) isNamed() {
	x.Helper()
	x.expectNames("table, nav, [role=slider], [role=group], input, select, button, canvas:not([aria-hidden])")
	x.expectTableHeads()
	if eval[int](x, `document.querySelectorAll("h1").length`) != 1 {
		x.Errorf("%s has not one heading of the first level", eval[string](x, "location.pathname"))
	}
}

// expectNames checks that each element has a name for those who hear the page.
func (x tab) expectNames(selector string) {
	x.Helper()
	unnamed := eval[[]string](x, fmt.Sprintf(`[...document.querySelectorAll(%q)].filter(e => !(
		e.getAttribute("aria-label") || document.getElementById(e.getAttribute("aria-labelledby")) ||
		e.labels?.length || e.matches("button") && e.textContent)).map(e => e.outerHTML)`, selector))
	if len(unnamed) > 0 {
		x.Errorf("without a name for who hears: %q", unnamed)
	}
}

// expectTableHeads checks that each column and each row of a table has a head.
func (x tab) expectTableHeads() {
	x.Helper()
	without := eval[[]string](x, `[
		...[...document.querySelectorAll("thead th")].filter(e => e.scope !== "col"),
		...[...document.querySelectorAll("tbody tr")].filter(e => !e.querySelector("th[scope=row]")),
	].map(e => e.outerHTML)`)
	if len(without) > 0 {
		x.Errorf("tables without heads: %q", without)
	}
}

// The pictures of time are gone through by the keyboard, and what they show is also in tables.
func TestPicturesOfTimeAreReadByTheKeyboard(t *testing.T) {
	t.Parallel()
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, startFleet(t)), "leases/orders?since=24h")
	x.until(`document.querySelectorAll(".band-events li").length > 100`)
	x.run(chromedp.Focus(".band-place", chromedp.ByQuery))
	x.press(kb.ArrowLeft)
	const said = `document.querySelector(".band-place").getAttribute("aria-valuetext")`
	x.until(matches(said, `^.*\d\d:\d\d:\d\d, partition 0: .+ since .+$`),
		`document.querySelector(".band-events li.shown") !== null`)
	first := eval[string](x, said)
	x.press(kb.ArrowDown, kb.ArrowDown)
	x.until(said + `.includes(", partition 2: ")`)
	x.press(kb.Home)
	x.until(fmt.Sprintf(said+` !== %q`, first), count(".band-events li.shown")+` <= 1`)
	// Those who see read it, too.
	x.until(textOf(".band-place + div + .line .cell") + `.includes(", partition 2: ")`)
	eval[bool](x, `(document.querySelector(".numbers").open = true)`)
	x.until(count(".numbers tbody tr")+` > 20`, some(".numbers tbody tr", "no owner"))
	x.run(chromedp.Focus(".band-place", chromedp.ByQuery))
	x.press(kb.Enter)
	x.until(`location.pathname.endsWith("/leases/orders/2") && document.querySelectorAll("#owner-rows tr").length > 1`)

	x.turnTo("")
	x.until(`document.querySelectorAll(".plot svg").length === 4`)
	x.run(chromedp.Focus(".plots", chromedp.ByQuery))
	const step = `document.querySelector(".plots").getAttribute("aria-valuetext")`
	x.press(kb.End)
	x.until(rows(".tally") + `.some(text => /^\d+ joins of [5-9] clients$/.test(text))`)
	x.goBackTo(step, "joins") // the last step, or one before it if a minute has begun since
	x.goBackTo(step, "Partitions moved: 11")
	x.press(kb.Enter)
	x.until(`location.pathname.endsWith("/events")`, `location.search.includes("from=")`,
		count("#event-list li")+` >= 1`)
	x.run(chromedp.NavigateBack())
	x.until(`document.title.startsWith("Overview")`)
	x.run(chromedp.NavigateBack())
	x.until(`location.pathname.endsWith("/leases/orders/2") && document.title.startsWith("orders / 2 · Leases")`)
	x.run(chromedp.NavigateForward())
	x.until(`document.title.startsWith("Overview")`)

	x.show("clients?q=none")
	x.until(`document.querySelector("main").textContent.includes("No client, host or metadata matches.")`)
	x.show("leases?q=none")
	x.until(`document.querySelector("main").textContent.includes("No lease and no member matches.")`)
	x.show("clients/worker-2")
	x.until(rows("#event-list li") + `.length > 8`) // the page has been drawn more than once
	x.until(`/^\d.* of \d/.test(document.querySelector(".facts-list .beat")?.innerText.trim())`)

	x.show("schedules/billing/invoices")
	x.until(`document.querySelectorAll(".tick").length === 100`)
	x.run(chromedp.Focus(".ticks", chromedp.ByQuery))
	x.press(kb.ArrowLeft)
	x.until(`document.querySelector(".ticks").getAttribute("aria-valuetext")
		.endsWith(": failed, took 17 s: sftp: connect 10.1.2.3:22: connection refused")`)
	x.until(some(".facts-list > div", `^Failing since.*5[5-9] min ago$`),
		some(".facts-list > div", `^Last success.*6[6-9] min ago$`))
	x.until(rows(".next li") + `.length === 5`)
	// The browser goes back with this key.
	taking := eval[[]string](x, `[...document.querySelectorAll("[role=slider]")].filter(e =>
		!e.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowLeft", altKey: true, cancelable: true})))
		.map(e => e.className)`)
	if len(taking) > 0 {
		t.Errorf("the pictures %q take Alt and the left arrow", taking)
	}
}

// goBackTo goes left through the steps of a picture, up to the latest whose text includes words.
func (x tab) goBackTo(text, words string) {
	x.Helper()
	for !eval[bool](x, fmt.Sprintf("%s.includes(%q)", text, words)) {
		before := eval[string](x, text)
		x.press(kb.ArrowLeft)
		if eval[string](x, text) == before {
			x.Fatalf("no step has %q", words)
		}
	}
}

// A consumer's rows are retried, skipped and returned, many at once, after a rehearsal and with one reason.
func TestRowsOfAConsumerAreOperated(t *testing.T) {
	t.Parallel()
	pool := startFleet(t)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "consumers")
	x.until(rows("#consumer-rows tr") + `.some(text => /outbox.*2 blocked keys.*3 dead letters/.test(text))`)
	x.click("#consumer-rows a")
	x.until(count("#blocked-rows tr")+` === 2`, count("#letter-rows tr")+` === 3`)
	x.until(every("#blocked-rows tr", `^customer-[25]partition \d+.*422: currency "EURO" is not known`))

	const retry = `document.querySelector("button[aria-label='Retry outbox']")`
	x.until(retry + `.disabled`)
	x.click("input[aria-label='Choose all shown']")
	x.until(`!`+retry+`.disabled`, count("#blocked-rows :checked")+` === 2`)
	x.open("Retry outbox", "")
	x.shows(matches(preview, `^2 rows would be retried: \d+, \d+$`))
	x.confirm("it is repaired")
	x.until(toldText+`.includes("2 rows.")`, rows("#change-list li")+`.filter(text =>
		/row retried row \d+ by operator \(.*\): it is repaired/.test(text)).length === 2`)

	x.click("#blocked-rows input")
	x.open("Skip outbox", "")
	x.confirm("it is lost")
	x.until(count("#letter-rows tr")+` === 4`, count("#blocked-rows tr")+` === 2`) // its next row fails too

	x.open("Operate outbox", "pause_consumer")
	x.until(preview + ` === "The consumer would be paused."`)
	x.confirm("maintenance")
	x.until(textOf(".marks")+`.includes("paused")`, textOf("main .note")+`.includes("Paused by operator (")`)
	// A row that is gone since it was chosen is told before and after.
	eval[bool](x, `[...document.querySelectorAll("#letter-rows input")].slice(0, 2).map(e => e.click()).length === 2`)
	x.open("Return outbox", "")
	x.shows(matches(preview, `^2 rows would be returned`))
	testkit.Must(pool.Exec(t.Context(), "DELETE FROM pgleases.consumer_dead_letters WHERE id > 9000"))(t)
	eval[bool](x, `(document.querySelector("#operate-reason").value = "again") !== ""`)
	x.shows(previewed)
	x.click("#operate-go")
	x.until(`/Return of outbox: 1 row done, 1 not: 900\d: .*not found/.test(` + toldText + `)`)
	x.open("Operate outbox", "resume_consumer")
	x.confirm("go on")
	x.until(`!document.querySelector(".marks").textContent.includes("paused")`)
}

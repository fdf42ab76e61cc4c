package main

import (
	"context"
	"fmt"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// A fleet of two workers, as README shows it: a lease, a consumer, and two groups of schedules.
// With -write, the test makes README's picture anew.
func TestPictureHasLeasesConsumersAndSchedules(t *testing.T) {
	t.Parallel()
	databaseURL, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(databaseURL))
	outbox := consumer.Queue{Table: "outbox", Key: "customer", Partitions: 44}
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	testkit.Must(pool.Exec(t.Context(), consumer.TableSQL("outbox", "", outbox)))(t)
	ctx, stop := context.WithCancel(t.Context())
	var running sync.WaitGroup
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	var first *schedule.Scheduler
	for _, id := range []string{"worker-1", "worker-2"} {
		pool := newPool(t, pgtest.OwnerURL(databaseURL))
		client := openClient(t, pool, id)
		join(t, client, "orders", 66)
		c := testkit.Must(consumer.New(ctx, client, pool, "outbox", outbox, consumer.Each(forward)))(t)
		running.Go(func() { _ = c.Run(ctx) })
		billing, mail := newSchedulers(t, client, pool)
		running.Go(func() { _ = billing.Run(ctx) })
		running.Go(func() { _ = mail.Run(ctx) })
		if id == "worker-1" {
			first = billing
		}
	}
	x := newTab(t, 1240, 590)
	x.signIn(serve(t, pool))
	x.until(rows("#group-rows tr") + `.some(text => /^billing3/.test(text))`)
	giveWork(t, pool, first)
	x.until(rows(".lease h3") + `.join() === "consumer/outbox,orders"`)
	x.until(rows(".lease tbody td:nth-child(2)") + `.join() === "22,22,33,33"`)
	x.until(rows("#group-rows tr") + `.some(text => /^billing3.*5 succeeded/.test(text))`)
	x.until(rows("#group-rows tr") + `.some(text => /^mail0.*40 succeeded/.test(text))`)
	// The picture has the leases and the groups of schedules, and leaves the rest of the page out.
	for _, rule := range []string{
		"#summary, .filter, .cell, #singles, #clients, #locks, .list, #events, #health { display: none !important }",
		"main { padding-top: .5rem !important }",
		"h2 { margin: 0 0 .5rem !important }",
	} {
		eval[int](x, fmt.Sprintf("(s => s.insertRule(%q, s.cssRules.length))(document.styleSheets[0])", rule))
	}
	x.run(chromedp.EmulateViewport(1240, 590, chromedp.EmulateScale(2)))
	x.until(`[...document.querySelectorAll(".map")].every(e => e.width === Math.round(e.clientWidth * 2))`) // sharp
	if *write {
		var png []byte
		x.run(chromedp.CaptureScreenshot(&png))
		testkit.OK(t, os.WriteFile("../../docs/operate.png", png, 0o644))
	}
	bottom := eval[float64](x, `document.querySelector("#group-rows").getBoundingClientRect().bottom`)
	if bottom > 590 {
		t.Errorf("the schedules end at %v of 590 pixels", bottom)
	}
}

// forward is a consumer's handler.
func forward(context.Context, pgx.Tx, consumer.Row[struct{}]) error { return nil }

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
	e := testkit.Must(schedule.NewEnqueuer(pool, "mail"))(t)
	welcome := schedule.JobsOf[none](e, "welcome")
	for i := range 52 {
		var opts []schedule.JobOption
		if i >= 40 {
			opts = append(opts, schedule.WithDelay(time.Hour))
		}
		testkit.Must(welcome.Enqueue(t.Context(), none{}, opts...))(t)
	}
}

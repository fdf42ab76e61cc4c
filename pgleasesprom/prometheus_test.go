package pgleasesprom_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil/promlint"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/metrics"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
	"github.com/pgleases/pgleases/pgleasesprom"
	"github.com/pgleases/pgleases/schedule"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// A world has two clients on a real database: worker is the one that suffers faults.
type world struct {
	t         *testing.T
	wire      testkit.Wire // of worker
	pool      *pgxpool.Pool
	worker    *pgleases.Client
	other     *pgleases.Client // which the registry does not know
	scheduler *schedule.Scheduler
	mail      *schedule.Kind[string]
	broken    *schedule.Kind[string]
	locks     *lock.Locks
	consumer  *consumer.Consumer
	registry  *prometheus.Registry
	admin     *admin.Admin
	release   chan struct{}
	hung      chan struct{} // of the consumer
}

// A machine that stops for 10 s causes no alert, and a worker that is cut off loses its trust soon.
const (
	ttl       = 15 * time.Second
	heartbeat = 200 * time.Millisecond
	healthy   = 10 * time.Second
)

// An order is a row of the consumer's queue.
type order struct{ Customer string }

func newWorld(t *testing.T) *world {
	w := &world{
		t:        t,
		registry: prometheus.NewPedanticRegistry(),
		release:  make(chan struct{}),
		hung:     make(chan struct{}),
	}
	url := pgtest.FreshDatabase(t)
	pool, cut := testkit.Pool(t, url), testkit.Pool(t, url, w.wire.Carry)
	newClient := func(pool *pgxpool.Pool) *pgleases.Client {
		return testkit.Must(pgleases.NewClient(t.Context(), pool,
			pgleases.WithTTL(ttl), pgleases.WithHeartbeat(heartbeat)))(t)
	}
	w.worker = newClient(cut)
	w.other = newClient(pool)
	w.pool, w.locks = pool, lock.New(w.worker, pool)
	w.scheduler = testkit.Must(schedule.New(t.Context(), w.worker, cut, "post", schedule.WithMaxRunning(1)))(t)
	w.mail = schedule.AtLeastOnce(w.scheduler, "mail", func(ctx context.Context, r schedule.Run[string]) error {
		if r.Args == "hang" {
			select {
			case <-w.release:
			case <-ctx.Done():
			}
		}
		return nil
	})
	fails := func(context.Context, schedule.Run[string]) error { return errors.New("broken") }
	w.broken = schedule.AtLeastOnce(w.scheduler, "broken", fails)
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	queue := consumer.Queue{Table: "public.outbox", Key: "customer", Partitions: 4, Time: "created_at"}
	testkit.Execute(t, pool, consumer.TableSQL("mails", "", queue))
	w.consumer = testkit.Must(consumer.New(t.Context(), w.worker, cut, "mails", queue,
		consumer.Each(w.handle), consumer.WithOnFailure(consumer.OnFailureDeadLetter)))(t)
	w.registry.MustRegister(
		pgleasesprom.NewCollector(w.worker),
		pgleasesprom.NewScheduleCollector(w.scheduler),
		pgleasesprom.NewConsumerCollector(w.consumer),
	)
	w.admin = testkit.Must(admin.New(pool))(t)
	t.Cleanup(func() {
		closing, cancel := context.WithTimeout(context.Background(), testkit.Patience)
		defer cancel()
		_ = w.worker.Close(closing)
		_ = w.other.Close(closing)
	})
	return w
}

// handle is the consumer's handler, which does what the key of a row says.
func (w *world) handle(ctx context.Context, _ pgx.Tx, row consumer.Row[order]) error {
	switch row.Key {
	case "broken":
		return errors.New("broken")
	case "discard":
		return consumer.Discard(errors.New("broken"))
	case "hang":
		select {
		case <-w.hung:
		case <-ctx.Done():
		}
	}
	return nil
}

// run runs the scheduler until the test ends.
func (w *world) run() {
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- w.scheduler.Run(ctx) }()
	w.t.Cleanup(func() {
		stop()
		<-ended
	})
	testkit.Until(w.t, "the scheduler owns its partitions", func() bool {
		return w.scheduler.Stats().Partitions > 0 && w.scheduler.Stats().Polls > 0
	})
}

// lock locks rows in a transaction, and returns a function that ends it.
func (w *world) lock(statement string, args ...any) (unlock func()) {
	tx := testkit.Must(w.pool.Begin(w.t.Context()))(w.t)
	testkit.Must(tx.Exec(w.t.Context(), statement, args...))(w.t)
	return func() { testkit.OK(w.t, tx.Rollback(w.t.Context())) }
}

// exposed returns what pgleases serve exposes.
func (w *world) exposed() []byte {
	return metrics.Text(testkit.Must(metrics.Database(w.t.Context(), w.admin))(w.t))
}

// scrape returns what Prometheus would scrape: series with their values, of the registry and of
// serve.
func (w *world) scrape() map[string]float64 {
	series := make(map[string]float64)
	families := testkit.Must(w.registry.Gather())(w.t)
	parser := expfmt.NewTextParser(model.LegacyValidation)
	exposed := testkit.Must(parser.TextToMetricFamilies(bytes.NewReader(w.exposed())))(w.t)
	for _, f := range append(families, slices.Collect(maps.Values(exposed))...) {
		for _, m := range f.Metric {
			labels := func(more ...string) string {
				all := more
				for _, l := range m.Label {
					all = append(all, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
				}
				return "{" + strings.Join(all, ",") + "}"
			}
			switch {
			case m.Histogram != nil:
				for _, b := range m.Histogram.Bucket {
					bound := fmt.Sprintf(`le="%v"`, b.GetUpperBound())
					series[f.GetName()+"_bucket"+labels(bound)] = float64(b.GetCumulativeCount())
				}
				series[f.GetName()+"_bucket"+labels(`le="+Inf"`)] = float64(m.Histogram.GetSampleCount())
				series[f.GetName()+"_sum"+labels()] = m.Histogram.GetSampleSum()
				series[f.GetName()+"_count"+labels()] = float64(m.Histogram.GetSampleCount())
			case m.Counter != nil:
				series[f.GetName()+labels()] = m.Counter.GetValue()
			default:
				series[f.GetName()+labels()] = m.Gauge.GetValue()
			}
		}
	}
	return series
}

// scrapeIf returns a scrape that is so.
func (w *world) scrapeIf(what string, is func(series map[string]float64) bool) (series map[string]float64) {
	testkit.Until(w.t, what, func() bool {
		series = w.scrape()
		return is(series)
	})
	return series
}

// idle reports whether no run and no batch is under way in a scrape.
func idle(series map[string]float64) bool {
	return series[runAge] == 0 && series[batchAge] == 0
}

// quiet returns a scrape in which no run and no batch is under way.
func (w *world) quiet() map[string]float64 { return w.scrapeIf("no work is under way", idle) }

const (
	runAge      = `pgleases_schedule_run_age_seconds{group="post"}`
	runsLocked  = `pgleases_schedule_run_slow{group="post",waits_for="lock"}`
	runsWaiting = `pgleases_schedule_run_waiting{group="post"}`
	batchAge    = `pgleases_consumer_batch_age_seconds{consumer="mails"}`
	partsLocked = `pgleases_consumer_partition_slow{consumer="mails",waits_for="lock"}`
)

// names returns the names of the series.
func names(series map[string]float64) map[string]bool {
	names := make(map[string]bool)
	for s := range series {
		name, _, _ := strings.Cut(s, "{")
		names[name] = true
	}
	return names
}

// promtool runs promtool on a file with that text, or skips the test if it is not installed.
func promtool(t *testing.T, command, text string) (string, error) {
	t.Helper()
	program, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("promtool is missing: %v", err)
		}
		t.Skip("promtool is not installed: apt-get install prometheus")
	}
	file := filepath.Join(t.TempDir(), "file.yaml")
	testkit.OK(t, os.WriteFile(file, []byte(text), 0o644))
	out, err := exec.CommandContext(t.Context(), program, append(strings.Fields(command), file)...).CombinedOutput()
	return string(out), err
}

func TestMetricsKeepConventions(t *testing.T) {
	w := newWorld(t)
	w.run()
	testkit.Must(w.worker.Lease(t.Context(), "orders", 4))(t)
	families := testkit.Must(w.registry.Gather())(t) // pedantic: it checks what is collected against what is described
	exposed := w.exposed()
	for source, problems := range map[string][]promlint.Problem{
		"registry": testkit.Must(promlint.NewWithMetricFamilies(families).Lint())(t),
		"serve":    testkit.Must(promlint.New(bytes.NewReader(exposed)).Lint())(t),
	} {
		for _, p := range problems {
			t.Errorf("%s: %s: %s", source, p.Metric, p.Text)
		}
	}
	isHistogram := func(f *dto.MetricFamily) bool { return f.GetType() == dto.MetricType_HISTOGRAM }
	if len(families) < 30 || !slices.ContainsFunc(families, isHistogram) {
		t.Errorf("only %d metrics, or no histogram", len(families))
	}
}

// Two collectors need a label that differs, and a client can be collected while it closes.
func TestStrangeNamesAndEnds(t *testing.T) {
	w := newWorld(t)
	const name = "a\"b\\c\nd\te{,}=ä\u2028"
	testkit.Must(w.worker.Lease(t.Context(), name, 4))(t)
	for _, of := range []string{"pgleases_partition_owned", "pgleases_database_partitions"} {
		series := of + fmt.Sprintf("{lease=%q}", name)
		testkit.Until(t, series+" is 4", func() bool { return w.scrape()[series] == 4 })
	}
	other := pgleasesprom.NewCollector(w.other)
	if err := w.registry.Register(other); !errors.As(err, new(prometheus.AlreadyRegisteredError)) {
		t.Errorf("a second collector without a label: %v", err)
	}
	w.registry = prometheus.NewPedanticRegistry()
	for database, c := range map[string]prometheus.Collector{
		"first":  pgleasesprom.NewCollector(w.worker),
		"second": other,
	} {
		testkit.OK(t, prometheus.WrapRegistererWith(prometheus.Labels{"database": database}, w.registry).Register(c))
	}
	collected := make(chan error, 1)
	closed := make(chan struct{})
	go func() {
		for {
			if _, err := w.registry.Gather(); err != nil {
				collected <- err
				return
			}
			select {
			case <-closed:
				collected <- nil
				return
			default:
			}
		}
	}()
	testkit.OK(t, w.worker.Close(t.Context()))
	testkit.OK(t, w.other.Close(t.Context()))
	close(closed)
	testkit.OK(t, testkit.Receive(t, "collections end", collected))
}

var named = regexp.MustCompile(`\bpgleases_\w+`)

// expressions returns the queries of the dashboard.
func expressions(t *testing.T) (all []string) {
	var dashboard struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Type, Query string }
		}
	}
	testkit.OK(t, json.Unmarshal(testkit.Must(os.ReadFile("dashboard.json"))(t), &dashboard))
	for _, p := range dashboard.Panels {
		if p.Title == "" || len(p.Targets) == 0 {
			t.Errorf("panel %q has no query", p.Title)
		}
		for _, target := range p.Targets {
			all = append(all, target.Expr)
		}
	}
	if len(all) < 18 {
		t.Errorf("only %d queries", len(all))
	}
	return all
}

func TestDashboardAndAlertsNameMetrics(t *testing.T) {
	w := newWorld(t)
	w.run()
	testkit.Must(w.worker.Lease(t.Context(), "orders", 4))(t)
	have := names(w.scrape())
	rules := string(testkit.Must(os.ReadFile("alerts.yaml"))(t))
	dashboard := string(testkit.Must(os.ReadFile("dashboard.json"))(t))
	for source, text := range map[string]string{"alerts.yaml": rules, "dashboard.json": dashboard} {
		found := named.FindAllString(text, -1)
		for _, name := range found {
			if !have[name] {
				t.Errorf("%s: there is no metric %s", source, name)
			}
		}
		if len(found) < 10 {
			t.Errorf("%s: only %d metrics", source, len(found))
		}
	}
	recorded := "groups: [{name: dashboard, rules: [\n"
	for i, e := range expressions(t) {
		e = strings.NewReplacer("$__rate_interval", "1m", "$lease", ".*").Replace(e)
		recorded += fmt.Sprintf("{record: 'r:%d', expr: '%s'},\n", i, e)
	}
	for _, text := range []string{rules, recorded + "]}]\n"} {
		if out, err := promtool(t, "check rules", text); err != nil {
			t.Errorf("promtool: %v: %s", err, out)
		}
	}
}

// Each alert fires after its fault, and no alert fires before.
func TestAlertsFire(t *testing.T) {
	if _, err := promtool(t, "check rules", "groups: []\n"); err != nil {
		t.Fatal(err)
	}
	w := newWorld(t)
	orders := testkit.Must(w.worker.Lease(t.Context(), "orders", 4, pgleases.WithHandoffDelay(0)))(t)
	items := testkit.Must(w.worker.Lease(t.Context(), "items", 2,
		pgleases.WithHandoffDelay(0), pgleases.WithDrainTimeout(10*time.Millisecond)))(t)
	testkit.OK(t, orders.Wait(t.Context()))
	testkit.OK(t, items.Wait(t.Context()))
	count := func(s string) float64 { return w.scrape()[s] }
	const itemsUnowned = `pgleases_database_partitions_unowned{lease="items"}`
	testkit.Until(t, "each partition has an owner", func() bool { return count(itemsUnowned) == 0 })

	var story story
	story.step("healthy", w.scrape())
	away := w.scrape()
	isOfServe := func(series string, _ float64) bool { return strings.HasPrefix(series, "pgleases_database_") }
	maps.DeleteFunc(away, isOfServe)
	story.step("nothing comes from serve", away, "PgleasesServeAway")
	story.step("it comes again", w.scrape())

	testkit.Must(w.mail.Enqueue(t.Context(), ""))(t)
	testkit.Execute(t, w.pool, `UPDATE pgleases.jobs SET at = at - interval '1 hour', due = due - interval '1 hour'`)
	w.run()
	testkit.Until(t, "a late job succeeds", func() bool { return w.scheduler.Stats().Kinds["mail"].Succeeded == 1 })
	story.step("the group ran no job for an hour", w.quiet(), "PgleasesRunsLate")

	broken, stop := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		failed <- orders.Run(broken, func(context.Context, pgleases.Partition) error { return errors.New("broken") })
	}()
	testkit.Until(t, "callbacks fail", func() bool { return w.worker.Stats().CallbackFailures > 6 })
	stop()
	<-failed
	story.step("callbacks fail", w.scrape(), "PgleasesCallbackFailing")

	testkit.OK(t, w.broken.Put(t.Context(), "tick", "", schedule.Every(time.Hour)))
	testkit.Execute(t, w.pool, `UPDATE pgleases.schedules SET cursor = now() - interval '61 minutes', due = now()`)
	const failing = `pgleases_database_schedule_failing{group="post"}`
	testkit.Until(t, "a tick fails", func() bool { return count(failing) == 1 })
	testkit.Until(t, "it is counted", func() bool { return w.scheduler.Stats().Kinds["broken"].Failed == 1 })
	story.step("a tick fails", w.quiet(), "PgleasesRunsFailed", "PgleasesScheduleFailing")
	testkit.OK(t, w.scheduler.Delete(t.Context(), "tick"))
	testkit.Must(w.mail.Enqueue(t.Context(), "hang"))(t)
	behind := testkit.Must(w.mail.Enqueue(t.Context(), ""))(t)
	hangs := w.scrapeIf("a job waits", func(s map[string]float64) bool { return s[runsWaiting] == 1 && s[runAge] > 0 })
	story.step("a job hangs", hangs, "PgleasesRunsWaiting", "PgleasesRunHangs")
	unlock := w.lock("SELECT FROM pgleases.jobs WHERE id = $1 FOR UPDATE", behind)
	close(w.release)
	locked := w.scrapeIf("a job waits for a lock", func(s map[string]float64) bool {
		return s[runsLocked] == 1 && s[runsWaiting] == 1 && idle(s)
	})
	story.step("a job is locked", locked, "PgleasesRunsWaiting", "PgleasesRunsSlow")
	unlock()
	ended := w.scrapeIf("no job waits", func(s map[string]float64) bool {
		return s[runsLocked] == 0 && s[runsWaiting] == 0 && idle(s)
	})
	story.step("all jobs ended, and the alert ends after 5 minutes", ended, "PgleasesRunsSlow")
	story.step("all jobs ended", ended)

	ctx, end := context.WithCancel(t.Context())
	consumed := make(chan error, 1)
	insert := func(customer string) {
		testkit.Execute(t, w.pool, `
			INSERT INTO public.outbox (customer, payload, created_at)
			VALUES ($1, '1', now() - interval '1 hour')`, customer)
	}
	stays := func() {
		testkit.Execute(t, w.pool, `
			UPDATE pgleases.consumers
			SET first_id = (SELECT min(id) FROM public.outbox), first_since = now() - interval '11 minutes'`)
	}
	insert("locked")
	unlock = w.lock("SELECT FROM public.outbox FOR UPDATE")
	go func() { consumed <- w.consumer.Run(ctx) }()
	testkit.Until(t, "its partition is slow", func() bool { return w.consumer.Stats().SlowByLock == 1 })
	stays()
	locked = w.scrapeIf("a row waits for a lock", func(s map[string]float64) bool {
		return s[partsLocked] == 1 && idle(s)
	})
	story.step("a row is locked", locked, "PgleasesConsumerSlow", "PgleasesConsumerLag", "PgleasesConsumerRowStays")
	unlock()
	ended = w.scrapeIf("no row waits", func(s map[string]float64) bool {
		return s[partsLocked] == 0 && w.consumer.Stats().Rows == 1 && idle(s)
	})
	story.step("the row was handled, and the alert ends after 5 minutes", ended, "PgleasesConsumerSlow")
	story.step("no row waits", ended)
	// The process finds that within a minute.
	testkit.Execute(t, w.pool, "UPDATE pgleases.consumers SET first_id = NULL, first_since = NULL")
	testkit.Execute(t, w.pool, "ALTER TABLE public.outbox RENAME TO away")
	testkit.Until(t, "no poll has succeeded for long", func() bool {
		return w.consumer.Stats().SinceLastPoll > healthy
	})
	story.step("the polls of a consumer fail", w.quiet(), "PgleasesConsumerNotPolling")
	testkit.Execute(t, w.pool, "ALTER TABLE public.away RENAME TO outbox")
	testkit.Until(t, "the consumer polls again", func() bool { return w.consumer.Stats().SinceLastPoll < healthy })
	insert("broken")
	testkit.Until(t, "a key is blocked", func() bool {
		return count(`pgleases_database_consumer_blocked{consumer="mails"}`) == 1 && w.consumer.Stats().Failures > 0
	})
	story.step("a key is blocked", w.quiet())
	testkit.Execute(t, w.pool, "UPDATE pgleases.consumer_blocked SET since = now() - interval '2 hours'")
	story.step("a key is blocked for hours", w.quiet(), "PgleasesConsumerKeysBlocked")
	testkit.Execute(t, w.pool, `
		UPDATE public.outbox SET customer = 'good'; UPDATE pgleases.consumer_blocked SET next_at = now()`)
	testkit.Until(t, "no key is blocked", func() bool { return w.consumer.Stats().Rows == 2 })
	insert("discard")
	testkit.Until(t, "a row is a dead letter", func() bool { return w.consumer.Stats().DeadLetters == 1 })
	story.step("a row is a dead letter", w.quiet(), "PgleasesConsumerDeadLetters")
	insert("hang")
	const oldest = `pgleases_database_consumer_oldest_age_seconds{consumer="mails"}`
	testkit.Until(t, "a row waits", func() bool { return count(oldest) > 3000 })
	testkit.Until(t, "its batch goes on", func() bool { return w.consumer.Stats().OldestBatch > 0 })
	story.step("a row waits", w.scrape(), "PgleasesConsumerLag", "PgleasesConsumerBatchHangs")
	stays()
	story.step("it stays", w.scrape(), "PgleasesConsumerLag", "PgleasesConsumerBatchHangs", "PgleasesConsumerRowStays")
	testkit.Execute(t, w.pool, "SELECT pgleases.consumer_pause('mails', '', 'why')")
	story.step("it waits because of a pause", w.scrape(), "PgleasesConsumerBatchHangs")
	testkit.Execute(t, w.pool, "UPDATE pgleases.consumers SET paused_at = now() - interval '61 minutes'")
	story.step("the pause is forgotten", w.scrape(), "PgleasesConsumerPaused", "PgleasesConsumerBatchHangs")
	close(w.hung)
	// Perhaps the pause was before the row was taken.
	testkit.Execute(t, w.pool, "SELECT pgleases.consumer_resume('mails', '', 'why')")
	testkit.Until(t, "no row waits", func() bool { return w.consumer.Stats().Rows == 3 })
	end()
	if err := <-consumed; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	insert("later")
	const consumerMembers = `pgleases_database_members{lease="consumer/mails"}`
	testkit.Until(t, "no process runs the consumer", func() bool { return count(consumerMembers) == 0 })
	story.step("rows wait for a process", w.scrape(), "PgleasesConsumerUnattended", "PgleasesConsumerLag")
	testkit.Execute(t, w.pool, "DELETE FROM public.outbox")
	testkit.Execute(t, w.pool, "SELECT pgleases.drop_lease('consumer/mails', 'why')")

	hold := orders.Hold(t.Context())
	joined := testkit.Must(w.other.Lease(t.Context(), "orders", 4))(t)
	testkit.Until(t, "partitions drain", func() bool { return orders.Stats().Draining > 0 })
	story.step("work hangs", w.scrape(), "PgleasesDrainStuck")
	hold.Release()
	testkit.OK(t, joined.Wait(t.Context()))
	overdue := items.Hold(t.Context())
	testkit.Must(w.other.Lease(t.Context(), "items", 2))(t)
	testkit.Until(t, "the timeout passes", func() bool { return items.Stats().Losses.DrainTimeout > 0 })
	overdue.Release()
	testkit.Until(t, "no partition drains", func() bool { return w.worker.Stats().Draining == 0 })
	story.step("a drain timeout passes", w.scrape(), "PgleasesDrainTimeout")

	narrow := testkit.Must(w.worker.Lease(t.Context(), "narrow", 4, pgleases.WithMaxPartitions(3)))(t)
	testkit.Until(t, "a partition has no owner", func() bool {
		return narrow.Stats().Unowned == 1 && narrow.Stats().Owned == 3
	})
	story.step("ceilings are too low", w.scrape(), "PgleasesCeilingsTooLow", "PgleasesPartitionsUnowned")
	rest := testkit.Must(w.other.Lease(t.Context(), "narrow", 4))(t)
	testkit.Until(t, "each partition has an owner", func() bool {
		return narrow.Stats().Unowned == 0 && rest.Stats().Owned == 2
	})
	story.step("another member takes the rest", w.scrape())
	testkit.OK(t, narrow.Leave(t.Context()))
	testkit.OK(t, rest.Leave(t.Context()))
	testkit.Execute(t, w.pool, "SELECT pgleases.drop_lease('narrow', 'why')")

	held := testkit.Must(w.locks.Acquire(t.Context(), "nightly"))(t)
	testkit.OK(t, orders.Leave(t.Context())) // the other owns it all
	testkit.Until(t, "no partition drains", func() bool { return w.worker.Stats().Draining == 0 })
	testkit.Execute(t, w.pool, "SELECT pgleases.pause('orders'::text, 'why'::text)")
	const ownedOrders = "SELECT count(owner) FROM pgleases.partitions WHERE lease = 'orders'"
	owned := func() int { return testkit.Value[int](t, w.pool, ownedOrders) }
	testkit.Until(t, "no partition has an owner", func() bool { return owned() == 0 })
	story.step("a lease is paused", w.scrape())
	testkit.Execute(t, w.pool, "UPDATE pgleases.overrides SET since = now() - interval '61 minutes'")
	story.step("its pause is forgotten", w.scrape(), "PgleasesLeasePaused")
	testkit.Execute(t, w.pool, "SELECT pgleases.resume('orders'::text, 'why'::text)")
	testkit.Until(t, "each partition has an owner again", func() bool { return owned() == 4 })
	story.step("before the cut", w.scrape())
	w.wire.Cut()
	testkit.Until(t, "trust is lost", func() bool {
		return w.worker.Stats().Trust == 0 && w.worker.Stats().Losses.TrustLost > 0
	})
	testkit.Until(t, "the scheduler has not polled for long", func() bool {
		return w.scheduler.Stats().SinceLastPoll > healthy
	})
	<-held.Context().Done()
	story.step("the worker is cut off", w.scrape(), "PgleasesNoTrust", "PgleasesMarginLow", "PgleasesTrustLost",
		"PgleasesLockLost", "PgleasesSchedulerNotPolling")
	w.wire.Mend()
	_ = held.Release(t.Context())
	testkit.Until(t, "the scheduler polls again", func() bool {
		s := w.scheduler.Stats()
		return w.worker.Stats().Trust > 0 && s.Partitions > 0 && s.SinceLastPoll < healthy
	})
	testkit.OK(t, w.other.Close(t.Context()))
	story.step("the last member has left in order", w.scrape())
	// A plan writes that if the owner was evicted.
	testkit.Execute(t, w.pool, `
		UPDATE pgleases.events SET cause = 'given' WHERE lease = 'orders' AND cause IN ('left', 'handed over')`)
	story.step("the last member was killed", w.scrape(), "PgleasesPartitionsUnowned")
	testkit.OK(t, w.worker.Close(t.Context()))
	story.step("no client is live", w.scrape(), "PgleasesFleetGone", "PgleasesNoTrust")
	late := schedule.AtLeastOnce(w.scheduler, "late", func(context.Context, schedule.Run[string]) error { return nil })
	testkit.OK(t, late.Put(t.Context(), "late", "", schedule.Every(time.Hour)))
	testkit.Execute(t, w.pool, "UPDATE pgleases.schedules SET due = now() - interval '1 hour'")
	story.step("a schedule is due", w.scrape(), "PgleasesFleetGone", "PgleasesNoTrust", "PgleasesSchedulesLate")
	story.check(t)
}

// A story is a sequence of scrapes of one environment. For Prometheus each of them lasts for 30 minutes: counters stay,
// and ages grow. Prometheus has another environment too, which stays as the first was at first.
type story struct {
	steps []map[string]float64
	names []string
	want  [][]string
}

func (s *story) step(name string, scrape map[string]float64, alerts ...string) {
	s.steps = append(s.steps, scrape)
	s.names = append(s.names, name)
	s.want = append(s.want, alerts)
}

const minutes = 30 // of a step

// check compares the alerts of each step with those that it should cause.
func (s *story) check(t *testing.T) {
	t.Helper()
	all := make(map[string]bool)
	for _, scrape := range s.steps {
		for series := range scrape {
			all[series] = true
		}
	}
	rules := testkit.Must(filepath.Abs("alerts.yaml"))(t)
	var text strings.Builder
	fmt.Fprintf(&text, "rule_files: [%q]\nevaluation_interval: 1m\ntests:\n- interval: 1m\n  input_series:\n", rules)
	input := func(series, environment, values string) {
		name, labels, _ := strings.Cut(strings.TrimSuffix(series, "}"), "{")
		place := fmt.Sprintf("job=%q,instance=%q", environment, environment+":9090")
		labels = strings.Trim(labels+","+place, ",")
		fmt.Fprintf(&text, "  - {series: '%s{%s}', values: '%s'}\n", name, labels, values)
	}
	for series, value := range s.steps[0] {
		input(series, "well", fmt.Sprintf("%v+0x%d", value, minutes*len(s.steps)))
	}
	for _, series := range slices.Sorted(maps.Keys(all)) {
		var values []string
		grows := strings.Contains(series, "_age_seconds")
		for _, scrape := range s.steps {
			value, exists := scrape[series]
			switch {
			case !exists:
				values = append(values, fmt.Sprintf("_x%d", minutes))
			case grows && value > 0 && !healthyAge(series, value):
				values = append(values, fmt.Sprintf("%v+60x%d", value, minutes-1))
			default:
				values = append(values, fmt.Sprintf("%v+0x%d", value, minutes-1))
			}
		}
		input(series, "ill", strings.Join(values, " "))
	}
	text.WriteString("  promql_expr_test:\n")
	fired := make(map[string]bool)
	for i, alerts := range s.want {
		const firing = `count_over_time(ALERTS{alertstate="firing"}[%dm])`
		fmt.Fprintf(&text, "  - expr: 'group by (alertname, job) ("+firing+") * 1 # %s'\n", minutes-1, s.names[i])
		fmt.Fprintf(&text, "    eval_time: %dm\n    exp_samples:\n", (i+1)*minutes-1)
		for _, alert := range alerts {
			fired[alert] = true
			fmt.Fprintf(&text, "    - {labels: '{alertname=%q,job=%q}', value: 1}\n", alert, "ill")
		}
	}
	if out, err := promtool(t, "test rules", text.String()); err != nil {
		t.Errorf("promtool: %v: %s", err, out)
	}
	alerts := string(testkit.Must(os.ReadFile("alerts.yaml"))(t))
	for _, match := range regexp.MustCompile(`alert: (\w+)`).FindAllStringSubmatch(alerts, -1) {
		if !fired[match[1]] {
			t.Errorf("no step makes %s fire", match[1])
		}
	}
}

// healthyAge reports whether an age is that of something that happens again and again.
func healthyAge(series string, value float64) bool {
	isRepeated := strings.Contains(series, "poll_age") || strings.Contains(series, "heartbeat_age")
	return isRepeated && value < healthy.Seconds()
}

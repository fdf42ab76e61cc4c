package pgleasesotel_test

import (
	"context"
	"errors"
	"regexp"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/metrics"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/pgleasesotel"
	"github.com/pgleases/pgleases/schedule"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestCollectionHasTheStats(t *testing.T) {
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	pool := testkit.Pool(t, pgtest.Database(t))
	client := testkit.Must(pgleases.NewClient(t.Context(), pool))(t)
	s := testkit.Must(schedule.New(t.Context(), client, pool, "reports"))(t)
	report := schedule.InTx(s, "report", func(context.Context, pgx.Tx, schedule.Run[bool]) error { return nil })
	fail := schedule.InTx(s, "fail", func(context.Context, pgx.Tx, schedule.Run[bool]) error {
		return schedule.Discard(errors.New("broken"))
	})
	ofClient := testkit.Must(pgleasesotel.Observe(provider, client))(t)
	ofScheduler := testkit.Must(pgleasesotel.ObserveSchedules(provider, s))(t)
	queue := consumer.Queue{Table: "public.outbox", Key: "customer", Partitions: 4}
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, consumer.TableSQL("mails", "", queue))
	testkit.Execute(t, pool, "INSERT INTO public.outbox (customer, payload) VALUES ('a', '1'), ('b', '2')")
	type row = consumer.Row[struct{ Customer string }]
	handle := consumer.Each(func(context.Context, pgx.Tx, row) error { return nil })
	c := testkit.Must(consumer.New(t.Context(), client, pool, "mails", queue, handle))(t)
	ofConsumer := testkit.Must(pgleasesotel.ObserveConsumer(provider, c))(t)
	testkit.OK(t, c.RunUntilEmpty(t.Context()))
	lease := testkit.Must(client.Lease(t.Context(), "orders", 4))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- s.Run(ctx) }()
	testkit.Must(report.EnqueueMany(t.Context(), []bool{true, false, true}))(t)
	testkit.Must(fail.Enqueue(t.Context(), true))(t)
	testkit.Until(t, "all is done", func() bool {
		k := s.Stats().Kinds
		ended := k["report"].Succeeded == 3 && k["fail"].Failed == 1
		return ended && s.Stats().Partitions == 128 && client.StatsByLease()["orders"].Gains == 4
	})
	got := collect(t, reader)
	for name, want := range map[string]float64{
		"pgleases.consumer.rows mails":                          2,
		"pgleases.consumer.failures mails":                      0,
		"pgleases.lease.joined":                                 2,
		"pgleases.partition.owned orders":                       4,
		"pgleases.ownership.lost closed orders":                 0,
		"pgleases.lock.held":                                    0,
		"pgleases.schedule.partition.owned reports":             128,
		"pgleases.schedule.outcomes reports report succeeded":   3,
		"pgleases.schedule.outcomes reports fail failed":        1,
		"pgleases.schedule.lateness.count reports report":       3,
		"pgleases.schedule.lateness.bucket reports report +Inf": 3,
		"pgleases.schedule.lateness.bucket reports report 3600": 3,
		"pgleases.schedule.lateness.sum reports report":         s.Stats().Kinds["report"].TotalLateness.Seconds(),
	} {
		if value, ok := got[name]; !ok || value != want {
			t.Errorf("%s is %v, %v, not %v", name, value, ok, want)
		}
	}
	for _, name := range []string{
		"pgleases.trust.remaining",
		"pgleases.heartbeat.round_trip",
		"pgleases.heartbeat.margin.count",
		"pgleases.schedule.polls reports",
	} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	named := make(map[string]bool)
	for series := range got {
		named[regexp.MustCompile(` .*|\.(bucket|count|sum)( .*)?$`).ReplaceAllString(series, "")] = true
	}
	all := slices.Concat(metrics.Client(client).Metrics, metrics.Scheduler(s).Metrics, metrics.Consumer(c).Metrics)
	for _, m := range all {
		if !named[m.Name] {
			t.Errorf("%s was not collected", m.Name)
		}
	}
	testkit.OK(t, ofClient.Unregister())
	testkit.OK(t, ofScheduler.Unregister())
	testkit.OK(t, ofConsumer.Unregister())
	if got := collect(t, reader); len(got) > 0 {
		t.Errorf("after the end it still collects %v", got)
	}
	stop()
	<-ended
	testkit.OK(t, client.Close(context.WithoutCancel(t.Context())))
}

// collect returns the value of each series, by the metric's name and the values of its attributes in
// the order of their names. It checks names and units against the semantic conventions.
func collect(t *testing.T, reader *sdk.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	testkit.OK(t, reader.Collect(context.Background(), &all))
	name := regexp.MustCompile(`^pgleases(\.[a-z][a-z0-9_]*)+$`)
	unit := regexp.MustCompile(`^(s|1||\{[a-z]+\})$`)
	values := make(map[string]float64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if !name.MatchString(m.Name) || !unit.MatchString(m.Unit) || m.Description == "" {
				t.Errorf("%s with unit %q, described as %q, is not by the conventions", m.Name, m.Unit, m.Description)
			}
			var points []metricdata.DataPoint[float64]
			switch data := m.Data.(type) {
			case metricdata.Gauge[float64]:
				points = data.DataPoints
			case metricdata.Sum[float64]:
				points = data.DataPoints
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
			for _, p := range points {
				series := m.Name
				for _, a := range p.Attributes.ToSlice() {
					series += " " + a.Value.AsString()
				}
				values[series] = p.Value
			}
		}
	}
	return values
}

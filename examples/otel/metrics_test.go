package main

import (
	"context"
	"errors"
	"maps"
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"go.opentelemetry.io/otel/attribute"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

func TestWhatIsCollectedIsWhatTheStatsTell(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	url, _ := pgtest.DirectURL(pgtest.Database(t)) // notifications arrive there
	client := testkit.Must(pgleases.Open(ctx, url, pgleases.WithTTL(10*time.Minute), pgleases.WithHeartbeat(time.Minute)))(t)
	registration := testkit.Must(observe(provider.Meter("test"), client))(t)
	lease := testkit.Must(client.Lease(ctx, "work", 4, pgleases.WithHandoffDelay(0)))(t)
	until(t, ctx, "it owns all", func() bool { return client.Stats().Owned == 4 })
	expect := func(want map[string]float64) {
		t.Helper()
		got := collect(t, reader)
		for name, value := range want {
			if v, ok := got[name]; !ok || v != value {
				t.Errorf("%s is %v, %v, not %v", name, v, ok, value)
			}
		}
	}
	expect(map[string]float64{
		"pgleases.leases": 1, "pgleases.partitions.owned": 4, "pgleases.partitions.draining": 0, "pgleases.partitions.draining.oldest": 0,
		"pgleases.ownerships.gained": 4, "pgleases.ownerships.lost closed": 0, "pgleases.reconnects": 0,
	})
	until(t, ctx, "notifications arrive", func() bool { return collect(t, reader)["pgleases.listening"] == 1 })
	before := client.Stats()
	got := collect(t, reader)
	after := client.Stats()
	if trust := got["pgleases.trust"]; trust <= 0 || trust > (10*time.Minute).Seconds() {
		t.Errorf("trust of %v s", trust)
	}
	if rt := got["pgleases.heartbeat.round_trip"]; rt != before.RoundTrip.Seconds() && rt != after.RoundTrip.Seconds() {
		t.Errorf("a round trip of %v s, not %v", rt, after.RoundTrip)
	}
	if age := got["pgleases.heartbeat.age"]; age <= 0 || age > 180 {
		t.Errorf("a heartbeat %v s ago", age)
	}

	hold := lease.Hold(ctx)
	left := make(chan error, 1)
	go func() { left <- lease.Leave(ctx) }()
	until(t, ctx, "all drain", func() bool { return client.Stats().Draining == 4 })
	expect(map[string]float64{"pgleases.partitions.owned": 0, "pgleases.partitions.draining": 4})
	if oldest := collect(t, reader)["pgleases.partitions.draining.oldest"]; oldest <= 0 || oldest > 180 {
		t.Errorf("the oldest drains for %v s", oldest)
	}
	hold.Release()
	testkit.OK(t, <-left)
	testkit.OK(t, client.Close(ctx))
	expect(map[string]float64{
		"pgleases.leases": 0, "pgleases.partitions.draining": 0, "pgleases.ownerships.lost closed": 4, "pgleases.trust": 0,
		"pgleases.ownerships.lost handoff": 0, "pgleases.ownerships.lost trust_lost": 0, "pgleases.ownerships.lost drain_timeout": 0,
	})
	// Each field of Stats is one series, except LeaseStats and Losses: each of their fields is one.
	want := len(reflect.VisibleFields(reflect.TypeFor[pgleases.Stats]())) - 2 + reflect.TypeFor[pgleases.Losses]().NumField()
	if got := collect(t, reader); len(got) != want {
		t.Errorf("%d series, want %d, one for each field of Stats and of Losses: %q", len(got), want, slices.Sorted(maps.Keys(got)))
	}
	testkit.OK(t, registration.Unregister())
	if got := collect(t, reader); len(got) > 0 {
		t.Errorf("afterwards it goes on with %v", got)
	}
}

func TestWhatIsCollectedOfSchedulesIsWhatTheStatsTell(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	reader := sdk.NewManualReader()
	pool := testkit.Must(pgxpool.New(ctx, pgtest.Database(t)))(t)
	defer pool.Close()
	client := testkit.Must(pgleases.NewClient(ctx, pool))(t)
	defer func() { _ = client.Close(context.WithoutCancel(ctx)) }()
	s := testkit.Must(schedule.New(ctx, client, pool, "reports"))(t)
	report := schedule.InTx(s, "report", func(context.Context, pgx.Tx, schedule.Run[bool]) error { return nil })
	fail := schedule.InTx(s, "fail", func(_ context.Context, _ pgx.Tx, r schedule.Run[bool]) error {
		if r.Attempt == 1 {
			return errors.New("broken")
		}
		return schedule.Discard(nil)
	}, schedule.WithMaxAttempts(2, schedule.Backoff(time.Millisecond, time.Millisecond)))
	registration := testkit.Must(observeSchedules(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), s))(t)
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	go func() { ended <- s.Run(running) }()
	testkit.Must(report.EnqueueMany(ctx, []bool{true, false, true}))(t)
	testkit.Must(fail.Enqueue(ctx, true))(t)
	until(t, ctx, "all is done", func() bool {
		k := s.Stats().Kinds
		return k["report"].Succeeded == 3 && k["fail"].Failed == 1 && s.Stats().Partitions == 128
	})
	got, stats := collect(t, reader), s.Stats()
	for name, want := range map[string]float64{
		"pgleases.schedule.partitions": 128, "pgleases.schedule.waiting": 0, "pgleases.schedule.suspects": 0, "pgleases.schedule.polls.failed": 0, "pgleases.schedule.clock.unstable": 0,
		"pgleases.schedule.running report": 0, "pgleases.schedule.begun report": 3, "pgleases.schedule.begun fail": 2,
		"pgleases.schedule.again fail retry": 1, "pgleases.schedule.again fail snooze": 0,
		"pgleases.schedule.ticks report succeeded": 3, "pgleases.schedule.ticks fail failed": 1, "pgleases.schedule.ticks report failed": 0, "pgleases.schedule.ticks report unknown": 0,
		"pgleases.schedule.ticks report missed": 0, "pgleases.schedule.ticks report skipped": 0,
		"pgleases.schedule.late report +Inf": 3, "pgleases.schedule.late report 3600": 3, "pgleases.schedule.late fail 0.005": float64(stats.Kinds["fail"].Lateness.Within[0]),
		"pgleases.schedule.late.time report": stats.Kinds["report"].Lateness.Sum.Seconds(),
	} {
		if v, ok := got[name]; !ok || v != want {
			t.Errorf("%s is %v, %v, not %v", name, v, ok, want)
		}
	}
	for _, name := range []string{"pgleases.schedule.polls", "pgleases.schedule.polls.time", "pgleases.schedule.polls.age"} {
		if got[name] <= 0 {
			t.Errorf("%s is %v", name, got[name])
		}
	}
	// 9 fields of Stats; of each of 2 kinds: running, begun, again by 2 reasons, ticks by 5 outcomes, late within each bound and in all, time.
	want := 9 + 2*(1+1+2+5+len(schedule.LatenessBounds())+1+1)
	if _, ok := got["pgleases.schedule.clock.offset"]; !ok || len(got) != want {
		t.Errorf("%d series, want %d, and more for each field that you added to Stats and observeSchedules: %q", len(got), want, slices.Sorted(maps.Keys(got)))
	}
	testkit.OK(t, registration.Unregister())
	stop()
	<-ended
}

func TestMetricsReadEachStat(t *testing.T) {
	source := testkit.Must(os.ReadFile("metrics.go"))(t)
	for _, of := range []reflect.Type{
		reflect.TypeFor[pgleases.Stats](), reflect.TypeFor[pgleases.Losses](), reflect.TypeFor[schedule.Stats](), reflect.TypeFor[schedule.KindStats](), reflect.TypeFor[schedule.Lateness](),
	} {
		for _, f := range reflect.VisibleFields(of) {
			if !f.Anonymous && !regexp.MustCompile(`\b(s|all|k)\.(Losses\.|Lateness\.)?`+f.Name+`\b`).Match(source) {
				t.Errorf("metrics.go does not read %v.%s: add an instrument, and its series to the tests", of, f.Name)
			}
		}
	}
}

// until waits until a condition holds that nothing tells of.
func until(t *testing.T, ctx context.Context, what string, holds func() bool) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !holds() {
		select {
		case <-look.C:
		case <-ctx.Done():
			t.Fatalf("not so in time: %s", what)
		}
	}
}

// collect returns the value of every series, by the metric's name and its attributes in the order of their names.
func collect(t *testing.T, reader *sdk.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	testkit.OK(t, reader.Collect(context.Background(), &all))
	values := make(map[string]float64)
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Gauge[float64]:
				for _, p := range data.DataPoints {
					values[m.Name] = p.Value
				}
			case metricdata.Sum[int64]:
				for _, p := range data.DataPoints {
					values[series(m.Name, p.Attributes)] = float64(p.Value)
				}
			case metricdata.Sum[float64]:
				for _, p := range data.DataPoints {
					values[series(m.Name, p.Attributes)] = p.Value
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return values
}

func series(name string, attributes attribute.Set) string {
	for _, a := range attributes.ToSlice() {
		name += " " + a.Value.AsString()
	}
	return name
}

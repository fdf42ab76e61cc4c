package main

import (
	"context"
	"maps"
	"slices"
	"testing"
	"time"

	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

func TestWhatIsCollectedIsWhatTheStatsTell(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	reader := sdk.NewManualReader()
	provider := sdk.NewMeterProvider(sdk.WithReader(reader))
	url, _ := pgtest.DirectURL(pgtest.Database(t)) // notifications arrive there
	client, err := pgleases.Open(ctx, url, pgleases.WithTTL(10*time.Minute), pgleases.WithHeartbeat(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	registration, err := observe(provider.Meter("test"), client)
	if err != nil {
		t.Fatal(err)
	}
	lease, err := client.Lease(ctx, "work", 4, pgleases.WithHandoffDelay(0))
	if err != nil {
		t.Fatal(err)
	}
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
	if err := <-left; err != nil {
		t.Error(err)
	}
	if err := client.Close(ctx); err != nil {
		t.Error(err)
	}
	expect(map[string]float64{
		"pgleases.leases": 0, "pgleases.partitions.draining": 0, "pgleases.ownerships.lost closed": 4, "pgleases.trust": 0,
		"pgleases.ownerships.lost handover": 0, "pgleases.ownerships.lost trust_lost": 0, "pgleases.ownerships.lost drain_timeout": 0,
	})
	if n := len(collect(t, reader)); n != 14 {
		t.Errorf("%d series: %q", n, slices.Sorted(maps.Keys(collect(t, reader))))
	}
	if err := registration.Unregister(); err != nil {
		t.Error(err)
	}
	if got := collect(t, reader); len(got) > 0 {
		t.Errorf("afterwards it goes on with %v", got)
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

// collect returns the value of every series, by the metric's name and the cause.
func collect(t *testing.T, reader *sdk.ManualReader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &all); err != nil {
		t.Fatal(err)
	}
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
					name := m.Name
					if cause, ok := p.Attributes.Value("cause"); ok {
						name += " " + cause.AsString()
					}
					values[name] = float64(p.Value)
				}
			default:
				t.Errorf("%s is a %T", m.Name, data)
			}
		}
	}
	return values
}

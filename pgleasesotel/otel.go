// Package pgleasesotel exports the Stats of clients, schedulers and consumers to OpenTelemetry:
//
//	registration, err := pgleasesotel.Observe(provider, client)
//
// A collection reads Stats, so it sends no statement and delays no handoff.
//
// OpenTelemetry's API has no histogram that a callback can observe, and its synchronous
// histograms need each value, while Stats has counts. So a histogram here is three counters, in
// the form that queries for Prometheus expect: NAME.bucket with the attribute le counts the
// values up to le; NAME.count and NAME.sum cover all values. A metric.Producer of the SDK could
// hand over the counts as a histogram. But a reader takes its producers when it is created, which
// is before there is a client; views do not apply to them; and an exporter that wants deltas
// would get totals.
package pgleasesotel

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/metrics"
	"github.com/pgleases/pgleases/schedule"
)

// Observe exports a client, its locks, and each lease that it has joined, with attributes of the
// application. Unregister the result after the client has ended. The resource's
// service.instance.id says which process it is: client IDs that are new with each start would
// make new series each time.
//
// If a process has several clients, give each attributes of its own, such as
// attribute.String("client", "orders"). Without them, the series of one client would hide those
// of the other, so Observe returns an error for the second client of a provider.
func Observe(
	provider metric.MeterProvider, client *pgleases.Client, attributes ...attribute.KeyValue,
) (metric.Registration, error) {
	if client == nil {
		return nil, errors.New("pgleasesotel: observe client: it is nil")
	}
	return observe(provider, "client", metrics.Client(client), attributes)
}

// ObserveSchedules exports a scheduler, with the attribute group and those of the application.
// Unregister the result after Run has returned. For two schedulers of one group see [Observe].
func ObserveSchedules(
	provider metric.MeterProvider, s *schedule.Scheduler, attributes ...attribute.KeyValue,
) (metric.Registration, error) {
	if s == nil {
		return nil, errors.New("pgleasesotel: observe scheduler: it is nil")
	}
	return observe(provider, "scheduler", metrics.Scheduler(s), attributes)
}

// ObserveConsumer exports a consumer, with the attribute consumer and those of the application.
// Unregister the result after Run has returned. For two consumers of one name see [Observe].
func ObserveConsumer(
	provider metric.MeterProvider, c *consumer.Consumer, attributes ...attribute.KeyValue,
) (metric.Registration, error) {
	if c == nil {
		return nil, errors.New("pgleasesotel: observe consumer: it is nil")
	}
	return observe(provider, "consumer", metrics.Consumer(c), attributes)
}

// A series is what distinguishes the series of one source from those of others.
type series struct {
	provider   metric.MeterProvider
	kind       string
	attributes attribute.Distinct // the source's own, and the application's
}

// observed has a series for each source that is registered. Two of the same would hide each other.
var observed sync.Map

// registration is that of a source. After its end, another source may have the series.
type registration struct {
	metric.Registration
	end func() error // a second call does nothing
}

func (r registration) Unregister() error { return r.end() }

// instruments makes the instruments of a meter, and keeps the errors.
type instruments struct {
	meter metric.Meter
	all   []metric.Observable
	errs  []error
}

// observeValue observes a value with an instrument.
type observeValue func(o metric.Observer, value float64, with metric.MeasurementOption)

func (i *instruments) add(name, unit, help string, kind metrics.Kind) observeValue {
	var instrument metric.Float64Observable
	var err error
	in, says := metric.WithUnit(unit), metric.WithDescription(help)
	switch kind {
	case metrics.Gauge:
		instrument, err = i.meter.Float64ObservableGauge(name, in, says)
	case metrics.Level:
		instrument, err = i.meter.Float64ObservableUpDownCounter(name, in, says)
	default:
		instrument, err = i.meter.Float64ObservableCounter(name, in, says)
	}
	i.all, i.errs = append(i.all, instrument), append(i.errs, err)
	return func(o metric.Observer, value float64, with metric.MeasurementOption) {
		o.ObserveFloat64(instrument, value, with)
	}
}

// observeSample observes a sample that has those attributes.
type observeSample func(o metric.Observer, s *metrics.Sample, attributes []attribute.KeyValue)

func (i *instruments) of(m *metrics.Metric) observeSample {
	if m.Kind != metrics.Histogram {
		observe := i.add(m.Name, m.Unit, m.Help, m.Kind)
		return func(o metric.Observer, s *metrics.Sample, attributes []attribute.KeyValue) {
			observe(o, s.Value, metric.WithAttributes(attributes...))
		}
	}
	bucket := i.add(m.Name+".bucket", "{value}", m.Help+" Values up to le.", metrics.Counter)
	number := i.add(m.Name+".count", "{value}", m.Help+" Number of values.", metrics.Counter)
	sum := i.add(m.Name+".sum", m.Unit, m.Help+" Sum of the values.", metrics.Counter)
	return func(o metric.Observer, s *metrics.Sample, attributes []attribute.KeyValue) {
		d := s.Distribution
		upTo := func(le string, n int64) {
			withLE := append(slices.Clone(attributes), attribute.String("le", le))
			bucket(o, float64(n), metric.WithAttributes(withLE...))
		}
		for i, bound := range d.Bounds {
			upTo(strconv.FormatFloat(bound, 'g', -1, 64), d.Within[i])
		}
		upTo("+Inf", d.Count)
		number(o, float64(d.Count), metric.WithAttributes(attributes...))
		sum(o, d.Sum, metric.WithAttributes(attributes...))
	}
}

func observe(
	provider metric.MeterProvider, kind string, source metrics.Source, own []attribute.KeyValue,
) (metric.Registration, error) {
	if provider == nil {
		return nil, fmt.Errorf("pgleasesotel: observe %s: the provider is nil; pass the one of the application", kind)
	}
	fixed := slices.Clone(own)
	for name, value := range source.Label {
		fixed = append(fixed, attribute.String(name, value))
	}
	set := attribute.NewSet(fixed...)
	of := series{provider, kind, set.Equivalent()}
	if !reflect.TypeOf(provider).Comparable() { // it cannot be told from others
		return register(provider, source, fixed)
	}
	if _, twice := observed.LoadOrStore(of, true); twice {
		return nil, fmt.Errorf("pgleasesotel: observe %s: another one with the attributes %q "+
			"is observed with this provider: its series would hide these; give each attributes of its own",
			kind, set.Encoded(attribute.DefaultEncoder()))
	}
	registered, err := register(provider, source, fixed)
	if err != nil {
		observed.Delete(of)
		return nil, err
	}
	end := sync.OnceValue(func() error {
		defer observed.Delete(of)
		return registered.Unregister()
	})
	return registration{registered, end}, nil
}

// register registers a source, whose samples all have those attributes.
func register(
	provider metric.MeterProvider, source metrics.Source, fixed []attribute.KeyValue,
) (metric.Registration, error) {
	i := instruments{meter: provider.Meter("github.com/pgleases/pgleases")}
	sample := make(map[*metrics.Metric]observeSample)
	for _, m := range source.Metrics {
		sample[m] = i.of(m)
	}
	if err := errors.Join(i.errs...); err != nil {
		return nil, err
	}
	return i.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		for _, s := range source.Read() {
			attributes := slices.Clone(fixed)
			for i, name := range s.Metric.Labels {
				attributes = append(attributes, attribute.String(name, s.Labels[i]))
			}
			sample[s.Metric](o, &s, attributes)
		}
		return nil
	}, i.all...)
}

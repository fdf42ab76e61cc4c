package main

import (
	"context"
	"errors"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pgleases/pgleases"
)

// observe has a meter read the Stats of a client at each collection, which costs one atomic load. Unregister what it returns when
// the client is closed. Which process it is, a resource's service.instance.id tells: client IDs that are new with every start
// would make a new series each.
func observe(meter metric.Meter, client *pgleases.Client) (metric.Registration, error) {
	var errs []error
	seconds := func(name, what string) metric.Float64ObservableGauge {
		g, err := meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(what))
		errs = append(errs, err)
		return g
	}
	level := func(name, unit, what string) metric.Int64ObservableUpDownCounter {
		c, err := meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	total := func(name, unit, what string) metric.Int64ObservableCounter {
		c, err := meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
		errs = append(errs, err)
		return c
	}
	var (
		trust     = seconds("pgleases.trust", "How long what is owned can be trusted without another heartbeat")
		age       = seconds("pgleases.heartbeat.age", "Since the last successful heartbeat was sent")
		roundTrip = seconds("pgleases.heartbeat.round_trip", "Of the last successful heartbeat")
		oldest    = seconds("pgleases.partitions.draining.oldest", "Since when the oldest partition that drains was withdrawn")
		leases    = level("pgleases.leases", "{lease}", "Leases joined")
		owned     = level("pgleases.partitions.owned", "{partition}", "Partitions in Values of all leases")
		draining  = level("pgleases.partitions.draining", "{partition}", "Partitions that wait for their work to end")
		listening = level("pgleases.listening", "1", "1 if notifications arrive, 0 if changes are polled")
		gained    = total("pgleases.ownerships.gained", "{ownership}", "Ownerships that began")
		lost      = total("pgleases.ownerships.lost", "{ownership}", "Ownerships that ended, by cause")
		reconnect = total("pgleases.reconnects", "{connection}", "Connections after the first")
	)
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	cause := func(name string) metric.MeasurementOption {
		return metric.WithAttributes(attribute.String("cause", name))
	}
	handover, trustLost, drainTimeout, closed := cause("handover"), cause("trust_lost"), cause("drain_timeout"), cause("closed")
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		s := client.Stats()
		o.ObserveFloat64(trust, s.Trust.Seconds())
		o.ObserveFloat64(age, s.HeartbeatAge.Seconds())
		o.ObserveFloat64(roundTrip, s.RoundTrip.Seconds())
		if s.DrainingSince.IsZero() {
			o.ObserveFloat64(oldest, 0)
		} else {
			o.ObserveFloat64(oldest, time.Since(s.DrainingSince).Seconds())
		}
		o.ObserveInt64(leases, int64(s.Leases))
		o.ObserveInt64(owned, int64(s.Owned))
		o.ObserveInt64(draining, int64(s.Draining))
		if s.Listening {
			o.ObserveInt64(listening, 1)
		} else {
			o.ObserveInt64(listening, 0)
		}
		o.ObserveInt64(gained, s.Gains)
		o.ObserveInt64(lost, s.Losses.Handover, handover)
		o.ObserveInt64(lost, s.Losses.TrustLost, trustLost)
		o.ObserveInt64(lost, s.Losses.DrainTimeout, drainTimeout)
		o.ObserveInt64(lost, s.Losses.Closed, closed)
		o.ObserveInt64(reconnect, s.Reconnects)
		return nil
	}, trust, age, roundTrip, oldest, leases, owned, draining, listening, gained, lost, reconnect)
}

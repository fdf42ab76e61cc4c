package main

import (
	"context"
	"errors"
	"strconv"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

// instruments makes those of a meter, and keeps the errors.
type instruments struct {
	meter metric.Meter
	errs  []error
}

func (i *instruments) seconds(name, what string) metric.Float64ObservableGauge {
	g, err := i.meter.Float64ObservableGauge(name, metric.WithUnit("s"), metric.WithDescription(what))
	i.errs = append(i.errs, err)
	return g
}

func (i *instruments) totalSeconds(name, what string) metric.Float64ObservableCounter {
	c, err := i.meter.Float64ObservableCounter(name, metric.WithUnit("s"), metric.WithDescription(what))
	i.errs = append(i.errs, err)
	return c
}

func (i *instruments) level(name, unit, what string) metric.Int64ObservableUpDownCounter {
	c, err := i.meter.Int64ObservableUpDownCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
	i.errs = append(i.errs, err)
	return c
}

func (i *instruments) total(name, unit, what string) metric.Int64ObservableCounter {
	c, err := i.meter.Int64ObservableCounter(name, metric.WithUnit(unit), metric.WithDescription(what))
	i.errs = append(i.errs, err)
	return c
}

// one is 1 for true.
func one(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// observe registers a callback with a meter that reads a client's Stats at each collection. Reading
// Stats is one atomic load.
// Unregister what it returns when the client is closed. Which process it is, a resource's
// service.instance.id tells: client IDs that are new with every start would make a new series each.
func observe(meter metric.Meter, client *pgleases.Client) (metric.Registration, error) {
	i := instruments{meter: meter}
	var (
		trust     = i.seconds("pgleases.trust", "How long what is owned can be trusted without another heartbeat")
		age       = i.seconds("pgleases.heartbeat.age", "Since the last successful heartbeat was sent")
		roundTrip = i.seconds("pgleases.heartbeat.round_trip", "Of the last successful heartbeat")
		oldest    = i.seconds("pgleases.partitions.draining.oldest", "Since when the oldest partition that drains was withdrawn")
		leases    = i.level("pgleases.leases", "{lease}", "Leases joined")
		owned     = i.level("pgleases.partitions.owned", "{partition}", "Partitions in Values of all leases")
		draining  = i.level("pgleases.partitions.draining", "{partition}", "Partitions that wait for their work to end")
		listening = i.level("pgleases.listening", "1", "1 if notifications arrive, 0 if changes are polled")
		gained    = i.total("pgleases.ownerships.gained", "{ownership}", "Ownerships that began")
		lost      = i.total("pgleases.ownerships.lost", "{ownership}", "Ownerships that ended, by cause")
		reconnect = i.total("pgleases.reconnects", "{connection}", "Connections after the first")
	)
	if err := errors.Join(i.errs...); err != nil {
		return nil, err
	}
	cause := func(name string) metric.MeasurementOption {
		return metric.WithAttributes(attribute.String("cause", name))
	}
	handoff, trustLost, drainTimeout, closed := cause("handoff"), cause("trust_lost"), cause("drain_timeout"), cause("closed")
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
		o.ObserveInt64(listening, one(s.Listening))
		o.ObserveInt64(gained, s.Gains)
		o.ObserveInt64(lost, s.Losses.Handoff, handoff)
		o.ObserveInt64(lost, s.Losses.TrustLost, trustLost)
		o.ObserveInt64(lost, s.Losses.DrainTimeout, drainTimeout)
		o.ObserveInt64(lost, s.Losses.Closed, closed)
		o.ObserveInt64(reconnect, s.Reconnects)
		return nil
	}, trust, age, roundTrip, oldest, leases, owned, draining, listening, gained, lost, reconnect)
}

// observeSchedules has a meter read the Stats of a scheduler at each collection. Unregister what it
// returns when Run has ended. How late handlers were called comes as a histogram whose series are
// counters: pgleases.schedule.late with the attribute le, in seconds, counts those that were no
// later; an observable instrument cannot be one.
func observeSchedules(meter metric.Meter, s *schedule.Scheduler) (metric.Registration, error) {
	i := instruments{meter: meter}
	var (
		partitions = i.level("pgleases.schedule.partitions", "{partition}", "Partitions of the group that this process owns")
		waiting    = i.level("pgleases.schedule.waiting", "{run}", "Schedules and jobs that are due and wait for a slot, or for a run under their key")
		suspects   = i.level("pgleases.schedule.suspects", "{run}", "Schedules and jobs due soon that are suspected of killing processes")
		looks      = i.total("pgleases.schedule.polls", "{poll}", "Polls for what is due")
		failed     = i.total("pgleases.schedule.polls.failed", "{poll}", "Polls for what is due that failed")
		lookTime   = i.totalSeconds("pgleases.schedule.polls.time", "What the polls for what is due took")
		lookAge    = i.seconds("pgleases.schedule.polls.age", "Since the last poll that did not fail")
		offset     = i.seconds("pgleases.schedule.clock.offset", "Of the database's clock before that of this host")
		doubted    = i.level("pgleases.schedule.clock.unstable", "1", "1 if the database's clock has stepped and is not trusted yet: nothing runs")
		running    = i.level("pgleases.schedule.running", "{run}", "Handlers under way, by kind")
		begun      = i.total("pgleases.schedule.begun", "{run}", "Calls of handlers, by kind")
		again      = i.total("pgleases.schedule.again", "{run}", "Runs that are to come again, by kind and by why")
		ticks      = i.total("pgleases.schedule.ticks", "{tick}", "Ticks and jobs, by kind and outcome")
		late       = i.total("pgleases.schedule.late", "{run}", "Calls of handlers that were no later than le seconds, by kind")
		lateTime   = i.totalSeconds("pgleases.schedule.late.time", "How late handlers were called, summed up, by kind")
	)
	if err := errors.Join(i.errs...); err != nil {
		return nil, err
	}
	bounds := schedule.LatenessBounds()
	return meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		all := s.Stats()
		o.ObserveInt64(partitions, int64(all.Partitions))
		o.ObserveInt64(waiting, int64(all.Waiting))
		o.ObserveInt64(suspects, int64(all.CrashSuspects))
		o.ObserveInt64(looks, all.Polls)
		o.ObserveInt64(failed, all.PollErrors)
		o.ObserveFloat64(lookTime, all.PollTime.Seconds())
		o.ObserveFloat64(lookAge, all.SinceLastPoll.Seconds())
		o.ObserveFloat64(offset, all.ClockOffset.Seconds())
		o.ObserveInt64(doubted, one(all.ClockUnstable))
		for name, k := range all.Kinds {
			with := func(more ...attribute.KeyValue) metric.MeasurementOption {
				return metric.WithAttributes(append(more, attribute.String("kind", name))...)
			}
			o.ObserveInt64(running, int64(k.Running), with())
			o.ObserveInt64(begun, k.Begun, with())
			o.ObserveInt64(again, k.Retried, with(attribute.String("why", "retry")))
			o.ObserveInt64(again, k.Snoozed, with(attribute.String("why", "snooze")))
			for outcome, n := range map[schedule.Outcome]int64{
				schedule.OutcomeSucceeded: k.Succeeded, schedule.OutcomeFailed: k.Failed, schedule.OutcomeUnknown: k.Unknown, schedule.OutcomeMissed: k.Missed, schedule.OutcomeSkipped: k.Skipped,
			} {
				o.ObserveInt64(ticks, n, with(attribute.String("outcome", string(outcome))))
			}
			for i, n := range k.Lateness.Within {
				o.ObserveInt64(late, n, with(attribute.String("le", strconv.FormatFloat(bounds[i].Seconds(), 'f', -1, 64))))
			}
			o.ObserveInt64(late, k.Lateness.Count, with(attribute.String("le", "+Inf")))
			o.ObserveFloat64(lateTime, k.Lateness.Sum.Seconds(), with())
		}
		return nil
	}, partitions, waiting, suspects, looks, failed, lookTime, lookAge, offset, doubted, running, begun, again, ticks, late, lateTime)
}

package metrics

import (
	"time"

	"github.com/pgleases/pgleases"
)

// client has the numbers of a client.
type client struct {
	pgleases.Stats
	leases map[string]pgleases.LeaseStats
}

// Client returns the source for a client and its leases.
func Client(c *pgleases.Client) Source {
	return newSource(ofClient, nil, func() *client { return &client{c.Stats(), c.StatsByLease()} })
}

// each reads a metric that each lease has.
func each(of func(l *pgleases.LeaseStats) float64) func(*client, add) {
	return func(c *client, to add) {
		for name, l := range c.leases {
			to(of(&l), name)
		}
	}
}

var ofLease = []string{"lease"}

var ofClient = []entry[client]{
	{Metric{"pgleases.trust.remaining", "s", Gauge, nil,
		"Time for which the client may act as owner without another heartbeat."},
		seconds(func(c *client) time.Duration { return c.Trust }), nil},
	{Metric{"pgleases.heartbeat.age", "s", Gauge, nil,
		"Time since the last successful heartbeat was sent."},
		seconds(func(c *client) time.Duration { return c.HeartbeatAge }), nil},
	{Metric{"pgleases.heartbeat.round_trip", "s", Gauge, nil,
		"Round trip of the last successful heartbeat."},
		seconds(func(c *client) time.Duration { return c.RoundTrip }), nil},
	{Metric{"pgleases.heartbeat.margin", "1", Histogram, nil,
		"Share of the trust that was left when a heartbeat prolonged it; 0 if it was lost."},
		nil, func(c *client, to spread) {
			to(Distribution{
				Count:  c.HeartbeatMargin.Count,
				Sum:    c.HeartbeatMargin.Sum,
				Bounds: pgleases.HeartbeatMarginBounds(),
				Within: c.HeartbeatMargin.Within[:],
			})
		}},
	{Metric{"pgleases.statement.errors", "{statement}", Counter, nil,
		"Failed statements and connections of the client itself."},
		count(func(c *client) int64 { return c.StatementErrors }), nil},
	{Metric{"pgleases.reconnects", "{connection}", Counter, nil,
		"Connections after the first."},
		count(func(c *client) int64 { return c.Reconnects }), nil},
	{Metric{"pgleases.listening", "", Gauge, nil,
		"1 if notifications arrive, 0 if the client polls."},
		truth(func(c *client) bool { return c.Listening }), nil},
	{Metric{"pgleases.lease.joined", "{lease}", Level, nil,
		"Leases that the client is a member of."},
		count(func(c *client) int { return c.Leases }), nil},
	{Metric{"pgleases.lock.held", "{lock}", Level, nil,
		"Named locks that are held."},
		count(func(c *client) int { return c.Locks.Held }), nil},
	{Metric{"pgleases.lock.waiting", "{lock}", Level, nil,
		"Acquisitions that wait for a named lock."},
		count(func(c *client) int { return c.Locks.Waiting }), nil},
	{Metric{"pgleases.lock.lost", "{lock}", Counter, nil,
		"Named locks that were lost while they were held."},
		count(func(c *client) int64 { return c.Locks.Lost }), nil},
	{Metric{"pgleases.partition.owned", "{partition}", Level, ofLease,
		"Partitions that the client owns."},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Owned) }), nil},
	{Metric{"pgleases.partition.draining", "{partition}", Level, ofLease,
		"Partitions that wait for the end of their work before they move."},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Draining) }), nil},
	{Metric{"pgleases.drain.age", "s", Gauge, ofLease,
		"Time since the oldest partition that drains was asked for; 0 if none drains."},
		each(func(l *pgleases.LeaseStats) float64 {
			if l.DrainingSince.IsZero() {
				return 0
			}
			return time.Since(l.DrainingSince).Seconds()
		}), nil},
	{Metric{"pgleases.ownership.gained", "{ownership}", Counter, ofLease,
		"Ownerships that began."},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Gains) }), nil},
	{Metric{"pgleases.ownership.lost", "{ownership}", Counter, []string{"lease", "cause"},
		"Ownerships that ended, by cause."},
		func(c *client, to add) {
			for name, l := range c.leases {
				to(float64(l.Losses.Handoff), name, "handoff")
				to(float64(l.Losses.TrustLost), name, "trust_lost")
				to(float64(l.Losses.DrainTimeout), name, "drain_timeout")
				to(float64(l.Losses.Closed), name, "closed")
			}
		}, nil},
	{Metric{"pgleases.partition.unowned", "{partition}", Gauge, ofLease,
		"Partitions that have no owner, because all members of the lease are at their ceilings. " +
			"Each member counts all of them."},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Unowned) }), nil},
	{Metric{"pgleases.lease.refused", "{lease}", Level, ofLease,
		"1 if the client cannot join the lease again, because it has another number of partitions now."},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Refused) }), nil},
	{Metric{"pgleases.guard.refusals", "{call}", Counter, ofLease,
		"Transactions that a guard refused, because the partition was no longer owned."},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.GuardRefusals) }), nil},
	{Metric{"pgleases.callback.failures", "{call}", Counter, ofLease,
		"Callbacks of Run that returned an error."},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.CallbackFailures) }), nil},
}

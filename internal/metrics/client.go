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
	{Metric{"pgleases.trust.remaining", "s", Gauge, "Time for which the client may act as owner without another heartbeat.", nil},
		seconds(func(c *client) time.Duration { return c.Trust }), nil},
	{Metric{"pgleases.heartbeat.age", "s", Gauge, "Time since the last successful heartbeat was sent.", nil},
		seconds(func(c *client) time.Duration { return c.HeartbeatAge }), nil},
	{Metric{"pgleases.heartbeat.round_trip", "s", Gauge, "Round trip of the last successful heartbeat.", nil},
		seconds(func(c *client) time.Duration { return c.RoundTrip }), nil},
	{Metric{"pgleases.heartbeat.margin", "1", Histogram, "Share of the trust that was left when a heartbeat prolonged it; 0 if it was lost.", nil},
		nil, func(c *client, to spread) {
			to(Distribution{c.HeartbeatMargin.Count, c.HeartbeatMargin.Sum, pgleases.HeartbeatMarginBounds(), c.HeartbeatMargin.Within[:]})
		}},
	{Metric{"pgleases.statement.errors", "{statement}", Counter, "Failed statements and connections of the client itself.", nil},
		count(func(c *client) int64 { return c.StatementErrors }), nil},
	{Metric{"pgleases.reconnects", "{connection}", Counter, "Connections after the first.", nil},
		count(func(c *client) int64 { return c.Reconnects }), nil},
	{Metric{"pgleases.listening", "", Gauge, "1 if notifications arrive, 0 if the client polls.", nil},
		truth(func(c *client) bool { return c.Listening }), nil},
	{Metric{"pgleases.lease.joined", "{lease}", Level, "Leases that the client is a member of.", nil},
		count(func(c *client) int { return c.Leases }), nil},
	{Metric{"pgleases.lock.held", "{lock}", Level, "Named locks that are held.", nil},
		count(func(c *client) int { return c.Locks.Held }), nil},
	{Metric{"pgleases.lock.waiting", "{lock}", Level, "Acquisitions that wait for a named lock.", nil},
		count(func(c *client) int { return c.Locks.Waiting }), nil},
	{Metric{"pgleases.lock.lost", "{lock}", Counter, "Named locks that were lost while they were held.", nil},
		count(func(c *client) int64 { return c.Locks.Lost }), nil},
	{Metric{"pgleases.partition.owned", "{partition}", Level, "Partitions that the client owns.", ofLease},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Owned) }), nil},
	{Metric{"pgleases.partition.draining", "{partition}", Level, "Partitions that wait for the end of their work before they move.", ofLease},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Draining) }), nil},
	{Metric{"pgleases.drain.age", "s", Gauge, "Time since the oldest partition that drains was asked for; 0 if none drains.", ofLease},
		each(func(l *pgleases.LeaseStats) float64 {
			if l.DrainingSince.IsZero() {
				return 0
			}
			return time.Since(l.DrainingSince).Seconds()
		}), nil},
	{Metric{"pgleases.ownership.gained", "{ownership}", Counter, "Ownerships that began.", ofLease},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Gains) }), nil},
	{Metric{"pgleases.ownership.lost", "{ownership}", Counter, "Ownerships that ended, by cause.", []string{"lease", "cause"}},
		func(c *client, to add) {
			for name, l := range c.leases {
				to(float64(l.Losses.Handoff), name, "handoff")
				to(float64(l.Losses.TrustLost), name, "trust_lost")
				to(float64(l.Losses.DrainTimeout), name, "drain_timeout")
				to(float64(l.Losses.Closed), name, "closed")
			}
		}, nil},
	{Metric{"pgleases.lease.refused", "{lease}", Level, "1 if the client cannot join the lease again, because it has another number of partitions now.", ofLease},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.Refused) }), nil},
	{Metric{"pgleases.guard.refusals", "{call}", Counter, "Transactions that a guard refused, because the partition was no longer owned.", ofLease},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.GuardRefusals) }), nil},
	{Metric{"pgleases.callback.failures", "{call}", Counter, "Callbacks of Run that returned an error.", ofLease},
		each(func(l *pgleases.LeaseStats) float64 { return float64(l.CallbackFailures) }), nil},
}

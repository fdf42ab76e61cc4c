// Package pgleasesprom exports the Stats of clients, schedulers and consumers to Prometheus:
//
//	prometheus.MustRegister(pgleasesprom.NewCollector(client))
//	prometheus.MustRegister(pgleasesprom.NewScheduleCollector(scheduler))
//	prometheus.MustRegister(pgleasesprom.NewConsumerCollector(consumer))
//
// A scrape reads Stats, so it sends no statement and delays no handoff. The alert rules in
// alerts.yaml and the Grafana dashboard in dashboard.json use these metrics, and those that pgleases
// serve exposes about the whole database.
package pgleasesprom

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/metrics"
	"github.com/pgleases/pgleases/schedule"
)

// NewCollector returns a collector of a client, of its locks, and of each lease that it has joined.
// Register it once. If a process has several clients, give each a label:
// prometheus.WrapRegistererWith. Unregister the collector after the client has ended.
func NewCollector(client *pgleases.Client) prometheus.Collector {
	if client == nil {
		return refused{errors.New("pgleases: collect metrics: the client is nil")}
	}
	return newCollector(metrics.Client(client))
}

// NewScheduleCollector returns a collector of a scheduler, with the label group.
func NewScheduleCollector(s *schedule.Scheduler) prometheus.Collector {
	if s == nil {
		return refused{errors.New("pgleases: collect metrics: the scheduler is nil")}
	}
	return newCollector(metrics.Scheduler(s))
}

// NewConsumerCollector returns a collector of a consumer, with the label consumer.
func NewConsumerCollector(c *consumer.Consumer) prometheus.Collector {
	if c == nil {
		return refused{errors.New("pgleases: collect metrics: the consumer is nil")}
	}
	return newCollector(metrics.Consumer(c))
}

// refused is a collector that Register refuses with an error.
type refused struct{ err error }

// Describe implements prometheus.Collector.
func (r refused) Describe(to chan<- *prometheus.Desc) { to <- prometheus.NewInvalidDesc(r.err) }

// Collect implements prometheus.Collector.
func (r refused) Collect(to chan<- prometheus.Metric) {
	to <- prometheus.NewInvalidMetric(prometheus.NewInvalidDesc(r.err), r.err)
}

type collector struct {
	source metrics.Source
	descs  map[*metrics.Metric]*prometheus.Desc
}

func newCollector(source metrics.Source) *collector {
	c := &collector{source, make(map[*metrics.Metric]*prometheus.Desc)}
	for _, m := range source.Metrics {
		c.descs[m] = prometheus.NewDesc(m.Prometheus(), m.Help, m.Labels, source.Label)
	}
	return c
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, desc := range c.descs {
		to <- desc
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for _, s := range c.source.Read() {
		desc := c.descs[s.Metric]
		if d := s.Distribution; d != nil {
			buckets := make(map[float64]uint64, len(d.Bounds))
			for i, bound := range d.Bounds {
				buckets[bound] = uint64(d.Within[i])
			}
			to <- prometheus.MustNewConstHistogram(desc, uint64(d.Count), d.Sum, buckets, s.Labels...)
			continue
		}
		kind := prometheus.GaugeValue
		if s.Kind == metrics.Counter {
			kind = prometheus.CounterValue
		}
		to <- prometheus.MustNewConstMetric(desc, kind, s.Value, s.Labels...)
	}
}

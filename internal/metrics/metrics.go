// Package metrics lists the metrics of pgleases once, for the modules pgleasesprom and pgleasesotel
// and for pgleases serve. Names and units are those of OpenTelemetry's conventions, from which the
// names of Prometheus follow.
package metrics

import (
	"strings"
	"time"
)

// A Kind is the kind of a metric's values.
type Kind int

const (
	Gauge     Kind = iota // a value whose sum over processes means little
	Level                 // a value that rises and falls, and whose sum over processes means something
	Counter               // a value that only rises
	Histogram             // a distribution, whose counts only rise
)

// A Metric is described as OpenTelemetry does. Its unit is s, 1 for a share, {thing} for a number of
// things, or empty.
type Metric struct {
	Name   string
	Unit   string
	Kind   Kind
	Labels []string
	Help   string
}

// Prometheus returns the metric's name in Prometheus.
func (m *Metric) Prometheus() string {
	name := strings.ReplaceAll(m.Name, ".", "_")
	switch m.Unit {
	case "s":
		name += "_seconds"
	case "1":
		name += "_ratio"
	}
	if m.Kind == Counter {
		name += "_total"
	}
	return name
}

// A Distribution is the value of a histogram.
type Distribution struct {
	Count  int64
	Sum    float64
	Bounds []float64
	Within []int64 // how many were at most the bound of the same index
}

// A Sample is a value of a metric, with the values of its labels.
type Sample struct {
	*Metric
	Value        float64
	Distribution *Distribution // nil, except of a Histogram
	Labels       []string
}

// A Source has metrics, and reads their values.
type Source struct {
	Metrics []*Metric
	Label   map[string]string // of all samples
	Read    func() []Sample
}

// add adds a sample of the metric that is read.
type add func(value float64, labels ...string)

// spread adds a sample of the histogram that is read.
type spread func(d Distribution, labels ...string)

// An entry is a metric, and how its values are read from numbers of type T.
type entry[T any] struct {
	Metric
	read   func(of *T, to add)
	spread func(of *T, to spread) // of a Histogram, in place of read
}

// newSource returns the source that a table describes.
func newSource[T any](table []entry[T], label map[string]string, numbers func() *T) Source {
	s := Source{Label: label}
	for i := range table {
		s.Metrics = append(s.Metrics, &table[i].Metric)
	}
	s.Read = func() (samples []Sample) {
		of := numbers()
		for i := range table {
			e := &table[i]
			if e.Kind == Histogram {
				e.spread(of, func(d Distribution, labels ...string) {
					samples = append(samples, Sample{Metric: &e.Metric, Distribution: &d, Labels: labels})
				})
				continue
			}
			e.read(of, func(value float64, labels ...string) {
				samples = append(samples, Sample{Metric: &e.Metric, Value: value, Labels: labels})
			})
		}
		return samples
	}
	return s
}

// count, truth and seconds are readers of a metric that has one sample.
func count[T any, N int | int64](of func(*T) N) func(*T, add) {
	return func(t *T, to add) { to(float64(of(t))) }
}

func truth[T any](of func(*T) bool) func(*T, add) {
	return func(t *T, to add) {
		if of(t) {
			to(1)
		} else {
			to(0)
		}
	}
}

func seconds[T any](of func(*T) time.Duration) func(*T, add) {
	return func(t *T, to add) { to(of(t).Seconds()) }
}

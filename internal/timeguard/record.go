package timeguard

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"
)

// An Instant is a time in nanoseconds on a clock that all processes of the machine share.
type Instant int64

// Sub returns i - j.
func (i Instant) Sub(j Instant) time.Duration { return time.Duration(i - j) }

// machine holds the records of all probes that report to this process.
var machine struct {
	mu      sync.Mutex // guards records
	records []*Record
}

// own is the probe of this process, which runs while scenarios do.
var own struct {
	mu        sync.Mutex // guards the rest
	scenarios int
	end       func()
}

// probed starts the probe of this process, unless it runs, until the returned function is called as
// often as probed was.
func probed() (end func()) {
	own.mu.Lock()
	defer own.mu.Unlock()
	own.scenarios++
	if own.scenarios == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		r := NewRecord("the test process")
		ended := make(chan struct{})
		go func() { defer close(ended); Probe(ctx, "", r.Add) }()
		own.end = func() { cancel(); <-ended; r.forget() }
	}
	return func() {
		own.mu.Lock()
		defer own.mu.Unlock()
		own.scenarios--
		if own.scenarios == 0 {
			own.end()
		}
	}
}

// A Record holds the findings of one process's probe. All methods are safe for concurrent use.
type Record struct {
	name string

	mu     sync.Mutex // guards the rest
	until  Instant
	spells []Spell
	excess []Spell // times when it was stopped on purpose; the last one may still be open
	ended  bool
}

// NewRecord returns the record of a process. From now on it counts for every [Run] in this process.
func NewRecord(name string) *Record {
	r := &Record{name: name, until: Now()}
	machine.mu.Lock()
	defer machine.mu.Unlock()
	machine.records = append(machine.records, r)
	return r
}

// Add adds a report of the probe.
func (r *Record) Add(until Instant, spells []Spell) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.until = max(r.until, until)
	r.spells = append(r.spells, spells...)
}

// Stop records that the process is being stopped on purpose, until Continue. It does not count as
// late then.
func (r *Record) Stop() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.excess = append(r.excess, Spell{From: Now(), To: forever})
}

// Continue records that the process continues after Stop.
func (r *Record) Continue() {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.excess)
	if n > 0 && r.excess[n-1].To == forever {
		r.excess[n-1].To = Now()
	}
}

// forget makes the record count no more.
func (r *Record) forget() {
	machine.mu.Lock()
	defer machine.mu.Unlock()
	machine.records = slices.DeleteFunc(machine.records, func(other *Record) bool { return other == r })
}

// End records that the process has ended.
func (r *Record) End() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
}

const forever = Instant(1<<63 - 1)

func (s Spell) meets(other Spell) bool { return s.From < other.To && other.From < s.To }

// late returns how late the process was within a window, in sum, and describes the worst spell.
func (r *Record) late(window Spell) (time.Duration, string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	sums := make(map[string]time.Duration)
	var worst Spell
	for _, s := range append(r.spells[:len(r.spells):len(r.spells)], r.silence()) {
		if !s.meets(window) || r.stopped(s) {
			continue
		}
		sums[s.What] += min(s.To, window.To).Sub(max(s.From, window.From))
		if s.Length() > worst.Length() {
			worst = s
		}
	}
	sum := slices.Max(append(slices.Collect(maps.Values(sums)), 0))
	at := time.Now().Add(-Now().Sub(worst.From)).UTC().Format("15:04:05.000")
	return sum, fmt.Sprintf("%s was late by %v, most of all at %s, when it was %s %v late",
		r.name, sum.Round(time.Millisecond), at, worst.What, worst.Length().Round(time.Millisecond))
}

// owes reports whether the probe still has to report on the time until then.
func (r *Record) owes(then Instant) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.excess)
	return !r.ended && r.until < then && (n == 0 || r.excess[n-1].To != forever)
}

// silence returns the time since a live process's report was due.
func (r *Record) silence() Spell {
	due, now := r.until+Instant(2*reportEvery), Now()
	if r.ended || now <= due {
		return Spell{}
	}
	return Spell{"woken", due, now}
}

// stopped reports whether the process was stopped on purpose during a spell.
func (r *Record) stopped(s Spell) bool {
	for _, e := range r.excess {
		if s.meets(e) {
			return true
		}
	}
	return false
}

// Late returns the lateness of the process that was the latest within a window, and describes it.
// It waits until all probes have reported on the window, for at most 2 s. The silence of a probe
// counts as lateness.
func Late(from, to Instant) (time.Duration, string) {
	machine.mu.Lock()
	defer machine.mu.Unlock()
	look := time.NewTicker(wakeEvery)
	defer look.Stop()
	for began := time.Now(); time.Since(began) < 2*time.Second; <-look.C {
		if !slices.ContainsFunc(machine.records, func(r *Record) bool { return r.owes(to) }) {
			break
		}
	}
	var most time.Duration
	description := "nothing was late"
	for _, r := range machine.records {
		d, text := r.late(Spell{From: from, To: to})
		if d > most {
			most, description = d, text
		}
	}
	return most, description
}

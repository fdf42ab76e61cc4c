package schedule

import (
	"errors"
	"fmt"
	"math"
	"path"
	"strings"
	"sync"
	"time"
)

// This file computes the ticks of a cron expression in a zone whose clocks are set forward and
// back. cron.go decides which local times match.

var zones sync.Map // *time.Location by name; reading a zone takes longer than the rest of Cron

func loadZone(name string) (*time.Location, error) {
	if zone, ok := zones.Load(name); ok {
		return zone.(*time.Location), nil
	}
	switch file := path.Clean(strings.ToLower(name)); { // some file systems ignore case
	case name == "", file == "local", file == "localtime", file == "posixrules":
		return nil, errors.New("it differs between hosts")
	case strings.HasPrefix(file, "right/"):
		return nil, errors.New("it counts leap seconds")
	}
	zone, err := time.LoadLocation(name)
	if err != nil {
		return nil, fmt.Errorf("%w (if the host has no zone files, import time/tzdata)", err)
	}
	zones.Store(name, zone)
	return zone, nil
}

// mark returns the local time of a tick in seconds; never if it is not known.
func mark(t Tick) int64 {
	if t.Local.IsZero() {
		return never
	}
	_, offset := t.Local.Zone()
	return t.Local.Unix() + int64(offset)
}

func (c *clock) tick(at int64) Tick {
	t := time.Unix(at, 0)
	return Tick{At: t.UTC(), Local: t.In(c.location)}
}

// A span is the time between two changes of the clocks.
type span struct {
	start, end int64 // instants
	offset     int64 // of the clocks from UTC
	from       int64 // local: earlier local times were shown in an earlier span
	makeUp     bool  // start is a tick, for the local times that were left out
}

// span returns the span that contains an instant. local is the local time of the last tick.
func (c *clock) span(at, local int64) span {
	s := c.bounds(at)
	if c.elapsed {
		s.from = never
		return s
	}
	s.from = local
	if local != never {
		s.from++
	}
	// The latest local time before the span. The clocks may have changed twice within a short time.
	for start := s.start; start > s.start-apart && start != never; {
		before := c.bounds(start - 1)
		s.from = max(s.from, start+before.offset)
		start = before.start
	}
	if s.start != never {
		shown := s.start + s.offset
		left, ok := c.ceil(s.from)
		if ok && left < shown {
			s.makeUp = !c.matches(shown)
		}
	}
	return s
}

// bounds returns the span of an instant, by package time. The start may be that of an earlier span:
// if zone data ends with a rule, package time computes it from the rule, even if the data lists a
// later change.
func (c *clock) bounds(at int64) span {
	t := time.Unix(at, 0).In(c.location)
	_, offset := t.Zone()
	s := span{start: never, end: c.end(at), offset: int64(offset)}
	start, _ := t.ZoneBounds()
	if !start.IsZero() {
		s.start = start.Unix()
		for end := c.end(s.start); end <= at; end = c.end(end) {
			s.start = end
		}
	}
	return s
}

// end returns when the span of an instant ends.
func (c *clock) end(at int64) int64 {
	_, end := time.Unix(at, 0).In(c.location).ZoneBounds()
	switch {
	case end.IsZero():
		return math.MaxInt64 - apart
	case end.Unix() <= at: // package time returns this on 31 December of leap years, if it uses the rule
		date, _ := divide(at, day)
		return (date + 1) * day
	}
	return end.Unix()
}

// next returns the first tick after an instant.
func (c *clock) next(after, local int64) (int64, bool) {
	for at := after + 1; ; {
		s := c.span(at, local)
		if s.makeUp && s.start >= at {
			return s.start, true
		}
		shown, ok := c.ceil(max(s.from, at+s.offset))
		if !ok {
			return 0, false
		}
		if shown < s.end+s.offset {
			return shown - s.offset, true
		}
		// Skip the spans without a tick. In the next span the clocks may repeat local times.
		shown, _ = c.ceil(s.end - apart)
		at = max(s.end, shown-apart)
	}
}

// previous returns the last tick after an instant, up to another.
func (c *clock) previous(after, until, local int64) (int64, bool) {
	for at := until; at > after; {
		s := c.span(at, local)
		shown, ok := c.floor(at + s.offset)
		switch {
		case ok && shown >= s.from && (s.start == never || shown >= s.start+s.offset):
			return shown - s.offset, shown-s.offset > after
		case s.makeUp:
			return s.start, s.start > after
		case !ok || s.start == never:
			return 0, false
		}
		shown, _ = c.floor(s.start + apart)
		at = min(s.start-1, shown+apart)
	}
	return 0, false
}

// count returns the number of ticks after an instant, up to another.
func (c *clock) count(after, until, local int64) (n int64) {
	for at := after + 1; at <= until; {
		s := c.span(at, local)
		if s.makeUp && s.start >= at {
			n++
		}
		n += c.between(max(s.from, at+s.offset), min(s.end, until+1)+s.offset)
		at = s.end
	}
	return n
}

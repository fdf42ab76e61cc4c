package main

import (
	"sync"
	"time"
)

// lateness knows when the machine was late: when a goroutine that sleeps a few milliseconds was woken 20 ms too late.
type lateness struct {
	done chan struct{}

	mu     sync.Mutex // guards spells
	spells []spell
}

type spell struct{ from, to time.Time }

const (
	lateTick = 5 * time.Millisecond
	lateBy   = 20 * time.Millisecond
)

func watchMachine() *lateness {
	l := &lateness{done: make(chan struct{})}
	go l.watch()
	return l
}

func (l *lateness) watch() {
	timer := time.NewTimer(lateTick)
	defer timer.Stop()
	for {
		began := time.Now()
		select {
		case <-timer.C:
		case <-l.done:
			return
		}
		if now := time.Now(); now.Sub(began) >= lateTick+lateBy {
			l.mu.Lock()
			l.spells = append(l.spells, spell{began, now})
			l.mu.Unlock()
		}
		timer.Reset(lateTick)
	}
}

func (l *lateness) stop() { close(l.done) }

// during reports whether the machine was late at any time in between.
func (l *lateness) during(from, to time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, s := range l.spells {
		if s.from.Before(to) && s.to.After(from) {
			return true
		}
	}
	return false
}

package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	pauseMin = 100 * time.Millisecond
	// keysOfOutage is how many keys of a process fail in a row before the reason is searched
	// elsewhere.
	keysOfOutage = 3
	// maxError is how many bytes of an error are stored.
	maxError = 4000
	// maxTroubles is how many errors in a row, that no row is charged with, are charged to the
	// first.
	maxTroubles = 10
)

// charge records that an attempt at a row has failed, and reports whether it did. If too many keys
// failed in a row, the partition pauses, and no row is charged. final is true if the row must not
// be handled again.
func (g *group) charge(j *job, r row, failure error, final bool) bool {
	p := r.partition
	p.due = true // the other keys
	if !final && g.seemsAway(r) {
		if j.retry == nil {
			p.rows.tried = append(p.rows.tried, r.key)
		}
		g.pause(j, p, failure)
		return false
	}
	attempts, text, version := r.attempts+1, handlers.Storable(failure.Error()), fmt.Sprint(r.version)
	if len(text) > maxError { // for example with a stack
		text = handlers.Storable(text[:maxError])
	}
	var wait *int64
	if attempts < g.options.attempts && !final {
		ms := max(1, worker.PauseAfter(attempts, g.options.backoff).Milliseconds())
		wait = &ms
	}
	buried := wait == nil && !final && g.options.onFailure == DeadLetter
	record := func(ctx context.Context, tx *handlers.Transaction, xact string) error {
		if !buried {
			_, err := tx.Exec(ctx, g.sql.Charge, g.name, p.Number, r.id, version, attempts, text, wait)
			return err
		}
		return tx.QueryRow(ctx, g.sql.Bury, g.name, p.Number, r.id, version, attempts, text, xact).Scan(nil)
	}
	err := g.guarded([]*partition{p}, record)
	if buried && worker.Whose(err) == worker.Refused { // for example no jsonb can have its content
		buried, text = false, fmt.Sprintf("%s\nnot moved to the dead letters: %v", text, err)
		err = g.guarded([]*partition{p}, record)
	}
	g.counts.failures.Add(1)
	log := g.log.With(slog.Int("partition", p.Number), slog.Int64("id", r.id), slog.String("key", r.key), slog.Int("attempt", attempts), slog.String("error", text))
	switch {
	case err != nil:
		if !p.lost {
			j.standing(p).notBefore = time.Now().Add(troubleWait)
			g.log.Warn("consumer: failed attempt not recorded, row handled again", slog.Int64("id", r.id), slog.Any("error", err))
		}
		return false
	case buried:
		g.counts.dead.Add(1)
		log.Error("consumer: row moved to the dead letters")
	case wait == nil:
		log.Error("consumer: row blocks its key until somebody retries or skips it")
	default:
		log.Warn("consumer: row failed, its key waits", slog.Duration("again", time.Duration(*wait)*time.Millisecond))
	}
	return true
}

// seemsAway notes that the key of a row failed, and reports whether so many have failed since the
// last success in this process that something seems to be away that handlers need. Keys that were
// blocked already say nothing about that.
func (g *group) seemsAway(r row) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r.attempts == 0 && !slices.Contains(g.failed, r.key) {
		g.failed = append(g.failed, r.key)
	}
	return len(g.failed) >= keysOfOutage
}

// succeeded notes that rows of a partition were handled.
func (g *group) succeeded(j *job, p *partition) {
	s := j.standing(p)
	j.handled, j.recovered = true, j.recovered || s.outage > 0
	*s = standing{}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.failed, g.away = nil, false
}

// pause pauses a partition, because something that handlers need is away; after a blocked row, only
// its blocked rows.
func (g *group) pause(j *job, p *partition, why error) {
	s := j.standing(p)
	if s.outage = min(2*s.outage, g.times.pauseMax); s.outage == 0 {
		s.outage = pauseMin
	}
	g.mu.Lock()
	logged := g.away
	g.away, g.last = true, why.Error()
	g.mu.Unlock()
	if !logged {
		g.log.Warn("consumer: partition paused, no attempt is counted", slog.Int("partition", p.Number), slog.Any("error", why))
	}
	s.notBefore = time.Now().Add(s.outage/2 + rand.N(s.outage/2+1))
	g.counts.pauses.Add(1)
}

// safe copies an error of the application, without its methods, which may panic.
func safe(err error) error {
	if err == nil {
		return nil
	}
	s := safeError{text: handlers.Storable(err.Error()), index: -1, fault: worker.WhoseOfHandler(err)}
	var f *rowError
	if errors.As(err, &f) {
		s.index = f.index
		if s.text = handlers.Storable(fmt.Sprint(f.err)); f.err == nil {
			s.text = "RowError without an error"
		}
	}
	s.unavailable = errors.As(err, new(*unavailableError))
	s.deadline = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	return s
}

// known returns what safe has copied of an error.
func known(err error) safeError {
	s := safeError{index: -1}
	errors.As(err, &s)
	return s
}

type safeError struct {
	text        string
	deadline    bool // a context of the handler's own ended
	index       int  // of RowError; -1: it is not
	unavailable bool
	fault       worker.Fault
}

func (e safeError) Error() string { return e.text }

// transient reports whether the database is at fault, and not the row.
func (e safeError) transient() bool { return e.fault.Blameless() }

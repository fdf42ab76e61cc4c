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

// An ending is what is recorded about a row whose attempt did not succeed.
type ending struct {
	attempts int            // that have failed
	text     string         // the error
	wait     *time.Duration // until the next attempt; nil: there is none
	dead     bool           // it moves to the dead letters
	counts   bool           // the attempt has failed
}

// endingOf returns what to record about a row, after an attempt that ended with an error. final is
// true if the row must not be handled again, nor moved.
func (g *group) endingOf(r row, failure error, final bool) ending {
	e := ending{attempts: r.attempts + 1, text: handlers.Storable(failure.Error()), counts: true}
	if len(e.text) > maxError { // for example with a stack
		e.text = handlers.Storable(e.text[:maxError])
	}
	verdict, snooze := worker.Verdict(failure)
	switch {
	case verdict == worker.Snoozed:
		e.attempts, e.wait, e.counts = r.attempts, &snooze, false
	case final:
	case verdict == worker.Discarded || e.attempts >= g.options.attempts:
		e.dead = g.options.onFailure == DeadLetter
	default:
		wait := worker.PauseAfter(e.attempts, g.options.backoff)
		e.wait = &wait
	}
	return e
}

// charge records that an attempt at a row has failed, or that the row waits, and reports whether it
// did. If too many keys failed in a row, the partition pauses, and nothing is recorded. final is
// true if the row must not be handled again.
func (g *group) charge(j *job, r row, failure error, final bool) bool {
	p := r.partition
	p.due = true // the other keys
	if !final && !decided(failure) && g.seemsAway(r) {
		if j.retry == nil {
			p.rows.tried = append(p.rows.tried, r.key)
		}
		g.pause(j, p, failure)
		return false
	}
	e := g.endingOf(r, failure, final)
	err := g.record(r, e)
	if e.dead && worker.Whose(err) == worker.Refused { // for example no jsonb can have its content
		e.dead, e.text = false, fmt.Sprintf("%s\nnot moved to the dead letters: %v", e.text, err)
		err = g.record(r, e)
	}
	if e.counts {
		g.counts.failures.Add(1)
	}
	if err != nil {
		if !p.lost {
			j.standing(p).notBefore = time.Now().Add(troubleWait)
			g.log.Warn("consumer: failed attempt not recorded, row handled again", slog.Int64("id", r.id), slog.Any("error", err))
		}
		return false
	}
	g.report(r, e)
	return true
}

// record writes the ending of an attempt at a row.
func (g *group) record(r row, e ending) error {
	p, version := r.partition, fmt.Sprint(r.version)
	return g.guarded([]*partition{p}, func(ctx context.Context, tx *handlers.Transaction, xact string) error {
		if e.dead {
			return tx.QueryRow(ctx, g.sql.Bury, g.name, p.Number, r.id, version, e.attempts, e.text, xact).Scan(nil)
		}
		var wait *int64
		if e.wait != nil {
			ms := max(1, e.wait.Milliseconds())
			wait = &ms
		}
		_, err := tx.Exec(ctx, g.sql.Charge, g.name, p.Number, r.id, version, e.attempts, e.text, wait)
		return err
	})
}

// report counts and logs the ending of an attempt at a row.
func (g *group) report(r row, e ending) {
	log := g.log.With(slog.Int("partition", r.partition.Number), slog.Int64("id", r.id), slog.String("key", r.key))
	if !e.counts {
		g.counts.snoozed.Add(1)
		log.Info("consumer: row snoozed, its key waits", slog.Duration("again", *e.wait))
		return
	}
	log = log.With(slog.Int("attempt", e.attempts), slog.String("error", e.text))
	switch {
	case e.dead:
		g.counts.dead.Add(1)
		log.Error("consumer: row moved to the dead letters")
	case e.wait == nil:
		log.Error("consumer: row blocks its key until somebody retries or skips it")
	default:
		log.Warn("consumer: row failed, its key waits", slog.Duration("again", *e.wait))
	}
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
	s.deadline = errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
	if v, _ := worker.Verdict(err); v != worker.None {
		s.verdict = worker.Copy(err)
	}
	return s
}

// known returns what safe has copied of an error.
func known(err error) safeError {
	s := safeError{index: -1}
	errors.As(err, &s)
	return s
}

type safeError struct {
	text     string
	deadline bool // a context of the handler's own ended
	index    int  // of RowError; -1: it is not
	fault    worker.Fault
	verdict  error // Snooze, Discard or Unavailable
}

func (e safeError) Error() string { return e.text }
func (e safeError) Unwrap() error { return e.verdict }

// transient reports whether the database is at fault, and not the row.
func (e safeError) transient() bool { return e.fault.Blameless() }

// decided reports whether the handler says what happens to the row.
func decided(err error) bool {
	v, _ := worker.Verdict(err)
	return v == worker.Snoozed || v == worker.Discarded
}

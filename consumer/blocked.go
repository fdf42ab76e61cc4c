package consumer

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/worker"
)

// maxError is how many bytes of an error are stored.
const maxError = 4000

// An ending is what is recorded about a row whose attempt did not succeed.
type ending struct {
	attempts int           // how many have failed
	text     string        // the error
	again    bool          // there is another attempt
	wait     time.Duration // how long until the next attempt
	dead     bool          // it moves to the dead letters
	failed   bool          // the attempt has failed
}

// endingOf returns what to record about a row, after an attempt that ended with an error. final is
// true if the row must not be handled again, nor moved.
func endingOf(r row, failure error, final bool, o *options) ending {
	e := ending{attempts: r.attempts + 1, text: handlers.Storable(failure.Error()), failed: true}
	if len(e.text) > maxError { // for example with a stack
		e.text = handlers.Storable(e.text[:maxError])
	}
	verdict, snooze := worker.Verdict(failure)
	switch {
	case verdict == worker.Snoozed:
		e.attempts, e.failed = r.attempts, false // it does not count
		e.again, e.wait = true, snooze
	case final:
	case verdict == worker.Discarded || e.attempts >= o.attempts:
		e.dead = o.onFailure == OnFailureDeadLetter
	default:
		e.again, e.wait = true, worker.PauseAfter(e.attempts, o.backoff)
	}
	return e
}

// failed records that an attempt at a row has failed, or that the row waits, and reports whether it
// did. If too many keys failed in a row, the partition pauses, and nothing is recorded. final is
// true if the row must not be handled again.
func (e *execution) failed(r row, failure error, final bool) bool {
	p := r.partition
	p.due = true // rows of other keys may be handled
	p.answered = true
	if !final && !snoozedOrDiscarded(failure) && e.outage.seems(r) {
		if !e.job.isRetry {
			p.rows.triedKeys = append(p.rows.triedKeys, r.key)
		}
		e.pause(p, failure)
		return false
	}
	end := endingOf(r, failure, final, e.options)
	err := e.record(r, end)
	if end.dead && slices.Contains(neverDead, worker.Whose(err)) {
		end.dead, end.text = false, fmt.Sprintf("%s\nnot moved to the dead letters: %v", end.text, err)
		err = e.record(r, end)
	}
	if end.failed {
		e.counts.failures.Add(1)
	}
	p.freed = p.freed || end.dead && e.job.isRetry // even after an error, as the commit may have happened
	if err != nil {
		if !p.lost {
			p.delayOf(e.job).lose(time.Now())
			e.log.Warn("consumer: failed attempt not recorded, row handled again",
				slog.Int64("id", r.id), slog.Any("error", err))
		}
		return false
	}
	p.delayOf(e.job).losses = 0
	e.report(r, end)
	return true
}

// neverDead are the faults of a row that the dead letters cannot have: no jsonb has its content, or
// a value is too large for it, which some types report as an internal error.
var neverDead = []worker.Fault{worker.Refused, worker.Internal}

// record writes the ending of an attempt at a row.
func (e *execution) record(r row, end ending) error {
	return e.db.guarded([]*part{r.partition}, func(ctx context.Context, tx *handlers.Transaction, xact string) error {
		if !tx.InUTF8() {
			end.text = handlers.InASCII(end.text)
		}
		if end.dead {
			return e.db.kill(ctx, tx, r, end, xact)
		}
		return e.db.block(ctx, tx, r, end)
	})
}

// report counts and logs the ending of an attempt at a row.
func (e *execution) report(r row, end ending) {
	log := e.log.With(slog.Int("partition", r.partition.Number), slog.Int64("id", r.id), slog.String("key", r.key))
	if !end.failed {
		e.counts.snoozed.Add(1)
		log.Info("consumer: row snoozed, its key waits", slog.Duration("again", end.wait))
		return
	}
	log = log.With(slog.Int("attempt", end.attempts), slog.String("error", end.text))
	switch {
	case end.dead:
		e.counts.dead.Add(1)
		log.Error("consumer: row moved to the dead letters")
	case !end.again:
		log.Error("consumer: row failed for good, its key is blocked")
	default:
		log.Warn("consumer: row failed, its key waits", slog.Duration("again", end.wait))
	}
}

// retry handles or skips the blocked row of the job. If it can do neither, other blocked rows of
// the partition come first.
func (e *execution) retry() {
	settled := false
	if e.job.retry.skip {
		settled = e.skip()
		e.result.handled = settled
	} else {
		settled = e.retryRow()
	}
	p := e.parts[0]
	if !settled && !p.lost {
		e.db.putOff(p, e.job.retry.id)
	}
}

// retryRow handles the blocked row of the job, and reports whether it was handled, or its failure
// recorded.
func (e *execution) retryRow() (settled bool) {
	p := e.parts[0]
	err := e.noteRetry()
	if err != nil {
		e.brokeOff(e.parts, outcome{err: err})
		return false
	}
	o := e.attempt(e.parts, 1)
	switch o.verdict {
	case handled:
		settled = true
		e.succeeded(p)
		p.due, p.freed = true, true // rows of the key wait
	case unavailable:
		e.pause(p, o.err)
	case broke:
		p.freed = true // the answer to its commit may be lost
		e.brokeOff(e.parts, o)
	case failed, ended:
		e.result.retryHung = o.slow
		settled = e.failed(o.rows[0], o.err, o.verdict == ended)
	}
	if e.job.retry.suspect && !settled {
		e.db.takeBack(p, e.job.retry.id)
	}
	return settled
}

// skip moves the blocked row of the job, which an operator skips, to the dead letters, and reports
// whether it is done. See consumer_skip.
func (e *execution) skip() bool {
	p, id := e.parts[0], e.job.retry.id
	var text string
	err := e.db.guarded(e.parts, func(ctx context.Context, tx *handlers.Transaction, xact string) (err error) {
		text, err = e.db.killSkipped(ctx, tx, p, id, xact)
		return err
	})
	p.freed = true // rows of its key wait; even after an error, as the commit may have happened
	log := e.log.With(slog.Int("partition", p.Number), slog.Int64("id", id))
	switch {
	case err != nil && !p.lost:
		p.blocked.notBefore = time.Now().Add(breakWait)
		log.Warn("consumer: row not skipped, retried", slog.Any("error", err))
	case err == nil && text != "":
		p.due = true
		e.outage.left(p.Number)
		e.counts.dead.Add(1)
		log.Warn("consumer: row skipped by an operator", slog.String("reason", text))
	}
	return err == nil
}

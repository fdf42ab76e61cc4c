package consumer

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	breakWait = time.Second // the most that rows wait after an error that is no failed attempt
	// maxBreaks is how many batches of a partition are broken off in a row until the first row has
	// failed.
	maxBreaks = 10
)

// An executor does jobs. It knows neither the queue nor the poller. It is safe for concurrent use.
type executor struct {
	db      *db
	handler *handler
	options *options
	times   *timings
	counts  *counts
	log     *slog.Logger
	share   *worker.Share // of the pool
	batch   func() int    // how many rows the next batch may have
	outage  outage
	trusted func() bool // the client may still own what it owned
	// overdue is called when code of the application goes on after its context, so others may have the
	// slot, and the code cannot do anything for partitions that are free then
	overdue func(j *job, free []int)
}

// An execution does one job, in its goroutine.
type execution struct {
	*executor
	job     *job
	parts   []*part
	watched func() // ends the watch of the last attempt, see watch
	kept    *part  // the only partition that the job still has, see attempt.late; nil: it has all
	result  result
}

func (x *executor) execution(j *job) *execution {
	parts := j.parts()
	return &execution{executor: x, job: j, parts: parts, result: result{parts: parts}}
}

var errJobEnded = errors.New("the code of the application ended the goroutine of a job, " +
	"for example in a hook of the pool")

// run does the job. A hook or tracer of the application's pool may panic in it, or end the
// goroutine.
func (e *execution) run() {
	err := errJobEnded
	defer func() {
		if err != nil {
			e.brokeOff(e.parts, outcome{err: err})
		}
	}()
	e.watched = e.watch()
	defer func() { e.watched() }()
	defer handlers.Caught(&err)
	if e.job.isRetry {
		e.retry()
	} else {
		e.handle(e.parts)
	}
	err = nil
}

// watchAgain begins the watch of another attempt.
func (e *execution) watchAgain() {
	e.watched()
	e.watched = e.watch()
}

// watch logs a job of which an attempt takes longer than the handler and all its statements may,
// because a tracer or a hook of the pool hangs, and lets others have its slot. It logs also that the
// attempt has ended. Each attempt begins the time anew.
func (e *execution) watch() (ended func()) {
	limit, partition := e.attemptLimit(), e.parts[0].Number
	return handlers.WatchFor(limit, func() {
		e.log.Warn("consumer: batch still at work", slog.Int("partition", partition), slog.Duration("for", limit))
		e.overdue(e.job, nil)
	}, func(lasted time.Duration) {
		e.log.Info("consumer: batch no longer at work",
			slog.Int("partition", partition), slog.Duration("for", lasted))
	})
}

// attemptLimit is the most that an attempt takes: the handler and the commit have the timeout each,
// and about eight other waits have a limit of their own.
func (x *executor) attemptLimit() time.Duration {
	return 2*x.options.timeout + 8*x.times.answer + x.times.overrun
}

// halting reports whether the process has to hand over one of the partitions, or to end.
func (x *executor) halting(parts []*part) bool {
	return x.db.life.Err() != nil || slices.ContainsFunc(parts, func(p *part) bool { return p.halting.Load() })
}

// A batch says how the next attempt at rows of a job is made.
type batch struct {
	limit   int   // how many rows it has
	failing *part // the first row after them failed in the attempt before; nil: it is not known which
	away    error // that row did not fail: its handler said that something is away
}

// handle handles rows of partitions that are not blocked.
func (e *execution) handle(parts []*part) {
	first := parts[0]
	if first.watched && !e.note(first) {
		return
	}
	b := batch{limit: max(1, e.job.limit>>first.rows.breaks)}
	if first.rows.away > 0 || first.singly > 0 {
		b.limit = 1
	}
	for done := false; !done; {
		parts = ownedOf(parts)
		if len(parts) == 0 {
			return
		}
		o := e.attempt(parts, b.limit)
		if e.kept != nil {
			parts = []*part{e.kept}
		}
		done = e.settle(parts, o, &b) || e.kept != nil
	}
}

// handleOne goes on with one of the job's partitions, unless that has to end.
func (e *execution) handleOne(p *part) {
	parts := []*part{p}
	if !e.halting(parts) {
		e.handle(parts)
	}
}

// settle deals with the outcome of an attempt, and reports whether the job is done. Otherwise b is
// the next attempt.
func (e *execution) settle(parts []*part, o outcome, b *batch) (done bool) {
	switch o.verdict {
	case refused:
		return false
	case handled:
		e.advance(parts, o)
		switch {
		case b.away != nil: // the next row's error is known, so its handler is not called again
			e.pauseAll([]*part{b.failing}, outcome{err: b.away})
		case b.failing != nil: // what was read before is not used again: another row may come first now
			e.handleOne(b.failing)
		}
		return true
	case unavailable:
		return e.settleUnavailable(parts, o, b)
	case broke:
		e.settleBroken(parts, o)
		return true
	case ended: // what was written for the rows before may be committed as well
		if o.at < 0 {
			o.at = len(o.rows) - 1
		}
		for _, r := range o.rows[:o.at+1] {
			e.failed(r, o.err, true)
		}
		return true
	}
	return e.settleFailed(parts, o, b)
}

// settleFailed finds the row that failed, and records that.
func (e *execution) settleFailed(parts []*part, o outcome, b *batch) (done bool) {
	switch {
	case o.slow:
		e.settleSlow(parts, o)
		return true
	case o.at == 0 || o.at < 0 && len(o.rows) == 1:
		e.failed(o.rows[0], o.err, false)
		return true
	case o.at > 0 && !e.handler.calls.inTransaction(): // the rows before are removed
		e.advance(parts, o)
		e.handleOne(o.rows[o.at].partition)
		return true
	case o.at > 0:
		*b = batch{limit: o.at, failing: o.rows[o.at].partition}
	default:
		*b = batch{limit: len(o.rows) / 2}
	}
	return false
}

// settleUnavailable pauses partitions, because a handler says that something is away. If it named a
// row, the rows before that are committed first.
func (e *execution) settleUnavailable(parts []*part, o outcome, b *batch) (done bool) {
	if o.at < 0 {
		e.pauseAll(parts, o)
		return true
	}
	p := o.rows[o.at].partition
	removed := !e.handler.calls.inTransaction()
	if o.at > 0 && !removed && !o.slow {
		*b = batch{limit: o.at, failing: p, away: o.err}
		return false
	}
	if o.at > 0 && removed {
		e.advance(parts, o)
	}
	e.pauseAll([]*part{p}, o)
	return true
}

// settleBroken puts partitions off whose batch was broken off.
func (e *execution) settleBroken(parts []*part, o outcome) {
	if len(parts) == 1 || !store.LockTimeout(o.err) {
		e.brokeOff(parts, o)
		return
	}
	for _, p := range parts { // each comes alone next, which finds the one
		p.search, p.due = true, true
	}
}

// settleSlow deals with a batch that took longer than its timeout. Its partitions are slow until
// they succeed, and the job ends, so that the slot is free for others. If it is known which row
// took so long, that has failed. Otherwise, or if rows of its key come before it that were rolled
// back, the rows are handled one by one.
func (e *execution) settleSlow(parts []*part, o outcome) {
	if len(o.rows) == 1 {
		o.at = 0
	}
	for _, r := range o.rows[:max(0, o.at)] {
		r.partition.answered = true
	}
	suspects := o.rows
	if o.at >= 0 {
		r := o.rows[o.at]
		removed := o.at > 0 && !e.handler.calls.inTransaction()
		if removed {
			e.advance(parts, o)
		}
		// An earlier row of its key was rolled back with it. If r alone were recorded, it would block
		// the key, and so that row.
		sameKey := func(before row) bool { return before.partition == r.partition && before.key == r.key }
		if removed || !slices.ContainsFunc(o.rows[:o.at], sameKey) {
			r.partition.slowBy(worker.TimedOut)
			r.partition.charged = e.failed(r, o.err, false)
			return
		}
		elsewhere := func(before row) bool { return before.partition != r.partition }
		suspects = slices.DeleteFunc(slices.Clone(o.rows[:o.at+1]), elsewhere)
	}
	for _, r := range suspects {
		r.partition.singly++
		r.partition.due = true
		r.partition.slowBy(worker.TimedOut)
	}
}

// slowBy notes that a partition is slow from now on.
func (p *part) slowBy(why worker.Reason) { p.slow, p.why = true, why }

// advance notes what a job has handled.
func (e *execution) advance(parts []*part, o outcome) {
	counts := make(map[*part]int)
	for _, r := range o.rows[:o.at] {
		counts[r.partition]++
	}
	full, last := o.more || o.at < len(o.rows), -1
	if len(o.rows) > 0 {
		last = o.rows[min(o.at, len(o.rows)-1)].partition.Number
	}
	for _, p := range parts {
		n := counts[p]
		if n > 0 {
			e.succeeded(p)
		}
		p.singly = max(0, p.singly-n)
		if n == 0 {
			p.singly = 0 // no row of it was handled
		}
		if n == 0 && !o.more && p.blocked.away == 0 { // it has no row that could end its pause
			e.outage.left(p.Number)
		}
		p.search = false
		p.healed = p.healed || p.singly == 0
		// It may have more rows if it was not read to its end. Partitions are read in the order of their
		// numbers, so those before the last were.
		p.due = p.watched || full && p.Number >= last
		if p.due {
			p.expect = max(p.expect, n)
		} else {
			p.expect = max(1, n)
		}
	}
}

// succeeded notes that rows of a partition were handled.
func (e *execution) succeeded(p *part) {
	d := p.delayOf(e.job)
	p.answered = true
	wasPaused := d.away > 0
	e.result.handled, e.result.recovered = true, e.result.recovered || wasPaused
	*d = delay{}
	e.outage.succeeded(p, wasPaused)
}

// pauseAll pauses partitions, because a handler said that something is away. If it took its whole
// timeout to find that out, they are slow too.
func (e *execution) pauseAll(parts []*part, o outcome) {
	for _, p := range parts {
		p.due = true
		e.pause(p, o.err)
		if o.slow {
			p.slowBy(worker.TimedOut)
		}
	}
}

// pause pauses a partition, because something that handlers need is away; after a blocked row, only
// its blocked rows.
func (e *execution) pause(p *part, why error) {
	d := p.delayOf(e.job)
	d.away++
	d.notBefore = time.Now().Add(worker.PauseAfter(d.away, e.times.pauses))
	e.outage.paused(p, why)
	e.counts.pauses.Add(1)
}

// unanswered reports whether a statement was not answered.
func unanswered(err error) bool {
	return errors.Is(err, worker.ErrGone) || errors.Is(err, context.DeadlineExceeded)
}

// brokeOff puts partitions off after an error that is no failed attempt; after a blocked row, only
// their blocked rows. After the tenth in a row, the first row has failed.
func (e *execution) brokeOff(parts []*part, o outcome) {
	e.counts.brokenOff.Add(1)
	if errors.Is(o.err, pgleases.ErrNotOwner) {
		return
	}
	d := parts[0].delayOf(e.job)
	if len(o.rows) > 0 && d.breaks >= maxBreaks-1 {
		d.breaks = 0
		e.failed(o.rows[max(0, o.at)], o.err, false)
		return
	}
	for _, p := range parts {
		e.putOff(p, o)
	}
	e.outage.brokeOff(parts, o.err)
}

// putOff puts a partition off whose batch was broken off.
func (e *execution) putOff(p *part, o outcome) {
	d := p.delayOf(e.job)
	// An attempt that has read no row counts too, but two that have come before a row fails.
	if len(o.rows) > 0 || d.breaks < maxBreaks-3 {
		d.breaks++
	}
	d.notBefore = time.Now().Add(min(breakWait, 10*time.Millisecond<<min(d.breaks, 10)))
	locked := store.LockTimeout(o.err)
	switch {
	case locked && e.job.isRetry:
		d.notBefore = time.Now().Add(breakWait)
	case locked:
		p.slowBy(worker.Locked)
	case !e.job.isRetry && unanswered(o.err):
		p.slowBy(worker.Hung)
	}
	p.due = p.due || !e.job.isRetry
}

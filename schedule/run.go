package schedule

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// This file carries out what is due: a run in one transaction, see tx.go.

const (
	// maxConflicts is how often a run is tried that the database broke off in favour of another.
	maxConflicts = 3
	// maxBreaks is how often one is tried whose connection was lost, or that met a lock for too long.
	maxBreaks = 5
	// maxOutcomes is how often it is tried to write down what has become of a run: for two minutes or so.
	maxOutcomes = 60
	// closing bounds what is done for a schedule besides its handler.
	closing = 10 * time.Second
)

// An ownership is a partition that this process owns, as long as runs may begin or go on in it.
type ownership struct {
	pgleases.Partition
	life   context.Context // of the ownership
	ctx    context.Context // of the runs
	cancel context.CancelCauseFunc
	fresh  bool      // it was not looked at yet, or more of what waits in it is to be; the planner's mu guards it
	roused time.Time // when that was last found; mu guards it, too

	mu    sync.Mutex // guards ended, and the first run of runs
	ended bool       // no new run begins
	runs  sync.WaitGroup

	crashes sync.Mutex // guards what follows; held while it is opened
	opened  time.Time  // by the database; zero: nothing has run in it
	died    bool       // the owner before did, while something may have run
	charged []subject  // counts a crash of this owner's until their run has ended
}

// begin reports whether a run may begin. runs.Done is to be called at its end.
func (o *ownership) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.ended {
		o.runs.Add(1)
	}
	return !o.ended
}

// drain lets the runs end, and ends them after a while.
func (o *ownership) drain(atMost time.Duration) {
	o.mu.Lock()
	o.ended = true
	o.mu.Unlock()
	defer time.AfterFunc(atMost, func() { o.cancel(ErrDrained) }).Stop()
	o.runs.Wait()
}

// An attempt is one transaction of a run.
type attempt struct {
	row     *record
	opened  time.Time // by this host, when row was read
	decided decision
	handler error         // the handler's; nil: it did not fail, or was not called
	own     bool          // that error is no fault of the connection or the server, whatever became of these
	took    time.Duration // the handler
	slow    bool          // the commit took longer than the run may, or the connection is lost without a word
	outside bool          // the handler is to be called now, in no transaction
	charged bool          // a crash is counted, until the run has ended: now it may begin
	// of a kind with a limit
	slotless bool // there was no slot
	held     bool // one was taken that is not free at the end of this transaction
}

// carryOut does what is due of a schedule, again where the database broke it off. It returns when the schedule is due next, nil: that is to
// be looked up; and an instant before which it is not.
func (p *planner) carryOut(o *ownership, it item) (again *item, from time.Time) {
	from = it.due()
	if err := p.open(o); err != nil {
		if o.ctx.Err() == nil && !errors.Is(err, pgleases.ErrNotOwner) {
			p.s.logOf(it).Warn("schedule: not looked after, again soon", slog.Any("error", err))
		}
		return nil, from
	}
	k := p.s.kind(it.Kind)
	if err := p.makeSlots(o.ctx, k); err != nil {
		p.s.logOf(it).Warn("schedule: not looked after, again soon", slog.Any("error", err))
		return nil, from
	}
	conflicts, breaks := 0, 0
	run := rand.Text()
	held := false // a slot, or perhaps
	defer func() {
		if held {
			p.freeSlot(o, it.Kind, run)
		}
	}()
	var begun *attempt // by this run, outside of a transaction; its handler is not called yet
	defer func() {
		if begun != nil {
			p.takeBack(o, *begun)
		}
	}()
	for tried := (*record)(nil); ; {
		a, err := p.try(o, it, run)
		held = held || a.held
		if a.row != nil && !a.row.Job {
			from = earlier(from, a.row.Cursor) // whose next tick may be due, whatever has become of this step
			if tried != nil && (!tried.Cursor.Equal(a.row.Cursor) || tried.attempts() != a.row.attempts()) {
				conflicts, breaks = 0, 0 // that was committed, and its answer was lost
			}
		}
		if a.row != nil {
			tried = a.row
			if err == nil && a.row.Waits != nil && a.decided.Waits == nil {
				p.rouse(o)
			}
		}
		if k := p.s.kind(it.Kind); err == nil && !a.outside && k != nil {
			k.counts.wrote(a.decided.Fates)
		}
		switch {
		case err == nil && a.charged:
			if a.decided.Trying.begun() == run {
				begun = &a
			}
			continue
		case err == nil && a.outside && o.ctx.Err() == nil:
			begun = nil
			return p.callOut(o, it, a, from)
		}
		if err == nil {
			return a.next(it, from)
		}
		var pause time.Duration
		switch {
		case o.ctx.Err() != nil || a.handler == nil && errors.Is(err, pgleases.ErrNotOwner):
			return nil, from // the next owner does it
		case a.handler == nil && moved(err):
			if a.decided.RanUntil != nil {
				p.bury(o.ctx, o, it, a, changedOwn{err})
			}
			return nil, from // an edit came first, or it had been committed
		case errors.As(err, new(locked)):
			p.s.logOf(it).Warn(
				"schedule: not committed, as its schedule was locked for too long by an edit, run again soon",
				slog.String("name", a.row.Name), slog.Any("error", err),
			)
			return nil, from
		case !decisive(err) && conflict(err) && conflicts < maxConflicts-1:
			conflicts++
			pause = 10 * time.Millisecond << conflicts
		case a.handler == nil && a.charged && broken(err) && breaks < maxBreaks-1:
			breaks++ // where it was committed, the handler may be called by this run only
			pause = 50 * time.Millisecond << breaks
		case a.handler == nil:
			p.s.logOf(it).Warn("schedule: not looked after, again soon", slog.Any("error", err))
			return nil, from
		case !decisive(err) && !a.own && broken(err) && breaks < maxBreaks-1:
			breaks++
			if a.slow {
				breaks = max(breaks, maxBreaks-1) // once more: the connection may have been at fault
			}
			pause = 50 * time.Millisecond << breaks
		default:
			if a.slow {
				err = timedOut{err}
			}
			if !p.bury(o.ctx, o, it, a, err) {
				return nil, from
			}
			return a.next(it, from)
		}
		p.s.pause(o.ctx, pause)
	}
}

// bury writes down what becomes of a run that failed, and reports whether it could.
func (p *planner) bury(life context.Context, o *ownership, it item, a attempt, err error) bool {
	a.decided.failed(a.row, p.s.kind(it.Kind).limits, err, *a.decided.RanUntil)
	own := errors.As(err, new(changedOwn))
	if !own {
		p.tellFailed(it, a, err)
	}
	written := p.conclude(life, o, it, a)
	if own && written { // else another transaction changed it, and this one is refused as the run was
		p.tellFailed(it, a, err)
	}
	switch counts := &p.s.kind(it.Kind).counts; {
	case !written || a.decided.Trying == nil:
	case errors.As(err, new(snoozed)):
		counts.snoozed.Add(1)
	default:
		counts.retried.Add(1)
	}
	if written && a.decided.PausedAt != nil {
		p.s.logOf(it).Error(
			"schedule: paused, as so many ticks in a row are dead", slog.String("name", a.row.Name), slog.Time("at", a.decided.run.At),
			slog.Int("dead", *a.decided.Failures),
		)
	}
	return written
}

// tellFailed logs that a run failed, unless its handler snoozed.
func (p *planner) tellFailed(it item, a attempt, err error) {
	switch {
	case errors.As(err, new(snoozed)):
	case a.decided.Trying != nil:
		p.s.logOf(it).Warn(
			"schedule: run failed, and is tried again", slog.String("name", a.row.Name), slog.Time("at", a.decided.run.At),
			slog.Int("attempt", a.decided.Trying.Attempts), slog.Time("again", a.decided.Trying.Again), slog.Any("error", err),
		)
	default:
		p.s.logOf(it).Error("schedule: run failed", slog.String("name", a.row.Name), slog.Time("at", a.decided.run.At), slog.Any("error", err))
	}
}

// changedOwn is an error of a run whose schedule or job had been changed at its end: by its handler, or
// by another transaction.
type changedOwn struct{ error }

func (e changedOwn) Error() string {
	return fmt.Sprintf("the handler changed the schedule or job that it ran for: %v", e.error)
}
func (e changedOwn) Unwrap() error { return e.error }

// conclude writes down what has become of a run, apart from its handler, and reports whether it could. It goes on trying while runs may go
// on: nobody else knows it, and what was called at most once would be lost.
func (p *planner) conclude(life context.Context, o *ownership, it item, a attempt) bool {
	tries := 0
	passes := func(err error) bool {
		tries++
		return passing(err) && (tries < maxBreaks || o.ctx.Err() == nil)
	}
	err := p.s.repeat(life, maxOutcomes, passes, func() error { return p.write(life, o, a) })
	if err != nil && life.Err() == nil && !errors.Is(err, pgleases.ErrNotOwner) && !moved(err) {
		p.s.logOf(it).Warn(
			"schedule: outcome not written down, run again", slog.String("name", a.row.Name), slog.Time("at", a.decided.run.At),
			slog.Any("error", err),
		)
	}
	if err == nil {
		p.s.kind(it.Kind).counts.wrote(a.decided.Fates)
	}
	return err == nil
}

// next returns when a schedule is due after what was decided, as carryOut does.
func (a *attempt) next(it item, from time.Time) (*item, time.Time) {
	if a.row == nil || a.decided.Due == nil {
		return nil, from
	}
	it.Crashes, it.slotless = a.decided.Trying.crashes(), a.slotless
	it.DueMicro, it.earliest = a.decided.Due.UnixMicro(), a.opened.Add(a.decided.Due.Sub(a.row.Clock))
	return &it, it.due()
}

// try does it once. Its error is nil where all is committed.
func (p *planner) try(o *ownership, it item, run string) (a attempt, err error) {
	k := p.s.kind(it.Kind)
	l := limits{timeout: closing, idle: closing}
	if k != nil {
		l = k.limits
	}
	var r *record
	open := p.opening(o.Partition, &r, it.subject, run, l.timeout+time.Second, l.idle) // the handler's context ends first
	err = p.guarded(o.ctx, open, func(ctx context.Context, tx *transaction) error {
		if r == nil || r.Partition != o.Number || r.Kind != it.Kind {
			return nil
		}
		if !p.believes(r.Clock) {
			return nil // looked at again when the clock is believed
		}
		if k == nil {
			p.s.strange(it, r)
		}
		suspected := !r.Trying.chargedTo(o.Epoch) && o.suspects(it, r)
		a.row, a.opened, a.decided = r, time.Now(), r.decide(k, p.s.declares(r.Name), o.Epoch, suspected)
		// also where it is found that this run has begun: or a crash or a failover of the server would have it called once more
		if a.decided.run != nil && k.calls == atMostOnce {
			if _, err := tx.Exec(ctx, "SET LOCAL synchronous_commit = on"); err != nil {
				return err
			}
		}
		switch d := &a.decided; {
		case d.run == nil:
		case k.calls == atMostOnce && r.Trying.begun() != "" && r.Trying.begun() != run:
			p.s.logOf(it).Error(
				"schedule: lost, as it was called at most once, and nobody knows what came of it", slog.String("name", r.Name),
				slog.Time("at", d.run.At), slog.Int64("epoch", r.Trying.Called),
			)
			d.lost(r)
			d.run = nil
		case k.calls != inTransaction && r.Trying.begun() == run:
			a.outside = true
			return nil
		case r.Trying.crashes() >= k.limits.crashes && !r.Trying.chargedTo(o.Epoch):
			p.s.logOf(it).Error(
				"schedule: dead, as so many processes died while it ran", slog.String("name", r.Name), slog.Time("at", d.run.At),
				slog.Int("crashes", r.Trying.crashes()),
			)
			d.failed(r, limits{attempts: 1}, errCrashed, r.Clock)
			d.run = nil
		default:
			calls := k.calls != inTransaction && !suspected // whose arguments are to be read first
			if taken, err := p.takeSlot(ctx, o, tx, k, run, calls); err != nil {
				return err
			} else if !taken {
				a.slotless = true
				d.waitForSlot(r, k)
				if r.Waits != nil && *r.Waits == *d.Waits {
					return nil
				}
				break
			}
			a.held = calls && k.limits.limited
			if k.calls == inTransaction && !suspected {
				break
			}
			if suspected {
				o.charge(it.subject)
			}
			d.charge(r, o.Epoch, suspected)
			if calls {
				d.Trying.Run, d.Trying.Called = run, o.Epoch
			}
			d.run, a.charged = nil, true
		}
		if a.decided.run != nil {
			if err := p.handle(o, it, tx, k, &a); err != nil {
				return err
			}
		} else if !a.charged && a.decided.unchanged(r) {
			return nil
		}
		limit := p.s.answers
		if a.decided.RanUntil != nil { // the commit may take as long as the handler
			limit = max(limit, l.timeout)
		}
		err := p.s.sendClose(ctx, tx, r, run, a.decided.step, limit)
		a.slow = a.decided.RanUntil != nil && ctx.Err() == nil && errors.Is(err, context.DeadlineExceeded)
		return err
	})
	if err != nil && a.decided.RanUntil != nil && a.handler == nil && !moved(err) && !errors.As(err, new(locked)) {
		a.handler = err // what the handler left to the commit: a constraint that is deferred, or a transaction that it ended
		a.own = a.ofHandler(err, l.idle)
	}
	return a, err
}

// ofHandler reports whether a statement in a handler's transaction failed by the handler's own doing: it
// waited for a lock that its work needs, or idled for too long. If it took less, its connection is at fault.
func (a *attempt) ofHandler(err error, idle time.Duration) bool {
	return store.LockTimeout(err) || store.Code(err) == "25P03" && a.took >= idle
}

// handle calls the handler, and takes the fate from it.
func (p *planner) handle(o *ownership, it item, tx *transaction, k *kind, a *attempt) error {
	ctx, cancel := p.s.limited(o.ctx, k.limits.timeout)
	defer cancel()
	a.handler = p.call(ctx, it, k, handlerTx{tx.Tx, tx}, a, a.told(o))
	switch status := tx.status(); {
	case context.Cause(ctx) == ErrTimeout: // which has closed a connection in use
		a.handler = timedOut{a.handler}
	case a.handler != nil: // a context of its own that ended has closed the connection, too
		a.own = a.ofHandler(a.handler, k.limits.idle) || ctx.Err() == nil &&
			(errors.Is(a.handler, context.DeadlineExceeded) || errors.Is(a.handler, context.Canceled))
	case tx.Conn().IsClosed():
		a.own = true
		a.handler = errors.New("the handler returned nil after its connection was closed: it ignored the error of a statement")
	case tx.busy():
		a.handler = errors.New("the handler returned nil while rows or a batch of its transaction were open: read them to the end, or close them")
	case status == 'E':
		a.handler = errors.New("the handler returned nil after a statement that failed: so nothing of its transaction can be committed")
	case status == 'I':
		a.handler = errEnded
	}
	a.decided.done()
	return a.handler
}

// heeds is how long a handler may go on after its context has ended until that is logged.
const heeds = 10 * time.Second

// call calls a handler, and notes when it has returned. A handler that goes on for long after the end
// of its context is logged, as its partition waits for it.
func (p *planner) call(ctx context.Context, it item, k *kind, tx pgx.Tx, a *attempt, told Run[json.RawMessage]) error {
	returned := make(chan struct{})
	defer context.AfterFunc(ctx, func() {
		select {
		case <-returned:
		case <-time.After(p.s.heeds):
			p.s.logOf(it).Warn(
				"schedule: a handler goes on although its context has ended, and is waited for", slog.String("name", a.row.Name),
				slog.Time("at", a.decided.run.At), slog.Any("cause", context.Cause(ctx)),
			)
		}
	})()
	called := k.counts.begin(p.now().Sub(a.due()))
	began := time.Now()
	err := k.call(ctx, tx, told)
	close(returned)
	called()
	ended := p.now()
	a.took = time.Since(began)
	a.decided.RanUntil = &ended
	return err
}

// due is when the run was to begin.
func (a *attempt) due() time.Time {
	switch r := a.row; {
	case r.Job && r.Due != nil: // it may have been put later than what it is for
		return *r.Due
	case r.Trying != nil && !r.Trying.Again.IsZero():
		return r.Trying.Again
	default:
		return jitter(r.Name, a.decided.run.At, r.Policy.Jitter)
	}
}

// told is what a handler is told.
func (a *attempt) told(o *ownership) Run[json.RawMessage] {
	r := a.row
	told := Run[json.RawMessage]{
		Trigger: TriggerTick, Name: r.Name, Job: r.jobID(), Key: r.Key, Args: r.Args, At: a.decided.run.At.UTC(), Missed: a.decided.missed,
		Attempt: r.attempts() + 1, Crashes: max(0, r.Trying.crashes()-1), Partition: o.Number, Epoch: o.Epoch,
	}
	if r.Job {
		told.Trigger = r.Trigger
	}
	for _, from := range []*time.Time{r.Done, r.Since} { // of a schedule, and of a job
		if from != nil {
			told.From = from.UTC()
		}
	}
	return told
}

var errEnded = errors.New("the handler ended its transaction itself: what it did there before stands, if it committed it")

// timedOut is a handler's error where its time is over. What is wrapped in it is nobody else's fault.
type timedOut struct{ err error }

func (e timedOut) Error() string {
	if e.err == nil {
		return ErrTimeout.Error()
	}
	return fmt.Sprintf("%v: %v", ErrTimeout, e.err)
}

// takeBack takes back that a handler outside of a transaction has begun, where it was not called: so the next owner calls it also where
// that is done at most once. Where it fails that is lost.
func (p *planner) takeBack(o *ownership, a attempt) {
	row, trying := *a.row, *a.decided.Trying
	row.Cursor = a.decided.Cursor // as it was written
	trying.Run, trying.Called = "", 0
	a.row, a.decided.Trying, a.decided.Fates = &row, &trying, nil
	_ = p.s.repeat(o.life, maxBreaks, passing, func() error { return p.write(o.life, o, a) })
}

// write writes down what was decided, in a transaction without a handler.
func (p *planner) write(life context.Context, o *ownership, a attempt) error {
	run := rand.Text()
	open := p.opening(o.Partition, new(*record), subject{a.row.ID, a.row.Job}, run, closing, closing)
	return p.guarded(life, open, func(ctx context.Context, tx *transaction) error {
		return p.s.sendClose(ctx, tx, a.row, run, a.decided.step, p.s.answers)
	})
}

// decisive reports whether a handler said what is to become of its tick, whatever led to that.
func decisive(err error) bool { return errors.As(err, new(snoozed)) || errors.As(err, new(discarded)) }

// final reports whether a run that failed so is not to be tried again: the handler said so, or may have committed its work.
func final(err error) bool {
	return errors.As(err, new(discarded)) || errors.Is(err, errEnded) || store.Code(err) == codeEnded
}

// maxText is how many bytes of an error's text are kept.
const maxText = 64 << 10

// bounded is a text as the database can keep it: UTF-8 without a NUL, and not of any length.
func bounded(text string) string {
	text = strings.ToValidUTF8(text[:min(len(text), maxText)], "\uFFFD")
	return strings.ReplaceAll(text, "\x00", "\uFFFD")
}

func kept(err error) *string {
	text := bounded(err.Error())
	return &text
}

// unchanged reports whether a step would change nothing.
func (d *decision) unchanged(r *record) bool {
	return len(d.Fates) == 0 && d.Waits == nil && r.Waits == nil && (d.Due == nil) == (r.Due == nil) && (d.Due == nil || d.Due.Equal(*r.Due))
}

var errCrashed = errors.New("so many processes died while it ran: see Crashes")

// open writes down, before the first run in a partition, that something runs in it: whoever finds that not taken back knows that this process died.
func (p *planner) open(o *ownership) error {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	if !o.opened.IsZero() {
		return nil
	}
	err := p.s.repeat(o.ctx, maxBreaks, passing, func() error {
		return p.guarded(
			o.ctx, p.guard([]pgleases.Partition{o.Partition}, func(batch *pgx.Batch) { p.s.queueBegin(batch, &o.died, o.Number, o.Epoch) }),
			nothingMore,
		)
	})
	if err == nil {
		o.opened = p.now()
	}
	return err
}

// close takes it back, when all runs have ended. Where that fails the next owner is careful for nothing. A process that ends closes many at
// once: those that come while others are written down are written together. But one that takes crashes back locks schedules and jobs: two
// of them in one transaction may deadlock with who edits both, and all would wait for who edits one. So it is alone.
func (p *planner) close(o *ownership) {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	switch {
	case o.opened.IsZero():
		return
	case len(o.charged) > 0:
		_ = p.s.repeat(o.life, maxConflicts, conflict, func() error { return p.writeClosed([]*ownership{o}) })
		return
	}
	p.mu.Lock()
	p.closing = append(p.closing, o)
	p.mu.Unlock()
	p.closes.Lock()
	defer p.closes.Unlock()
	p.mu.Lock()
	if !slices.Contains(p.closing, o) { // who had closes before has written it
		p.mu.Unlock()
		return
	}
	all := p.closing
	p.closing = nil
	p.mu.Unlock()
	p.closeAll(all)
}

// closeMost is how many ownerships are closed in one transaction.
const closeMost = 100

// closeAll closes many in one transaction, or where that is refused each in one of its own: what is refused for one is for no other. It gives
// up where the database does not answer, or refuses one that is still owned: it does as much for all that follow, and each of them would be
// waited for.
func (p *planner) closeAll(all []*ownership) {
	fails := func(err error) bool { return err != nil && !errors.Is(err, pgleases.ErrNotOwner) }
	for few := range slices.Chunk(all, closeMost) {
		err := p.writeClosed(few)
		if refused := store.Code(err) != "" || errors.Is(err, pgleases.ErrNotOwner); refused && len(few) > 1 {
			err = nil
			for i := 0; i < len(few) && !fails(err); i++ {
				err = p.writeClosed(few[i : i+1])
			}
		}
		if fails(err) {
			return
		}
	}
}

// writeClosed leaves out those that have ended, and gives up when all have: then nobody waits for it.
func (p *planner) writeClosed(all []*ownership) error {
	var living []*ownership
	for _, o := range all {
		if o.life.Err() == nil {
			living = append(living, o)
		}
	}
	if len(living) == 0 {
		return nil
	}
	slices.SortFunc(living, func(a, b *ownership) int { return a.Number - b.Number })
	ctx, cancel := context.WithCancel(context.WithoutCancel(living[0].life))
	defer cancel()
	var lives atomic.Int64
	lives.Store(int64(len(living)))
	var partitions []pgleases.Partition
	for _, o := range living {
		partitions = append(partitions, o.Partition)
		defer context.AfterFunc(o.life, func() {
			if lives.Add(-1) == 0 {
				cancel()
			}
		})()
	}
	err := p.guarded(ctx, p.guard(partitions, func(batch *pgx.Batch) {
		for _, o := range living {
			p.s.queueEnd(batch, o.Number, o.Epoch, o.charged)
		}
	}), nothingMore)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// suspects reports whether the run of a schedule may kill this process: others died while it ran, or may have.
func (o *ownership) suspects(it item, r *record) bool {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	return r.Trying.crashes() > 0 || o.died && !it.due().After(o.opened)
}

func (o *ownership) charge(s subject) {
	o.crashes.Lock()
	defer o.crashes.Unlock()
	o.charged = append(o.charged, s)
}

// repeat calls f until it fails no more for a reason that passes, so many times.
func (s *Scheduler) repeat(ctx context.Context, atMost int, passes func(error) bool, f func() error) error {
	if s.stage != nil {
		atMost = min(atMost, 3) // mostly what is in its way waits for the test
	}
	for tries := 1; ; tries++ {
		err := f()
		if err == nil || !passes(err) || tries == atMost || ctx.Err() != nil {
			return err
		}
		s.pause(ctx, min(10*time.Millisecond<<min(tries, 8), 2*time.Second))
	}
}

// pause waits for so long, at most until ctx ends.
func (s *Scheduler) pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// limited is the context of a handler, which takes d at most; none of the time that a test moves.
func (s *Scheduler) limited(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	if s.stage != nil {
		return context.WithCancel(ctx)
	}
	return context.WithTimeoutCause(ctx, d, ErrTimeout)
}

// within bounds what the database is asked besides a handler's statements: a connection that was dropped without a word holds up no run.
func (s *Scheduler) within(ctx context.Context, f func(context.Context) error) error {
	return inTime(ctx, s.answers, f)
}

// inTime bounds a call.
func inTime(ctx context.Context, d time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	return store.Advised(f(ctx))
}

// lost is an error of a transaction whose connection is gone.
type lost struct{ error }

func (e lost) Unwrap() error { return e.error }

// conflict reports whether the database broke a transaction off in favour of another.
func conflict(err error) bool {
	code := store.Code(err)
	return code == "40001" || code == "40P01"
}

// broken reports whether a transaction failed for a reason that is not its own: the connection, the server, a lock.
func broken(err error) bool {
	switch {
	case errors.As(err, new(timedOut)):
		return false // its connection was closed for that
	case errors.As(err, new(lost)):
		return true
	}
	code := store.Code(err)
	return code == "55P03" || strings.HasPrefix(code, "08") || strings.HasPrefix(code, "57P0")
}

// passing reports whether a transaction of ours may succeed when it is repeated; also one of which somebody, or the role's
// statement_timeout, has cancelled a statement.
func passing(err error) bool { return conflict(err) || broken(err) || store.Code(err) == "57014" }

// moved reports whether an edit came first, or the step had been committed before.
func moved(err error) bool {
	code := store.Code(err)
	return code == codeMoved || code == codeDeleted
}

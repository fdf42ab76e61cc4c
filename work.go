package pgleases

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Hold pins the partitions that the client owned when the hold was taken. The client does not
// hand them over before the hold is released. All methods are safe for concurrent use.
type Hold struct{ hold *owned.Hold }

// Hold pins what this client owns now, for one piece of work. Take a hold, work on its Partitions,
// release it, and take the next one. A partition that is to move leaves when no open hold contains
// it. Always call Release.
//
// The hold is empty past the trust deadline and after the end of the lease. Its context is a child
// of ctx. With WithFastFailover, if the process was stopped, Hold first waits for an answer of the
// server, until ctx ends.
func (l *Lease) Hold(ctx context.Context) *Hold { return &Hold{l.board.Hold(ctx)} }

// Partitions returns the ownerships that the hold pins, by number, for Guard. The slice is the
// caller's. If you need only the numbers, use Values.
func (h *Hold) Partitions() []Partition {
	pinned := h.hold.Owned()
	partitions := make([]Partition, len(pinned))
	for i, o := range pinned {
		partitions[i] = partitionOf(o)
	}
	return partitions
}

// Values returns the numbers of the partitions that the hold pins, ascending. The slice is shared:
// clone it before you write to it.
func (h *Hold) Values() []int { return h.hold.Values() }

// Partition returns the ownership of the partition that the hold pins, and whether it pins one.
func (h *Hold) Partition(partition int) (Partition, bool) {
	return maybePartition(h.hold.Find(partition))
}

// Context returns the context for the work. It ends when one of the hold's ownerships ends, and its
// cause is then ErrTrustLost, ErrDrainTimeout, ErrSuperseded, ErrEvicted or ErrClosed. It also ends
// when the context given to Lease.Hold ends, and with Release. A handoff alone does not end it.
func (h *Hold) Context() context.Context { return h.hold.Context() }

// Release ends the hold. Only the first call has an effect.
func (h *Hold) Release() { h.hold.Release() }

const (
	runBackoffMin = 100 * time.Millisecond
	runBackoffMax = 30 * time.Second
)

// Run calls fn for each partition that the client owns, in a goroutine of its own. A partition has
// one call at a time. Run returns when ctx, the lease or the client has ended and all calls have
// returned. Its error wraps the cause. Only one Run of a lease may be under way; another one
// returns an error.
//
// The ctx of fn is canceled when the partition is to move, with the cause ErrHandoff. It is also
// canceled when the ownership ends, when the client closes, and with the ctx of Run. Take no new
// item then. You may finish an item in hand under p.Context(), which ends only with the ownership.
// The partition moves when fn has returned. If the ctx of Run has ended, Run does not leave the lease:
// the partitions move with Client.Close or Lease.Leave, after the last call has returned.
//
// If fn returns nil, it is done with this ownership, and Run calls it for the partition again only
// under a new epoch. If fn returns an error, Run logs it and calls fn again after a pause, unless
// ctx has ended. The partition may move meanwhile. The pause is 100 ms at first, and doubles up to
// 30 s, with jitter. After a call that ran for longer than the last pause, it is 100 ms again.
//
// Run logs a failed call as an error. If the partition was lost already, it logs a warning with the
// cause. Failures within a second whose texts differ only in digits share a line. Run does not log
// an error that wraps the reason why ctx has ended, for example the ErrNotOwner of a Guard after
// the trust was lost, because that end has a line of its own.
//
// Run does not recover a panic in fn. A call that ends its goroutine with runtime.Goexit counts as
// one that returned nil.
//
// Run waits for calls that do not return when their contexts end. Meanwhile the partition may be
// lost and come back, but no other call works on it. Run logs such calls after 30 s, and those
// that outlive its own ctx after 1 s. Stats.Draining counts them. If ctx has ended,
// WithDrainTimeout limits how long p.Context() goes on.
//
// Client.Close and Lease.Leave wait for fn. If fn calls one of them, it should pass its own ctx,
// which they end. With another context, fn waits for itself until that context ends.
func (l *Lease) Run(ctx context.Context, fn func(ctx context.Context, p Partition) error) error {
	if fn == nil {
		return fmt.Errorf("pgleases: run lease %q: the function is nil; "+
			"pass the one that works on a partition", l.engine.Name)
	}
	if !l.running.CompareAndSwap(false, true) {
		return fmt.Errorf("pgleases: run lease %q: another Run is under way", l.engine.Name)
	}
	defer l.running.Store(false)
	defer l.logStandby(ctx)()

	begun := make(map[int]*owned.Ownership) // by partition: the ownership of the last call of fn
	busy := make(map[int]bool)
	finished := make(chan int)
	defer logqueue.Flush(l.client.options.Log) // the process may end next
	defer l.logFailures()
	defer l.awaitCalls(begun, busy, finished)
	for {
		s := l.board.Look()
		if err := l.Err(); err != nil {
			return wrap.Errorf("pgleases: run lease %q: %w", l.engine.Name, err)
		}
		if ctx.Err() != nil {
			return wrap.Errorf("pgleases: run lease %q: %w", l.engine.Name, context.Cause(ctx))
		}
		for _, o := range s.Owned {
			if busy[o.Number] || begun[o.Number] == o {
				continue
			}
			busy[o.Number], begun[o.Number] = true, o
			go func() {
				defer func() { finished <- o.Number }()
				l.callback(ctx, o, fn)
			}()
		}
		select {
		case <-s.Changed():
		case <-ctx.Done():
		case <-l.board.Closed():
		case number := <-finished:
			delete(busy, number)
		}
	}
}

// standbyAfter is how long Run of a lease with several partitions waits for the first one before
// that is logged. Usually the others hand some over meanwhile.
const standbyAfter = time.Second

// logStandby logs once which other clients own all partitions. Without that line, a process that
// stands by, or waits for its killed predecessor, would be silent. The caller calls stop.
func (l *Lease) logStandby(ctx context.Context) (stop func()) {
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var reads sync.WaitGroup
	reads.Go(func() {
		if l.engine.Partitions > 1 {
			select {
			case <-time.After(standbyAfter):
			case <-ctx.Done():
			}
		}
		for ctx.Err() == nil && l.Stats().Owned == 0 {
			news := l.engine.News()
			owners, err := l.others(ctx)
			if err != nil || l.Stats().Owned > 0 {
				return
			}
			if owners != "" {
				free := began.Add(l.client.options.TTL + l.client.options.Heartbeat)
				l.client.options.Log.Info("pgleases: standing by, other clients own all partitions",
					slog.String("lease", l.engine.Name), slog.String("owners", owners),
					slog.Time("free_by_if_dead", free.Truncate(time.Second)))
				return
			}
			select {
			case <-news.Next:
			case <-ctx.Done():
			}
		}
	})
	return func() { cancel(); reads.Wait() }
}

// others returns the IDs of other clients that own partitions, as the text of a log line.
func (l *Lease) others(ctx context.Context) (string, error) {
	owners, err := l.Owners(ctx)
	if err != nil {
		return "", err
	}
	ids := make(map[string]bool)
	for _, o := range owners {
		ids[o.ID] = true
	}
	delete(ids, l.client.ID())
	all := slices.Sorted(maps.Keys(ids))
	const most = 3
	more := len(all) - most
	if more > 0 {
		all = append(all[:most], fmt.Sprintf("%d more", more))
	}
	return strings.Join(all, ", "), nil
}

// logRunAfter is how long calls may go on after the end of Run's context before that is logged.
const logRunAfter = time.Second

// awaitCalls waits for the calls that go on when Run ends. They are logged soon, because somebody
// may be waiting at a terminal, and again after 30 s, as in a handoff. The ownership ends after the
// drain timeout.
func (l *Lease) awaitCalls(begun map[int]*owned.Ownership, busy map[int]bool, finished <-chan int) {
	began, limit := time.Now(), (<-chan time.Time)(nil)
	soon, warn := time.NewTimer(logRunAfter), time.NewTimer(engine.WarnAfter)
	defer soon.Stop()
	defer warn.Stop()
	drain := l.engine.Options.DrainTimeout
	if drain > 0 {
		limit = time.After(drain)
	}
	log, numbers := l.client.options.Log, func() string { return ranges.Logged(slices.Sorted(maps.Keys(busy))) }
	var waits logqueue.Condition
	for len(busy) > 0 {
		select {
		case number := <-finished:
			delete(busy, number)
		case <-soon.C:
			waits.Begin(began)
			log.Info("pgleases: Run waits for work", slog.String("lease", l.engine.Name),
				slog.String("partitions", numbers()), slog.Duration("for", logRunAfter))
		case <-warn.C:
			lasts := time.Since(began)
			log.Warn("pgleases: Run waits for work", slog.String("lease", l.engine.Name),
				slog.String("partitions", numbers()), slog.Duration("for", lasts.Round(time.Second)))
			warn.Reset(lasts)
		case <-limit:
			var overdue []*owned.Ownership
			for number := range busy {
				overdue = append(overdue, begun[number])
			}
			l.engine.EndOverdue(overdue)
		}
	}
	lasted, logged := waits.End(time.Now())
	if logged {
		log.Info("pgleases: Run no longer waits for work", slog.String("lease", l.engine.Name),
			slog.Duration("for", lasted))
	}
}

// callback calls fn until it is done with the ownership, or the ownership with it.
func (l *Lease) callback(ctx context.Context, o *owned.Ownership, fn func(context.Context, Partition) error) {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	o.StopWith(stop)
	pause := time.Duration(0)
	for backoff := runBackoffMin; ; backoff = min(2*backoff, runBackoffMax) {
		if !o.AwaitPin(ctx) {
			return
		}
		began := time.Now()
		lost, err := call(ctx, o, fn)
		if err == nil {
			return
		}
		asked := ctx.Err() != nil
		err = copied(err, ErrNotOwner, ctx.Err(), context.Cause(ctx))
		canceled := asked && (errors.Is(err, ctx.Err()) || errors.Is(err, context.Cause(ctx)))
		if lost && errors.Is(err, ErrNotOwner) || canceled {
			return
		}
		if time.Since(began) > pause { // it worked for a while
			backoff = runBackoffMin
		}
		pause = backoff/2 + rand.N(backoff/2+1)
		l.failed(o, lost, err, asked)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// A failure is one reason why callbacks of a lease failed within a second. Callbacks of many
// partitions often fail for one reason, and get one line.
type failure struct {
	err        error // of the first call, as are the next three fields
	of         *owned.Ownership
	lost       bool // the ownership had ended when the call returned
	asked      bool
	partitions []int // of each call
}

// failed notes a failed call. It is logged within a second, or when Run returns.
func (l *Lease) failed(o *owned.Ownership, lost bool, err error, asked bool) {
	l.engine.CallbackFailed()
	reason := engine.KindOf(fmt.Sprint(lost, asked || lost, o.Cause(), err))
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failures == nil {
		l.failures = make(map[string]*failure)
		time.AfterFunc(time.Second, l.logFailures)
	}
	if l.failures[reason] == nil {
		l.failures[reason] = &failure{err: err, of: o, lost: lost, asked: asked}
	}
	l.failures[reason].partitions = append(l.failures[reason].partitions, o.Number)
}

func (l *Lease) logFailures() {
	l.mu.Lock()
	all := l.failures
	l.failures = nil
	l.mu.Unlock()
	for _, f := range all {
		log, partitions := l.client.options.Log, ranges.Logged(f.partitions)
		if f.lost { // the clock may have shown that before the client has ended the ownership with its cause
			log.Warn("pgleases: callback failed after its partition was lost",
				slog.String("lease", l.engine.Name), slog.String("partitions", partitions),
				slog.Int("count", len(f.partitions)), slog.Any("error", f.err),
				slog.Any("cause", cmp.Or(f.of.Cause(), ErrTrustLost)))
			continue
		}
		log.Error("pgleases: callback failed",
			slog.String("lease", l.engine.Name), slog.String("partitions", partitions),
			slog.Int("count", len(f.partitions)), slog.Any("error", f.err), slog.Bool("asked_to_end", f.asked))
	}
}

// call calls fn, also to its end by runtime.Goexit. It reports whether the ownership had ended
// before fn did: it asks before the Unpin, after which a handoff may end the ownership.
func call(ctx context.Context, o *owned.Ownership, fn func(context.Context, Partition) error) (lost bool, err error) {
	defer o.Unpin()
	err = fn(ctx, partitionOf(o))
	return o.Validity.Over() || o.Cause() != nil, err
}

// errorTime is the most that the methods of a callback's error may take.
const errorTime = time.Second

// copied copies the text of an error of the application, and which of the others it wraps. Methods
// of such an error may panic, for example because it is a nil pointer, end their goroutine, or
// hang.
func copied(err error, others ...error) error {
	answer := make(chan handlers.Copied, 1)
	problem := handlers.InTime(context.Background(), errorTime, 0, func(context.Context) error {
		c := handlers.Copied{Text: err.Error()}
		for _, other := range others {
			if other != nil && errors.Is(err, other) {
				c.Of = append(c.Of, other)
			}
		}
		answer <- c
		return nil
	})
	if problem != nil {
		reason, _, _ := strings.Cut(problem.Error(), "\n") // without a stack
		return fmt.Errorf("the callback returned a %T whose methods cannot be called: %s", err, reason)
	}
	return <-answer
}

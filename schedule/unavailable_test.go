package schedule_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// A mail server is away for three calls of each handler. No attempt is counted, and the calls are made
// again, also of a handler that is called at most once, and of one whose context has ended meanwhile.
func TestUnavailableCountsNoAttempt(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	var calls [4]atomic.Int64
	away := func(n int) error {
		if calls[n].Add(1) <= 3 {
			return schedule.Unavailable(io.EOF)
		}
		return nil
	}
	out := func(n int) func(context.Context, schedule.Run[args]) error {
		return func(_ context.Context, r schedule.Run[args]) error {
			expect(t, r.Attempt, 1, "attempt")
			return away(n)
		}
	}
	kinds := []*schedule.Kind[args]{
		schedule.InTx(w.Scheduler, "in a transaction", inside(out(0))),
		schedule.AtLeastOnce(w.Scheduler, "at least once", out(1)),
		schedule.AtMostOnce(w.Scheduler, "at most once", out(2)),
		schedule.AtLeastOnce(w.Scheduler, "too late", func(ctx context.Context, r schedule.Run[args]) error {
			if calls[3].Load() < 3 {
				<-ctx.Done()
			}
			return out(3)(ctx, r)
		}, schedule.WithTimeout(100*time.Millisecond)),
	}
	w.run()
	for _, k := range kinds {
		testkit.Must(k.Enqueue(t.Context(), args{}, schedule.WithTime(midnight)))(t)
	}
	clock := midnight
	testkit.Until(t, "all have succeeded", func() bool {
		clock = clock.Add(time.Minute)
		db.setClock(clock)
		succeeded := db.count("pgleases.history WHERE outcome = 'succeeded' AND attempts = 1")
		return succeeded == int64(len(kinds))
	})
	for name, k := range w.Stats().Kinds {
		if k.Unavailable != 3 || k.Retried != 0 || k.Failed != 0 || k.Unknown != 0 {
			t.Errorf("%s: %+v", name, k)
		}
	}
}

// The function of WithAround knows what is called. Whatever it does, the run fails or succeeds, and the
// handler is called once at most.
func TestAroundCallsHandlersOnce(t *testing.T) {
	t.Parallel()
	type next = func(context.Context) error
	type key struct{}
	ends := make(chan struct{})
	for name, c := range map[string]struct {
		around  func(context.Context, next) error
		calls   int64
		outcome string
		says    string
	}{
		"passes on": {func(ctx context.Context, n next) error {
			return n(context.WithValue(ctx, key{}, 1))
		}, 1, "succeeded", ""},
		"ignores it": {func(ctx context.Context, n next) error {
			_ = n(ctx)
			return nil
		}, 1, "succeeded", ""},
		"calls twice": {func(ctx context.Context, n next) error {
			return errors.Join(n(ctx), n(ctx))
		}, 1, "failed", "call next once"},
		"does not call": {func(context.Context, next) error {
			return nil
		}, 0, "failed", "before it had called the handler"},
		"fails after": {func(ctx context.Context, n next) error {
			_ = n(ctx)
			return errors.New("no trace")
		}, 1, "failed", "no trace"},
		"panics": {func(ctx context.Context, n next) error {
			_ = n(ctx)
			panic("on fire")
		}, 1, "failed", "on fire"},
		"ends": {func(ctx context.Context, n next) error {
			runtime.Goexit()
			return n(ctx)
		}, 0, "failed", "runtime.Goexit"},
		"hangs": {func(ctx context.Context, n next) error {
			<-ends
			return n(ctx)
		}, 1, "failed", "longer than its timeout"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			var info schedule.Info
			around := func(ctx context.Context, i schedule.Info, n func(context.Context) error) error {
				if i.Kind == "other" {
					return n(ctx)
				}
				info = i
				return c.around(ctx, n)
			}
			w, log := newLogged(db, schedule.WithAround(around))
			w.Times().Overrun = 10 * time.Millisecond
			var calls atomic.Int64
			called := func(context.Context, schedule.Run[args]) error {
				calls.Add(1)
				return nil
			}
			k := schedule.InTx(w.Scheduler, "mail", inside(called), schedule.WithTimeout(200*time.Millisecond))
			other := schedule.InTx(w.Scheduler, "other", nothing[args])
			w.run()
			id := testkit.Must(k.Enqueue(t.Context(), args{}, rejecting("u")))(t)
			if name == "hangs" {
				testkit.Until(t, "the log names it", func() bool { return log.count("handler still running") == 1 })
				testkit.Must(other.Enqueue(t.Context(), args{}))(t)
				counts(db, "the others run", 1, "pgleases.history WHERE kind = 'other'")
				close(ends)
			}
			counts(db, "it has its outcome", 1, `pgleases.history
				WHERE kind = 'mail' AND outcome = $1 AND coalesce(error, '') LIKE '%' || $2 || '%'`, c.outcome, c.says)
			expect(t, calls.Load(), c.calls, "calls of the handler")
			want := schedule.Info{
				Lease: "schedule/" + group, Kind: "mail", Trigger: string(schedule.TriggerJob),
				Name: "u", ID: id, Key: "u", At: info.At, Rows: 1,
				Partition: info.Partition, Epoch: info.Epoch, Attempt: 1,
			}
			if info != want || info.Epoch == 0 || info.At.IsZero() {
				t.Errorf("the call is about %+v, not %+v", info, want)
			}
		})
	}
}

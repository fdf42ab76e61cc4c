package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgleases/pgleases/examples/internal/jobs"
)

const (
	// between is the time from one event to the next, to see the workers at work.
	between = 4 * time.Second
	// patience is how long, beyond the TTL, a change of owners may take before it counts as one that never came. It is long: on a
	// busy machine processes wait for their turn, and the figures tell how long a change took.
	patience = time.Minute
	// look is how often the owners are read while a change is under way.
	look = 20 * time.Millisecond
)

// An event is something that happened to a worker, and how long the partitions took to follow.
type event struct {
	name       string // one word
	what       string
	partitions int           // that were to change hands
	took       time.Duration // until the last of them had, by the database's clock
	until      string        // what took that long
	note       string
	failure    string // empty: all is well
}

// errNoTime ends what is not done within the limit.
var errNoTime = errors.New("no more time")

// story is what happens to the fleet. It returns when all jobs are done, or at the deadline; an error is one of the
// machinery, while what goes wrong with the partitions is in the events.
func (f *fleet) story(ctx context.Context, deadline time.Time) error {
	if err := f.steps(ctx, deadline); errors.Is(err, errNoTime) {
		f.happened(event{name: "end", what: "the time was over", failure: "not everything came to its end in time: if the machine is busy, run it again when it has less to do"})
	} else if err != nil {
		return err
	}
	return f.closeAll(ctx)
}

func (f *fleet) steps(ctx context.Context, deadline time.Time) (err error) {
	ctx, cancel := context.WithDeadlineCause(ctx, deadline, errNoTime)
	defer cancel()
	defer func() {
		if err != nil && ctx.Err() != nil {
			err = context.Cause(ctx) // whatever else failed, it failed for that
		}
	}()
	steps := []func(context.Context) error{f.startFour, f.addFifth, f.closeOne, f.freezeOne, f.killOne}
	for i, step := range steps {
		if i > 0 {
			if err := pause(ctx, between); err != nil {
				return err
			}
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	f.screen.event("the other jobs are left to %d workers", len(f.living()))
	return f.finish(ctx)
}

func (f *fleet) startFour(ctx context.Context) error {
	began, err := databaseTime(ctx, f.pool)
	if err != nil {
		return err
	}
	f.screen.event("start: four workers")
	for n := range 4 {
		if _, err := f.start(fmt.Sprintf("worker-%d", n+1)); err != nil {
			return err
		}
	}
	e := event{name: "start", what: "four workers were started", until: "until each owned its share"}
	return f.shared(ctx, e, began, f.living())
}

func (f *fleet) addFifth(ctx context.Context) error {
	began, err := databaseTime(ctx, f.pool)
	if err != nil {
		return err
	}
	f.screen.event("join: a fifth worker is started")
	fifth, err := f.start("worker-5")
	if err != nil {
		return err
	}
	e := event{name: "join", what: "worker-5 was started", until: "until it owned its share"}
	return f.shared(ctx, e, began, []*worker{fifth})
}

func (f *fleet) closeOne(ctx context.Context) error {
	w := f.all()[0]
	h, err := f.loses(ctx, w)
	if err != nil {
		return err
	}
	f.screen.event("close: %s is asked to end (SIGTERM)", w.id)
	w.set(closing)
	if err := w.askToEnd(); err != nil {
		return fmt.Errorf("end %s: %w", w.id, err)
	}
	e := event{name: "close", what: w.id + " was asked to end (SIGTERM)", until: "until others owned what it had"}
	if err := f.takenOver(ctx, &e, h); err != nil {
		return err
	}
	if err := w.wait(ctx, patience); err != nil {
		e.failure = fmt.Sprintf("%s did not end well: %v", w.id, err)
	}
	f.happened(e)
	return nil
}

func (f *fleet) freezeOne(ctx context.Context) error {
	if !canFreeze {
		f.screen.event("freeze: left out, this system cannot stop a process with a signal")
		return nil
	}
	w := f.all()[1]
	h, err := f.loses(ctx, w)
	if err != nil {
		return err
	}
	f.screen.event("freeze: %s is stopped in the midst of its work (SIGSTOP)", w.id)
	w.set(frozen)
	stopped := time.Now()
	if err := w.freeze(); err != nil {
		return fmt.Errorf("freeze %s: %w", w.id, err)
	}
	e := event{name: "freeze", what: w.id + " was stopped (SIGSTOP)", until: "until others owned what it had"}
	if err := f.takenOver(ctx, &e, h); err != nil {
		return err
	}
	e.note = f.afterHeartbeat(h)
	f.happened(e)

	if err := pause(ctx, f.ttl+2*time.Second-time.Since(stopped)); err != nil {
		return err
	}
	if h.thawed, err = databaseTime(ctx, f.pool); err != nil {
		return err
	}
	f.frozen = h
	f.screen.event("thaw: %s goes on after %.1f s (SIGCONT)", w.id, time.Since(stopped).Seconds())
	w.set(working)
	if err := w.thaw(); err != nil {
		return fmt.Errorf("thaw %s: %w", w.id, err)
	}
	if f.probe, err = h.ask(ctx, f.pool); err != nil {
		return err
	}
	e = event{
		name: "thaw", what: fmt.Sprintf("%s went on after %.1f s (SIGCONT)", w.id, time.Since(stopped).Seconds()),
		until: "until it owned its share again",
	}
	return f.shared(ctx, e, h.thawed, []*worker{w})
}

func (f *fleet) killOne(ctx context.Context) error {
	w := f.all()[2]
	h, err := f.loses(ctx, w)
	if err != nil {
		return err
	}
	f.screen.event("kill: %s is killed (SIGKILL)", w.id)
	w.kill()
	e := event{name: "kill", what: w.id + " was killed (SIGKILL)", until: "until others owned what it had"}
	if err := f.takenOver(ctx, &e, h); err != nil {
		return err
	}
	e.note = f.afterHeartbeat(h)
	f.happened(e)
	return nil
}

// finish waits until all jobs are done.
func (f *fleet) finish(ctx context.Context) error {
	for {
		var done bool
		err := f.pool.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM pgleases_example.jobs WHERE done_at IS NULL)").Scan(&done)
		if err != nil {
			return err
		}
		if done {
			f.screen.event("all jobs are done")
			return nil
		}
		if err := pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// closeAll ends the workers that are left.
func (f *fleet) closeAll(ctx context.Context) error {
	living := f.living()
	for _, w := range living {
		w.set(closing)
		if err := w.askToEnd(); err != nil {
			return fmt.Errorf("end %s: %w", w.id, err)
		}
	}
	for _, w := range living {
		if err := w.wait(ctx, patience); err != nil {
			failure := fmt.Sprintf("%s did not end well: %v", w.id, err)
			f.happened(event{name: "end", what: w.id + " was asked to end", failure: failure})
		}
	}
	return ctx.Err()
}

// loses begins to measure how a worker's partitions go to others.
func (f *fleet) loses(ctx context.Context, w *worker) (*handover, error) {
	all, err := owners(ctx, f.pool)
	if err != nil {
		return nil, err
	}
	began, err := databaseTime(ctx, f.pool)
	if err != nil {
		return nil, err
	}
	return newHandover(w.id, began, all), nil
}

// takenOver waits until others own all that a worker had.
func (f *fleet) takenOver(ctx context.Context, e *event, h *handover) error {
	e.partitions = len(h.epochs)
	for deadline := time.Now().Add(f.ttl + patience); ; {
		at, err := expiry(ctx, f.pool, h.from)
		if err != nil {
			return err
		}
		if at.After(h.expiry) {
			h.expiry = at
		}
		all, err := owners(ctx, f.pool)
		if err != nil {
			return err
		}
		h.observe(all)
		if h.complete() {
			e.took = h.last().Sub(h.began)
			return nil
		}
		if time.Now().After(deadline) {
			e.failure = fmt.Sprintf("%d of its %d partitions had no new owner after %v",
				len(h.epochs)-len(h.taken), len(h.epochs), f.ttl+patience)
			return nil
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
	}
}

// afterHeartbeat tells when the last partition was taken over, as seen from the last heartbeat of its owner.
func (f *fleet) afterHeartbeat(h *handover) string {
	if !h.complete() || h.expiry.IsZero() {
		return ""
	}
	late := h.last().Sub(h.expiry)
	return fmt.Sprintf("that is %s after its last heartbeat: the TTL + %s", seconds(f.ttl+late), seconds(late))
}

// shared waits until each of the workers owns its share of the partitions, and none is without owner.
func (f *fleet) shared(ctx context.Context, e event, began time.Time, workers []*worker) error {
	share := jobs.Partitions / len(f.living())
	for deadline := time.Now().Add(f.ttl + patience); ; {
		all, err := owners(ctx, f.pool)
		if err != nil {
			return err
		}
		nobody, _ := owned(all, "")
		complete := len(all) == jobs.Partitions && len(nobody) == 0
		var have, last = 0, began
		for _, w := range workers {
			values, since := owned(all, w.id)
			complete = complete && len(values) >= share
			have += len(values)
			if since.After(last) {
				last = since
			}
		}
		if complete {
			e.partitions, e.took = have, last.Sub(began)
			break
		}
		if time.Now().After(deadline) {
			e.failure = fmt.Sprintf("a share of %d partitions each was not reached after %v", share, f.ttl+patience)
			break
		}
		if err := pause(ctx, look); err != nil {
			return err
		}
	}
	f.happened(e)
	return nil
}

// happened records an event, and shows it.
func (f *fleet) happened(e event) {
	f.events = append(f.events, e)
	switch {
	case e.failure != "":
		f.screen.event("%s: FAILED: %s", e.name, e.failure)
	case e.note != "":
		f.screen.event("%s: %d partitions, %s %s, %s", e.name, e.partitions, seconds(e.took), e.until, e.note)
	default:
		f.screen.event("%s: %d partitions, %s %s", e.name, e.partitions, seconds(e.took), e.until)
	}
}

// pause waits, not longer than ctx lasts.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// seconds writes a duration as people read it: 2.041 s, or 21 ms.
func seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.3f s", d.Seconds())
}

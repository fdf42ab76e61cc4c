package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/pgleases/pgleases/examples/internal/show"
)

const (
	// between is the time from one event to the next, to see the workers at work.
	between = 3 * time.Second
	// patience is how long, beyond the TTL, a change of owners may take before it counts as failed. It
	// is long because processes of a busy machine wait for their turn.
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

// story runs the events. It returns when all jobs are done, or at the deadline. An error is a fault
// of the demonstration; a fault of the partitions is in the events.
func (f *fleet) story(ctx context.Context, deadline time.Time) error {
	if err := f.steps(ctx, deadline); errors.Is(err, errNoTime) {
		f.happened(event{
			name: "end", what: "the time was over",
			failure: "not everything came to its end in time: " +
				"if the machine is busy, run it again when it has less to do",
		})
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
			if err := show.Pause(ctx, between); err != nil {
				return err
			}
		}
		if err := step(ctx); err != nil {
			return err
		}
	}
	f.screen.Event("what is left, %d workers do", len(f.crew.Living()))
	return f.finish(ctx)
}

func (f *fleet) startFour(ctx context.Context) error {
	began, err := databaseTime(ctx, f.pool)
	if err != nil {
		return err
	}
	f.screen.Event("start: four workers")
	for n := range 4 {
		if _, err := f.crew.Start(fmt.Sprintf("worker-%d", n+1)); err != nil {
			return err
		}
	}
	e := event{name: "start", what: "four workers were started", until: "until each owned its share"}
	return f.shared(ctx, e, began, f.crew.Living())
}

func (f *fleet) addFifth(ctx context.Context) error {
	began, err := databaseTime(ctx, f.pool)
	if err != nil {
		return err
	}
	f.screen.Event("join: a fifth worker is started")
	fifth, err := f.crew.Start("worker-5")
	if err != nil {
		return err
	}
	e := event{name: "join", what: "worker-5 was started", until: "until it owned its share"}
	return f.shared(ctx, e, began, []*show.Worker{fifth})
}

func (f *fleet) closeOne(ctx context.Context) error {
	w := f.crew.All()[0]
	h, err := f.loses(ctx, w)
	if err != nil {
		return err
	}
	f.screen.Event("close: %s is asked to end (SIGTERM)", w.ID)
	w.Set(show.Closing)
	if err := w.AskToEnd(); err != nil {
		return fmt.Errorf("end %s: %w", w.ID, err)
	}
	e := event{name: "close", what: w.ID + " was asked to end (SIGTERM)", until: "until others owned what it had"}
	if err := f.takenOver(ctx, &e, h); err != nil {
		return err
	}
	if err := w.Wait(ctx, patience); err != nil {
		e.failure = fmt.Sprintf("%s did not end well: %v", w.ID, err)
	}
	f.happened(e)
	return nil
}

func (f *fleet) freezeOne(ctx context.Context) error {
	if !show.CanFreeze {
		f.screen.Event("freeze: left out, this system cannot stop a process with a signal")
		return nil
	}
	w := f.crew.All()[1]
	h, err := f.loses(ctx, w)
	if err != nil {
		return err
	}
	f.screen.Event("freeze: %s is stopped in the midst of its work (SIGSTOP)", w.ID)
	w.Set(show.Frozen)
	stopped := time.Now()
	if err := w.Freeze(); err != nil {
		return fmt.Errorf("freeze %s: %w", w.ID, err)
	}
	e := event{name: "freeze", what: w.ID + " was stopped (SIGSTOP)", until: "until others owned what it had"}
	if err := f.takenOver(ctx, &e, h); err != nil {
		return err
	}
	e.note = f.afterHeartbeat(h)
	f.happened(e)

	if err := show.Pause(ctx, ttl+2*time.Second-time.Since(stopped)); err != nil {
		return err
	}
	h.thawed, err = databaseTime(ctx, f.pool)
	if err != nil {
		return err
	}
	f.frozen = h
	f.screen.Event("thaw: %s goes on after %.1f s (SIGCONT)", w.ID, time.Since(stopped).Seconds())
	w.Set(show.Working)
	if err := w.Thaw(); err != nil {
		return fmt.Errorf("thaw %s: %w", w.ID, err)
	}
	f.probe, err = h.ask(ctx, f.pool)
	if err != nil {
		return err
	}
	e = event{
		name: "thaw", what: fmt.Sprintf("%s went on after %.1f s (SIGCONT)", w.ID, time.Since(stopped).Seconds()),
		until: "until it owned its share again",
	}
	return f.shared(ctx, e, h.thawed, []*show.Worker{w})
}

func (f *fleet) killOne(ctx context.Context) error {
	w := f.crew.All()[2]
	h, err := f.loses(ctx, w)
	if err != nil {
		return err
	}
	f.screen.Event("kill: %s is killed (SIGKILL)", w.ID)
	w.Kill()
	e := event{name: "kill", what: w.ID + " was killed (SIGKILL)", until: "until others owned what it had"}
	if err := f.takenOver(ctx, &e, h); err != nil {
		return err
	}
	e.note = f.afterHeartbeat(h)
	f.happened(e)
	return nil
}

// finish waits until all jobs are done, and all ticks that were due before.
func (f *fleet) finish(ctx context.Context) error {
	now, err := databaseTime(ctx, f.pool)
	if err != nil {
		return err
	}
	for {
		var done bool
		err := f.pool.QueryRow(ctx, `SELECT NOT EXISTS (SELECT FROM pgleases_example.jobs WHERE done_at IS NULL)
			AND NOT EXISTS (SELECT FROM pgleases.schedules WHERE cursor < $1::timestamptz - interval '1 s')`, now).Scan(&done)
		if err != nil {
			return err
		}
		if done {
			f.screen.Event("all jobs are done, and all ticks")
			return nil
		}
		if err := show.Pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// closeAll ends the workers that are left.
func (f *fleet) closeAll(ctx context.Context) error {
	return f.crew.CloseAll(ctx, patience, func(w *show.Worker, failure string) {
		f.happened(event{name: "end", what: w.ID + " was asked to end", failure: failure})
	})
}

// loses begins to measure how a worker's partitions go to others.
func (f *fleet) loses(ctx context.Context, w *show.Worker) (*handoff, error) {
	all, err := owners(ctx, f.pool)
	if err != nil {
		return nil, err
	}
	began, err := databaseTime(ctx, f.pool)
	if err != nil {
		return nil, err
	}
	return newHandoff(w.ID, began, all), nil
}

// takenOver waits until others own all that a worker had.
func (f *fleet) takenOver(ctx context.Context, e *event, h *handoff) error {
	e.partitions = len(h.epochs)
	for deadline := time.Now().Add(ttl + patience); ; {
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
				len(h.epochs)-len(h.taken), len(h.epochs), ttl+patience)
			return nil
		}
		if err := show.Pause(ctx, look); err != nil {
			return err
		}
	}
}

// afterHeartbeat is how long after its owner's last heartbeat the last partition was taken over.
func (f *fleet) afterHeartbeat(h *handoff) string {
	if !h.complete() || h.expiry.IsZero() {
		return ""
	}
	late := h.last().Sub(h.expiry)
	return fmt.Sprintf("that is %s after its last heartbeat: the TTL + %s", show.Seconds(ttl+late), show.Seconds(late))
}

// shared waits until each worker owns its share of the partitions, and all partitions have owners.
func (f *fleet) shared(ctx context.Context, e event, began time.Time, workers []*show.Worker) error {
	share := partitions / len(f.crew.Living())
	for deadline := time.Now().Add(ttl + patience); ; {
		all, err := owners(ctx, f.pool)
		if err != nil {
			return err
		}
		nobody, _ := owned(all, "")
		complete := len(all) == partitions && len(nobody) == 0
		var have, last = 0, began
		for _, w := range workers {
			values, since := owned(all, w.ID)
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
			e.failure = fmt.Sprintf("a share of %d partitions each was not reached after %v", share, ttl+patience)
			break
		}
		if err := show.Pause(ctx, look); err != nil {
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
		f.screen.Event("%s: FAILED: %s", e.name, e.failure)
	case e.note != "":
		f.screen.Event("%s: %d partitions, %s %s, %s", e.name, e.partitions, show.Seconds(e.took), e.until, e.note)
	default:
		f.screen.Event("%s: %d partitions, %s %s", e.name, e.partitions, show.Seconds(e.took), e.until)
	}
}

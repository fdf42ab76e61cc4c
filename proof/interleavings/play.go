package interleavings

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A choice is which session went on, of those that could.
type choice struct {
	picked int
	could  []int
}

// A violation is what the oracle found in one interleaving.
type violation struct {
	found []string
	steps []string
}

func (v violation) Error() string {
	return fmt.Sprintf("%s\nafter these steps:\n\t%s", strings.Join(v.found, "\n"), strings.Join(v.steps, "\n\t"))
}

// playAll plays two operations in every order of their steps, and returns how many orders there
// are.
func (w *world) playAll(ctx context.Context, one, other operation) (orders int, err error) {
	w.alike = one.name == other.name
	var picks []int
	for {
		choices, err := w.play(ctx, []operation{one, other}, picks)
		orders++
		if err != nil {
			return orders, err
		}
		last := len(choices) - 1
		for last >= 0 && choices[last].picked == choices[last].could[len(choices[last].could)-1] {
			last--
		}
		if last < 0 {
			return orders, nil
		}
		picks = picks[:0]
		for _, c := range choices[:last] {
			picks = append(picks, c.picked)
		}
		picks = append(picks, choices[last].could[1])
	}
}

// play plays one order: first the given picks, then always the first session that can go on.
func (w *world) play(ctx context.Context, operations []operation, picks []int) (choices []choice, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	before, err := w.restore(ctx)
	if err != nil {
		return nil, err
	}
	for i, s := range w.sessions {
		s.begin(ctx, func(ctx context.Context, s *session) error { return operations[i].run(w, ctx, s) })
	}
	if err := w.settle(ctx); err != nil {
		return nil, err
	}
	var steps []string
	for {
		could := w.able()
		if len(could) == 0 {
			break
		}
		pick := could[0]
		if len(choices) < len(picks) {
			pick = picks[len(choices)]
		}
		if !slices.Contains(could, pick) {
			return nil, fmt.Errorf("session %d cannot go on as before, after %v: %v", pick, steps, w.describe())
		}
		choices = append(choices, choice{pick, could})
		steps = append(steps, fmt.Sprintf("%d: %s", pick+1, w.sessions[pick]))
		if err := w.goOn(ctx, w.sessions[pick]); err != nil {
			return nil, err
		}
		now, found, err := w.checked(ctx, before)
		if err != nil {
			return nil, err
		}
		before = now
		if len(found) > 0 {
			return nil, violation{found, steps}
		}
	}
	found, err := w.ended(ctx, before)
	if err == nil && len(found) > 0 {
		err = violation{found, append(steps, "time passes")}
	}
	return choices, err
}

// able returns the sessions that can go on.
func (w *world) able() (could []int) {
	for i, s := range w.sessions {
		if s.state == ready || s.state == gated {
			could = append(could, i)
		}
	}
	return could
}

func (w *world) describe() string { return fmt.Sprint(w.sessions[0], " and ", w.sessions[1]) }

func (s *session) String() string {
	return s.next + suffixes[s.state]
}

var suffixes = map[state]string{running: " (runs)", gated: ", from a gate on", waits: " (waits)", over: "the end"}

// goOn lets a session go on until it stops, and the other one too if that waited for it.
func (w *world) goOn(ctx context.Context, s *session) error {
	was := s.state
	s.state = running
	for _, other := range w.sessions {
		if other.state == waits { // perhaps no longer
			other.state = running
		}
	}
	if was == gated {
		if err := w.gates.open(ctx, s); err != nil {
			return err
		}
	} else {
		s.goOn <- struct{}{}
	}
	return w.settle(ctx)
}

// lookEvery is how long a session runs before the driver asks the server whether it waits for a
// lock.
const lookEvery = 5 * time.Millisecond

// settle waits until no session runs: until each has stopped, or waits for the other one, which has
// stopped.
func (w *world) settle(ctx context.Context) error {
	one, other := w.sessions[0], w.sessions[1]
	timer, late := time.NewTimer(lookEvery), time.After(testkit.Patience)
	defer timer.Stop()
	for one.runs() || other.runs() {
		select {
		case at := <-one.stops:
			one.stopped(at)
		case at := <-other.stops:
			other.stopped(at)
		case <-timer.C:
			// The server is asked after the other session has stopped. So whoever waits then waits on.
			waiting, err := w.gates.waiting(ctx, one, other)
			if err != nil {
				return err
			}
			if one.runs() && !other.runs() && slices.Contains(waiting, one.pid) {
				one.state = waits
			}
			if other.runs() && !one.runs() && slices.Contains(waiting, other.pid) {
				other.state = waits
			}
			timer.Reset(lookEvery)
		case <-late:
			return fmt.Errorf("for %v no session has stopped: %v", testkit.Patience, w.describe())
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func (s *session) runs() bool { return s.state == running }

// checked checks what the last step has done.
func (w *world) checked(ctx context.Context, before tablesState) (now tablesState, found []string, err error) {
	now = before
	var commits []commit
	looks := false
	for _, s := range w.sessions {
		if s.state == over && s.failed != nil {
			return now, nil, fmt.Errorf("session %d failed: %w", s.number+1, s.failed)
		}
		if s.state == ready || s.state == over {
			commits = append(commits, s.committed...)
			s.committed = nil
			looks = looks || s.guard != nil || len(s.refused) > 0
		}
	}
	if len(commits) == 0 && !looks {
		return now, nil, nil
	}
	now, err = w.look(ctx)
	if err != nil {
		return now, nil, err
	}
	found = check(before, now, commits)
	for _, s := range w.sessions {
		if s.state == ready || s.state == over {
			found = append(found, checkGuards(now, s)...)
			s.refused = nil
		}
	}
	return now, found, nil
}

// afterwardsSQL lets time pass, so that what expires has expired, and what is due later is due.
const afterwardsSQL = `
UPDATE pgleases.server SET next_check_at = clock_timestamp();
UPDATE pgleases.clients SET expires_at = clock_timestamp() - interval '1 hour' WHERE incarnation < 0 OR session IN (13, 14) AND expires_at < clock_timestamp();
UPDATE pgleases.leases SET plan_due_at = clock_timestamp() WHERE plan_due_at < 'infinity'`

// ended lets time pass after the interleaving, in which clients do what they have a reason to do,
// and checks that nothing is stuck. It does so once for all interleavings that end in one state.
func (w *world) ended(ctx context.Context, now tablesState) (found []string, err error) {
	state := now.summary()
	if w.settled[state] {
		return nil, nil
	}
	for range 3 { // a plan asks, an owner hands over, and the next plan may have waited for that
		if err := w.lifeGoesOn(ctx, now); err != nil {
			return nil, err
		}
		now, err = w.look(ctx)
		if err != nil {
			return nil, err
		}
		found = checkEnd(now)
		if len(found) == 0 {
			w.settled[state] = true
			break
		}
	}
	return found, nil
}

func (w *world) lifeGoesOn(ctx context.Context, now tablesState) error {
	if _, err := w.driver.Exec(ctx, afterwardsSQL, pgx.QueryExecModeSimpleProtocol); err != nil {
		return err
	}
	if !now.Accepted {
		if _, err := w.conn.AcceptServer(ctx, 2*longTTL, w.run, 6); err != nil {
			return err
		}
	}
	_, evicted := w.conn.Evict(ctx, w.cutoff(), 2*longTTL, ttl, w.run)
	_, tidied := w.conn.Tidy(ctx)
	_, swept := w.conn.SweepLocks(ctx)
	due, claimed := w.conn.Claim(ctx, []string{"w", "x"})
	if err := errors.Join(evicted, tidied, swept, claimed); err != nil {
		return err
	}
	if len(due) > 0 {
		read, err := w.conn.Snapshot(ctx, due, false)
		if err != nil {
			return err
		}
		if _, err := w.conn.Apply(ctx, read, bridge.Plan(read), store.NextPlan{OnlyLeftOver: true}); err != nil {
			return err
		}
	}
	return w.ownersHandOver(ctx)
}

// ownersHandOver releases what owners are asked for, and what they own under an epoch of an earlier
// server.
func (w *world) ownersHandOver(ctx context.Context) error {
	now, err := w.look(ctx)
	if err != nil {
		return err
	}
	for _, p := range now.Partitions {
		_, lives := now.client(p.Owner)
		if lives && (p.Target != p.Owner || p.Epoch>>32 < now.Generation) {
			r := []store.Release{{Lease: p.Lease, Partition: p.Partition, Epoch: p.Epoch}}
			if _, err := w.conn.Release(ctx, p.Owner, r, nil, 1); err != nil {
				return err
			}
		}
	}
	return nil
}

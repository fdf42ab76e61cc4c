package main

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/examples/internal/show"
)

const (
	// patience is how long, beyond the TTL, a change may take before it counts as one that never came. It is long: on a
	// busy machine processes wait for their turn, and the figures tell how long a change took.
	patience = time.Minute
	// look is how often the tables are read while something is waited for.
	look = 50 * time.Millisecond
)

// A story is what happens to the processes, and what is needed to watch them.
type story struct {
	size
	pool   *pgxpool.Pool
	screen *show.Screen
	crew   *show.Crew

	events []event
	calm   []span    // when nothing happened
	until  time.Time // every tick up to then is to have its fate
}

// A span is a time by the database's clock, as all times here.
type span struct{ From, To time.Time }

// An event is something that happened to a process, and how long its schedules waited.
type event struct {
	name      string // one word
	what      string
	schedules int // that it concerned
	took      time.Duration
	until     string // what took that long
	failure   string // empty: all is well
}

// tell lets it happen. Its error is one of the machinery, while what goes wrong with the schedules is in the events.
func (s *story) tell(ctx context.Context) error {
	var showing sync.WaitGroup
	shown, hide := context.WithCancel(ctx)
	showing.Go(func() { s.show(shown) })
	defer s.screen.Clear()
	defer showing.Wait()
	defer hide()

	for _, step := range s.steps {
		if err := step(s, ctx); err != nil {
			return err
		}
	}
	if err := s.catchUp(ctx); err != nil {
		return err
	}
	return s.closeAll(ctx)
}

// all are the steps of the whole story.
var all = []func(*story, context.Context) error{(*story).startFour, (*story).closeOne, (*story).freezeOne, (*story).killOne}

func (s *story) startFour(ctx context.Context) error {
	s.screen.Event("start: four processes")
	began, err := s.now(ctx)
	if err != nil {
		return err
	}
	for n := range 4 {
		if _, err := s.crew.Start(fmt.Sprintf("worker-%d", n+1)); err != nil {
			return err
		}
	}
	e := event{name: "start", what: "four processes were started", until: "until each schedule of a second had run"}
	if err := s.happens(ctx, &e, began, allRan, nil, s.Schedules); err != nil {
		return err
	}
	return s.quiet(ctx)
}

func (s *story) closeOne(ctx context.Context) error {
	w := s.crew.All()[0]
	s.screen.Event("close: %s is asked to end (SIGTERM)", w.ID)
	began, err := s.now(ctx)
	if err != nil {
		return err
	}
	w.Set(show.Closing)
	if err := w.AskToEnd(); err != nil {
		return fmt.Errorf("end %s: %w", w.ID, err)
	}
	e := event{name: "close", what: w.ID + " was asked to end (SIGTERM)", until: elsewhere}
	if err := s.happens(ctx, &e, began, ranElsewhere, w, 0); err != nil {
		return err
	}
	if err := w.Wait(ctx, patience); err != nil {
		s.failed("close", fmt.Sprintf("%s did not end well: %v", w.ID, err))
	}
	return s.quiet(ctx)
}

// elsewhere is what is measured where a process goes.
const elsewhere = "after it was due, the last of them ran elsewhere"

func (s *story) freezeOne(ctx context.Context) error {
	if !show.CanFreeze {
		s.screen.Event("freeze: left out, this system cannot stop a process with a signal")
		return nil
	}
	w := s.crew.All()[1]
	s.screen.Event("freeze: %s is stopped in the midst of its work (SIGSTOP)", w.ID)
	began, err := s.now(ctx)
	if err != nil {
		return err
	}
	w.Set(show.Frozen)
	stopped := time.Now()
	if err := w.Freeze(); err != nil {
		return fmt.Errorf("freeze %s: %w", w.ID, err)
	}
	e := event{name: "freeze", what: w.ID + " was stopped (SIGSTOP)", until: elsewhere}
	if err := s.happens(ctx, &e, began, ranElsewhere, w, 0); err != nil {
		return err
	}
	if err := show.Pause(ctx, s.TTL+2*time.Second-time.Since(stopped)); err != nil {
		return err
	}

	if began, err = s.now(ctx); err != nil {
		return err
	}
	s.screen.Event("thaw: %s goes on after %.1f s (SIGCONT)", w.ID, time.Since(stopped).Seconds())
	w.Set(show.Working)
	if err := w.Thaw(); err != nil {
		return fmt.Errorf("thaw %s: %w", w.ID, err)
	}
	e = event{
		name: "thaw", what: fmt.Sprintf("%s went on after %.1f s (SIGCONT)", w.ID, time.Since(stopped).Seconds()),
		until: "until it had run what it owned again",
	}
	if err := s.happens(ctx, &e, began, ranHere, w, 0); err != nil {
		return err
	}
	return s.quiet(ctx)
}

func (s *story) killOne(ctx context.Context) error {
	w := s.crew.All()[2]
	s.screen.Event("kill: %s is killed (SIGKILL)", w.ID)
	began, err := s.now(ctx)
	if err != nil {
		return err
	}
	w.Kill()
	e := event{name: "kill", what: w.ID + " was killed (SIGKILL)", until: elsewhere}
	if err := s.happens(ctx, &e, began, ranElsewhere, w, 0); err != nil {
		return err
	}
	return s.quiet(ctx)
}

// catchUp waits until every tick that there was has its fate.
func (s *story) catchUp(ctx context.Context) (err error) {
	if s.until, err = s.now(ctx); err != nil {
		return err
	}
	for deadline := time.Now().Add(patience); ; {
		var left int
		if err := s.pool.QueryRow(ctx, withoutFate, s.until).Scan(&left); err != nil {
			return err
		}
		if left == 0 {
			s.screen.Event("each tick until now has its fate")
			return nil
		}
		if time.Now().After(deadline) {
			s.failed("end", fmt.Sprintf("%d ticks had no fate after %v", left, patience))
			return nil
		}
		if err := show.Pause(ctx, look); err != nil {
			return err
		}
	}
}

// closeAll ends the processes that are left.
func (s *story) closeAll(ctx context.Context) error {
	return s.crew.CloseAll(ctx, patience, func(_ *show.Worker, failure string) { s.failed("end", failure) })
}

// The queries that tell how many of the schedules that an event concerns have followed it, and how long the last of these took. $1 is when it happened,
// $2 the process. Only what ticks each second is looked at.
const (
	allRan = `
SELECT count(*), count(*), coalesce(max(ran_at) - $1, interval '0') FROM (
    SELECT min(ran_at) AS ran_at FROM pgleases_example.ticks WHERE name LIKE 'second/%' AND $2 = '' GROUP BY name
) AS first`
	ranElsewhere = `
WITH its AS (
    SELECT name, max(at) AS at FROM pgleases_example.ticks WHERE name LIKE 'second/%' AND worker = $2 AND ran_at > $1::timestamptz - interval '2 s' GROUP BY name
), followed AS (
    SELECT greatest(its.at + interval '1 s', $1) AS due,
           (SELECT min(t.ran_at) FROM pgleases_example.ticks AS t WHERE t.name = its.name AND t.at > its.at AND t.worker <> $2) AS ran_at
    FROM its
)
SELECT count(*), count(ran_at), coalesce(max(ran_at - due), interval '0') FROM followed`
	// It owns an even share of the partitions again; -1 as long as it does not.
	ranHere = `
WITH owned AS (
    SELECT partition, owner FROM pgleases.status WHERE lease = 'schedule/example'
), shared AS (
    SELECT count(*) FILTER (WHERE owner = $2) >= count(*) / count(DISTINCT owner) AS evenly FROM owned
), followed AS (
    SELECT (SELECT min(t.ran_at) FROM pgleases_example.ticks AS t WHERE t.name = s.name AND t.ran_at > $1 AND t.worker = $2) AS ran_at
    FROM pgleases.schedules AS s JOIN owned USING (partition) WHERE owner = $2 AND s.name LIKE 'second/%'
)
SELECT count(*), CASE WHEN (SELECT evenly FROM shared) THEN count(ran_at) ELSE -1 END, coalesce(max(ran_at) - $1, interval '0') FROM followed`
)

// happens waits until the schedules have followed an event: all that it concerns, and at least so many.
func (s *story) happens(ctx context.Context, e *event, began time.Time, query string, w *show.Worker, least int) error {
	id := ""
	if w != nil {
		id = w.ID
	}
	for deadline := time.Now().Add(s.TTL + patience); ; {
		var followed int
		if err := s.pool.QueryRow(ctx, query, began, id).Scan(&e.schedules, &followed, &e.took); err != nil {
			return err
		}
		if followed == e.schedules && followed >= least {
			break
		}
		if time.Now().After(deadline) {
			e.failure = fmt.Sprintf("after %v, %d of %d schedules had followed", s.TTL+patience, followed, max(least, e.schedules))
			break
		}
		if err := show.Pause(ctx, look); err != nil {
			return err
		}
	}
	s.events = append(s.events, *e)
	if e.failure != "" {
		s.screen.Event("%s: FAILED: %s", e.name, e.failure)
	} else {
		s.screen.Event("%s: %d schedules, %s %s", e.name, e.schedules, show.Seconds(e.took), e.until)
	}
	return nil
}

func (s *story) failed(name, failure string) {
	s.events = append(s.events, event{name: name, what: name, failure: failure})
	s.screen.Event("%s: FAILED: %s", name, failure)
}

// quiet lets nothing happen for a while. What ticked in the first second may belong to what was before.
func (s *story) quiet(ctx context.Context) error {
	from, err := s.now(ctx)
	if err != nil {
		return err
	}
	if err := show.Pause(ctx, s.between); err != nil {
		return err
	}
	to, err := s.now(ctx)
	s.calm = append(s.calm, span{from.Add(time.Second), to.Add(-time.Second / 5)})
	return err
}

// now reads the database's clock.
func (s *story) now(ctx context.Context) (now time.Time, err error) {
	err = s.pool.QueryRow(ctx, "SELECT clock_timestamp()").Scan(&now)
	return now, err
}

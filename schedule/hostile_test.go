package schedule_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// hangs holds all code that hangs until the end of its test.
var hangs sync.Map // chan struct{} by kind

// rogue is the arguments of a job. Its methods misbehave if Place names them, and so do those of
// the error that its handler returns.
type rogue struct{ Kind, Place, Way string }

func (h rogue) at(place string) {
	if h.Place == place {
		hang, _ := hangs.Load(h.Kind)
		testkit.Misbehave(h.Way, hang.(chan struct{}))
	}
}

func (h *rogue) UnmarshalJSON(text []byte) error {
	type plain rogue
	err := json.Unmarshal(text, (*plain)(h))
	h.at("decoder")
	return err
}

func (h rogue) MarshalJSON() ([]byte, error) {
	type plain rogue
	h.at("encoder")
	return json.Marshal(plain(h))
}

type hostileError struct{ rogue }

func (e hostileError) Error() string { e.at("Error"); return e.Place }
func (e hostileError) Unwrap() error { e.at("Unwrap"); return nil }
func (e hostileError) Is(error) bool { e.at("Is"); return false }
func (e hostileError) As(any) bool   { e.at("As"); return false }

// closer returns a channel that is closed at the end of a test, before its workers end.
func closer(t testing.TB) chan struct{} {
	c := make(chan struct{})
	t.Cleanup(func() { close(c) })
	return c
}

// What code of the application does in a run stops no other run, however it fails to return. A line
// names what hangs.
func TestHostileCodeOfARunStopsNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, kind := range []string{"InTx", "AtLeastOnce", "AtMostOnce"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			w, log := newLogged(db, schedule.WithMaxRunning(5))
			hangs.Store(kind, closer(t))
			w.Times().Overrun = 50 * time.Millisecond
			run := func(_ context.Context, r schedule.Run[rogue]) error {
				r.Args.at("handler")
				if r.Args.Place == "" {
					return nil
				}
				return hostileError{r.Args}
			}
			opts := []schedule.KindOption{schedule.WithTimeout(time.Second)}
			if kind != "AtMostOnce" {
				opts = append(opts, tries(1, time.Second))
			}
			k := register(w, kind, kind, run, opts...)
			// What cannot be decoded makes others doubt its kind for a while, and what hangs may hold all places
			// of slow work meanwhile.
			decoded := register(w, kind, kind+" decoded", run, opts...)
			hung := map[string]string{
				"handler": "handler still running",
				"decoder": "arguments still being read",
				"Error":   "handler still running",
				"Unwrap":  "handler still running",
			}
			short := int64(0)
			for _, place := range []string{"handler", "decoder", "Error", "Unwrap", "Is", "As"} {
				for _, way := range testkit.Misbehaves {
					if place != "decoder" && (way != "hang" || hung[place] == "") { // what cannot be decoded is blocked
						short++
					}
					of := k
					if place == "decoder" {
						of = decoded
					}
					testkit.Must(of.Enqueue(t.Context(), rogue{kind, place, way}))(t)
				}
			}
			w.run()
			counts(db, "those that do not hang have ended", short,
				"pgleases.history WHERE outcome IN ('failed', 'unknown')")
			testkit.Until(t, "those that hang are named", func() bool {
				return log.count("handler still running")+log.count("arguments still being read") >= len(hung)
			})
			testkit.Must(k.EnqueueMany(t.Context(), make([]rogue, 20)))(t)
			counts(db, "the others run", 20, "pgleases.history WHERE outcome = 'succeeded'")
		})
	}
}

// An encoder that misbehaves does so in the goroutine of its caller, and nowhere else.
func TestHostileEncoderFailsItsCallerOnly(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	w := newWorker(db)
	hang := make(chan struct{})
	hangs.Store("encoders", hang)
	k := schedule.InTx(w.Scheduler, "encoders", nothing[rogue])
	w.run()
	for name, call := range map[string]func(rogue) error{
		"put":     func(h rogue) error { return k.Put(t.Context(), "a", h, hourly) },
		"enqueue": func(h rogue) error { _, err := k.Enqueue(t.Context(), h); return err },
	} {
		for _, way := range testkit.Misbehaves {
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				defer func() { _ = recover() }()
				_ = call(rogue{"encoders", "encoder", way})
			}()
			if way != "hang" {
				testkit.Receive(t, name+" ends its caller", ended)
				continue
			}
			id := testkit.Must(k.Enqueue(t.Context(), rogue{}))(t)
			expect(t, w.outcome(id).Outcome, schedule.OutcomeSucceeded, "outcome of another")
			hang <- struct{}{}
			testkit.Receive(t, name+" goes on", ended)
		}
	}
}

// A tracer that misbehaves at a statement stops no other run, no poll and no end of Run. A line names
// what hangs.
func TestHostileTracerStopsNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for text, line := range map[string]string{
		"schedule_poll":      "poll failed",
		"schedule_begin":     "statement still under way",
		"schedule_end(":      "",
		"schedule_open":      "statement still under way",
		"schedule_end_job":   "statement still under way",
		"schedule_free_slot": "statement still under way",
	} {
		t.Run(text, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			hang := make(chan struct{})
			tracer := testkit.NewHostileTracer(text, hang)
			db.tracer = tracer
			w, log := newLogged(db)
			free := sync.OnceFunc(func() { close(hang) })
			t.Cleanup(free)
			w.Times().Answer = 500 * time.Millisecond
			w.Times().PollLimit = 500 * time.Millisecond
			w.Times().Overrun = 50 * time.Millisecond
			k := schedule.AtLeastOnce(w.Scheduler, "calls", noCall[args], schedule.WithMaxConcurrent(100))
			w.run()
			runs := int64(0)
			for runs == 0 || !tracer.Done() && text != "schedule_end(" {
				for partition := range 4 {
					testkit.Must(k.Enqueue(t.Context(), args{}, schedule.WithJobKey(db.keyIn(partition))))(t)
				}
				runs += 4
				testkit.Until(t, "all but one have run", func() bool {
					return db.count("pgleases.history WHERE outcome = 'succeeded'") >= runs-1
				})
			}
			testkit.Until(t, "a line names what hangs", func() bool { return line == "" || log.count(line) > 0 })
			// Its run goes on, as one whose handler hangs.
			if line == "statement still under way" && text != "schedule_begin" {
				free()
				const ended = "statement ended after its time limit"
				testkit.Until(t, "a line says that it has ended", func() bool { return log.count(ended) > 0 })
			}
			counts(db, "all have run", runs, "pgleases.history WHERE outcome = 'succeeded'")
			w.end()
		})
	}
}

// A log handler that misbehaves stops nothing.
func TestHostileLogHandlerStopsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	hang := make(chan struct{})
	w := newWorker(db, schedule.WithLogger(slog.New(testkit.NewHostileLog(hang))))
	t.Cleanup(func() { close(hang) })
	k := schedule.InTx(w.Scheduler, "fails", func(context.Context, pgx.Tx, schedule.Run[args]) error {
		return errors.New("it fails, and that is logged")
	}, tries(1, time.Second))
	w.run()
	testkit.Must(k.EnqueueMany(t.Context(), make([]args, 20)))(t)
	counts(db, "all have run", 20, "pgleases.history WHERE outcome = 'failed'")
	w.end()
}

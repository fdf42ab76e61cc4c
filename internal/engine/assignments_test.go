package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/liveness"
)

var errorsOfTests = Errors{
	Closed:         errors.New("closed"),
	Superseded:     errors.New("superseded"),
	Evicted:        errors.New("evicted"),
	NotOwner:       errors.New("not the owner"),
	PartitionCount: errors.New("partition count"),
	LeaseReplaced:  errors.New("lease replaced"),
	Handoff:        errors.New("handoff"),
	TrustLost:      errors.New("trust lost"),
	DrainTimeout:   errors.New("drain timeout"),
}

// idleEngine returns an engine without a goroutine and without a database, trusted for an hour,
// that owns n partitions of a lease.
func idleEngine(n int, log slog.Handler) (*engine, *membership) {
	e := newEngine(newClient(Config{
		ClientID: "a", TTL: time.Hour, Heartbeat: time.Minute, Log: slog.New(log), Errors: errorsOfTests,
	}), nil)
	e.server.accepted = true
	e.earnTrust(time.Now())
	m := e.members.add("orders", n, LeaseOptions{})
	m.become(stateMember)
	gained := make([]*assignment, n)
	for i := range gained {
		gained[i] = m.assignments.begin(i, 1)
	}
	m.assignments.publish(false)
	return e, m
}

// A process that was stopped is told from one whose heartbeats fail.
func TestLossSaysWhetherTheProcessWasStopped(t *testing.T) {
	for want, late := range map[string]time.Duration{
		"trust lost: no heartbeat succeeded for 2h0m0s":                                      liveness.StoppedFor,
		"trust lost: no heartbeat succeeded for 2h0m0s; the process did not run for 1h30m0s": 90 * time.Minute,
	} {
		var line string
		e, m := idleEngine(1, slog.DiscardHandler)
		e.log = slog.New(slog.NewTextHandler(writer(func(text string) { line += text }), nil))
		now := e.session.sent.Add(2 * time.Hour)
		first := m.assignments.serving()[0]
		e.wakeAt = now.Add(-late)
		e.checkTrust(now)
		cause := first.ownership.Cause()
		if cause.Error() != want || !errors.Is(cause, errorsOfTests.TrustLost) {
			t.Errorf("%v late, it ended with %q, not %q", late, cause, want)
		}
		_, why, _ := strings.Cut(want, ": ")
		if !strings.Contains(line, fmt.Sprintf("cause=%q count=1 since_heartbeat=2h0m0s", why)) {
			t.Errorf("it is logged as %s", line)
		}
	}
}

type writer func(string)

func (w writer) Write(b []byte) (int, error) { w(string(b)); return len(b), nil }

// A reminder is a logger that calls a function at each line.
type reminder func()

func (reminder) Enabled(context.Context, slog.Level) bool    { return true }
func (r reminder) Handle(context.Context, slog.Record) error { r(); return nil }
func (r reminder) WithAttrs([]slog.Attr) slog.Handler        { return r }
func (r reminder) WithGroup(string) slog.Handler             { return r }

// TestALossIsLoggedLast checks the order in every way that many ownerships can end at once.
func TestALossIsLoggedLast(t *testing.T) {
	now := time.Now()
	asked := func(e *engine, m *membership) {
		m.assignments.withdraw(m.assignments.serving(), errorsOfTests.Handoff, now)
	}
	for name, test := range map[string]struct {
		lose  func(e *engine, m *membership)
		cause error
	}{
		"trust lost":             {func(e *engine, _ *membership) { e.loseTrust(now, "why") }, errorsOfTests.TrustLost},
		"evicted":                {func(e *engine, _ *membership) { e.sessionLost(false) }, errorsOfTests.TrustLost},
		"copied":                 {func(e *engine, _ *membership) { e.sessionLost(true) }, errorsOfTests.TrustLost},
		"the membership removed": {func(e *engine, m *membership) { e.removed(m) }, errorsOfTests.TrustLost},
		"drain timeout": {func(e *engine, m *membership) {
			m.lease.Options.DrainTimeout = time.Second
			asked(e, m)
			e.members.shared.supervise(false, nil, now.Add(time.Second))
		}, errorsOfTests.DrainTimeout},
		"closed without waiting": {func(e *engine, m *membership) {
			e.close(errorsOfTests.Closed)
			e.closing.hurry(context.Canceled, now)
			e.members.shared.supervise(e.closing.hurried != nil, e.closing.reason, now)
		}, errorsOfTests.Closed},
		"closed without a database": {func(e *engine, _ *membership) {
			e.close(errorsOfTests.Closed)
			e.finish()
		}, errorsOfTests.Closed},
	} {
		t.Run(name, func(t *testing.T) {
			const partitions, holds = 64, 3
			var ends []context.Context
			lines := 0
			goesOn := func(ctx context.Context) bool { return !errors.Is(context.Cause(ctx), test.cause) }
			e, m := idleEngine(partitions, reminder(func() {
				if lines++; slices.ContainsFunc(ends, goesOn) {
					t.Error("a line is logged before all contexts have ended with the cause")
				}
			}))
			for range holds {
				ends = append(ends, m.lease.Board.Hold(context.Background()).Context())
			}
			for _, p := range m.lease.Board.Look().Owned {
				ends = append(ends, p.Context())
			}
			test.lose(e, m)
			e.members.shared.logEnded() // as each turn does
			if lines == 0 {
				t.Error("nothing is logged")
			}
		})
	}
}

// The best of several tries counts, and more tries are made if they take too long, because other
// work on the machine slows some down. A hold may add as much time as ending it takes; if each
// partition were searched in each hold, it would be 20 times as much.
func TestALossTakesHardlyLongerWithManyHolds(t *testing.T) {
	const partitions, many, tries = 8192, 300, 200
	best := make(map[int]time.Duration)
	most := func() time.Duration { return 3*best[1] + many*10*time.Microsecond }
	for try := 0; try < 7 || try < tries && best[many] > most(); try++ {
		for _, holds := range []int{1, many} {
			_, m := idleEngine(partitions, slog.DiscardHandler)
			for range holds {
				m.lease.Board.Hold(context.Background())
			}
			assignments := m.assignments.list()
			began := time.Now()
			m.assignments.endOwnerships(assignments, errorsOfTests.TrustLost)
			if took := time.Since(began); best[holds] == 0 || took < best[holds] {
				best[holds] = took
			}
		}
	}
	t.Logf("%d partitions end in %v with one hold, in %v with %d", partitions, best[1], best[many], many)
	if best[many] > most() {
		t.Errorf("that is more than %v", most())
	}
}

package engine

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases/internal/liveness"
	"github.com/pgleases/pgleases/internal/when"
)

type failoverConn = liveness.Conn

// A thread is a connection with fast failover whose fate the test decides.
type thread struct {
	Conn
	failoverConn
	severed bool
	holdErr error
	end     func()
}

func (c *thread) OnEnd(f func())                                   { c.end = f }
func (c *thread) Severed() bool                                    { return c.severed }
func (c *thread) HoldLiveness(context.Context, int64, int64) error { return c.holdErr }
func (c *thread) Closed() bool                                     { return false }

// newThread is an engine on such a connection, which trusts itself.
func newThread() (*engine, *thread) {
	c := new(thread)
	e := newEngine(newClient(Config{TTL: 20 * time.Second, Heartbeat: 5 * time.Second, FastFailover: true,
		Log: slog.New(slog.DiscardHandler), Errors: errorsOfTests}), c)
	e.liveness.SetHeld(e.session.number)
	e.session.registered = true
	e.earnTrust(time.Now())
	return e, c
}

// looks makes the client check its connection for the given time, at its usual interval.
func (e *engine) looks(during time.Duration) {
	for until := time.Now().Add(during); time.Now().Before(until); {
		time.Sleep(time.Until(when.Earlier(e.liveness.PulseDue(), until)))
		e.watchConnection(time.Now())
	}
}

func TestReadersOfStoppedProcessWaitForAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newThread()
		v := e.trust.validity
		expect := func(when string, trusted bool) {
			t.Helper()
			if v.Holds() != trusted || v.Over() || (v.Remaining() > 10*time.Second) != trusted {
				t.Errorf("%s: trusted %v, over %v, %v left", when, v.Holds(), v.Over(), v.Remaining())
			}
		}
		e.looks(3 * time.Second)
		expect("a client that looks", true)
		sent := time.Now()
		time.Sleep(liveness.StoppedFor + liveness.PulseEvery)
		expect("a process that goes on", false)
		e.watchConnection(time.Now())
		expect("when it was noticed", false)
		if heartbeatDue(e, time.Now()).After(time.Now()) {
			t.Error("no heartbeat is due")
		}
		e.answered(sent)
		e.looks(time.Second)
		expect("after an answer to what was sent before", false)
		e.answered(time.Now())
		expect("after an answer to what was sent since", true)
		e.checkTrust(time.Now())
		if e.trust.validity != v {
			t.Error("it has lost its trust")
		}
	})
}

func TestReadersAreRefusedAfterAnUnreadEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := newThread()
		v := e.trust.validity
		c.severed = true
		e.looks(liveness.StoppedFor + liveness.PulseEvery)
		if v.Holds() || v.Over() {
			t.Errorf("trusted %v, over %v", v.Holds(), v.Over())
		}
		c.severed = false // the server had said so
		if e.looks(liveness.PulseEvery); !v.Holds() {
			t.Error("it does not go on")
		}
	})
}

func TestTrustEndsWithTheConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := newThread()
		v := e.trust.validity
		c.end()
		if v.Holds() || !v.Over() {
			t.Errorf("trusted %v, over %v", v.Holds(), v.Over())
		}
		if e.earnTrust(time.Now()); e.trust.validity.Holds() {
			t.Error("it trusts itself again")
		}
		e.checkTrust(time.Now())
		if e.trust.validity != nil {
			t.Error("the trust is not lost")
		}
		e.connected(new(thread)) // on which the session is to hold its liveness lock
		if e.earnTrust(time.Now()); !e.trust.validity.Holds() {
			t.Error("on another connection it does not trust itself")
		}
	})
}

func TestNoHeartbeatIsSentBeforeTheSessionsLockIsHeld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newThread()
		e.session.beatNow()
		for _, holds := range []bool{true, false} {
			if !holds {
				e.connected(new(thread))
			}
			if beats := !heartbeatDue(e, time.Now()).After(time.Now()); beats != holds {
				t.Errorf("holds %v: a heartbeat is due: %v", holds, beats)
			}
			if due := !holdLivenessDue(e, time.Now()).After(time.Now()); due == holds {
				t.Errorf("holds %v: the lock is to be taken: %v", holds, due)
			}
		}
	})
}

func TestWaitersAreNotifiedWhenReadersReadAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for name, lapse := range map[string]func(e *engine, c *thread){
			"the server had said that it ends the connection": func(e *engine, c *thread) {
				c.severed = true
				e.looks(liveness.StoppedFor + liveness.PulseEvery)
				c.severed = false
			},
			"an answer came first": func(e *engine, _ *thread) {
				time.Sleep(liveness.StoppedFor - liveness.PulseEvery/2)
				sent := time.Now()
				time.Sleep(liveness.PulseEvery)
				e.answered(sent)
			},
		} {
			e, c := newThread()
			m := e.members.add("l", 2, LeaseOptions{})
			if lapse(e, c); m.lease.Board.Read().Validity.Holds() {
				t.Errorf("%s: it reads", name)
			}
			changed := m.lease.Board.Look().Changed()
			e.watchConnection(time.Now())
			if !m.lease.Board.Read().Validity.Holds() {
				t.Errorf("%s: it does not go on", name)
			}
			select {
			case <-changed:
			default:
				t.Errorf("%s: the end is not noticed", name)
			}
		}
	})
}

func TestClientEndsWithoutLivenessLockAndTrust(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, c := newThread()
		c.holdErr = errors.New("out of shared memory")
		e.connected(c)
		e.members.add("l", 2, LeaseOptions{}).become(stateMember)
		_ = beginHoldLiveness(e, time.Now()).run(t.Context(), c)
		time.Sleep(e.config.TTL)
		e.checkTrust(time.Now())
		if e.closing.reason = errorsOfTests.Closed; !e.finished(time.Now()) {
			t.Error("it waits for ever")
		}
	})
}

// It is still one of the two lowest sessions, so no other client watches in its place.
func TestAClientThatEndsWatchesWhileItWaitsForWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e, _ := newThread()
		e.members.add("l", 2, LeaseOptions{}).become(stateMember)
		if e.closing.reason = errorsOfTests.Closed; watchLivenessDue(e, time.Now()).Equal(when.Never) {
			t.Error("it looks at no locks")
		}
	})
}

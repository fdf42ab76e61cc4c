package store_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
	. "github.com/pgleases/pgleases/internal/store"
)

// The caller forgets the acquisition, so nobody would release a lock that it gets later.
func TestAcquireThatWasGivenUpIsNotSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hook, ended := make(chan struct{}), make(chan error, 1)
		locks := &Locks{OnConn: func(_, working context.Context, use func(context.Context, *pgx.Conn) error) error {
			<-hook
			err := handlers.Call(func() error { return use(working, nil) }) // to send on no connection panics
			ended <- err
			return err
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, sent, err := locks.Acquire(ctx, LockRequest{}, nil); sent || !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("sent %v: %v", sent, err)
		}
		close(hook)
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "given the statement up") {
			t.Errorf("when the hook returns: %v", err)
		}
	})
}

// The caller returns when its context ends, and the answer decides what becomes of the lock. Code of
// the application that hangs is left behind.
func TestAnswerOfAcquireThatWasGivenUpIsLate(t *testing.T) {
	for name, c := range map[string]struct {
		answersAfter, lateAfter time.Duration // from the end of the caller's context
		err                     error
	}{
		"it is answered":        {answersAfter: time.Second / 2, lateAfter: time.Second / 2, err: errAnswer},
		"the application hangs": {answersAfter: time.Hour, lateAfter: 2 * time.Second, err: handlers.ErrHangs},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				over := make(chan struct{})
				locks := &Locks{LockWait: 10_000}
				locks.OnConn = func(_, working context.Context, use func(context.Context, *pgx.Conn) error) error {
					defer close(over)
					_ = handlers.Call(func() error { return use(working, nil) }) // it is sent, and panics
					time.Sleep(c.answersAfter + time.Second)
					return errAnswer
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				began, late := time.Now(), make(chan error, 1)
				_, sent, err := locks.Acquire(ctx, LockRequest{}, func(_ LockAnswer, err error) { late <- err })
				if !sent || !errors.Is(err, ErrUnanswered) || time.Since(began) != time.Second {
					t.Errorf("after %v, sent %v: %v", time.Since(began), sent, err)
				}
				if err := <-late; !errors.Is(err, c.err) || time.Since(began) != time.Second+c.lateAfter {
					t.Errorf("late after %v: %v", time.Since(began), err)
				}
				<-over
			})
		})
	}
}

// A hook that hangs when the connection is given back must not keep a lock for a call that never
// returns. If it hangs, the call still returns at once when its context ends.
func TestHookThatHangsAfterAnswerEndsTheCall(t *testing.T) {
	for name, c := range map[string]struct{ limit, lasts time.Duration }{
		"the caller waits":    {time.Hour, 2 * time.Second},
		"the caller gives up": {time.Second + time.Second/2, time.Second + time.Second/2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hook := make(chan struct{})
				defer close(hook)
				locks := new(Locks)
				locks.OnConn = func(_, working context.Context, use func(context.Context, *pgx.Conn) error) error {
					_ = handlers.Call(func() error { return use(working, nil) }) // it is sent, and panics
					<-hook
					return errAnswer
				}
				ctx, cancel := context.WithTimeout(t.Context(), c.limit)
				defer cancel()
				began := time.Now()
				_, sent, err := locks.Acquire(ctx, LockRequest{}, func(LockAnswer, error) {})
				if !sent || err == nil || time.Since(began) != c.lasts {
					t.Errorf("after %v, sent %v: %v", time.Since(began), sent, err)
				}
			})
		})
	}
}

var errAnswer = errors.New("the answer")

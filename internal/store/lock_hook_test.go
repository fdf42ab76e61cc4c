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
		locks := &Locks{OnConn: func(ctx context.Context, use func(context.Context, *pgx.Conn) error) error {
			<-hook
			err := handlers.Call(func() error { return use(ctx, nil) }) // to send on no connection panics
			ended <- err
			return err
		}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, sent, err := locks.Acquire(ctx, LockRequest{}); sent || !errors.Is(err, handlers.ErrHangs) {
			t.Errorf("sent %v: %v", sent, err)
		}
		close(hook)
		if err := <-ended; err == nil || !strings.Contains(err.Error(), "given the statement up") {
			t.Errorf("when the hook returns: %v", err)
		}
	})
}

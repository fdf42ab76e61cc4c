package pgleases_test

import (
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

func TestPartitionsAreSharedEvenlyAndMoveWhenClientsComeAndGo(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.Database(t))
	began := time.Now()
	a := joined(t, newClient(t, pool, pgleases.WithClientID("a")), "orders", 16, pgleases.WithHandoffDelay(0))
	until(t, "the first owns all", func() bool { return len(a.Values()) == 16 }, a)
	t.Logf("first owns all after %v", time.Since(began))
	began = time.Now()
	second := newClient(t, pool, pgleases.WithClientID("b"))
	b := joined(t, second, "orders", 16, pgleases.WithHandoffDelay(0))
	until(t, "each owns half", func() bool { return len(a.Values()) == 8 && len(b.Values()) == 8 }, a, b)
	t.Logf("balanced after %v", time.Since(began))
	began = time.Now()
	shut(t, second)
	t.Logf("closed after %v", time.Since(began))
	until(t, "the first owns all again", func() bool { return len(a.Values()) == 16 }, a)
	t.Logf("owned again after %v", time.Since(began))
}

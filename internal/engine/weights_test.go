package engine_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/fakestore"
)

// weight is what the database has for a client.
func (w *world) weight(id, lease string) (weight int) {
	w.db.Edit(func(t *fakestore.Tables, _ int64) {
		weight = t.Members[fakestore.Member{Lease: lease, Session: sessionOf(t, id)}].Weight
	})
	return weight
}

func TestLastSetWeightWinsAfterCanceledCalls(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a")
		l := p.mustJoin("x", 2)
		w.inject(func(string, string) (fault, bool) { return fault{err: errLocked}, true })
		for weight := range 50 {
			ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
			if err := l.SetWeight(ctx, weight+2); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("SetWeight: %v", err)
			}
			cancel()
		}
		if waiting := p.engine().WeightCalls("x"); waiting != 0 {
			t.Errorf("%d calls are kept", waiting)
		}
		w.inject(nil)
		w.within(5*time.Second, "the last weight is set", func() bool { return w.weight("a", "x") == 51 })
	})
}

func TestAWeightThatWasLostAndCannotBeSetIsLogged(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a")
		p.mustJoin("x", 2)
		w.inject(func(_, op string) (fault, bool) {
			return fault{err: &pgconn.PgError{Code: "42501", Message: "permission denied"}}, op == "join"
		})
		w.db.Edit(func(t *fakestore.Tables, _ int64) {
			member := fakestore.Member{Lease: "x", Session: sessionOf(t, "a")}
			row := t.Members[member]
			row.Weight = 7
			t.Members[member] = row
		})
		w.logged("")
		time.Sleep(20 * time.Second)
		if n := w.logged("join failed"); n != 1 {
			t.Errorf("it was logged %d times, not once", n)
		}
		w.inject(nil)
		w.within(5*time.Second, "the weight is set", func() bool { return w.weight("a", "x") == 1 })
	})
}

func TestWithoutDatabaseLeaveWaitsAndCloseEnds(t *testing.T) {
	inWorld(t, func(t *testing.T, w *world) {
		p := w.start("a")
		l := p.owning("x", 2)
		p.set(func(p *proc) { p.cut = true })
		left := make(chan error, 1)
		go func() { left <- l.Leave(context.Background()) }()
		time.Sleep(10 * time.Minute)
		select {
		case err := <-left:
			t.Errorf("Leave returned %v", err)
		default:
		}
		p.set(func(p *proc) { p.cut = false })
		w.ok(<-left)

		p.owning("x", 2)
		p.set(func(p *proc) { p.cut = true })
		began := time.Now()
		if err := p.c.Close(context.Background()); err == nil {
			t.Error("Close returned no error about what it left behind")
		}
		if took := time.Since(began); took > 8*time.Second {
			t.Errorf("Close took %v", took)
		}
	})
}

package main

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
)

const patience = time.Minute

// A pod of the same name supersedes the other one, SIGTERM ends it once its work has ended.
func TestThePodServesAndEnds(t *testing.T) {
	t.Setenv("POD_NAME", "worker-0")
	pool, err := pgxpool.New(t.Context(), pgtest.Database(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	type pod struct {
		mux  *http.ServeMux
		stop context.CancelFunc
		done chan error
		runs chan pgleases.Partition
	}
	start := func() pod {
		ctx, cancel := context.WithCancel(context.Background())
		t.Cleanup(cancel)
		p := pod{http.NewServeMux(), cancel, make(chan error, 1), make(chan pgleases.Partition, 256)}
		go func() {
			p.done <- serve(ctx, pool, p.mux, func(ctx context.Context, partition pgleases.Partition) error {
				p.runs <- partition
				<-ctx.Done()
				return nil
			})
		}()
		receive(t, "it works", p.runs)
		return p
	}
	probe := func(p pod, path string) int {
		answer := httptest.NewRecorder()
		p.mux.ServeHTTP(answer, httptest.NewRequest(http.MethodGet, path, nil))
		return answer.Code
	}
	paths := []string{"/livez", "/readyz"}
	older := start()
	for _, path := range paths { // that it has no trust may be true for a moment
		until(t, path+" of a pod that works says 200", func() bool { return probe(older, path) == http.StatusOK })
	}
	newer := start()
	if err := receive(t, "the older ends", older.done); !errors.Is(err, pgleases.ErrSuperseded) {
		t.Errorf("it ended with %v", err)
	}
	for _, path := range paths {
		if code := probe(older, path); code != http.StatusServiceUnavailable {
			t.Errorf("%s of a pod that ended: %d", path, code)
		}
	}
	newer.stop()
	if err := receive(t, "the newer ends", newer.done); err != nil {
		t.Error(err)
	}
}

func receive[T any](t *testing.T, what string, from <-chan T) (value T) {
	t.Helper()
	select {
	case value = <-from:
	case <-time.After(patience):
		t.Fatal("not so in time: " + what)
	}
	return value
}

func until(t *testing.T, what string, holds func() bool) {
	t.Helper()
	for late := time.After(patience); !holds(); {
		select {
		case <-time.After(10 * time.Millisecond):
		case <-late:
			t.Fatal("not so in time: " + what)
		}
	}
}

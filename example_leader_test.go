package pgleases_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
)

// probes serves /live, /ready and /leader. None of them asks the database. Use Partition here, not
// Owns: each call of Owns delays a handoff.
func probes(client *pgleases.Client, lease *pgleases.Lease) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("/live", health.Liveness(client))
	mux.Handle("/ready", health.Readiness(client))
	mux.HandleFunc("/leader", func(w http.ResponseWriter, _ *http.Request) {
		p, leads := lease.Partition(0)
		if !leads {
			http.Error(w, "another process leads", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintf(w, "leading under epoch %d", p.Epoch)
	})
	return mux
}

// A leader is the owner of a lease's only partition.
func Example_leader() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	pool, err := pgxpool.New(ctx, exampleURL())
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	lease, err := client.Lease(ctx, "leader", 1)
	if err != nil {
		log.Fatal(err)
	}
	handler := probes(client, lease)
	err = lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		// This process leads until ctx ends. Write under lease.Guard, or send p.Epoch along: a system
		// that refuses lower epochs refuses a former leader.
		for _, path := range []string{"/live", "/ready", "/leader"} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			fmt.Printf("%s: %d %s\n", path, w.Code, strings.TrimSpace(w.Body.String()))
		}
		stop()
		<-ctx.Done()
		return nil
	})
	fmt.Println("stopped:", errors.Is(err, context.Canceled), client.Close(context.Background()))
	// Output:
	// /live: 200 ok
	// /ready: 200 ok
	// /leader: 200 leading under epoch 1
	// stopped: true <nil>
}

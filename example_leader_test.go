package pgleases_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// probes serves /live and /leader. Neither asks the database: if the database fails over, a
// liveness probe that asks it restarts all processes. Use Partition here, not Owns: each call of Owns delays a handoff.
func probes(client *pgleases.Client, lease *pgleases.Lease) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("/live", func(w http.ResponseWriter, _ *http.Request) {
		if err := client.Err(); err != nil { // the client has ended: restart the process
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
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
		for _, path := range []string{"/live", "/leader"} {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
			fmt.Printf("%s: %d %s\n", path, w.Code, cmp.Or(w.Body.String(), "OK"))
		}
		stop()
		<-ctx.Done()
		return nil
	})
	fmt.Println("stopped:", errors.Is(err, context.Canceled), client.Close(context.Background()))
	// Output:
	// /live: 200 OK
	// /leader: 200 leading under epoch 1
	// stopped: true <nil>
}

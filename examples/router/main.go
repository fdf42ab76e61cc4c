// Command router is a service whose processes each own a part of the keys, and keep their state in
// memory. A request may arrive at any process, which passes it on to the owner of its key. Start it
// in several terminals, and send requests to any of them:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/router -listen localhost:8081
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/router -listen localhost:8082
//	curl localhost:8081/count/alice; curl localhost:8082/count/alice
//
// Both answers are from one process, with its count. Stop that process: the other one counts on from
// zero. A service that must not lose its state follows docs/state.md: Lease.Run loads the state of a
// partition before requests see it, and flushes it under Guard before the partition moves.
package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/health"
)

func main() {
	listen := flag.String("listen", "localhost:8081", "address that the other processes reach")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal("DATABASE_URL: ", err)
	}
	defer pool.Close()
	address := pgleases.WithMetadata(map[string]string{"address": *listen})
	server := &http.Server{Addr: *listen, ReadHeaderTimeout: 5 * time.Second}
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		lease, err := client.Lease(ctx, "router", 64)
		if err != nil {
			return err
		}
		server.Handler = newRouter(client, lease)
		go func() { log.Println(server.ListenAndServe()) }()
		<-ctx.Done()
		return context.Cause(ctx)
	}, address)
	if err != nil {
		log.Print(err)
	}
	// Only now: while Run closed the client, requests were passed on to the next owners.
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := server.Shutdown(ctx); err != nil {
		log.Print(err)
	}
}

type router struct {
	client *pgleases.Client
	lease  *pgleases.Lease

	mu     sync.Mutex // guards counts
	counts map[string]count
}

// A count is valid under one epoch: another process may have counted before and after. It needs no
// load, so a request that finds a new epoch may begin it at zero.
type count struct {
	epoch int64
	n     int
}

func newRouter(client *pgleases.Client, lease *pgleases.Lease) http.Handler {
	r := &router{client: client, lease: lease, counts: make(map[string]count)}
	mux := http.NewServeMux()
	mux.HandleFunc("/count/{key}", r.route)
	mux.Handle("/livez", health.Liveness(client))
	mux.Handle("/readyz", health.Readiness(client))
	return mux
}

// passedOn marks a request that another process has passed on, so that none goes in circles.
const passedOn = "X-Passed-On"

// route answers a request here, or passes it on to the owner of its key. The owners that Owners
// returns may be old, so after "not mine" it asks the database, and tries once more.
func (r *router) route(w http.ResponseWriter, req *http.Request) {
	key := req.PathValue("key")
	switch {
	case r.serve(w, req, key):
		return
	case req.Header.Get(passedOn) != "":
		http.Error(w, "not mine", http.StatusMisdirectedRequest)
		return
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, req.Body, 1<<20)) // for a second attempt
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	owners, err := r.lease.Owners(req.Context())
	owner, owned := owners[r.lease.PartitionFor(key)]
	passed := err == nil && owned && r.isOther(owner) && r.pass(w, req, owner, body)
	if !passed {
		owner, owned, err = r.lease.OwnerOf(req.Context(), key)
		passed = err == nil && owned && r.isOther(owner) && r.pass(w, req, owner, body)
	}
	if !passed { // it moves now, or its owner has crashed: the client may try again
		w.Header().Set("Retry-After", "1")
		http.Error(w, "no process owns this key now", http.StatusServiceUnavailable)
	}
}

// isOther reports whether an owner is another process. While a partition moves away, this process is
// still its owner in the database, although its holds do not have the partition any more.
func (r *router) isOther(owner pgleases.Owner) bool { return owner.ID != r.client.ID() }

// serve answers a request if this process owns its key. The hold keeps the partition here until the
// answer is complete.
func (r *router) serve(w http.ResponseWriter, req *http.Request, key string) bool {
	hold := r.lease.Hold(req.Context())
	defer hold.Release()
	p, owns := hold.Partition(r.lease.PartitionFor(key))
	if !owns {
		return false
	}
	r.mu.Lock()
	c := r.counts[key]
	if c.epoch != p.Epoch {
		c = count{epoch: p.Epoch}
	}
	c.n++
	r.counts[key] = c
	r.mu.Unlock()
	fmt.Fprintf(w, "%s counts %d for %s under epoch %d\n", r.client.ID(), c.n, key, c.epoch)
	return true
}

// pass passes a request on, and writes the answer. It reports false if nothing was written, because
// the process says that the key is not its own.
func (r *router) pass(w http.ResponseWriter, req *http.Request, owner pgleases.Owner, body []byte) bool {
	url := "http://" + owner.Metadata["address"] + req.URL.RequestURI()
	next, err := http.NewRequestWithContext(req.Context(), req.Method, url, bytes.NewReader(body))
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return true
	}
	next.Header = req.Header.Clone()
	next.Header.Set(passedOn, r.client.ID())
	answer, err := http.DefaultClient.Do(next)
	if err != nil { // the owner may have done it: only the caller knows whether it may be done twice
		http.Error(w, err.Error(), http.StatusBadGateway)
		return true
	}
	defer answer.Body.Close()
	if answer.StatusCode == http.StatusMisdirectedRequest {
		return false
	}
	for name, values := range answer.Header {
		w.Header()[name] = values
	}
	w.WriteHeader(answer.StatusCode)
	_, _ = io.Copy(w, answer.Body) // an error says that one of the two has gone
	return true
}

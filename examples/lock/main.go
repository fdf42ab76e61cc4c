// Command lock receives events over HTTP. One process at a time works on an event, and none works
// on it again when it is done, although the sender delivers some events twice, and to several
// processes at the same time. docs/locks.md shows this program, and the table that it needs.
//
// Start it in two terminals, with a port for each, and send one event to both:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/lock -listen localhost:8081
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/lock -listen localhost:8082
//	curl -X POST localhost:8081/events/1 & curl -X POST localhost:8082/events/1
//
// Behind PgBouncer in transaction mode, add default_query_exec_mode=exec to DATABASE_URL.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/lock"
)

func main() {
	address := flag.String("listen", "localhost:8081", "address of the HTTP server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err)
	}
	err = run(ctx, os.Getenv("DATABASE_URL"), listener, work)
	if err != nil {
		log.Fatal(err)
	}
}

// A worker does what an event asks for.
type worker func(ctx context.Context, event string) error

// work stands for work of a few seconds.
func work(ctx context.Context, event string) error {
	log.Print("working on event ", event)
	select {
	case <-time.After(5 * time.Second):
		return nil
	case <-ctx.Done(): // the lock is lost, or the sender has hung up
		return context.Cause(ctx)
	}
}

// run receives events until ctx ends.
func run(ctx context.Context, url string, listener net.Listener, work worker) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		events := &events{lock.New(client, pool), pool, work}
		mux := http.NewServeMux()
		mux.HandleFunc("POST /events/{event}", events.receive)
		server := &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
		last := make(chan error, 1)
		go func() {
			<-ctx.Done()
			waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
			defer cancel()
			last <- errors.Join(server.Shutdown(waiting), server.Close()) // the requests in hand end first
		}()
		err := server.Serve(listener)
		if errors.Is(err, http.ErrServerClosed) {
			return <-last
		}
		return err
	})
}

type events struct {
	locks *lock.Locks
	pool  *pgxpool.Pool
	work  worker
}

// receive answers the delivery of an event. Unless the answer is 200, the sender delivers it again.
func (e *events) receive(w http.ResponseWriter, r *http.Request) {
	err := e.handle(r.Context(), r.PathValue("event"))
	switch {
	case errors.Is(err, lock.ErrHeld):
		http.Error(w, err.Error(), http.StatusConflict) // another process, or another request, works on it
	case err != nil:
		http.Error(w, err.Error(), http.StatusInternalServerError)
	default:
		fmt.Fprintln(w, "done")
	}
}

// handle does the work of an event, unless it is done already.
func (e *events) handle(ctx context.Context, event string) error {
	held, err := e.locks.TryAcquire(ctx, "event/"+event)
	if err != nil {
		return err // ErrHeld, if somebody else has the lock
	}
	defer func() {
		releasing, cancel := context.WithTimeout(context.WithoutCancel(ctx), 2*time.Second) // the database may be away
		defer cancel()
		err := held.Release(releasing)
		if err != nil {
			log.Print(err)
		}
	}()
	owning, cancel := context.WithCancel(held.Context()) // ends when the lock is lost
	defer cancel()
	defer context.AfterFunc(ctx, cancel)() // and if the sender hangs up
	var done bool
	err = e.pool.QueryRow(owning, "SELECT EXISTS (SELECT FROM done WHERE event = $1)", event).Scan(&done)
	if err != nil || done {
		return err
	}
	err = e.work(owning, event)
	if err != nil {
		return err
	}
	return pgx.BeginFunc(owning, e.pool, func(tx pgx.Tx) error {
		err := held.Guard(owning, tx) // refuses if another process has got the lock meanwhile
		if err != nil {
			return err
		}
		_, err = tx.Exec(owning, "INSERT INTO done VALUES ($1)", event)
		return err
	})
}

// Command service is a service with an HTTP server that also runs jobs and a cron schedule. A request
// stores an order and enqueues a mail in one transaction, and any process of the service sends the
// mail. Each night one process counts the orders. On SIGTERM the program ends in good order.
// docs/service.md shows this program, and its tables.
//
// Start it in several terminals, with a port for each, and send orders to any of them:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/service -listen localhost:8081
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/service -listen localhost:8082
//	curl -d customer=ada@example.com localhost:8081/orders
//
// Behind PgBouncer in transaction mode, make the four settings of docs/pgbouncer.md first.
package main

import (
	"context"
	"flag"
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
	"github.com/pgleases/pgleases/health"
	"github.com/pgleases/pgleases/schedule"
)

// shutdownTimeout is how long requests may go on after the signal. Jobs have as long by default.
const shutdownTimeout = 10 * time.Second

func main() {
	address := flag.String("listen", "localhost:8081", "address of the HTTP server")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	listener, err := net.Listen("tcp", *address)
	if err != nil {
		log.Fatal(err) // for example, the port is in use
	}
	err = run(ctx, os.Getenv("DATABASE_URL"), listener, sendMail)
	if err != nil {
		log.Fatal(err)
	}
}

// run serves requests and sends mails until ctx ends.
func run(ctx context.Context, url string, listener net.Listener, send mailer) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close() // last, because requests and jobs use it
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		s, err := schedule.New(ctx, client, pool, "shop")
		if err != nil {
			return err
		}
		retries := schedule.WithMaxAttempts(12, schedule.Backoff(time.Minute, time.Hour))
		mails := schedule.AtLeastOnce(s, "mail", send, retries)
		reports := schedule.InTx(s, "report", countOrders)
		err = reports.Add("nightly", Report{}, schedule.Cron("0 2 * * *", "Europe/Berlin"))
		if err != nil {
			return err
		}
		server := newServer(client, pool, mails)
		return together(ctx, s.Run, func(ctx context.Context) error { return serve(ctx, server, listener) })
	})
}

// together calls all parts, and ends them when ctx ends or one of them returns. It returns when all
// have returned, with the error of the first.
func together(ctx context.Context, parts ...func(context.Context) error) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	ended := make(chan error, len(parts))
	for _, part := range parts {
		go func() { ended <- part(ctx) }()
	}
	err := <-ended
	stop()
	for range len(parts) - 1 {
		<-ended
	}
	return err
}

// serve serves requests until ctx ends. Then it takes no more, and waits for those in hand.
func serve(ctx context.Context, server *http.Server, listener net.Listener) error {
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(listener) }()
	select {
	case err := <-failed:
		return err
	case <-ctx.Done():
	}
	waiting, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	err := server.Shutdown(waiting)
	if err != nil {
		log.Print("requests are broken off: ", err)
		return server.Close() // ends their contexts too, so that they give their connections back
	}
	return nil
}

// newServer returns the server. Its handlers use the pool, and need neither the client nor the
// scheduler to run.
func newServer(client *pgleases.Client, pool *pgxpool.Pool, mails *schedule.Kind[Mail]) *http.Server {
	mux := http.NewServeMux()
	mux.Handle("GET /livez", health.Liveness(client))
	mux.HandleFunc("POST /orders", func(w http.ResponseWriter, r *http.Request) {
		err := takeOrder(r.Context(), pool, mails, r.PostFormValue("customer"))
		if err != nil {
			log.Print(err)
			http.Error(w, "the order was not taken", http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusCreated)
	})
	return &http.Server{Handler: mux, ReadHeaderTimeout: 5 * time.Second}
}

// A Mail is what the handler of jobs gets.
type Mail struct{ To string }

// takeOrder stores an order and enqueues its mail, both or neither.
func takeOrder(ctx context.Context, pool *pgxpool.Pool, mails *schedule.Kind[Mail], customer string) error {
	return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, "INSERT INTO orders (customer) VALUES ($1)", customer)
		if err != nil {
			return err
		}
		_, err = mails.EnqueueTx(ctx, tx, Mail{customer})
		return err
	})
}

// A Report is what the handler of the schedule gets. Only the time of the tick matters here.
type Report struct{}

// countOrders stores how many orders there were at a tick of the schedule. The row and the outcome of
// the tick commit together.
func countOrders(ctx context.Context, tx pgx.Tx, r schedule.Run[Report]) error {
	_, err := tx.Exec(ctx, "INSERT INTO reports SELECT $1, count(*) FROM orders", r.At)
	return err
}

// A mailer sends one mail.
type mailer func(context.Context, schedule.Run[Mail]) error

// sendMail stands for a call of a mail service, which recognizes a repeated call by the key.
func sendMail(_ context.Context, r schedule.Run[Mail]) error {
	log.Printf("mail to %s with the key %s", r.Args.To, r.IdempotencyKey())
	return nil
}

// Command dashboard is a small application that has the dashboard of its leases among its own
// pages, behind its own login:
//
//	DATABASE_URL=postgres://... OPERATORS_PASSWORD=... VIEWERS_PASSWORD=... go run .
//
// Operators make changes, viewers look. Open http://127.0.0.1:8080/. What is of interest is in
// pages: how the dashboard is mounted, and what Authorize asks.
package main

import (
	"context"
	"errors"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/dashboard"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	url, password := os.Getenv("DATABASE_URL"), os.Getenv("OPERATORS_PASSWORD")
	if url == "" || password == "" {
		log.Fatal("set DATABASE_URL to a database's URL, such as postgres://localhost/postgres, " +
			"and OPERATORS_PASSWORD to a password of your choice")
	}
	if err := run(ctx, url, newLogin(password, os.Getenv("VIEWERS_PASSWORD"))); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, databaseURL string, login *login) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return err
	}
	defer pool.Close()
	handler, err := pages(pool, login)
	if err != nil {
		return err
	}
	listener, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		return err
	}
	log.Printf("see http://%s/", listener.Addr())
	server := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 10 * time.Second,
		WriteTimeout:      30 * time.Second,
	}
	context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = server.Shutdown(ending) // the process ends anyway
	})
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// pages are the application's own, and the dashboard.
func pages(pool *pgxpool.Pool, login *login) (http.Handler, error) {
	leases, err := dashboard.Handler(pool, dashboard.Options{
		Title: "Orders, production",
		Authorize: func(r *http.Request) (dashboard.Access, string) {
			switch name := login.user(r); name {
			case "operator":
				return dashboard.AccessOperator, name
			case "viewer":
				return dashboard.AccessReadOnly, name
			}
			return dashboard.AccessDenied, ""
		},
	})
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /{$}", func(w http.ResponseWriter, r *http.Request) {
		show(w, home, login.user(r))
	})
	mux.HandleFunc("GET /login", func(w http.ResponseWriter, _ *http.Request) { show(w, form, "") })
	mux.HandleFunc("POST /login", login.enter)
	mux.HandleFunc("POST /logout", login.leave)
	mux.Handle("/ops/leases/", http.StripPrefix("/ops/leases", leases))
	return http.NewCrossOriginProtection().Handler(mux), nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/metrics"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Serve the dashboard", Args: cobra.NoArgs}
	listen := cmd.Flags().String("listen", "127.0.0.1:8080", "address and port; with port 0 any free port, which is printed")
	title := cmd.Flags().String("title", "Leases", "title of the page, such as the name of the environment")
	hosts := cmd.Flags().StringSlice("host", nil, "host name to answer for, besides those of this machine; several with commas")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		listener, err := net.Listen("tcp", *listen)
		if err != nil {
			return fmt.Errorf("cannot listen on %q: %w\nGive --listen an address of this machine and a port that is free, such as 127.0.0.1:8081", *listen, err)
		}
		defer listener.Close()
		isLocal := listener.Addr().(*net.TCPAddr).IP.IsLoopback()
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if _, err := a.Snapshot(ctx); err != nil {
				return err
			}
			handler, err := dashboard.Handler(a, dashboard.Options{Title: *title})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Open http://%s/\n", listener.Addr())
			pages := http.NewServeMux()
			pages.Handle("/", handler)
			pages.Handle("GET /metrics", &exposition{admin: a})
			handler = pages
			if isLocal || len(*hosts) > 0 {
				handler = onlyFor(*hosts, handler)
			}
			return serve(ctx, listener, handler)
		})
	}
	return cmd
}

// onlyFor refuses a request for a name that is neither this machine's nor one of hosts. Otherwise a
// site could point its own name at this machine, and read the dashboard as its own origin.
func onlyFor(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := r.Host
		if name, _, err := net.SplitHostPort(host); err == nil {
			host = name
		}
		host = strings.Trim(host, "[]")
		if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) && !slices.Contains(hosts, host) {
			http.Error(w, fmt.Sprintf("This server does not answer for %q. Ask for localhost, or start it with --host.", r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// exposition answers with the metrics of the database, for Prometheus.
type exposition struct {
	admin *admin.Admin

	mu   sync.Mutex // guards the rest; a read at a time
	text []byte
	read time.Time // when text was read
}

// ServeHTTP reads the tables at most once a second, however many ask.
func (e *exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.read) > time.Second {
		ctx, cancel := context.WithTimeout(r.Context(), 10*time.Second)
		defer cancel()
		samples, err := metrics.Database(ctx, e.admin)
		if err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		e.text, e.read = metrics.Text(samples), time.Now()
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(e.text)
}

// serve serves until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // clients repeat requests without an answer
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

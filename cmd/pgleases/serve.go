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

	"github.com/pgleases/pgleases/dashboard"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/metrics"
)

func newServe() *cobra.Command {
	cmd := &cobra.Command{Use: "serve", Short: "Serve the dashboard", Args: cobra.NoArgs}
	flags := cmd.Flags()
	listen := flags.String("listen", "127.0.0.1:8080", "address and port; with port 0 any free port, which is printed")
	title := flags.String("title", "Leases", "title of the page, such as the name of the environment")
	hosts := flags.StringSlice("host", nil, "host name to answer for, besides those of this machine; "+
		"several with commas")
	clients := flags.Bool("client-series", true, "let /metrics have the partitions of each client; "+
		"without it, clients whose IDs change with each start make no new series")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *listen == "" { // as an address, this would be any port for everyone
			return errors.New("--listen is empty: give it an address and a port, such as 127.0.0.1:8080")
		}
		if flags.Changed("host") {
			if err := checkHosts(*hosts); err != nil {
				return err
			}
		}
		listener, err := net.Listen("tcp", *listen)
		if err != nil {
			return fmt.Errorf("cannot listen on %q: %w\nGive --listen an address of this machine "+
				"and a port that is free, such as 127.0.0.1:8081", *listen, err)
		}
		defer listener.Close()
		isLocal := listener.Addr().(*net.TCPAddr).IP.IsLoopback()
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if _, err := a.Snapshot(ctx); err != nil {
				return err
			}
			pool, schema := a.Database()
			handler, err := dashboard.Handler(pool, dashboard.Options{Title: *title, Schema: schema})
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Open http://%s/\n", listener.Addr())
			pages := http.NewServeMux()
			pages.Handle("/", handler)
			pages.Handle("GET /metrics", &exposition{admin: a, clients: *clients})
			handler = pages
			if isLocal || len(*hosts) > 0 {
				handler = onlyFor(*hosts, handler)
			}
			return serve(ctx, listener, handler, requestLimit)
		})
	}
	return cmd
}

// checkHosts returns an error for names of hosts that no request can have.
func checkHosts(hosts []string) error {
	if len(hosts) == 0 {
		hosts = []string{""}
	}
	for _, host := range hosts {
		if nameOf(host) == "" || strings.ContainsAny(host, "/* ") {
			return fmt.Errorf("--host %q is not the name of a host, such as leases.example", host)
		}
	}
	return nil
}

// nameOf returns the name or the address in a host, without a port.
func nameOf(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
}

// onlyFor refuses a request for a name that is neither this machine's nor one of hosts. Otherwise
// a site could point its own name at this machine, and read the dashboard as its own origin.
func onlyFor(hosts []string, next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		host := nameOf(r.Host)
		ip := net.ParseIP(host)
		local := host == "localhost" || ip != nil && ip.IsLoopback()
		given := slices.ContainsFunc(hosts, func(name string) bool { return nameOf(name) == host })
		if !local && !given {
			const text = "This server does not answer for %q. Ask for localhost, or start it with --host."
			http.Error(w, fmt.Sprintf(text, r.Host), http.StatusMisdirectedRequest)
			return
		}
		next.ServeHTTP(w, r)
	})
}

// How long a server waits for a request, and for the reader of an answer. A connection that
// stands longer holds a file that others need.
const (
	requestLimit = 10 * time.Second
	answerLimit  = 30 * time.Second
)

// exposition answers with the metrics of the database, for Prometheus.
type exposition struct {
	admin   *admin.Admin
	clients bool // with the metrics of each client

	mu   sync.Mutex // guards the rest; a read at a time
	text []byte
	read time.Time // when text was read
}

// ServeHTTP sends the metrics to a reader after its turn, so a slow one does not make others wait.
func (e *exposition) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := e.current(r.Context())
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(answerLimit))
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	_, _ = w.Write(text) // an error is that the reader has gone
}

// current reads the tables at most once a second, however many ask. The text it returns is not
// changed any more.
func (e *exposition) current(ctx context.Context) ([]byte, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if time.Since(e.read) <= time.Second {
		return e.text, nil
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	samples, err := metrics.Database(ctx, e.admin)
	if err != nil {
		return nil, err
	}
	if !e.clients {
		samples = slices.DeleteFunc(samples, func(s metrics.Sample) bool {
			return slices.Contains(s.Metric.Labels, "client")
		})
	}
	e.text, e.read = metrics.Text(samples), time.Now()
	return e.text, nil
}

// serve serves until ctx ends. No request has a body that is read, so one that does not come in
// time ends its connection.
func serve(ctx context.Context, listener net.Listener, handler http.Handler, limit time.Duration) error {
	server := &http.Server{Handler: handler, ReadTimeout: limit, IdleTimeout: time.Minute}
	open := connections{since: make(map[net.Conn]time.Time)}
	server.ConnState = open.changed
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // clients repeat requests without an answer
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

// mostConnections is how many connections stay open. Each takes a file, and those to the database
// need some too.
const mostConnections = 128

// connections are the open connections of a server. If one too many opens, the one whose state
// has not changed for longest is closed: a viewer asks each second, and so keeps its own.
type connections struct {
	mu    sync.Mutex // guards the rest
	since map[net.Conn]time.Time
}

// changed is called for each change of a connection's state, before the next one is accepted.
func (c *connections) changed(conn net.Conn, state http.ConnState) {
	c.mu.Lock()
	defer c.mu.Unlock()
	_, isOpen := c.since[conn]
	switch {
	case state == http.StateClosed || state == http.StateHijacked:
		delete(c.since, conn)
		return
	case !isOpen && state != http.StateNew: // it was closed below, and its goroutine has not seen that yet
		return
	}
	c.since[conn] = time.Now()
	if len(c.since) <= mostConnections {
		return
	}
	longest := conn
	for other, since := range c.since {
		if since.Before(c.since[longest]) {
			longest = other
		}
	}
	delete(c.since, longest)
	_ = longest.Close() // an error is that its other end has gone
}

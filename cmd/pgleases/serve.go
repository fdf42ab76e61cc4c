package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/dashboard"
)

const serveHelp = `Show the leases in a browser: who owns what, who is alive, what waits and what is wrong, as it changes. It changes nothing.

It has no login, so it listens on this machine alone. To see it from another one, forward its port: ssh -L 8080:127.0.0.1:8080 MACHINE. With --listen=:8080
everybody sees it who reaches this machine: put a proxy in front that asks who they are, or mount package dashboard in an application
that knows its users.

While it listens on this machine alone, or has names by --host, it answers who asks for these, for localhost, 127.0.0.1 or [::1], and refuses other names:
else a page of any site could have the browser take this server for that site's own. Give --host the name by which a proxy in front asks.

To operate from the browser too, mount package dashboard in an application that knows its users.

It ends where the database does not answer at the start. Later the page says since when what it shows is stale.`

func newServe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Serve the dashboard",
		Long:  serveHelp,
		Args:  cobra.NoArgs,
	}
	listen := cmd.Flags().String("listen", "127.0.0.1:8080", "address and port; port 0: any that is free, which is printed")
	title := cmd.Flags().String("title", "Leases", "what stands at the top, such as the environment's name")
	hosts := cmd.Flags().StringSlice("host", nil, "a name by which it is asked, besides those of this machine; several with commas")
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
			if isLocal || len(*hosts) > 0 {
				handler = onlyFor(*hosts, handler)
			}
			return serve(ctx, listener, handler)
		})
	}
	return cmd
}

// onlyFor refuses a request for a name that is neither this machine's nor one of hosts. A site that
// has its own name lead to this machine would else read what is here, as of its own origin.
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

// serve serves until ctx ends.
func serve(ctx context.Context, listener net.Listener, handler http.Handler) error {
	server := &http.Server{Handler: handler, ReadHeaderTimeout: 10 * time.Second, IdleTimeout: time.Minute}
	defer context.AfterFunc(ctx, func() { _ = server.Close() })() // what it was sending is asked for again
	if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}

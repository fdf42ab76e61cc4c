package main

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os/user"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/dashboard"
)

const serveHelp = `Show the leases in a browser: who owns what, who is alive, what waits and what is wrong, as it changes. Without --operate it changes nothing.

It has no login, so it listens on this machine alone. To see it from another one, forward its port: ssh -L 8080:127.0.0.1:8080 MACHINE. With --listen=:8080
everybody sees it who reaches this machine: put a proxy in front that asks who they are, or mount package dashboard in an application
that knows its users.

While it listens on this machine alone, or has names by --host, it answers who asks for these, for localhost, 127.0.0.1 or [::1], and refuses other names:
else a page of any site could have the browser take this server for that site's own. Give --host the name by which a proxy in front asks.

With --operate it prints a second address with a secret in it, which is new at each start. Whoever opens that address is an operator; all others only
look. If it listens to other machines, --operate is refused: mount package dashboard in an application that knows its users instead. What is changed is written with the name of --actor, and
needs the rights that pgleases grants ROLE --for=operator prints.

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
	operate := cmd.Flags().Bool("operate", false, "print a second address, for operators")
	actor := cmd.Flags().String("actor", "", "the operator, besides the role that connects (default: the user that runs this)")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		listener, err := net.Listen("tcp", *listen)
		if err != nil {
			return fmt.Errorf("cannot listen on %q: %w\nGive --listen an address of this machine and a port that is free, such as 127.0.0.1:8081", *listen, err)
		}
		defer listener.Close()
		isLocal := listener.Addr().(*net.TCPAddr).IP.IsLoopback()
		if *operate && !isLocal {
			return fmt.Errorf(
				"--operate with --listen=%q: other machines reach that, and the secret would go over the network as it is\nListen on this machine alone, as 127.0.0.1:8080",
				*listen,
			)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if _, err := a.Snapshot(ctx); err != nil {
				return err
			}
			options := dashboard.Options{Title: *title}
			if *operate {
				options.Authorize = authorize(*actor)
			}
			handler, err := dashboard.Handler(a, options)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "Open http://%s/\n", listener.Addr())
			if *operate {
				secret := rand.Text()
				handler = behind(secret, handler)
				fmt.Fprintf(cmd.OutOrStdout(), "To operate, open http://%s/%s/ and show that address to nobody\n", listener.Addr(), secret)
			}
			if isLocal || len(*hosts) > 0 {
				handler = onlyFor(*hosts, handler)
			}
			return serve(ctx, listener, handler)
		})
	}
	return cmd
}

// operatorKey is in the context of a request whose path has the secret. No cookie: the browser
// would send it to what else listens on this machine.
type operatorKey struct{}

// behind marks requests for paths that begin with the secret as those of an operator.
func behind(secret string, next http.Handler) http.Handler {
	secretly := http.StripPrefix("/"+secret, next)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		first, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
		if subtle.ConstantTimeCompare([]byte(first), []byte(secret)) == 1 {
			secretly.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), operatorKey{}, true)))
			return
		}
		next.ServeHTTP(w, r)
	})
}

// authorize lets everybody look. Whoever knows the secret is the operator actor; empty: the user
// that runs this.
func authorize(actor string) func(*http.Request) (dashboard.Access, string) {
	if who, err := user.Current(); err == nil && actor == "" {
		actor = who.Username
	}
	return func(r *http.Request) (dashboard.Access, string) {
		if r.Context().Value(operatorKey{}) == true {
			return dashboard.Operator, actor
		}
		return dashboard.ReadOnly, ""
	}
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
	ended := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(ended)
		ending, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if server.Shutdown(ending) != nil {
			_ = server.Close()
		}
	})
	err := server.Serve(listener)
	if !stop() {
		<-ended
	}
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return err
}

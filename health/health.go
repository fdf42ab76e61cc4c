// Package health serves the probes of a client over HTTP, for Kubernetes or a load balancer:
//
//	mux.Handle("/livez", health.Liveness(client))   // should this process be restarted?
//	mux.Handle("/readyz", health.Readiness(client)) // does it take part in its leases?
//
// Neither probe asks the database, and neither delays a handoff. An outage of the database makes a
// process unready, and does not restart it.
package health

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/locks"
)

// Liveness returns a handler that says whether the process should be restarted. It responds 503
// after the client has ended with pgleases.ErrSuperseded or pgleases.ErrEvicted, because such a
// client does not come back. Otherwise it responds 200, even during an outage of the database,
// which would restart every process. It also responds 200 while a client ends its work, and after
// Client.Close, because that process is about to exit.
func Liveness(client *pgleases.Client) http.Handler {
	return handler(client, func() error {
		if err := client.Err(); !errors.Is(err, pgleases.ErrClosed) {
			return err
		}
		return nil
	})
}

// Readiness returns a handler that says whether the client takes part in its leases. It responds
// 200 while the client may act as owner and is a member of each lease that it has to join, at least
// of one. Otherwise it responds 503 with the reason, which is that the client ends, that its trust
// is lost, or that a lease is not joined yet. A member is ready even if it owns no partition.
//
// A client that joins no lease, for example because it only has named locks, is never ready. Use
// Client.Stats for it.
func Readiness(client *pgleases.Client) http.Handler {
	return handler(client, func() error {
		switch s := bridge.Engine(client).Stats(); {
		case s.Ending != nil:
			return fmt.Errorf("the client ends: %w", s.Ending)
		case s.Validity.Left() > 0 && !s.Validity.Holds():
			return locks.ErrPaused
		case s.Validity.Remaining() <= 0:
			silent := time.Since(s.Sent).Round(10 * time.Millisecond)
			return fmt.Errorf("trust is lost: the last successful heartbeat was sent %v ago", silent)
		case s.Joining != "":
			return fmt.Errorf("lease %q is not joined yet", s.Joining)
		case s.Leases == 0:
			return errors.New("no lease is joined yet")
		}
		return nil
	})
}

var errNil = errors.New("the client is nil; pass the one that pgleases.NewClient has returned")

// handler responds with 503 and the text of an error, or with 200.
func handler(client *pgleases.Client, check func() error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		check := check
		if client == nil {
			check = func() error { return errNil }
		}
		w.Header().Set("Cache-Control", "no-store")
		if err := check(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "ok\n") // an error says that the prober has gone
	})
}

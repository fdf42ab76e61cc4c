//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// copies are ways to create several copies of one server and to use them one after the other.
// Server a exists at first.
var copies = []struct {
	name        string
	steps       []step
	notPromised bool // repeated epochs are logged, and are no failure
}{
	{"siblings", []step{
		serve("a"), standby("b", "a"), standby("c", "a"), misses("b"), misses("c"),
		serve("a"), serve("b"), serve("c"),
	}, false},
	{"siblings, seen by new clients", []step{
		serve("a"), standby("b", "a"), standby("c", "a"), misses("b"), misses("c"),
		serve("b"), restart, serve("c"),
	}, false},
	{"standby of a standby", []step{
		serve("a"), standby("b", "a"), standby("c", "b"), serve("b"), misses("c"), serve("b"), serve("c"),
	}, false},
	{"standby of an upgraded server", []step{
		serve("a"), standby("b", "a"), serve("b"), upgrade("c", "b"), standby("d", "c"), misses("d"),
		serve("c"), serve("d"),
	}, false},
	{"return to the old primary", []step{
		serve("a"), standby("b", "a"), misses("b"), serve("a"), serve("b"), serve("a"), serve("b"),
	}, false},
	{"return, seen by new clients", []step{
		serve("a"), standby("b", "a"), misses("b"), serve("b"), restart, newGeneration("a"), serve("a"),
	}, false},
	{"file copy", []step{serve("a"), fileCopy("b", "a"), serve("a"), newGeneration("b"), serve("b")}, false},
	{"file copy, not declared", []step{serve("a"), fileCopy("b", "a"), serve("a"), serve("b")}, true},
	{"restored dump", []step{serve("a"), dump("b", "a"), serve("a"), serve("b")}, false},
}

// Epochs rise over several copies of one server. The clients use one address, of the server that
// serves. On each server every partition moves more than once.
func TestEpochsRiseOverAllCopiesOfAServer(t *testing.T) {
	if brief() {
		t.Skip("has servers of its own, which need pg_upgrade and pg_dump")
	}
	t.Parallel()
	for _, c := range copies {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				p := newPlay(t)
				for _, step := range c.steps {
					step(p)
				}
				p.close()
				report := oracle.Check(p.logs)
				tally.Faults(t, map[string]int{"another server at the address": p.turn})
				if !c.notPromised {
					weighed(t, report)
				}
				t.Logf("%v; %d servers, %d turns, %d epochs noted", report, len(p.servers), p.turn, len(p.given))
				found := append(p.wrong, report.Violations...)
				text := fmt.Sprintf("%d times wrong: %s", len(found), strings.Join(found[:min(len(found), 20)], "\n"))
				switch {
				case len(found) == 0:
				case c.notPromised:
					t.Logf("not promised, and indeed %s", text)
				default:
					t.Error(text)
				}
			})
		})
	}
}

// A play is a set of clients that share a lease on one server after the other.
type play struct {
	t       testing.TB
	servers map[string]*pgserver.Server
	parents map[string]string // the server that a standby follows until it is promoted
	serving string            // the server at the address
	turn    int               // how often the server changed
	address atomic.Value      // the address that the clients use
	pool    *pgxpool.Pool
	clients []*pgleases.Client
	leases  []*pgleases.Lease
	oracle  func() []oracle.Log
	logs    []oracle.Log // of closed clients

	given  map[epochKey]giving
	newest map[partitionKey]int64
	wrong  []string
}

// A giving says when which client got an epoch.
type giving struct {
	client, server string
	turn           int
}

func (g giving) String() string {
	return fmt.Sprintf("%s on server %s in turn %d", g.client, g.server, g.turn)
}

func newPlay(t testing.TB) *play {
	p := &play{
		t: t, servers: map[string]*pgserver.Server{"a": pgserver.Private(t)}, serving: "a", turn: 1,
		parents: make(map[string]string), given: make(map[epochKey]giving), newest: make(map[partitionKey]int64),
	}
	p.pool = testkit.Pool(t, p.servers["a"].URL(), func(c *pgxpool.Config) {
		c.ConnConfig.DialFunc = func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, p.address.Load().(string))
		}
	})
	return p
}

// open opens the clients.
func (p *play) open() {
	leases := make(map[string]*pgleases.Lease)
	for i := range 3 {
		id, began := fmt.Sprintf("client-%d", i), time.Now()
		c, err := pgleases.NewClient(p.t.Context(), p.pool, pgleases.WithClientID(id),
			// Most changes of the server take less, so trust lasts.
			pgleases.WithTTL(2*time.Second),
			pgleases.WithHeartbeat(200*time.Millisecond), quietly(p.t))
		if err != nil {
			missed(p.t, began, patience, "%s was not opened: %v", id, err)
		}
		p.t.Cleanup(func() { _ = c.Close(canceled(nil)) }) // there may be no server
		p.clients = append(p.clients, c)
		p.leases = append(p.leases, joined(p.t, c, "orders", 4, pgleases.WithHandoffDelay(0)))
		leases[id] = p.leases[i]
	}
	p.oracle = watched(p.t, leases)
}

// close closes the clients, and keeps the oracle's logs.
func (p *play) close() {
	for _, c := range p.clients {
		began := time.Now()
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		if err := c.Close(ctx); err != nil {
			missed(p.t, began, patience, "%s was not closed: %v", c.ID(), err)
		}
		cancel()
	}
	p.logs = append(p.logs, p.oracle()...)
	p.clients, p.leases = nil, nil
}

// A step of a play.
type step func(*play)

// serve stops the current server, starts another one, promotes it if it is a standby, and lets the
// clients work there.
func serve(server string) step {
	return func(p *play) {
		if server != p.serving {
			p.do(p.servers[p.serving].Down(p.t.Context(), pgserver.Fast))
			p.turn++
		}
		p.do(p.servers[server].Up(p.t.Context()))
		if p.parents[server] != "" {
			p.do(p.servers[server].Promote(p.t.Context()))
			delete(p.parents, server)
		}
		p.serving = server
		host, port := address(p.t, p.servers[server].URL())
		p.address.Store(fmt.Sprintf("%s:%d", host, port))
		if p.clients == nil {
			p.open()
		}
		p.work()
	}
}

// restart closes the clients, so that the next server sees new clients with the same IDs.
func restart(p *play) { p.close() }

// standby creates a standby of a server or of another standby.
func standby(server, of string) step {
	return func(p *play) {
		p.add(server)(p.servers[of].Standby(p.t.Context()))
		p.parents[server] = of
	}
}

// misses stops replication to a standby from now on.
func misses(standby string) step {
	return func(p *play) {
		caughtUp(p.t, p.servers[p.parents[standby]], p.servers[standby])
		p.do(p.servers[standby].Down(p.t.Context(), pgserver.Fast))
	}
}

func fileCopy(server, of string) step {
	return func(p *play) {
		p.do(p.servers[of].Down(p.t.Context(), pgserver.Fast))
		p.add(server)(p.servers[of].Copy(p.t.Context()))
		p.do(p.servers[server].Down(p.t.Context(), pgserver.Fast))
	}
}

func upgrade(server, of string) step {
	return func(p *play) {
		p.do(p.servers[of].Down(p.t.Context(), pgserver.Fast))
		p.add(server)(p.servers[of].Upgrade(p.t.Context()))
	}
}

func dump(server, of string) step {
	return func(p *play) { p.add(server)(p.servers[of].Restored(p.t.Context(), "pgleases")) }
}

// newGeneration does what operators do with a copy.
func newGeneration(server string) step {
	return func(p *play) {
		p.do(p.servers[server].Up(p.t.Context()))
		conn := connection(p.t, p.servers[server].URL())
		_, err := conn.Exec(p.t.Context(), "SELECT pgleases.new_server_generation()")
		p.do(err)
	}
}

func (p *play) do(err error) {
	p.t.Helper()
	testkit.OK(p.t, err)
}

// add registers a server that was created.
func (p *play) add(name string) func(*pgserver.Server, error) {
	return func(s *pgserver.Server, err error) {
		p.t.Helper()
		p.do(err)
		p.servers[name] = s
		p.t.Cleanup(func() {
			if p.t.Failed() {
				p.t.Logf("server %s: %s, the end of its log:\n%s", name, s.Describe(), s.Log())
			}
			if err := s.Stop(); err != nil {
				p.t.Error(err)
			}
		})
	}
}

// work gives all partitions to each client in turn, in random order, and then shares them. So every
// partition has had another owner on this server, which gives partitions only once it is accepted.
// Then guards of all earlier turns are refused.
func (p *play) work() {
	p.t.Helper()
	for _, one := range append(rand.Perm(len(p.leases)), -1) {
		ctx, cancel := context.WithTimeout(p.t.Context(), patience)
		for i, l := range p.leases {
			began, weight := time.Now(), 1
			if one >= 0 && one != i {
				weight = 0
			}
			if err := l.SetWeight(ctx, weight); err != nil {
				missed(p.t, began, patience, "turn %d: %v", p.turn, err)
			}
		}
		cancel()
		of := p.leases
		if one >= 0 {
			of = p.leases[one : one+1]
		}
		what := fmt.Sprintf("turn %d: %d clients own everything", p.turn, len(of))
		until(p.t, what, func() bool { return shared(of...) }, p.leases...)
		p.note()
	}
	waitFor(p.t, patience, "guards of what is owned pass", func() bool {
		return !slices.ContainsFunc(p.leases, func(l *pgleases.Lease) bool {
			return slices.ContainsFunc(l.Values(), func(n int) bool {
				q, _ := l.Partition(n)
				return p.guard(l, q) != nil
			})
		})
	})
	for k, g := range p.given {
		if g.turn < p.turn {
			for _, l := range p.leases {
				if p.guard(l, pgleases.Partition{Number: k.partition, Epoch: k.epoch}) == nil {
					p.wrong = append(p.wrong, fmt.Sprintf("guard passes on server %s in turn %d: %d@%d, of %v",
						p.serving, p.turn, k.partition, k.epoch, g))
				}
			}
		}
	}
}

// note records what the clients own. A new epoch must be higher than all earlier ones.
func (p *play) note() {
	for i, l := range p.leases {
		for _, n := range l.Values() {
			q, ok := l.Partition(n)
			if !ok {
				continue
			}
			k := partitionKey{l.Name(), n}
			now := giving{p.clients[i].ID(), p.serving, p.turn}
			before, known := p.given[epochKey{k, q.Epoch}]
			switch {
			case known && before != now:
				p.wrong = append(p.wrong, fmt.Sprintf("epoch repeats: %d@%d of %v, then of %v",
					n, q.Epoch, before, now))
			case !known && q.Epoch <= p.newest[k]:
				p.wrong = append(p.wrong, fmt.Sprintf("epoch falls: %d@%d of %v, after one of %d",
					n, q.Epoch, now, p.newest[k]))
			}
			p.given[epochKey{k, q.Epoch}] = now
			p.newest[k] = max(p.newest[k], q.Epoch)
		}
	}
}

// guard returns nil if Guard passes, or ErrNotOwner if the epoch has ended. It retries after other
// errors.
func (p *play) guard(l *pgleases.Lease, q pgleases.Partition) error {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(p.t.Context(), patience)
	defer cancel()
	var err error
	waitFor(p.t, patience, "an answer of Guard", func() bool {
		err = pgx.BeginFunc(ctx, p.pool, func(tx pgx.Tx) error { return l.Guard(ctx, tx, q) })
		return err == nil || errors.Is(err, pgleases.ErrNotOwner) && !errors.Is(err, pgleases.ErrTrustLost)
	})
	return err
}

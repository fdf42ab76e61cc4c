//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// A shard is what a process has on one of the servers, as in example_databases_test.go.
type shard struct {
	pool  *pgxpool.Pool
	lease *pgleases.Lease
}

// ship ships the orders of a customer, if this process owns the customer's partition.
func (s shard) ship(ctx context.Context, customer string) (shipped int64, err error) {
	hold := s.lease.Hold(ctx)
	defer hold.Release()
	p, owned := hold.Partition(s.lease.PartitionFor(customer))
	if !owned {
		return 0, pgleases.ErrNotOwner
	}
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := s.lease.Guard(ctx, tx, p); err != nil {
			return err
		}
		tag, err := tx.Exec(ctx, "UPDATE orders SET shipped = true WHERE customer = $1 AND NOT shipped", customer)
		shipped = tag.RowsAffected()
		return err
	})
	return shipped, err
}

// shards are two processes that have a client on each of two servers.
type shards struct {
	servers   []*pgserver.Server
	pools     []*pgxpool.Pool // one for each server
	processes [2][]shard      // of each process, its shards in the order of the servers
}

const partitionsOfShard = 32

func newShards(t *timeguard.Try, ttl time.Duration) *shards {
	s := &shards{servers: []*pgserver.Server{pgserver.Private(t), pgserver.Private(t)}}
	for _, server := range s.servers {
		pool := testkit.Pool(t, server.URL())
		testkit.Execute(t, pool, "CREATE TABLE orders (customer text, shipped bool NOT NULL DEFAULT false)")
		s.pools = append(s.pools, pool)
	}
	for i := range s.processes {
		for _, pool := range s.pools {
			c := newClient(t, pool, pgleases.WithClientID(fmt.Sprint("process-", i)), pgleases.WithTTL(ttl))
			s.processes[i] = append(s.processes[i], shard{pool, joined(t, c, "orders", partitionsOfShard)})
		}
	}
	return s
}

// own waits until each process owns a number of partitions on a server.
func (s *shards) own(t *timeguard.Try, server, partitions int) {
	t.Helper()
	for i, p := range s.processes {
		lease := p[server].lease
		until(t, fmt.Sprintf("process %d owns %d on server %d", i, partitions, server), func() bool {
			return len(lease.Values()) == partitions
		}, lease)
	}
}

// work makes an order for each customer of a server, and lets both processes ship what they own.
func (s *shards) work(t *timeguard.Try, server int) {
	t.Helper()
	for i := range 100 {
		customer := fmt.Sprint("customer-", i)
		if shardFor(customer, len(s.servers)) != server {
			continue
		}
		testkit.Execute(t, s.pools[server], "INSERT INTO orders (customer) VALUES ($1)", customer)
		var shipped int64
		for _, p := range s.processes {
			n, err := p[server].ship(t.Context(), customer)
			if err != nil && !errors.Is(err, pgleases.ErrNotOwner) {
				t.Errorf("%s: %v", customer, err)
			}
			shipped += n
		}
		if shipped != 1 {
			t.Errorf("of one order of %s, %d were shipped", customer, shipped)
		}
	}
}

// shardFor returns the number of the server that has a customer. It does not use the hash of
// PartitionFor.
func shardFor(customer string, servers int) int {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(customer)) // it never fails
	return int(hash.Sum64() % uint64(servers))
}

// docs/sizing.md says that leases over several databases know nothing of each other. Here each
// database has a server of its own. When one of the servers ends, its partitions have no owner after
// a TTL. Those of the other server keep their owners, which work.
func TestShardsOnTwoServersFailAlone(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		const ttl, share = 3 * time.Second, partitionsOfShard / 2
		s := newShards(t, ttl)
		for server := range s.servers {
			s.own(t, server, share)
			s.work(t, server)
		}
		began := time.Now()
		var changes []<-chan struct{} // of what the processes own on the other server
		for _, p := range s.processes {
			changes = append(changes, p[1].lease.Changed())
		}
		tally.Fault(t, "immediate shutdown")
		testkit.OK(t, s.servers[0].Down(t.Context(), pgserver.Immediate))
		s.own(t, 0, 0)
		s.work(t, 1)
		for i, changed := range changes {
			select {
			case <-changed:
				missed(t, began, ttl/2, "process %d owns something else on the other server", i)
			default:
			}
		}
		testkit.OK(t, s.servers[0].Up(t.Context()))
		s.own(t, 0, share)
		s.work(t, 0)
	})
}

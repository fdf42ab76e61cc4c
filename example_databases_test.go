package pgleases_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// A shard is one of the databases, each of which may have a server of its own.
type shard struct {
	pool   *pgxpool.Pool
	client *pgleases.Client
	lease  *pgleases.Lease
}

// openShard joins the lease in one database.
func openShard(ctx context.Context, url string) (*shard, error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, err
	}
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		pool.Close()
		return nil, err
	}
	lease, err := client.Lease(ctx, "orders", 128)
	if err != nil {
		_ = client.Close(ctx)
		pool.Close()
		return nil, err
	}
	return &shard{pool, client, lease}, nil
}

// shardFor returns the number of the shard that has a customer. It does not use the hash of
// PartitionFor: otherwise a shard would have no customer in most of its partitions.
func shardFor(customer string, shards int) int {
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(customer)) // it never fails
	return int(hash.Sum64() % uint64(shards))
}

// ship ships the orders of a customer, if this process owns the customer's partition in its shard.
func (s *shard) ship(ctx context.Context, customer string) (shipped int64, err error) {
	hold := s.lease.Hold(ctx) // the partition stays here until Release
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

// A fleet that is too large for one PostgreSQL has its data and its leases in several databases. Each
// process has a client in each of them. A key maps first to a database, and then to a partition of
// the lease there.
func Example_databases() {
	ctx := context.Background()
	var shards []*shard
	for _, url := range []string{exampleURL(), exampleURL()} { // databases, each of which may have its own server
		s, err := openShard(ctx, url)
		if err != nil {
			log.Fatal(err)
		}
		defer s.pool.Close()
		defer func() { _ = s.client.Close(ctx) }()
		shards = append(shards, s)
	}
	for _, s := range shards {
		for changed := s.lease.Changed(); len(s.lease.Values()) < 128; changed = s.lease.Changed() {
			<-changed // a real process does not wait for all partitions
		}
	}
	for _, customer := range []string{"customer-1", "customer-2", "customer-3"} {
		n := shardFor(customer, len(shards))
		partition := shards[n].lease.PartitionFor(customer)
		shipped, err := shards[n].ship(ctx, customer)
		fmt.Println(customer, "in shard", n, "partition", partition, "shipped:", shipped, err)
	}
	// Output:
	// customer-1 in shard 1 partition 71 shipped: 1 <nil>
	// customer-2 in shard 0 partition 80 shipped: 1 <nil>
	// customer-3 in shard 1 partition 45 shipped: 1 <nil>
}

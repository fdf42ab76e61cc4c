package pgleases

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"time"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// An Owner is the client that owns a partition, as the database had it at AsOf or later. The
// partition may have moved since, so an owner is a hint where to send a request. The owner itself
// decides with Values, Hold or Guard whether it still owns the partition. It may also need some
// milliseconds to find out that it owns the partition.
type Owner struct {
	ID       string            // of the client
	Epoch    int64             // of its ownership
	Metadata map[string]string // see WithMetadata; shared, so do not write to it
	AsOf     time.Time         // when the database was asked about it, on this process's clock
}

// Owner returns the owner of a partition of any lease of the schema, and whether a client owns the
// partition. A client that has crashed counts as owner until its TTL has passed. The client need
// not have joined the lease. A process that only asks closes its client too: otherwise another
// client evicts its session after the TTL, and logs that.
//
// Owner costs one round trip on the client's connection. Calls that wait at the same time share one
// statement. Owner returns an error if there is no such partition, if the statement failed, if the
// client has ended, or if ctx ends first. Without a connection it waits until ctx ends.
func (c *Client) Owner(ctx context.Context, lease string, partition int) (Owner, bool, error) {
	owner, owned, err := c.owner(ctx, lease, partition)
	if err != nil {
		return Owner{}, false, wrap.Errorf("pgleases: owner of partition %d of lease %q: %w", partition, lease, err)
	}
	return owner, owned, nil
}

func (c *Client) owner(ctx context.Context, lease string, partition int) (owner Owner, owned bool, err error) {
	if err := store.CheckName("lease name", lease); err != nil {
		return owner, false, err
	}
	if partition < 0 || partition >= engine.MaxPartitions {
		return owner, false, fmt.Errorf("it is out of range: 0 to %d", engine.MaxPartitions-1)
	}
	read, err := c.engine.Owners(ctx, store.Span{Lease: lease, First: partition, Last: partition})
	switch {
	case err != nil:
		return owner, false, err
	case read.Partitions == 0:
		return owner, false, errors.New("there is no such lease")
	case partition >= read.Partitions:
		return owner, false, fmt.Errorf("it is out of range: 0 to %d", read.Partitions-1)
	}
	owners, err := ownersOf(read)
	owner, owned = owners[partition]
	return owner, owned, err
}

// Owner is Client.Owner for a partition of this lease.
func (l *Lease) Owner(ctx context.Context, partition int) (Owner, bool, error) {
	return l.client.Owner(ctx, l.engine.Name, partition)
}

// OwnerOf is Owner for the partition of a key.
func (l *Lease) OwnerOf(ctx context.Context, key string) (Owner, bool, error) {
	return l.Owner(ctx, l.PartitionFor(key))
}

// Owners returns the owners of all partitions, by partition. A partition without an owner is
// missing. The map is shared, so do not write to it.
//
// Owners keeps what it read, so most calls cost nanoseconds. It asks the database for changes if the
// client has heard of a change of the lease since, or if the answer is older than the client's TTL.
// If heartbeats succeed and each partition has an owner, it may be ten times as old. The client
// hears of its own gains and losses at once, and of changes among others at its next heartbeat. So
// after a change the map may be old for up to a heartbeat. It may be old for the TTL if heartbeats
// fail, and after the end of the lease. It may be old for ten times the TTL in its epochs after a
// failover or after a handoff that was called off, and in clients that have crashed and could not
// be evicted yet. For the present owner call Owner. The errors are those of Client.Owner.
//
// After changes among others, Owners waits before it reads a lease again, so that look-ups of many
// members leave the server time for their heartbeats. For a lease of 1,000 partitions or more, the
// wait is 20 times as long as the last read took. For a smaller one it is shorter. An owner whose
// heartbeat was late at the last read of the whole lease may be missing for two TTLs, or for that
// wait and one TTL if this is longer.
func (l *Lease) Owners(ctx context.Context) (map[int]Owner, error) {
	shown, heard := l.board.Look(), l.engine.News()
	began := time.Now()
	known := l.owners.Load()
	if known.serves(l, shown, heard, began) {
		return known.owners, nil
	}
	read, err := l.engine.Owners(ctx, known.since(l, began))
	if err == nil {
		l.reading.Lock() // calls that shared one statement share its map, which is large
		defer l.reading.Unlock()
		latest := l.owners.Load()
		if latest != nil && !latest.asOf.Before(read.AsOf) {
			return latest.owners, nil
		}
		var owners map[int]Owner
		owners, err = ownersOf(read)
		if err == nil {
			pause := time.Since(began) * time.Duration(min(l.engine.Partitions/50, 20))
			next := cachedOwners{
				owners: owners, asOf: read.AsOf, wholeAsOf: read.AsOf,
				late: max(pause, l.client.options.TTL), pause: pause,
				generation: read.Generation, at: read.At, heard: heard, shown: shown,
			}
			if !read.Covers(l.engine.Partitions - 1) {
				next.owners = known.with(owners, read)
				next.wholeAsOf, next.late = known.wholeAsOf, known.late
			}
			l.owners.Store(&next)
			return next.owners, nil
		}
	}
	return nil, wrap.Errorf("pgleases: owners of lease %q: %w", l.engine.Name, err)
}

// cachedOwners are valid until the client hears of a change. After that, only the changes are read.
// A late owner is no change for the database, so all is read from time to time.
type cachedOwners struct {
	owners     map[int]Owner
	asOf       time.Time
	wholeAsOf  time.Time       // when all was read
	late       time.Duration   // after that, all is read again if owners are missing
	pause      time.Duration   // before the next read: many members that read much keep a server busy
	generation int64           // of the lease, in the same snapshot as the owners
	at         store.Point     // that snapshot
	heard      *engine.News    // what this client had heard before
	shown      *owned.Snapshot // what this client showed before
}

// serves reports whether the owners are returned without a read.
func (c *cachedOwners) serves(l *Lease, shown *owned.Snapshot, heard *engine.News, now time.Time) bool {
	ttl := l.client.options.TTL
	if c == nil || c.shown != shown || now.Sub(c.wholeAsOf) >= 10*ttl {
		return false
	}
	age, current := now.Sub(c.asOf), c.covers(heard)
	if age < ttl && (age < c.pause || current) {
		return true
	}
	// Heartbeats of the last TTL have found no change. A late owner may be missing, and its next
	// heartbeat is no change.
	return current && len(c.owners) == l.engine.Partitions && shown.Validity.Holds()
}

// since returns the point after the last answer, so that only changes are read. It is zero to read
// all.
func (c *cachedOwners) since(l *Lease, now time.Time) store.Point {
	if c == nil {
		return store.Point{}
	}
	age := now.Sub(c.wholeAsOf)
	if age >= 10*l.client.options.TTL || age >= c.late && len(c.owners) < l.engine.Partitions {
		return store.Point{}
	}
	return c.at
}

// covers reports whether the owners are as of these news or later. Generations are not ordered:
// they fall if a failover lost changes.
func (c *cachedOwners) covers(news *engine.News) bool {
	return c.heard == news || c.heard.Server == news.Server && c.generation == news.Generation
}

// with returns the owners after a read of what has changed.
func (c *cachedOwners) with(changed map[int]Owner, read engine.Owners) map[int]Owner {
	if len(read.Firsts) == 0 {
		return c.owners
	}
	owners := maps.Clone(c.owners)
	for i, first := range read.Firsts {
		for partition := int(first); partition <= int(read.Lasts[i]); partition++ {
			delete(owners, partition)
		}
	}
	maps.Copy(owners, changed)
	return owners
}

// ownersOf returns owners by partition.
func ownersOf(read engine.Owners) (map[int]Owner, error) {
	n := 0
	for _, o := range read.Owners.Owners {
		n += len(o.Partitions)
	}
	owners := make(map[int]Owner, n)
	for _, o := range read.Owners.Owners {
		var metadata map[string]string
		if err := json.Unmarshal([]byte(o.Metadata), &metadata); err != nil {
			return nil, fmt.Errorf("metadata of client %q: %w", o.ID, err)
		}
		for i, partition := range o.Partitions {
			owners[int(partition)] = Owner{o.ID, o.Epochs[i], metadata, read.AsOf}
		}
	}
	return owners, nil
}

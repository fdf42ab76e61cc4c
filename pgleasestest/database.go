package pgleasestest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// A database has as much in memory as one client needs of it. Nobody plans there: a test decides what the client owns.
type database struct {
	lease string

	mu         sync.Mutex // guards the rest
	conn       *conn      // the newest
	session    int64      // of the client; 0: it expired
	weights    map[string]int
	generation int64 // of all leases
	epoch      int64 // the highest that was given
	owned      map[int]owned
	noted      map[int]pgleases.Partition // ownerships that may still go on
}

// owned is a partition that the client owns.
type owned struct {
	epoch  int64
	moving bool // it is asked for
}

func newDatabase(lease string) *database {
	return &database{
		lease: lease, generation: 1, weights: make(map[string]int),
		epoch: 1 << 32, // as after a failover: beyond what an int32 holds
		owned: make(map[int]owned), noted: make(map[int]pgleases.Partition),
	}
}

// give has the client own partitions.
func (db *database) give(partitions []int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, number := range partitions {
		o, known := db.owned[number]
		if !known {
			o.epoch = db.nextEpoch()
		}
		o.moving = false // where it was asked for, it returns with its release
		db.owned[number] = o
	}
	db.changed()
}

// ask asks for partitions, and returns the ownerships of them that go on.
func (db *database) ask(partitions []int) []pgleases.Partition {
	db.mu.Lock()
	defer db.mu.Unlock()
	var ownerships []pgleases.Partition
	for _, number := range partitions {
		if o, known := db.owned[number]; known {
			o.moving = true
			db.owned[number] = o
		}
		if p, noted := db.noted[number]; noted && p.Context().Err() == nil {
			ownerships = append(ownerships, p)
		}
	}
	db.changed()
	return ownerships
}

// expire ends the session, as if it had been evicted while the connection was cut, and returns the ownerships that end
// with it.
func (db *database) expire() []pgleases.Partition {
	db.mu.Lock()
	defer db.mu.Unlock()
	var ownerships []pgleases.Partition
	for _, p := range db.noted {
		ownerships = append(ownerships, p)
	}
	db.session = 0
	clear(db.weights)
	clear(db.owned)
	clear(db.noted)
	db.conn.Close()
	return ownerships
}

// note remembers ownerships, to wait for their end.
func (db *database) note(ownerships []pgleases.Partition) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, p := range ownerships {
		db.noted[p.Number] = p
	}
}

func (db *database) nextEpoch() int64 {
	db.epoch++
	return db.epoch
}

// changed has the client read what it owns.
func (db *database) changed() {
	db.generation++
	select {
	case db.conn.notes <- struct{}{}:
	default: // it will read anyway
	}
}

// Connect implements seam.Database.
func (db *database) Connect(context.Context) (any, error) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.conn = &conn{db: db, notes: make(chan struct{}, 1), dead: make(chan struct{})}
	return db.conn, nil
}

// Guard implements seam.Database.
func (db *database) Guard(ctx context.Context, lease string, partition int, epoch int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if o, known := db.owned[partition]; lease != db.lease || !known || o.epoch != epoch {
		return pgleases.ErrNotOwner
	}
	return nil
}

// A conn is a connection to a database. Statements that a client sends only where it has company, or where a server was
// replaced, are those of the embedded nil: nobody calls them here.
type conn struct {
	*store.Conn

	db    *database
	notes chan struct{} // of capacity one
	dead  chan struct{} // closed with the connection
	once  sync.Once
}

var errCut = errors.New("pgleasestest: the connection was cut")

// call runs a statement, unless the connection is cut.
func (c *conn) call(ctx context.Context, statement func(db *database)) error {
	switch {
	case c.Closed():
		return errCut
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	statement(c.db)
	return nil
}

func (c *conn) Register(ctx context.Context, r store.Registration) (int64, *store.Process, error) {
	return 1, nil, c.call(ctx, func(db *database) { db.session = r.Session })
}

func (c *conn) Heartbeat(ctx context.Context, session int64) (beat store.Beat, err error) {
	err = c.call(ctx, func(db *database) {
		beat = store.Beat{
			Alive: session == db.session, Clock: time.Now().UnixMicro(), Run: store.Run{Timeline: 1, Started: 1, Mark: 1}, Settled: 1,
			Incarnation: 1, CheckDueIn: ttl,
		}
		for name, weight := range db.weights {
			beat.Leases = append(beat.Leases, store.LeaseBeat{Name: name, Generation: db.generation, DueIn: -1, Weight: weight})
		}
	})
	return beat, err
}

func (c *conn) Join(ctx context.Context, session int64, lease string, partitions, weight int) (join store.Join, err error) {
	err = c.call(ctx, func(db *database) {
		join = store.Join{Alive: session == db.session, Joined: session == db.session, Partitions: partitions}
		if join.Joined {
			db.weights[lease] = weight
		}
	})
	return join, err
}

func (c *conn) SetWeight(ctx context.Context, _ int64, lease string, weight int) (member bool, err error) {
	err = c.call(ctx, func(db *database) {
		if _, member = db.weights[lease]; member {
			db.weights[lease] = weight
		}
	})
	return member, err
}

func (c *conn) Read(ctx context.Context, session int64, leases []string) (reads []store.LeaseRead, err error) {
	err = c.call(ctx, func(db *database) {
		for _, name := range leases {
			read := store.LeaseRead{Name: name, Generation: db.generation, Timeline: 1, Settled: 1}
			if name == db.lease && session == db.session {
				for number, o := range db.owned {
					read.Owned = append(read.Owned, store.Owned{Partition: number, Epoch: o.epoch, Moving: o.moving})
				}
			}
			reads = append(reads, read)
		}
	})
	return reads, err
}

// Release takes partitions back. One that is not asked for, or no more, stays with the client under a new epoch.
func (c *conn) Release(ctx context.Context, session int64, releases []store.Release, leaving []string) (answer store.Released, err error) {
	err = c.call(ctx, func(db *database) {
		for _, r := range releases {
			o, known := db.owned[r.Partition]
			if !known || o.epoch != r.Epoch || session != db.session {
				continue
			}
			handed := store.Handed{Lease: r.Lease, Partition: r.Partition, Epoch: db.nextEpoch()}
			if o.moving || slices.Contains(leaving, r.Lease) {
				delete(db.owned, r.Partition)
			} else {
				handed.Owner = session
				db.owned[r.Partition] = owned{epoch: handed.Epoch}
			}
			answer.Released = append(answer.Released, handed)
		}
		for _, name := range leaving {
			if name != db.lease || len(db.owned) == 0 {
				delete(db.weights, name)
				answer.Left = append(answer.Left, name)
			}
		}
	})
	return answer, err
}

// Claim finds that there is nothing to plan.
func (c *conn) Claim(context.Context, []string) ([]string, error) { return nil, nil }

func (c *conn) End(ctx context.Context, _ int64) (bool, error) {
	return true, c.call(ctx, func(db *database) { db.session = 0 })
}

func (c *conn) Listen(ctx context.Context, _ int64) (bool, error) {
	return true, c.call(ctx, func(*database) {})
}

// Wait waits for a change of what is owned.
func (c *conn) Wait(ctx context.Context, _ int64) (bool, error) {
	select {
	case <-c.notes:
		return true, nil
	case <-c.dead:
		return false, errCut
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

func (c *conn) Closed() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

func (c *conn) Close() { c.once.Do(func() { close(c.dead) }) }

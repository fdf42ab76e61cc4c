package pgleasestest

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/store"
)

// A database has the client's sessions. It makes no plans: a test decides what the client owns of
// the lease.
type database struct {
	*fakestore.Database
	lease string

	mu       sync.Mutex                 // guards the rest
	conn     *conn                      // the newest connection
	session  int64                      // the session that joined the lease last
	pending  map[int]bool               // partitions that the client gets when it joins
	noted    map[int]pgleases.Partition // ownerships that may still go on
	expiries int                        // calls of expire
	// closed when the client registers after the last expire, if it has not done so yet
	renewed chan struct{}
}

func newDatabase(lease string) *database {
	db := &database{
		Database: fakestore.New(), lease: lease,
		pending: make(map[int]bool), noted: make(map[int]pgleases.Partition),
	}
	// As after a failover: epochs beyond what an int32 holds.
	db.Edit(func(t *fakestore.Tables, _ int64) { t.Server.Generation = 1 })
	return db
}

// give gives partitions to the client: free ones at once, and ones that it was asked for after it
// has released them. It returns a number for expiredSince.
func (db *database) give(partitions []int) (expiries int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.decide(func(t *fakestore.Tables, rows []fakestore.Partition) {
		_, member := t.Members[fakestore.Member{Lease: db.lease, Session: db.session}]
		for _, number := range partitions {
			if !member {
				db.pending[number] = true
				continue
			}
			row := &rows[number]
			row.Target = db.session
			if row.Owner != db.session {
				row.Owner, row.OwnerID = db.session, t.Clients[db.session].ID
				row.Epoch = max(row.Epoch+1, t.Server.Generation<<32)
			}
		}
	})
	return db.expiries
}

// expiredSince reports whether the session has expired since a call of give.
func (db *database) expiredSince(expiries int) bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.expiries != expiries
}

// ask asks for partitions, and returns the ownerships of them that go on.
func (db *database) ask(partitions []int) []pgleases.Partition {
	db.mu.Lock()
	defer db.mu.Unlock()
	var ownerships []pgleases.Partition
	db.decide(func(_ *fakestore.Tables, rows []fakestore.Partition) {
		for _, number := range partitions {
			rows[number].Target = 0
			delete(db.pending, number)
			p, noted := db.noted[number]
			if noted && p.Context().Err() == nil {
				ownerships = append(ownerships, p)
			}
		}
	})
	return ownerships
}

// decide changes the lease's partitions, and notifies the client.
func (db *database) decide(change func(t *fakestore.Tables, rows []fakestore.Partition)) {
	db.Edit(func(t *fakestore.Tables, _ int64) {
		change(t, t.Partitions[db.lease])
		l := t.Leases[db.lease]
		l.Generation++
		t.Leases[db.lease] = l
	})
	db.Notify(db.session)
}

// expire ends the session, as if it had been evicted while the connection was cut. It returns the
// ownerships that end with it, and a channel that is closed when the client registers again: by
// then the client knows of the end.
func (db *database) expire() ([]pgleases.Partition, <-chan struct{}) {
	db.mu.Lock()
	defer db.mu.Unlock()
	ownerships := slices.Collect(maps.Values(db.noted))
	db.expiries++
	clear(db.noted)
	clear(db.pending)
	db.Edit(func(t *fakestore.Tables, _ int64) {
		clear(t.Clients)
		clear(t.Members)
	})
	db.conn.Close()
	if db.renewed == nil {
		db.renewed = make(chan struct{})
	}
	return ownerships, db.renewed
}

// note remembers ownerships, to wait for their end.
func (db *database) note(ownerships []pgleases.Partition) {
	db.mu.Lock()
	defer db.mu.Unlock()
	for _, p := range ownerships {
		db.noted[p.Number] = p
	}
}

// connect opens a connection.
func (db *database) connect(context.Context) (engine.Conn, error) {
	c, err := db.Connect()
	if err != nil {
		return nil, err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.conn = &conn{c, db}
	return db.conn, nil
}

// guard stands in for the SQL function guard.
func (db *database) guard(ctx context.Context, lease string, partition int, epoch int64) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	end, passed := db.Guard(lease, partition, epoch)
	if !passed {
		return pgleases.ErrNotOwner
	}
	end()
	return nil
}

// A conn is a connection of the client.
type conn struct {
	*fakestore.Conn
	db *database
}

// Register begins a session.
func (c *conn) Register(ctx context.Context, r store.Registration) (int64, *store.Process, error) {
	incarnation, newer, err := c.Conn.Register(ctx, r)
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	if err == nil && c.db.renewed != nil {
		close(c.db.renewed)
		c.db.renewed = nil
	}
	return incarnation, newer, err
}

// Join joins a lease, and gives the partitions that waited for the join.
func (c *conn) Join(
	ctx context.Context, session int64, lease string, partitions int, terms store.Terms, number int64,
) (store.Join, error) {
	join, err := c.Conn.Join(ctx, session, lease, partitions, terms, number)
	join.Claimed = false // there is no plan to make
	if join.Joined && lease == c.db.lease {
		c.db.mu.Lock()
		c.db.session = session
		waiting := slices.Collect(maps.Keys(c.db.pending))
		clear(c.db.pending)
		c.db.mu.Unlock()
		c.db.give(waiting)
	}
	return join, err
}

// Claim finds no lease to plan.
func (*conn) Claim(context.Context, []string) ([]string, error) { return nil, nil }

package engine

import (
	"context"
	"log/slog"
	"time"

	"github.com/pgleases/pgleases/internal/locks"
	"github.com/pgleases/pgleases/internal/store"
)

// Limits of a client.
const (
	MinTTL        = time.Second
	MaxTTL        = 10 * time.Minute
	MaxPartitions = 65536
)

// A Config configures a client.
type Config struct {
	ClientID     string
	Host         string
	Metadata     string // JSON
	TTL          time.Duration
	Heartbeat    time.Duration
	Polling      bool // never listen for notifications
	FastFailover bool
	NoSamples    bool // never write samples
	Schema       string
	Log          *slog.Logger
	Errors       Errors
	Double       *Double // replaces the server, if there is none

	// Connect opens a connection to the database.
	Connect func(context.Context) (Conn, error)
	// Plan returns the moves of a plan of what was read. Any goroutine calls it.
	Plan func([]store.LeaseSnapshot) []store.Move
}

// Errors are the errors of the root package, which declares and documents them.
type Errors struct {
	Closed, Superseded, Evicted, NotOwner, PartitionCount error
	LeaseReplaced                                         error
	Handoff, TrustLost, DrainTimeout                      error
}

// A Double replaces a server, in tests of applications.
type Double struct {
	// Connect opens a connection.
	Connect func(context.Context) (Conn, error)
	// Guard replaces the SQL function guard. It returns nil if the partition is owned under the
	// epoch.
	Guard func(ctx context.Context, lease string, partition int, epoch int64) error
	// Locks is where package lock acquires locks.
	Locks locks.Table
	// Turn waits until the client's goroutine has finished its current step, or has ended. Start
	// sets it.
	Turn func()
}

// LeaseOptions are the options of a client's part in a lease.
type LeaseOptions struct {
	Weight         int
	HandoffDelay   time.Duration
	DrainTimeout   time.Duration
	RebalanceDelay time.Duration
	MaxPartitions  int // 0: there is no ceiling
	RestartGrace   time.Duration
}

// terms returns what the database knows of the options.
func (o LeaseOptions) terms(weight int) store.Terms {
	return store.Terms{
		Weight: weight, RebalanceDelay: o.RebalanceDelay, MaxPartitions: o.MaxPartitions, RestartGrace: o.RestartGrace,
	}
}

// margin returns how much earlier a client stops trusting itself than it may be evicted. Its trust
// runs on its own clock, the eviction on the clocks of another client and of the database, and no
// two clocks run at exactly the same rate. A watch accepts readings that differ by up to half of the
// margin, see newWatch.
func margin(ttl time.Duration) time.Duration { return max(ttl/20, 100*time.Millisecond) }

// trusts returns how long a client trusts itself after it sent a heartbeat.
func (c *Config) trusts() time.Duration { return c.TTL - margin(c.TTL) }

// limit bounds a statement other than a heartbeat, so that the next heartbeats are still sent in
// time.
func (c *Config) limit() time.Duration { return min(c.TTL/2, (c.trusts()-c.Heartbeat)*3/4) }

// A Conn has the methods of a connection that a client uses; *store.Conn is one. One goroutine at a
// time calls its methods.
type Conn interface {
	Register(context.Context, store.Registration) (int64, *store.Process, error)
	Superseder(ctx context.Context, id string) (*store.Process, error)
	Heartbeat(ctx context.Context, session int64, watched time.Duration, last store.Renewal) (store.Beat, error)
	Report(ctx context.Context, session int64, r store.Report) error
	SetMarker(ctx context.Context, marker int64) error
	AcceptServer(ctx context.Context, watched time.Duration, run store.Incarnation, generation int64) (int64, error)
	RejectServer(ctx context.Context, timeline, generation int64) error
	End(ctx context.Context, session int64) (bool, error)

	Join(
		ctx context.Context, session int64, lease string, partitions int, terms store.Terms, number int64,
	) (store.Join, error)
	Read(ctx context.Context, session int64, leases []string) ([]store.LeaseRead, error)
	Release(
		ctx context.Context, session int64, releases []store.Release, leaving []store.Leave, lastJoin int64,
	) (store.Released, error)
	Announce(ctx context.Context, leases []string, sessions []int64) error
	Owners(ctx context.Context, spans []store.Span) (map[store.Span]store.Owners, error)
	Fence(ctx context.Context, session int64, busy []store.Release) error

	Evict(ctx context.Context, cutoff int64, watched, ttl time.Duration, run store.Incarnation) (store.Evicted, error)
	Tidy(ctx context.Context) (toPlan []string, err error)
	Sample(ctx context.Context, limit time.Duration) (store.Sampled, error)
	Claim(ctx context.Context, leases []string) ([]string, error)
	Snapshot(ctx context.Context, leases []string, alone bool) ([]store.LeaseSnapshot, error)
	Apply(
		ctx context.Context, read []store.LeaseSnapshot, moves []store.Move, next store.NextPlan,
	) (store.Applied, error)

	LookAtLocks(
		ctx context.Context, session int64, nonces []int64, everything bool,
	) ([]store.FoundLock, store.Incarnation, error)
	ReleaseLocks(
		ctx context.Context, session int64, releases []store.LockRelease, run store.Incarnation,
	) (store.LocksReleased, error)
	SweepLocks(ctx context.Context) (bool, error)
	ListenToLocks(ctx context.Context, session int64) error
	GrantedLocks() []int64

	Listen(context.Context) (bool, error)
	Prepare(ctx context.Context) error
	Wait(ctx context.Context) error
	Closed() bool
	Close()
}

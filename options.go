package pgleases

import (
	"cmp"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
)

const (
	defaultTTL     = 6 * time.Second
	minHeartbeat   = 10 * time.Millisecond
	defaultSchema  = "pgleases"
	ttlEach        = time.Second / 16384 // the least TTL for each partition of a lease, see Client.Lease
	maxWeight      = 1000
	maxMetadata    = 1024
	maxSchemaBytes = 63 // PostgreSQL cuts longer identifiers off
	defaultHandoff = time.Second
	maxPlacement   = time.Hour // the longest time for which a plan may be held back
)

// options of a client.
type options struct {
	engine.Config
	given       []string // the names of the options given, in order
	noMigration bool
	connConfig  *pgx.ConnConfig
	metadata    map[string]string
}

// An Option changes how a client works. The functions that begin with With return options. The call
// that takes the options checks all of them together.
type Option struct {
	name string // of the function that made it
	set  func(*options)
}

// WithClientID sets the client's ID: 1 to 255 bytes of UTF-8 without NUL, unique among the live
// clients of a schema. The default is host:pid:random, which is new with every start. A client that
// restarts under the same ID gets its partitions back. So an ID that outlives the process, for
// example the name of a StatefulSet's pod or of a host, keeps partitions where they are.
func WithClientID(id string) Option {
	return Option{"WithClientID", func(o *options) { o.ClientID = id }}
}

// WithTTL sets how long a client lives without a heartbeat. The default is 6s; valid values are 1s
// to 10m. After that time the partitions of a crashed client move. All clients of one schema should have
// the same TTL. If they differ, a failover moves no partition until the longest TTL has passed, and
// a standby that missed the client with the longest one may give its partitions away too early.
func WithTTL(ttl time.Duration) Option { return Option{"WithTTL", func(o *options) { o.TTL = ttl }} }

// WithHeartbeat sets the time between heartbeats. The default is a third of the TTL; valid values
// are 10ms to half the TTL.
func WithHeartbeat(interval time.Duration) Option {
	return Option{"WithHeartbeat", func(o *options) { o.Heartbeat = interval }}
}

// WithSchema sets the schema of the tables. The default is "pgleases"; valid values are identifiers
// of 1 to 63 bytes, which the library quotes. Clients see each other only within a schema.
func WithSchema(name string) Option {
	return Option{"WithSchema", func(o *options) { o.Schema = name }}
}

// WithMetadata sets what other processes can find out about this client by Client.Owner, for
// example its address. The default is nothing. Keys and values are UTF-8 without NUL, of at most
// 1,024 bytes in all. They are written when a session begins, and cannot be changed afterwards.
// They are not secret: each role that reads the tables sees them.
func WithMetadata(metadata map[string]string) Option {
	metadata = maps.Clone(metadata) // the caller may change it
	return Option{"WithMetadata", func(o *options) { o.metadata = metadata }}
}

// WithLogger sets where the client logs. The default, also for nil, is slog.Default(). A handler
// that blocks stops nothing else, because the client calls it in a goroutine of its own, in the
// order of the lines, and with their times. While a handler is behind by 1,000 lines, the oldest
// ones are dropped and counted in a line of their own. The end of a client waits up to 1 s for its
// last lines. A handler may call every method of Client and Lease.
func WithLogger(logger *slog.Logger) Option {
	return Option{"WithLogger", func(o *options) { o.Log = logger }}
}

// WithoutMigration keeps the client from running DDL. If the schema is missing or too old, opening
// a client then returns ErrSchema.
func WithoutMigration() Option {
	return Option{"WithoutMigration", func(o *options) { o.noMigration = true }}
}

// WithPolling keeps the client from listening for notifications. It then sees changes at its next
// heartbeat. Behind a connection pooler a client finds out that notifications do not arrive, and
// polls without this option.
func WithPolling() Option { return Option{"WithPolling", func(o *options) { o.Polling = true }} }

// WithoutSamples keeps the client from writing samples. Otherwise one of the clients writes once a
// minute how much waits, and what is late, failing or without an owner, for the curves of the
// dashboard. The page docs/dashboard.md says what that costs.
func WithoutSamples() Option {
	return Option{"WithoutSamples", func(o *options) { o.NoSamples = true }}
}

// WithConnConfig sets where the client's own connection goes, for example past a pooler. The
// default is where the pool's connections go. It has to lead to the same database as the pool, on
// whose connections Guard runs. pgx.ParseConfig returns the configuration, and the client copies
// it. The pool's BeforeConnect is applied to it too. A connection of its DialFunc must support
// deadlines; otherwise opening a client fails.
func WithConnConfig(config *pgx.ConnConfig) Option {
	return Option{"WithConnConfig", func(o *options) { o.connConfig = config }}
}

// WithFastFailover makes others take over the partitions and locks of a crashed process in about
// 0.4 s, whatever its TTL is. The client's connection holds an advisory lock, and two of the
// clients with this option watch all such locks. Clients without the option are taken over at their
// TTL.
//
// The option weakens one promise. Without it no client takes over before the trust deadline has
// passed. With it, two clients can own the same partition until the trust deadline of one of them,
// if two things coincide. Something between client and server (a firewall, a proxy, a machine that
// was given the address) ends the connection in the client's name. And the client does not notice
// that, because its network is cut. Guard and the epochs hold even then.
//
// The client also gives up what it owns if its connection ends and the server has not announced
// that. Without the option it keeps what it owns if it is back within its TTL. If a process was
// stopped for more than 250 ms, its Values is empty until the server has answered.
//
// Opening a client returns an error through a connection pooler, also in session mode (see
// WithConnConfig), and on PostgreSQL 14.
func WithFastFailover() Option {
	return Option{"WithFastFailover", func(o *options) { o.FastFailover = true }}
}

// newOptions applies opts to the defaults and checks the result.
func newOptions(opts []Option) (options, error) {
	o := options{Config: engine.Config{
		ClientID: defaultClientID(), Host: hostname(), TTL: defaultTTL, Schema: defaultSchema,
	}}
	for _, opt := range opts {
		if opt.set == nil {
			return o, errors.New("pgleases: option is empty: create it with one of the With functions")
		}
		o.given = append(o.given, opt.name)
		opt.set(&o)
	}
	o.Log = logqueue.Logger(cmp.Or(o.Log, slog.Default()))
	if !o.has("WithHeartbeat") {
		o.Heartbeat = o.TTL / 3
	}
	if err := o.validate(); err != nil {
		return o, err
	}
	if len(o.metadata) > 0 {
		text, err := json.Marshal(o.metadata)
		o.Metadata = string(text)
		return o, err
	}
	return o, nil
}

// schemaOption returns the schema for a call that takes no other option.
func schemaOption(call string, opts []Option) (string, error) {
	o, err := newOptions(opts)
	for _, name := range o.given {
		if name != "WithSchema" {
			return "", fmt.Errorf("pgleases: %s means nothing to %s: only WithSchema does", name, call)
		}
	}
	return o.Schema, err
}

// has reports whether an option was given.
func (o options) has(name string) bool { return slices.Contains(o.given, name) }

func (o options) validate() error {
	if err := store.CheckName("client ID", o.ClientID); err != nil {
		return err
	}
	if o.TTL < engine.MinTTL || o.TTL > engine.MaxTTL {
		return fmt.Errorf("pgleases: TTL %v is out of range: %v to %v", o.TTL, engine.MinTTL, engine.MaxTTL)
	}
	if o.Heartbeat < minHeartbeat || o.Heartbeat > o.TTL/2 {
		return fmt.Errorf("pgleases: heartbeat %v is out of range: %v to half the TTL, %v",
			o.Heartbeat, minHeartbeat, o.TTL/2)
	}
	switch {
	case o.Schema == "":
		return errors.New(`pgleases: schema name "" is empty: ` +
			`give an identifier, or leave WithSchema out for "pgleases"`)
	case len(o.Schema) > maxSchemaBytes:
		return fmt.Errorf("pgleases: schema name %q has %d bytes: at most %d", o.Schema, len(o.Schema), maxSchemaBytes)
	case !utf8.ValidString(o.Schema) || strings.ContainsRune(o.Schema, 0):
		return fmt.Errorf("pgleases: schema name %q is not UTF-8 without NUL", o.Schema)
	}
	bytes := 0
	for key, value := range o.metadata {
		text := key + value
		if !utf8.ValidString(text) || strings.ContainsRune(text, 0) {
			return fmt.Errorf("pgleases: metadata %q: %q is not UTF-8 without NUL", key, value)
		}
		bytes += len(key) + len(value)
	}
	if bytes > maxMetadata {
		return fmt.Errorf("pgleases: metadata has %d bytes: at most %d; "+
			"store what is longer elsewhere, under the client ID", bytes, maxMetadata)
	}
	if o.has("WithConnConfig") && (o.connConfig == nil || o.connConfig.Host == "") {
		return errors.New("pgleases: connection configuration is nil or empty: create it with pgx.ParseConfig")
	}
	return nil
}

// defaultClientID is host:pid:random, cut to fit.
func defaultClientID() string {
	host := hostname()
	suffix := fmt.Sprintf(":%d:%s", os.Getpid(), rand.Text()[:8])
	room := store.MaxNameBytes - len(suffix)
	if len(host) > room {
		host = host[:room]
	}
	return strings.ToValidUTF8(host, "?") + suffix
}

func hostname() string {
	host, err := os.Hostname()
	if err != nil {
		return "unknown"
	}
	return strings.ReplaceAll(strings.ToValidUTF8(host, "?"), "\x00", "?")
}

// A LeaseOption changes a client's part in one lease. WithWeight, WithHandoffDelay,
// WithDrainTimeout, WithRebalanceDelay, WithMaxPartitions and WithRestartGrace make them.
type LeaseOption struct{ set func(*engine.LeaseOptions) }

// WithWeight sets the client's share relative to the other members' shares. The default is 1; valid
// values are 0 to 1,000. A client of weight 0 hands over what it owns, and gets no partitions.
func WithWeight(weight int) LeaseOption {
	return LeaseOption{func(o *engine.LeaseOptions) { o.Weight = weight }}
}

// WithHandoffDelay sets how long the client keeps a partition that has left Values. The default is
// 1s; valid values are 0 and more. Set it to the longest time that your loop works on a slice that
// it read from Values. The delay applies only to ownerships that were read with Values or Owns. Run
// and Hold know when the work has ended.
func WithHandoffDelay(delay time.Duration) LeaseOption {
	return LeaseOption{func(o *engine.LeaseOptions) { o.HandoffDelay = delay }}
}

// WithDrainTimeout sets how long a handoff waits for a Run callback or an open Hold. The default is
// 0, which means without a limit; valid values are 0 and more. After that time the ownership ends
// with ErrDrainTimeout, and the partition moves even if the work goes on.
func WithDrainTimeout(timeout time.Duration) LeaseOption {
	return LeaseOption{func(o *engine.LeaseOptions) { o.DrainTimeout = timeout }}
}

// WithRebalanceDelay sets how long partitions with a live owner stay where they are after a member
// has joined the lease or has changed its weight. The default is 0, and valid values are 0 to 1h.
// Set it if work has state that a new owner has to load: in a rolling deployment, new processes
// then take over from the old ones that close, and no other partition moves. Partitions without an
// owner get one at once, as without a delay. So the first client of a fleet that starts owns all
// of them for the delay, unless WithMaxPartitions bounds that. A later join begins the delay anew,
// for at most 5 delays in all. If the members of a lease have different delays, the longest
// counts. Operators end a delay with unfreeze, and their drains and pins come first.
func WithRebalanceDelay(delay time.Duration) LeaseOption {
	return LeaseOption{func(o *engine.LeaseOptions) { o.RebalanceDelay = delay }}
}

// WithMaxPartitions sets a ceiling: the most partitions of the lease that a plan gives to this
// client. The default is no ceiling, and valid values are 1 to the lease's number of partitions.
// Shares by weight are filled up to the ceilings. If all members are at their ceilings, the other
// partitions have no owner, and their work is not done: Stats.Unowned counts them, and one member
// logs that every minute. An owner keeps what it may keep, returning clients get their own back,
// and of the other free partitions the lowest numbers get an owner first.
//
// Partitions that an operator has pinned to the client count against the ceiling, and may pass it.
// So may those that a cordon or a freeze keeps in place. Partitions that the client is handing over
// do not count, so until their work ends it may work on more.
func WithMaxPartitions(n int) LeaseOption {
	return LeaseOption{func(o *engine.LeaseOptions) { o.MaxPartitions = n }}
}

// WithRestartGrace sets how long this client's partitions wait for its return, without an owner,
// after it has closed or crashed. The default is 0, and valid values are 0 to 1h. It needs
// WithClientID. If a process with the same ID joins the lease in time, it gets exactly these
// partitions back, under new epochs, and no other partition moves. After that time they go to
// others. Set it if work has state that is kept between restarts, or is loaded faster than moved,
// and longer than a restart takes.
//
// The time counts from the end of Close, and after a crash from the eviction, a TTL after the last
// heartbeat. Nothing waits for a client that an operator has drained or evicted, that has left the
// lease with Leave, or whose Close was given WithoutReturn. In a lease with one partition, the grace
// delays the failover of a leader.
func WithRestartGrace(grace time.Duration) LeaseOption {
	return LeaseOption{func(o *engine.LeaseOptions) { o.RestartGrace = grace }}
}

// newLeaseOptions applies opts to the defaults and checks name, partitions and the result, for a
// client with that TTL.
func newLeaseOptions(name string, partitions int, ttl time.Duration, opts []LeaseOption) (engine.LeaseOptions, error) {
	o := engine.LeaseOptions{Weight: 1, HandoffDelay: defaultHandoff, MaxPartitions: partitions}
	for _, opt := range opts {
		if opt.set == nil {
			return o, fmt.Errorf("pgleases: lease %q: option is empty: create it with one of the With functions", name)
		}
		opt.set(&o)
	}
	if err := store.CheckName("lease name", name); err != nil {
		return o, err
	}
	if partitions < 1 || partitions > engine.MaxPartitions {
		return o, fmt.Errorf("pgleases: lease %q: %d partitions is out of range: 1 to %d",
			name, partitions, engine.MaxPartitions)
	}
	needed := time.Duration(partitions) * ttlEach
	if ttl < needed {
		return o, fmt.Errorf("pgleases: lease %q: %d partitions need a TTL of at least %v, not %v: see WithTTL",
			name, partitions, (needed + time.Millisecond - 1).Truncate(time.Millisecond), ttl)
	}
	if err := checkWeight(name, o.Weight); err != nil {
		return o, err
	}
	if o.HandoffDelay < 0 {
		return o, fmt.Errorf("pgleases: lease %q: handoff delay %v is negative", name, o.HandoffDelay)
	}
	if o.DrainTimeout < 0 {
		return o, fmt.Errorf("pgleases: lease %q: drain timeout %v is negative", name, o.DrainTimeout)
	}
	if o.RebalanceDelay < 0 || o.RebalanceDelay > maxPlacement {
		return o, fmt.Errorf("pgleases: lease %q: rebalance delay %v is out of range: 0 to %v",
			name, o.RebalanceDelay, maxPlacement)
	}
	if o.RestartGrace < 0 || o.RestartGrace > maxPlacement {
		return o, fmt.Errorf("pgleases: lease %q: restart grace %v is out of range: 0 to %v",
			name, o.RestartGrace, maxPlacement)
	}
	if o.MaxPartitions < 1 || o.MaxPartitions > partitions {
		return o, fmt.Errorf("pgleases: lease %q: ceiling of %d partitions is out of range: "+
			"1 to %d, the number of the lease's partitions; without WithMaxPartitions there is no ceiling",
			name, o.MaxPartitions, partitions)
	}
	if o.MaxPartitions == partitions {
		o.MaxPartitions = 0
	}
	return o, nil
}

func checkWeight(lease string, weight int) error {
	if weight < 0 || weight > maxWeight {
		return fmt.Errorf("pgleases: lease %q: weight %d is out of range: 0 to %d", lease, weight, maxWeight)
	}
	return nil
}

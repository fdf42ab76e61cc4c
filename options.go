package pgleases

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/store"
)

const (
	defaultTTL     = 6 * time.Second
	minHeartbeat   = 10 * time.Millisecond
	defaultSchema  = "pgleases"
	ttlEach        = time.Second / 16384 // the least TTL for each partition of a lease, see Client.Lease
	maxWeight      = 1000
	maxSchemaBytes = 63 // PostgreSQL cuts longer identifiers off
	defaultHandoff = time.Second
)

// options of a client.
type options struct {
	engine.Config
	given       []string // the names of the options given, in order
	noMigration bool
	connConfig  *pgx.ConnConfig
}

// An Option changes how a client works. Options are checked together, by the call that they are
// given to. Make one with one of the With functions.
type Option struct {
	name string // of the function that made it
	set  func(*options)
}

// WithClientID names the client: 1 to 255 bytes of UTF-8 without NUL, unique among the live clients
// of a schema. A client that restarts under its own ID gets its own partitions back, so a name that
// outlives the process (a StatefulSet's pod, a host) keeps partitions where they are. The default
// is host:pid:random, which never comes back.
func WithClientID(id string) Option {
	return Option{"WithClientID", func(o *options) { o.ClientID = id }}
}

// WithTTL sets how long a client lives without a heartbeat: 1s to 10min, default 6s. It is the time
// after which the partitions of a crashed client move. Clients of one schema may differ.
func WithTTL(ttl time.Duration) Option {
	return Option{"WithTTL", func(o *options) { o.TTL = ttl }}
}

// WithHeartbeat sets the time between heartbeats: 10ms to half the TTL, default a third of it.
func WithHeartbeat(interval time.Duration) Option {
	return Option{"WithHeartbeat", func(o *options) { o.Heartbeat = interval }}
}

// WithSchema sets the schema of the tables: any identifier of 1 to 63 bytes, quoted where it needs
// to be; default "pgleases". Clients see each other only within a schema.
func WithSchema(name string) Option {
	return Option{"WithSchema", func(o *options) { o.Schema = name }}
}

// WithLogger sets where events are logged; default slog.Default(). A nil logger means the default.
func WithLogger(logger *slog.Logger) Option {
	return Option{"WithLogger", func(o *options) { o.Log = logger }}
}

// WithoutMigration never runs DDL: where the schema is missing or too old, opening a client is
// ErrSchema.
func WithoutMigration() Option {
	return Option{"WithoutMigration", func(o *options) { o.noMigration = true }}
}

// WithPolling never listens for notifications: changes are seen at the next heartbeat. Behind a
// connection pooler clients do that by themselves.
func WithPolling() Option {
	return Option{"WithPolling", func(o *options) { o.Polling = true }}
}

// WithConnConfig sets where the client's own connection goes, past a pooler for instance; default:
// where the pool's connections go. The configuration is one that pgx.ParseConfig made; it is
// copied. The pool's BeforeConnect is applied to it too.
func WithConnConfig(config *pgx.ConnConfig) Option {
	return Option{"WithConnConfig", func(o *options) { o.connConfig = config }}
}

// WithFastFailover has the partitions and locks of a process that died taken over in about 0.4 s,
// whatever the TTL: the client's connection holds an advisory lock, and two of the clients with
// this option watch all such locks. Clients without it are taken over at their TTL.
//
// It weakens one promise. Without it nobody takes over before the trust deadline has passed. With
// it, where something between client and server ends the connection in the client's name (a
// firewall, a proxy, a machine that was given the address), and the client does not hear of that
// because its network is cut, two clients own the same until the trust deadline of the one that is
// cut off. Guard and the epochs hold even then. The client also gives up what it owns whenever its
// connection ends without a word of the server, where it would else go on if it is back within its
// TTL; and a process that was stopped for more than 250 ms shows nothing until the server has
// answered.
//
// Opening a client is an error through a connection pooler, in session mode too (see
// WithConnConfig), and on PostgreSQL 14.
func WithFastFailover() Option {
	return Option{"WithFastFailover", func(o *options) { o.FastFailover = true }}
}

// newOptions applies opts to the defaults and checks the result.
func newOptions(opts []Option) (options, error) {
	o := options{Config: engine.Config{ClientID: defaultClientID(), Host: hostname(), TTL: defaultTTL, Schema: defaultSchema}}
	for _, opt := range opts {
		if opt.set == nil {
			return o, errors.New("pgleases: option is empty: make it with one of the With functions")
		}
		o.given = append(o.given, opt.name)
		opt.set(&o)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	if !o.has("WithHeartbeat") {
		o.Heartbeat = o.TTL / 3
	}
	return o, o.validate()
}

// schemaOption returns the schema for a call to which no option but WithSchema means anything.
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
		return fmt.Errorf("pgleases: heartbeat %v is out of range: %v to half the TTL, %v", o.Heartbeat, minHeartbeat, o.TTL/2)
	}
	switch {
	case o.Schema == "":
		return errors.New(`pgleases: schema name "" is empty: give an identifier, or leave WithSchema out for "pgleases"`)
	case len(o.Schema) > maxSchemaBytes:
		return fmt.Errorf("pgleases: schema name %q has %d bytes: at most %d", o.Schema, len(o.Schema), maxSchemaBytes)
	case !utf8.ValidString(o.Schema) || strings.ContainsRune(o.Schema, 0):
		return fmt.Errorf("pgleases: schema name %q is not UTF-8 without NUL", o.Schema)
	}
	if o.has("WithConnConfig") && (o.connConfig == nil || o.connConfig.Host == "") {
		return errors.New("pgleases: connection configuration is nil or empty: make it with pgx.ParseConfig")
	}
	return nil
}

// defaultClientID is host:pid:random, cut to fit.
func defaultClientID() string {
	host := hostname()
	suffix := fmt.Sprintf(":%d:%s", os.Getpid(), rand.Text()[:8])
	if room := store.MaxNameBytes - len(suffix); len(host) > room {
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

// A LeaseOption changes a client's part in one lease.
type LeaseOption func(*engine.LeaseOptions)

// WithWeight sets the client's share relative to the other members': 0 to 1,000, default 1. A
// weight of 0 owns nothing: what it owns is handed over.
func WithWeight(weight int) LeaseOption { return func(o *engine.LeaseOptions) { o.Weight = weight } }

// WithHandoffDelay sets how long a partition that left Values stays with this client before the
// next one gets it; 0 or more, default 1s. Give the longest time that your loop works on a slice
// that it read from Values. Only ownerships that were read with Values or Owns are delayed; Run and
// Hold tell by themselves when work has ended.
func WithHandoffDelay(delay time.Duration) LeaseOption {
	return func(o *engine.LeaseOptions) { o.HandoffDelay = delay }
}

// WithDrainTimeout sets how long a handoff waits for a Run callback or an open Hold; 0 or more,
// default 0: as long as it takes. After it the ownership ends with ErrDrainTimeout and the
// partition moves, whatever still runs.
func WithDrainTimeout(timeout time.Duration) LeaseOption {
	return func(o *engine.LeaseOptions) { o.DrainTimeout = timeout }
}

// newLeaseOptions applies opts to the defaults and checks name, partitions and the result, for a
// client with that TTL.
func newLeaseOptions(name string, partitions int, ttl time.Duration, opts []LeaseOption) (engine.LeaseOptions, error) {
	o := engine.LeaseOptions{Weight: 1, HandoffDelay: defaultHandoff}
	for _, opt := range opts {
		if opt == nil {
			return o, fmt.Errorf("pgleases: lease %q: option is nil", name)
		}
		opt(&o)
	}
	if err := store.CheckName("lease name", name); err != nil {
		return o, err
	}
	if partitions < 1 || partitions > engine.MaxPartitions {
		return o, fmt.Errorf("pgleases: lease %q: %d partitions is out of range: 1 to %d", name, partitions, engine.MaxPartitions)
	}
	if needed := time.Duration(partitions) * ttlEach; ttl < needed {
		return o, fmt.Errorf("pgleases: lease %q: %d partitions need a TTL of at least %v, not %v: see WithTTL", name, partitions,
			(needed + time.Millisecond - 1).Truncate(time.Millisecond), ttl)
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
	return o, nil
}

func checkWeight(lease string, weight int) error {
	if weight < 0 || weight > maxWeight {
		return fmt.Errorf("pgleases: lease %q: weight %d is out of range: 0 to %d", lease, weight, maxWeight)
	}
	return nil
}

package consumer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/logqueue"
)

type options struct {
	schema      string
	batch       int
	mostRows    int // of a batch whose handler is quick
	bytes       int64
	workers     int // -1: by the size of the pool
	poll        time.Duration
	timeout     time.Duration
	idle        time.Duration
	attempts    int
	backoffMin  time.Duration
	backoffMax  time.Duration
	onFailure   OnFailure
	around      func(context.Context, Info, func(context.Context) error) error
	lease       []pgleases.LeaseOption
	log         *slog.Logger
	noMigration bool
	ascending   bool // the application gives the IDs
}

// An Option sets an option of a Consumer. New checks them together.
type Option func(*options)

// WithBatch sets how many rows a transaction handles at most, 1 to 10,000, and how many bytes the
// columns for the handler have in all, 1 or more. The last row may have more. The default is 16 MiB
// and 100 rows, or up to 400 while these take the handler less than 50 ms in all.
func WithBatch(rows int, bytes int64) Option {
	return func(o *options) { o.batch, o.mostRows, o.bytes = rows, rows, bytes }
}

// WithWorkers sets how many batches this process handles at once, 1 to the pool's connections minus
// 1. By default all consumers and groups of schedules on the pool share half of its connections, at
// least one each. If the numbers of a small pool add up to more than half of its connections,
// besides those that were set, batches take turns. Rows that take the handler less than 2 ms in all
// are not shared among workers.
func WithWorkers(n int) Option { return func(o *options) { o.workers = n } }

// WithPoll sets how often the process polls for rows. The default is 1 s; valid values are 10 ms or
// more. With the trigger of [TableSQL] rows are found at once. Then an idle process polls only at
// every fifth of these times: see "Sizing" in docs/consumer.md.
func WithPoll(d time.Duration) Option { return func(o *options) { o.poll = d } }

// WithTimeout sets how long handlers may take for a batch. The default is 1 min; valid values are
// 10 ms or more. Then their context ends with [ErrTimeout]. A handler of Each is not called for the
// next row if half of the time has passed: the rows before are committed. The lease's drain timeout
// is this and 5 s, so that a handler in time never overlaps with the next owner's.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithIdleTimeout sets how long the transaction of a batch may be idle, which is how long a frozen
// process keeps its rows. The default is 30 s; valid values are 100 ms to 24 h.
func WithIdleTimeout(d time.Duration) Option { return func(o *options) { o.idle = d } }

// WithAttempts sets how many attempts a failing row has. The default is 15; valid values are 1 or
// more. See [WithOnFailure].
func WithAttempts(n int) Option { return func(o *options) { o.attempts = n } }

// WithBackoff sets how long a failed row waits for its next attempt: least at first, then twice as
// long each time, up to most, with jitter. The default is 1 s to 10 min; least is 1 ms or more, and
// most is not less than least.
func WithBackoff(least, most time.Duration) Option {
	return func(o *options) { o.backoffMin, o.backoffMax = least, most }
}

// WithOnFailure sets what happens to a row after its last attempt. The default is [BlockKey].
func WithOnFailure(f OnFailure) Option { return func(o *options) { o.onFailure = f } }

// OnFailure is what happens to a row after its last attempt.
type OnFailure int

const (
	// BlockKey keeps the row, and no other row of its key is handled, until somebody retries or
	// skips the row, or changes or deletes it.
	BlockKey OnFailure = iota
	// DeadLetter moves the row to the table consumer_dead_letters, and goes on with its key.
	DeadLetter
)

// WithAround sets a function that is called around each call of the handler, for traces, metrics
// and logs. It must call next once, and return its error. If it returns nil, next's error counts;
// if it has not called next, the rows have failed.
func WithAround(f func(ctx context.Context, info Info, next func(context.Context) error) error) Option {
	return func(o *options) { o.around = f }
}

// Info says what a call of the handler is about.
type Info struct {
	Consumer  string
	Partition int // of the first row
	Rows      int
	Attempt   int // of the first row
}

// WithLease sets options of the lease. The drain timeout is that of [WithTimeout] unless one of
// them sets it.
func WithLease(opts ...pgleases.LeaseOption) Option { return func(o *options) { o.lease = opts } }

// WithSchema sets the schema of the tables. It must be the schema that pgleases.WithSchema sets for
// the client. The default is "pgleases".
func WithSchema(name string) Option { return func(o *options) { o.schema = name } }

// WithLogger sets the logger. The default, also for nil, is slog.Default(). A handler that blocks
// stops nothing else, see pgleases.WithLogger.
func WithLogger(logger *slog.Logger) Option { return func(o *options) { o.log = logger } }

// WithAscendingIDs says that the application makes sure itself that IDs are unique, and that
// those of each key rise with its inserts. New then accepts an ID column that is not drawn from a
// sequence, for example one with Snowflake IDs, and one without a unique index. Rows of a key
// whose IDs do not rise are handled out of order.
func WithAscendingIDs() Option { return func(o *options) { o.ascending = true } }

// WithoutMigration makes New run no DDL. If the tables are missing or too old, New returns
// pgleases.ErrSchema.
func WithoutMigration() Option { return func(o *options) { o.noMigration = true } }

func newOptions(opts []Option) (options, error) {
	o := options{
		schema: "pgleases", batch: 100, mostRows: 400, bytes: 16 << 20, poll: time.Second, timeout: time.Minute, idle: 30 * time.Second,
		attempts: 15, backoffMin: time.Second, backoffMax: 10 * time.Minute, workers: -1,
	}
	for _, opt := range opts {
		if opt == nil {
			return o, errors.New("consumer: option is nil")
		}
		opt(&o)
	}
	o.log = logqueue.Logger(cmp.Or(o.log, slog.Default()))
	return o, cmp.Or(
		wrong(o.schema == "", `consumer: schema name "" is empty: give an identifier, or leave WithSchema out for "pgleases"`),
		wrong(o.batch < 1 || o.batch > 10_000, "consumer: a batch of %d rows is out of range: 1 to 10,000", o.batch),
		wrong(o.bytes < 1, "consumer: a batch of %d bytes is out of range: 1 or more", o.bytes),
		wrong(o.workers == 0 || o.workers < -1, "consumer: %d workers is out of range: 1 or more", o.workers),
		wrong(o.poll < 10*time.Millisecond, "consumer: a poll each %v is out of range: 10ms or more", o.poll),
		wrong(o.timeout < 10*time.Millisecond, "consumer: a timeout of %v is out of range: 10ms or more", o.timeout),
		wrong(o.idle < 100*time.Millisecond || o.idle > 24*time.Hour, "consumer: an idle timeout of %v is out of range: 100ms to 24h", o.idle),
		wrong(o.attempts < 1, "consumer: %d attempts is out of range: 1 or more", o.attempts),
		wrong(o.backoffMin < time.Millisecond || o.backoffMax < o.backoffMin, "consumer: a backoff of %v to %v is out of range: 1ms or more, and the most not less than the least", o.backoffMin, o.backoffMax),
		wrong(o.onFailure != BlockKey && o.onFailure != DeadLetter, "consumer: OnFailure %d is unknown: use BlockKey or DeadLetter", o.onFailure),
	)
}

// wrong returns an error if is is true.
func wrong(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return fmt.Errorf(format, args...)
}

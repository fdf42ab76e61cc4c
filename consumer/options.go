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
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

type options struct {
	schema      string
	batch       int
	mostRows    int // of a batch whose handler is quick
	bytes       int64
	maxRunning  int // if limited
	limited     bool
	poll        time.Duration
	timeout     time.Duration
	idle        time.Duration
	drain       time.Duration
	drainGiven  bool // otherwise it is the timeout and drainMargin
	attempts    int
	backoff     BackoffPolicy
	crashes     int
	onFailure   OnFailure
	around      func(context.Context, Info, func(context.Context) error) error
	lease       []pgleases.LeaseOption
	log         *slog.Logger
	noMigration bool
	ascending   bool // the application gives the IDs
	reason      string
	actor       string
}

// An Option sets an option of a Consumer. New checks them together.
type Option func(*options)

// WithBatch sets how many rows a transaction handles at most, 1 to 10,000, and how many bytes the
// columns for the handler have in all, 1 or more. The last row may have more. The default is 16 MiB
// and 100 rows, or up to 400 while these take the handler less than 50 ms in all.
func WithBatch(rows int, bytes int64) Option {
	return func(o *options) { o.batch, o.mostRows, o.bytes = rows, rows, bytes }
}

// WithMaxRunning sets how many batches this process handles at once. Valid values are 1 to the
// pool's connections minus 1. By default all consumers and groups of schedules on the pool share
// half of its connections. Each has at least two, or one on a pool of less than 4 connections. If
// the numbers of a small pool add up to more than half of its connections, besides those that were
// set, batches take turns, and slow ones leave a turn to the others. Rows that take the handler
// less than 2 ms in all form one batch, even if others could begin beside it.
func WithMaxRunning(n int) Option { return func(o *options) { o.maxRunning, o.limited = n, true } }

// WithPoll sets how often the process polls for rows. The default is 1 s. Valid values are 10 ms to
// 24 h. With the trigger of [TableSQL] rows are found at once. Then an idle process polls only at
// every fifth of these times: see "Sizing" in docs/consumer.md.
func WithPoll(d time.Duration) Option { return func(o *options) { o.poll = d } }

// WithTimeout sets how long handlers may take for a batch. The default is 1 min. Valid values are
// 10 ms to 24 h. Then their context ends with [ErrTimeout]. The time begins when the rows are read,
// and not while the batch waits for the pool. A handler of Each is not called for the next row if
// half of the time has passed: the rows before are committed.
func WithTimeout(d time.Duration) Option { return func(o *options) { o.timeout = d } }

// WithIdleTimeout sets how long the transaction of a batch may be idle, which is how long a frozen
// process keeps its rows. The default is 30 s. Valid values are 100 ms to 24 h.
func WithIdleTimeout(d time.Duration) Option { return func(o *options) { o.idle = d } }

// WithDrainTimeout sets how long a batch may continue after another process has asked for its
// partition, or after Run ends. The default is 5 s more than [WithTimeout], so that every handler
// that returns in time can commit. Valid values are 1 ms or more. Then the handler's context ends,
// its transaction is rolled back, and the next owner handles the rows again.
func WithDrainTimeout(d time.Duration) Option {
	return func(o *options) { o.drain, o.drainGiven = d, true }
}

// WithMaxAttempts sets how many attempts a failing row has, and the pauses between them. The
// default is 15 attempts with Backoff(1 s, 10 min). Valid values are 1 to 1,000. See
// [WithOnFailure].
func WithMaxAttempts(n int, backoff BackoffPolicy) Option {
	return func(o *options) { o.attempts, o.backoff = n, backoff }
}

// A BackoffPolicy sets the pauses between attempts. [Backoff] returns one.
type BackoffPolicy = worker.BackoffPolicy

// Backoff returns a policy that pauses for min after the first failed attempt, and twice as long
// after each further one, up to max. Each pause is up to 10 % longer, at random. Both are 1 ms to
// 30 days.
func Backoff(min, max time.Duration) BackoffPolicy { return worker.Backoff(min, max) }

// WithMaxCrashes sets how many processes may crash while they handle a row alone, before the row
// has failed. The default is 3. Valid values are 1 to 100. Crashes in a batch of several rows do
// not count, because the row that caused them is not known.
func WithMaxCrashes(n int) Option { return func(o *options) { o.crashes = n } }

// WithOnFailure sets what happens to a row after its last attempt. The default is
// [OnFailureBlockKey].
func WithOnFailure(f OnFailure) Option { return func(o *options) { o.onFailure = f } }

// OnFailure is what happens to a row after its last attempt.
type OnFailure int

const (
	// OnFailureBlockKey keeps the row, and no other row of its key is handled, until somebody
	// retries or skips the row, or changes or deletes it.
	OnFailureBlockKey OnFailure = iota
	// OnFailureDeadLetter moves the row to the table consumer_dead_letters, and goes on with its key.
	OnFailureDeadLetter
)

// WithAround sets a function that is called around each call of the handler, for traces, metrics
// and logs. It must call next once, and return its error. If it returns nil, next's error counts.
// If it has not called next, or returns before next does, the rows have failed, and the attempt
// ends when the handler has returned. A second call of next, or one after f has returned, returns
// an error, and does not call the handler.
func WithAround(f func(ctx context.Context, info Info, next func(context.Context) error) error) Option {
	return func(o *options) { o.around = f }
}

// Info says what a call of the handler is about. For a batch, its fields are those of the first
// row. Package schedule has an Info with the same fields, so one function can serve both packages:
// it converts the one to the other, as in schedule.Info(info).
type Info struct {
	Lease     string    // "consumer/" and the name of the consumer
	Kind      string    // the name of the consumer
	Trigger   string    // "row"
	Name      string    // empty: rows have no names
	ID        int64     // of the row
	Key       string    // of the row
	At        time.Time // zero: rows are not due at an instant
	Rows      int       // in the batch; 1 for a handler of Each
	Partition int       // of the key
	Epoch     int64     // of the ownership of Partition: a fencing token
	Attempt   int       // at the row; counts from 1
}

// WithLease sets further options of the lease. Its drain timeout is that of [WithDrainTimeout],
// unless one of them sets it.
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
// whose IDs do not rise are handled out of order. Each poll then reads the rows behind blocked keys
// again, because rows of other keys may come before them.
func WithAscendingIDs() Option { return func(o *options) { o.ascending = true } }

// WithoutMigration makes New run no DDL. If the tables are missing or too old, New returns
// pgleases.ErrSchema.
func WithoutMigration() Option { return func(o *options) { o.noMigration = true } }

const (
	defaultPoll = time.Second
	day         = 24 * time.Hour
)

var defaultBackoff = Backoff(time.Second, 10*time.Minute)

func newOptions(opts []Option) (options, error) {
	o := options{
		schema: "pgleases",
		batch:  100, mostRows: 400, bytes: 16 << 20,
		poll: defaultPoll, timeout: time.Minute, idle: 30 * time.Second,
		attempts: 15, backoff: defaultBackoff, crashes: 3,
	}
	for _, opt := range opts {
		if opt == nil {
			return o, errors.New("consumer: option is nil")
		}
		opt(&o)
	}
	if !o.drainGiven {
		o.drain = o.timeout + drainMargin
	}
	pauses := o.attempts > 1 || o.backoff != (BackoffPolicy{})
	if !pauses { // after a crash, a row waits even if it has a single attempt
		o.backoff = defaultBackoff
	}
	o.log = logqueue.Logger(cmp.Or(o.log, slog.Default()))
	return o, errors.Join(
		wrong(
			o.schema == "",
			`consumer: schema name "" is empty: give an identifier, or leave WithSchema out for "pgleases"`,
		),
		wrong(
			o.batch < 1 || o.batch > 10_000,
			"consumer: WithBatch: a batch of %d rows is out of range: 1 to 10,000", o.batch,
		),
		wrong(
			o.bytes < 1,
			"consumer: WithBatch: a batch of %d bytes is out of range: 1 or more", o.bytes,
		),
		wrong(
			o.limited && o.maxRunning < 1,
			"consumer: WithMaxRunning: at most %d batches at once is out of range: 1 or more", o.maxRunning,
		),
		wrong(
			o.poll < 10*time.Millisecond || o.poll > day,
			"consumer: WithPoll: a poll each %v is out of range: 10ms to 24h", o.poll,
		),
		wrong(
			o.timeout < 10*time.Millisecond || o.timeout > day,
			"consumer: WithTimeout: a timeout of %v is out of range: 10ms to 24h", o.timeout,
		),
		wrong(
			o.idle < 100*time.Millisecond || o.idle > day,
			"consumer: WithIdleTimeout: an idle timeout of %v is out of range: 100ms to 24h", o.idle,
		),
		wrong(
			o.drainGiven && o.drain < time.Millisecond,
			"consumer: WithDrainTimeout: a drain timeout of %v is out of range: 1ms or more", o.drain,
		),
		wrong(
			o.crashes < 1 || o.crashes > 100,
			"consumer: WithMaxCrashes: %d crashes is out of range: 1 to 100", o.crashes,
		),
		wrong(
			o.attempts < 1 || o.attempts > 1000,
			"consumer: WithMaxAttempts: %d attempts is out of range: 1 to 1,000", o.attempts,
		),
		prefixed(worker.CheckBackoff(o.backoff)),
		wrong(
			o.onFailure != OnFailureBlockKey && o.onFailure != OnFailureDeadLetter,
			"consumer: WithOnFailure: OnFailure %d is unknown: use OnFailureBlockKey or OnFailureDeadLetter",
			o.onFailure,
		),
	)
}

// wrong returns an error if is is true.
func wrong(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func prefixed(err error) error {
	if err == nil {
		return nil
	}
	return wrap.Errorf("consumer: WithMaxAttempts: %w", err)
}

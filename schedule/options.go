package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	maxPartitions = 65536
	minRetention  = time.Hour
)

// options are the options of a Scheduler.
type options struct {
	given      []string // the names of the given options, in order
	schema     string
	partitions int
	maxRunning int // 0: by the size of the pool
	drain      time.Duration
	logger     *slog.Logger

	retention, retentionFailed time.Duration // of the history; 0: forever
	noMigration                bool

	around func(context.Context, Info, func(context.Context) error) error

	reason, actor string // empty: changes are not recorded
}

func (o *options) gave(option string) bool { return slices.Contains(o.given, option) }

// An Option sets an option of a Scheduler. The call that receives the options checks them together.
type Option func(*options)

// option returns an Option with a name.
func option(name string, set func(*options)) Option {
	return func(o *options) {
		o.given = append(o.given, name)
		set(o)
	}
}

// WithSchema sets the schema of the tables. It must be the schema that pgleases.WithSchema sets for
// the client. The default is "pgleases".
func WithSchema(name string) Option {
	return option("WithSchema", func(o *options) { o.schema = name })
}

// WithPartitions sets the number of partitions of the group's lease. The default is 128; valid
// values are 1 to 65,536. All processes of a group must give the same number. To change it, stop
// them all, and run: pgleases drop schedule/GROUP --partitions N --reason '...'
func WithPartitions(n int) Option {
	return option("WithPartitions", func(o *options) { o.partitions = n })
}

// WithMaxRunning sets how many handlers of this group run at once in this process. Valid values are
// 1 to the pool's connections minus 1. By default all groups and consumers that run on the pool
// share half of its connections. Each has at least two, or one on a pool of less than 4
// connections. A transactional run uses one connection of the pool, besides those that its handler
// takes. So if the numbers of a small pool add up to more than half of its connections, besides
// those that were set, runs take turns, and slow ones leave a turn to the others.
func WithMaxRunning(n int) Option {
	return option("WithMaxRunning", func(o *options) { o.maxRunning = n })
}

// WithDrainTimeout sets how long runs may continue after another process has asked for their
// partition, or after Run ends. The default is 10 s. Valid values are 0 or more. Then their
// contexts end with ErrDrained, their transactions are rolled back, and they run again.
func WithDrainTimeout(d time.Duration) Option {
	return option("WithDrainTimeout", func(o *options) { o.drain = d })
}

// WithRetention sets how long entries stay in the history. failed is for ticks and jobs that failed
// or are unknown, 30 days by default. others is for all other entries, 7 days by default. Each is 1
// h or more, or 0 forever. All processes of a group must give the same values. The process that
// owns partition 0 deletes older entries each minute, in transactions of up to 1,000 entries.
func WithRetention(others, failed time.Duration) Option {
	return option("WithRetention", func(o *options) { o.retention, o.retentionFailed = others, failed })
}

// WithLogger sets the logger. The default, also for nil, is slog.Default(). A handler that blocks
// stops nothing else, see pgleases.WithLogger.
func WithLogger(logger *slog.Logger) Option {
	return option("WithLogger", func(o *options) { o.logger = logger })
}

// WithAround sets a function that is called around each call of a handler, for traces, metrics and
// logs. It must call next once, and return its error. If it returns nil, next's error counts. If it
// has not called next, or returns before next does, the run has failed, and ends when the handler
// has returned. A second call of next, or one after f has returned, returns an error, and does not
// call the handler.
func WithAround(f func(ctx context.Context, info Info, next func(context.Context) error) error) Option {
	return option("WithAround", func(o *options) { o.around = f })
}

// Info says what a call of a handler is about. Package consumer has an Info with the same fields,
// so one function can serve both packages: it converts the one to the other, as in
// consumer.Info(info).
type Info struct {
	Lease     string    // "schedule/" and the name of the group
	Kind      string    // the name of the kind
	Trigger   string    // the reason for the run: a Trigger
	Name      string    // of the schedule; of a job: its unique key, or empty
	ID        int64     // of the job; 0: a tick of a schedule
	Key       string    // of the schedule or job
	At        time.Time // the tick, or the At of the job; not the time of the call
	Rows      int       // 1
	Partition int       // of the key
	Epoch     int64     // of the ownership of Partition: a fencing token
	Attempt   int       // as in Run; counts from 1
}

// WithoutMigration makes New run no DDL. If the tables are missing or too old, New returns
// pgleases.ErrSchema.
func WithoutMigration() Option {
	return option("WithoutMigration", func(o *options) { o.noMigration = true })
}

// WithReason records each change that is made through this Scheduler, in the table events and in the
// transaction of the change. The event has the reason, the actor, and the role that connects. A
// call without an effect leaves no event. With WithReason the role needs no rights on the tables:
// see docs/roles.md. The reason has 1 to 4,000 bytes, the actor 0 to 255 bytes. WithReason is an
// option of Manage only.
func WithReason(reason, actor string) Option {
	return option("WithReason", func(o *options) { o.reason, o.actor = reason, actor })
}

func newOptions(opts []Option) (options, error) {
	o := options{
		schema: "pgleases", partitions: 128, drain: 10 * time.Second,
		retention: 7 * 24 * time.Hour, retentionFailed: 30 * 24 * time.Hour,
	}
	for _, opt := range opts {
		if opt == nil {
			return o, errors.New("schedule: option is nil")
		}
		opt(&o)
	}
	o.logger = logqueue.Logger(cmp.Or(o.logger, slog.Default()))
	return o, errors.Join(
		wrong(
			o.partitions < 1 || o.partitions > maxPartitions,
			"schedule: WithPartitions: %d partitions is out of range: 1 to %d", o.partitions, maxPartitions,
		),
		wrong(
			o.gave("WithMaxRunning") && o.maxRunning < 1,
			"schedule: WithMaxRunning: at most %d runs at once is out of range: 1 or more", o.maxRunning,
		),
		wrong(o.drain < 0, "schedule: WithDrainTimeout: drain of %v is negative", o.drain),
		wrong(
			o.retention != 0 && o.retention < minRetention ||
				o.retentionFailed != 0 && o.retentionFailed < minRetention,
			"schedule: WithRetention: retention of %v and %v is out of range: each 1h or more, or 0 for good",
			o.retention, o.retentionFailed,
		),
		wrong(
			o.gave("WithReason") && (o.reason == "" || len(o.reason) > 4000 || len(o.actor) > 255),
			"schedule: WithReason: the reason has %d bytes, the actor %d: "+
				"give 1 to 4,000 bytes to a reason, and 255 at most to an actor",
			len(o.reason), len(o.actor),
		),
		wrong(
			o.schema == "",
			`schedule: schema name "" is empty: give an identifier, or leave WithSchema out for "pgleases"`,
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

// onlyOptions returns the options of a call that accepts only these.
func onlyOptions(call string, opts []Option, these ...string) (options, error) {
	o, err := newOptions(opts)
	for _, name := range o.given {
		if err == nil && !slices.Contains(these, name) {
			err = fmt.Errorf("schedule: %s means nothing to %s: only %s does", name, call, strings.Join(these, ", or "))
		}
	}
	return o, err
}

// policy has the options of a schedule, besides its rule.
type policy struct {
	Missed     Missed
	Overlap    Overlap
	Grace      time.Duration // whole microseconds, as the database stores it
	Jitter     time.Duration // whole microseconds too
	PauseAfter int           // 0: never
}

// A ScheduleOption sets an option of a schedule.
type ScheduleOption func(*scheduleRow)

// Overlap says what to do with ticks that pass while the previous run is under way.
type Overlap int

const (
	// OverlapSkip, the default, skips them, unless that run is one of several to catch up with.
	OverlapSkip Overlap = iota
	// OverlapBuffer treats them as late ticks, and WithMissed decides. By default the latest of
	// them runs when the previous run has ended.
	OverlapBuffer
)

// WithMissed sets what to do with ticks that passed while no process could run them. The default is
// MissedLatest.
func WithMissed(missed Missed) ScheduleOption {
	return func(r *scheduleRow) { r.Policy.Missed = missed }
}

// WithOverlap sets what to do with ticks that pass while the previous run is under way. The default
// is OverlapSkip.
func WithOverlap(overlap Overlap) ScheduleOption {
	return func(r *scheduleRow) { r.Policy.Overlap = overlap }
}

// WithGrace sets how late a tick may begin; a later tick is missed. The default, 0, is no limit,
// except for MissedNone: 1 minute. Valid values are 0 to 100 years. Time during which the schedule
// was blocked does not count.
func WithGrace(d time.Duration) ScheduleOption {
	return func(r *scheduleRow) { r.Policy.Grace = inMicros(d) }
}

// WithJitter delays each run by less than d after its tick, the same in all processes. So many
// schedules of a full hour do not begin at once. The default is 0. Valid values are 0 to 24 h. d
// must be less than the time between two ticks: if a delayed tick would begin after a later tick,
// it is missed. After an outage it spreads nothing, because delayed times have passed too.
func WithJitter(d time.Duration) ScheduleOption {
	return func(r *scheduleRow) { r.Policy.Jitter = inMicros(d) }
}

// WithPauseAfter pauses the schedule after n consecutive failed ticks, until Resume. The default,
// 0, is never.
func WithPauseAfter(n int) ScheduleOption { return func(r *scheduleRow) { r.Policy.PauseAfter = n } }

// WithKey sets the key of a schedule. Runs of one key do not overlap, over all schedules and jobs of
// the group. The default is the schedule's name. There is one exception: if a process was frozen or
// cut off, its handler may continue while another process runs the key. A handler of InTx cannot
// commit then, and what another handler writes with Run.Guarded is refused.
func WithKey(key string) ScheduleOption { return func(r *scheduleRow) { r.Key = key } }

// longestGrace leaves room for what is added to a grace.
const longestGrace = 100 * 365 * 24 * time.Hour

// inMicros rounds a duration up to whole microseconds, so that a short one is not none.
func inMicros(d time.Duration) time.Duration {
	short := d.Truncate(time.Microsecond)
	if short < d && d < longestGrace { // longer ones are refused
		return short + time.Microsecond
	}
	return short
}

// check checks the options of a schedule.
func (r *scheduleRow) check() error {
	p := r.Policy
	return errors.Join(
		cmp.Or(
			wrong(
				p.Missed < MissedLatest || p.Missed > MissedAll,
				"%v is not MissedLatest, MissedNone or MissedAll", p.Missed,
			),
			wrong(
				p.Overlap < OverlapSkip || p.Overlap > OverlapBuffer,
				"Overlap(%d) is not OverlapSkip or OverlapBuffer", p.Overlap,
			),
			wrong(p.Grace < 0 || p.Grace > longestGrace, "grace of %v is out of range: 0 to %v", p.Grace, longestGrace),
			wrong(p.PauseAfter < 0, "WithPauseAfter(%d) is out of range: 1 or more, or 0 for never", p.PauseAfter),
			wrong(p.Jitter < 0 || p.Jitter > 24*time.Hour, "jitter of %v is out of range: 0 to 24h", p.Jitter),
		),
		checkName("name", r.Name), checkName("key", r.Key),
	)
}

func checkName(what, name string) error { return store.CheckName(what, name) }

// limits has the options of a kind.
type limits struct {
	timeout, idle time.Duration
	attempts      int
	crashes       int
	backoff       BackoffPolicy
	exact         bool // pauses have no random part
	limited       bool
	concurrent    int // if limited: over all processes
}

// A KindOption sets an option of a kind.
type KindOption func(*limits)

// WithTimeout sets how long a run may take. The default is 1 min. Valid values are 1 ms to 24 h.
// Then the handler's context ends with ErrTimeout, the transaction is rolled back, and the attempt
// has failed. The server ends each statement 1 s after the timeout at the latest, even if the
// process was stopped meanwhile.
func WithTimeout(d time.Duration) KindOption { return func(l *limits) { l.timeout = d } }

// WithIdleTimeout sets how long a run may pause between two statements. The default is 30 s; valid
// values are 1 ms to 24 h. Then the server ends its transaction. So a process that is frozen in a
// run delays the next owner by at most this time.
func WithIdleTimeout(d time.Duration) KindOption { return func(l *limits) { l.idle = d } }

// WithMaxAttempts repeats a run that failed, up to n attempts in all, and sets the pauses between
// them. The default is 1. Valid values are 1 to 1,000. Until the last attempt the tick has no
// outcome, and counts as under way, see WithOverlap. Attempts that the database broke off in favor
// of another transaction (3 at most), or by ending the connection (5 at most), count as one.
func WithMaxAttempts(n int, backoff BackoffPolicy) KindOption {
	return func(l *limits) { l.attempts, l.backoff = n, backoff }
}

// WithMaxCrashes sets how many processes may crash while they run a tick or job, before it has
// failed. The default is 3. Valid values are 2 to 100. The first crash does not count, because the
// run that caused it is not known. From the second crash on, each crash suspect runs alone in its
// process, so runs beside it do not fail for its crash.
func WithMaxCrashes(n int) KindOption { return func(l *limits) { l.crashes = n } }

// WithMaxConcurrent sets how many runs of the kind may be under way at once, over all processes of
// the group. The default is no limit. Valid values are 1 to 1,000. A run of InTx counts until its
// transaction has ended in the database, even if its process was frozen or cut off. A run of
// another kind counts until its end is recorded, or until its process has lost the partition.
//
// A run that finds no slot is blocked, and its Why says so. It tries again when a run of this
// process ends, and once a second; other runs of the process continue. This is not an attempt, and
// the time does not count as lateness, see WithGrace. No process has precedence, so a process with
// many consecutive runs may have most of the slots.
//
// If processes give different limits, for example during a deploy, each uses its own. The number of
// runs never exceeds the highest limit.
func WithMaxConcurrent(n int) KindOption {
	return func(l *limits) { l.concurrent, l.limited = n, true }
}

// A BackoffPolicy sets the pauses between attempts. Backoff returns one.
type BackoffPolicy = worker.BackoffPolicy

// Backoff returns a policy that pauses for min after the first failed attempt, and twice as long
// after each further one, up to max. Each pause is up to 10 % longer, at random. Both are 1 ms to
// 30 days.
func Backoff(min, max time.Duration) BackoffPolicy { return worker.Backoff(min, max) }

func newLimits(opts []KindOption) (limits, error) {
	l := limits{timeout: time.Minute, idle: 30 * time.Second, attempts: 1, crashes: 3}
	for _, opt := range opts {
		if opt == nil {
			return l, errors.New("option is nil")
		}
		opt(&l)
	}
	const day = 24 * time.Hour
	var backoff error
	if l.attempts > 1 || l.backoff != (BackoffPolicy{}) {
		backoff = worker.CheckBackoff(l.backoff)
	}
	return l, cmp.Or(
		wrong(l.timeout < time.Millisecond || l.timeout > day, "timeout %v is out of range: 1ms to 24h", l.timeout),
		wrong(l.idle < time.Millisecond || l.idle > day, "idle limit %v is out of range: 1ms to 24h", l.idle),
		wrong(l.crashes < 2 || l.crashes > 100, "%d crashes is out of range: 2 to 100", l.crashes),
		wrong(
			l.limited && (l.concurrent < 1 || l.concurrent > 1000),
			"limit of %d runs at once is out of range: 1 to 1000", l.concurrent,
		),
		wrong(l.attempts < 1 || l.attempts > 1000, "%d attempts is out of range: 1 to 1000", l.attempts),
		backoff,
	)
}

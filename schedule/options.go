package schedule

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

const (
	maxPartitions = 65536
	minRetention  = time.Hour
)

// options of a scheduler.
type options struct {
	given      []string // the names of the options given, in order
	schema     string
	partitions int
	maxRunning int // 0: by the size of the pool
	drain      time.Duration
	logger     *slog.Logger

	retention, retentionFailed time.Duration // of the history; 0: for good
	noMigration                bool

	reason, actor string // empty: changes are not written down
}

func (o *options) gave(option string) bool { return slices.Contains(o.given, option) }

// An Option sets something of a Scheduler. Options are checked together, by the call that they are
// given to.
type Option func(*options)

// option returns an Option that is known by its name.
func option(name string, set func(*options)) Option {
	return func(o *options) {
		o.given = append(o.given, name)
		set(o)
	}
}

// WithSchema sets the schema of the tables, as pgleases.WithSchema does for the client, which must
// be given the same. The default is "pgleases".
func WithSchema(name string) Option {
	return option("WithSchema", func(o *options) { o.schema = name })
}

// WithPartitions sets how many partitions the group has. The default is 128; valid values are 1 to
// 65,536. All processes of a group give the same number. See the number of partitions of a lease.
func WithPartitions(n int) Option {
	return option("WithPartitions", func(o *options) { o.partitions = n })
}

// WithMaxRunning sets how many handlers of this group run at once in this process: 1 or more, less
// than the pool's connections. By default all groups that run on the pool share half of its
// connections, at least one each. A transactional run has one of the pool's connections, besides
// those that its handler takes.
func WithMaxRunning(n int) Option {
	return option("WithMaxRunning", func(o *options) { o.maxRunning = n })
}

// WithDrainTimeout sets how long runs may go on when their partition is wanted elsewhere, or when
// Run ends. The default is 10s; it is 0 or more. Then their contexts end, with ErrDrained, nothing
// of them is committed, and they run again.
func WithDrainTimeout(d time.Duration) Option {
	return option("WithDrainTimeout", func(o *options) { o.drain = d })
}

// WithRetention sets how long entries stay in the history: those of ticks that failed or are
// unknown for failed, 30 days by default; all others for others, 7 days by default. Each is 1h or
// more, or 0: for ever. Processes of a group give the same values. The process that owns partition
// 0 deletes what is older, each minute, in transactions of up to 1,000 entries.
func WithRetention(others, failed time.Duration) Option {
	return option("WithRetention", func(o *options) { o.retention, o.retentionFailed = others, failed })
}

// WithLogger sets where events are logged. The default, also for nil, is slog.Default().
func WithLogger(logger *slog.Logger) Option {
	return option("WithLogger", func(o *options) { o.logger = logger })
}

// WithoutMigration makes New run no DDL: if the tables are missing or too old, New returns
// pgleases.ErrSchema.
func WithoutMigration() Option {
	return option("WithoutMigration", func(o *options) { o.noMigration = true })
}

// WithReason writes down each change that is made through this Scheduler, with the reason and the
// actor, in the table schedule_changes, in the transaction of the change; the role that connects is
// written beside the actor. Then the role needs no rights on the tables: see docs/roles.md. The
// reason has 1 to 4,000 bytes, the actor up to 255; empty, it is the role alone. It is for Manage
// only: code that calls Pause has its reasons elsewhere.
func WithReason(reason, actor string) Option {
	return option("WithReason", func(o *options) { o.reason, o.actor = reason, actor })
}

func newOptions(opts []Option) (options, error) {
	o := options{
		schema: "pgleases", partitions: 128, drain: 10 * time.Second, retention: 7 * 24 * time.Hour, retentionFailed: 30 * 24 * time.Hour,
	}
	for _, opt := range opts {
		if opt == nil {
			return o, errors.New("schedule: option is nil")
		}
		opt(&o)
	}
	o.logger = cmp.Or(o.logger, slog.Default())
	return o, cmp.Or(
		wrong(o.partitions < 1 || o.partitions > maxPartitions, "schedule: %d partitions is out of range: 1 to %d", o.partitions, maxPartitions),
		wrong(o.gave("WithMaxRunning") && o.maxRunning < 1, "schedule: at most %d runs at once is out of range: 1 or more", o.maxRunning),
		wrong(o.drain < 0, "schedule: drain of %v is negative", o.drain),
		wrong(
			o.retention != 0 && o.retention < minRetention || o.retentionFailed != 0 && o.retentionFailed < minRetention,
			"schedule: retention of %v and %v is out of range: each 1h or more, or 0 for good", o.retention, o.retentionFailed,
		),
		wrong(
			o.gave("WithReason") && (o.reason == "" || len(o.reason) > 4000 || len(o.actor) > 255),
			"schedule: the reason has %d bytes, the actor %d: give 1 to 4,000 bytes to a reason, and 255 at most to an actor",
			len(o.reason), len(o.actor),
		),
		wrong(o.schema == "", `schedule: schema name "" is empty: give an identifier, or leave WithSchema out for "pgleases"`),
	)
}

// wrong returns an error if something is wrong.
func wrong(is bool, format string, args ...any) error {
	if !is {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// onlyOptions returns the options of a call that takes no others than these.
func onlyOptions(call string, opts []Option, these ...string) (options, error) {
	o, err := newOptions(opts)
	for _, name := range o.given {
		if err == nil && !slices.Contains(these, name) {
			err = fmt.Errorf("schedule: %s means nothing to %s: only %s does", name, call, strings.Join(these, ", or "))
		}
	}
	return o, err
}

// policy is what was chosen for a schedule besides its rule, as the database stores it.
type policy struct {
	Missed  Missed        `json:"missed"`
	Overlap Overlap       `json:"overlap"`
	Grace   time.Duration `json:"grace_ns"`
	Jitter  time.Duration `json:"jitter_ns"`

	PauseAfter int `json:"pause_after,omitempty"`
}

// A ScheduleOption sets something of a schedule.
type ScheduleOption func(*record)

// Overlap says what becomes of ticks that pass while the run before is under way.
type Overlap int

const (
	// OverlapSkip, the default: they are skipped, unless that run is one of several to catch up with.
	OverlapSkip Overlap = iota
	// OverlapBuffer: they are late ticks, of which Missed says what becomes: by default the latest is
	// run when the run before ends.
	OverlapBuffer
)

// WithMissed sets what becomes of ticks that passed while no process could run them. The default is
// MissedLatest.
func WithMissed(missed Missed) ScheduleOption {
	return func(r *record) { r.Policy.Missed = missed }
}

// WithOverlap sets what becomes of ticks that pass while the run before is under way. The default
// is OverlapSkip.
func WithOverlap(overlap Overlap) ScheduleOption {
	return func(r *record) { r.Policy.Overlap = overlap }
}

// WithGrace sets how late a tick may be run; later it is missed. The default, 0, is no limit,
// except for MissedNone a minute. Time for which no process knew how to run the schedule does not
// count.
func WithGrace(d time.Duration) ScheduleOption {
	return func(r *record) { r.Policy.Grace = d }
}

// WithJitter moves each run behind its tick by less than d, the same in all processes, so that not
// all schedules of a full hour run at once. The default is 0; valid values are 0 to 24h. It must be
// less than the time between two ticks: of ticks that it would bring out of their order, those that
// are overtaken are missed.
func WithJitter(d time.Duration) ScheduleOption {
	return func(r *record) { r.Policy.Jitter = d }
}

// WithPauseAfter pauses the schedule after n consecutive ticks failed. The default, 0, is never.
// Resume makes it go on.
func WithPauseAfter(n int) ScheduleOption {
	return func(r *record) { r.Policy.PauseAfter = n }
}

// WithKey sets the key under which runs never overlap, over all schedules and jobs of the group
// with that key. The default is the schedule's name.
func WithKey(key string) ScheduleOption {
	return func(r *record) { r.Key = key }
}

// check checks what was chosen for a schedule.
func (r *record) check() error {
	p := r.Policy
	return errors.Join(
		cmp.Or(
			wrong(p.Missed < MissedLatest || p.Missed > MissedAll, "%v is none of MissedLatest, MissedNone and MissedAll", p.Missed),
			wrong(p.Overlap < OverlapSkip || p.Overlap > OverlapBuffer, "Overlap(%d) is neither OverlapSkip nor OverlapBuffer", p.Overlap),
			wrong(p.Grace < 0, "grace of %v is negative", p.Grace),
			wrong(p.PauseAfter < 0, "to pause after %d failed ticks is out of range: 1 or more, or 0 for never", p.PauseAfter),
			wrong(p.Jitter < 0 || p.Jitter > 24*time.Hour, "jitter of %v is out of range: 0 to 24h", p.Jitter),
		),
		checkName("name", r.Name), checkName("key", r.Key),
	)
}

func checkName(what, name string) error { return store.CheckName(what, name) }

// limits of the runs of a kind.
type limits struct {
	timeout, idle time.Duration
	attempts      int
	crashes       int
	backoff       BackoffPolicy
	limited       bool
	concurrent    int // if limited: over all processes
}

// A KindOption sets something of a kind of handlers.
type KindOption func(*limits)

// WithTimeout sets how long a run may take. The default is 1min; valid values are 1ms to 24h. Then
// the handler's context ends, with ErrTimeout, and nothing of it is committed: that is a failed
// attempt. The server ends each statement a second later than that at the latest, even if the
// process was stopped meanwhile.
func WithTimeout(d time.Duration) KindOption { return func(l *limits) { l.timeout = d } }

// WithIdleTimeout sets how long a run may pause between two statements. The default is 30s; valid
// values are 1ms to 24h. Then the server ends its transaction. So a process that is frozen in a run
// delays the next owner by that much.
func WithIdleTimeout(d time.Duration) KindOption { return func(l *limits) { l.idle = d } }

// WithMaxAttempts makes a run that failed run again, n times in all, and sets the pauses between.
// The default is 1; valid values are 1 to 1,000. Until then its tick has no outcome, and counts as
// under way, see WithOverlap. Attempts that the database broke off in favor of another transaction
// (three at most), or by ending the connection (five), count as one.
func WithMaxAttempts(n int, backoff BackoffPolicy) KindOption {
	return func(l *limits) { l.attempts, l.backoff = n, backoff }
}

// WithMaxCrashes sets how many processes may crash while they run a tick: then it failed. The
// default is 3; valid values are 2 to 100. The first that crashes does not count, because it is not
// known then what it ran. From the second on, what it may have been runs alone in its process, so
// what only ran beside it does not fail for that.
func WithMaxCrashes(n int) KindOption { return func(l *limits) { l.crashes = n } }

// WithMaxConcurrent allows at most n runs of the kind at once, over all processes of the group. The
// default is no limit; valid values are 1 to 1,000. A run of InTx counts until its transaction has
// ended in the database, even if its process was frozen or cut off; any other until it is known to
// have ended, or its process has lost the partition.
//
// A run that finds no slot is blocked, says so in BlockedReason, and tries again when one of this
// process's ends, and once a second; nothing else of the process waits for it. That is no attempt,
// and for what it takes a tick is not late, see WithGrace. No process has precedence, so a process
// whose runs follow each other may have most of the slots.
//
// If processes give different limits, as in a deploy, each keeps its own: there are never more runs
// than the highest.
func WithMaxConcurrent(n int) KindOption {
	return func(l *limits) { l.concurrent, l.limited = n, true }
}

// A BackoffPolicy sets the pauses between attempts. Backoff makes it.
type BackoffPolicy struct {
	min, max time.Duration
	exact    bool // without what is random
}

// Backoff pauses for min after the first attempt that failed, twice as long after each further one,
// at most for max; each pause is up to 10 % longer, at random. Both are 1ms to 30 days.
func Backoff(min, max time.Duration) BackoffPolicy { return BackoffPolicy{min: min, max: max} }

// after is the pause after so many attempts that failed.
func (p BackoffPolicy) after(failed int) time.Duration {
	d := p.max
	if doublings := failed - 1; doublings < 62 && p.min <= p.max>>doublings {
		d = p.min << doublings
	}
	if !p.exact {
		d += rand.N(d/10 + 1)
	}
	return d.Truncate(time.Microsecond)
}

func newLimits(opts []KindOption) (limits, error) {
	l := limits{timeout: time.Minute, idle: 30 * time.Second, attempts: 1, crashes: 3}
	for _, opt := range opts {
		if opt == nil {
			return l, errors.New("option is nil")
		}
		opt(&l)
	}
	const longest = 30 * 24 * time.Hour
	b, day := l.backoff, 24*time.Hour
	pauses := b != BackoffPolicy{} || l.attempts > 1
	return l, cmp.Or(
		wrong(l.timeout < time.Millisecond || l.timeout > day, "timeout %v is out of range: 1ms to 24h", l.timeout),
		wrong(l.idle < time.Millisecond || l.idle > day, "idle limit %v is out of range: 1ms to 24h", l.idle),
		wrong(l.crashes < 2 || l.crashes > 100, "%d crashes is out of range: 2 to 100", l.crashes),
		wrong(l.limited && (l.concurrent < 1 || l.concurrent > 1000), "limit of %d runs at once is out of range: 1 to 1000", l.concurrent),
		wrong(l.attempts < 1 || l.attempts > 1000, "%d attempts is out of range: 1 to 1000", l.attempts),
		wrong(
			pauses && (b.min < time.Millisecond || b.max > longest || b.min > b.max),
			"backoff from %v to %v is out of range: from at least 1ms, to at most %v, the first no longer than the last", b.min, b.max,
			longest,
		),
	)
}

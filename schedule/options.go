package schedule

import (
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
	defaultSchema     = "pgleases"
	defaultPartitions = 128
	maxPartitions     = 65536
	defaultDrain      = 10 * time.Second

	defaultRetention       = 7 * 24 * time.Hour
	defaultRetentionFailed = 30 * 24 * time.Hour
	minRetention           = time.Hour
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

	reason, actor string // empty: nothing is written down
}

// An Option changes how a scheduler works. Options are checked together, by the call that they are given to.
type Option struct {
	name string
	set  func(*options)
}

// WithSchema sets the schema of the tables, as pgleases.WithSchema does for the client, which must be given the same; default "pgleases".
func WithSchema(name string) Option {
	return Option{"WithSchema", func(o *options) { o.schema = name }}
}

// WithPartitions sets how many partitions the group has: 1 to 65,536, default 128. All processes of a group give the same. See the number of
// partitions of a lease.
func WithPartitions(n int) Option {
	return Option{"WithPartitions", func(o *options) { o.partitions = n }}
}

// WithMaxRunning sets how many handlers of this group run at once in this process: 1 or more, less than
// the pool's connections. By default all groups that run on the pool share half of its connections, at
// least one each. A transactional run has one of the pool's connections, besides those that its handler
// takes.
func WithMaxRunning(n int) Option {
	return Option{"WithMaxRunning", func(o *options) { o.maxRunning = n }}
}

// WithDrain sets how long runs may go on when their partition is wanted elsewhere, or when Run ends; 0 or more, default 10s. Then their contexts
// end, with ErrDrained, nothing of them is committed, and they are run again.
func WithDrain(d time.Duration) Option {
	return Option{"WithDrain", func(o *options) { o.drain = d }}
}

// WithRetention sets how long entries stay in the history: those of ticks that are dead or lost for the second time, 30 days by default,
// all others for the first, 7 days by default. Each is 1h or more, or 0: for good. Processes of a group give the same. The process that
// owns partition 0 deletes what is older, each minute, in transactions of up to 1,000 entries.
func WithRetention(most, dead time.Duration) Option {
	return Option{"WithRetention", func(o *options) { o.retention, o.retentionFailed = most, dead }}
}

// WithLogger sets where events are logged; default slog.Default(). A nil logger means the default.
func WithLogger(logger *slog.Logger) Option {
	return Option{"WithLogger", func(o *options) { o.logger = logger }}
}

// WithoutMigration never runs DDL: where the tables are missing or too old, New is pgleases.ErrSchema.
func WithoutMigration() Option {
	return Option{"WithoutMigration", func(o *options) { o.noMigration = true }}
}

// WithReason has what is changed through this Scheduler written down, with why and who, in the table schedule_changes, in the transaction
// of the change; beside the actor stands the role that connects. The role needs no rights on the tables then: see docs/roles.md. The reason has 1 to 4,000 bytes, the actor up to 255: empty, it is the
// role alone. Only for Manage: code that calls Pause by itself has its reasons elsewhere.
func WithReason(reason, actor string) Option {
	return Option{"WithReason", func(o *options) { o.reason, o.actor = reason, actor }}
}

func newOptions(opts []Option) (options, error) {
	o := options{
		schema: defaultSchema, partitions: defaultPartitions, drain: defaultDrain, retention: defaultRetention,
		retentionFailed: defaultRetentionFailed,
	}
	for _, opt := range opts {
		if opt.set == nil {
			return o, errors.New("schedule: option is empty: make it with one of the With functions")
		}
		o.given = append(o.given, opt.name)
		opt.set(&o)
	}
	if o.logger == nil {
		o.logger = slog.Default()
	}
	switch {
	case o.partitions < 1 || o.partitions > maxPartitions:
		return o, fmt.Errorf("schedule: %d partitions is out of range: 1 to %d", o.partitions, maxPartitions)
	case slices.Contains(o.given, "WithMaxRunning") && o.maxRunning < 1:
		return o, fmt.Errorf("schedule: at most %d runs at once is out of range: 1 or more", o.maxRunning)
	case o.drain < 0:
		return o, fmt.Errorf("schedule: drain of %v is negative", o.drain)
	case o.retention != 0 && o.retention < minRetention, o.retentionFailed != 0 && o.retentionFailed < minRetention:
		return o, fmt.Errorf("schedule: retention of %v and %v is out of range: each 1h or more, or 0 for good", o.retention, o.retentionFailed)
	case slices.Contains(o.given, "WithReason") && (o.reason == "" || len(o.reason) > 4000 || len(o.actor) > 255):
		return o, fmt.Errorf(
			"schedule: the reason has %d bytes, the actor %d: give 1 to 4,000 bytes to a reason, and 255 at most to an actor",
			len(o.reason), len(o.actor),
		)
	case o.schema == "":
		return o, errors.New(`schedule: schema name "" is empty: give an identifier, or leave WithSchema out for "pgleases"`)
	}
	return o, nil
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

// policy is what was chosen for a schedule besides its rule, as the database has it.
type policy struct {
	Missed  Missed        `json:"missed"`
	Overlap Overlap       `json:"overlap"`
	Grace   time.Duration `json:"grace_ns"`
	Jitter  time.Duration `json:"jitter_ns"`

	PauseAfter int `json:"pause_after,omitempty"`
}

// A ScheduleOption changes a schedule: Missed, Overlap, Grace, Jitter, PauseAfter and Key are ones.
type ScheduleOption interface{ set(*record) }

// Overlap says what becomes of ticks that pass while the schedule's run before is under way.
type Overlap int

const (
	OverlapSkip   Overlap = iota // they are skipped, unless that run is one of several to catch up with; the default
	OverlapBuffer                // they are late ticks, of which Missed says what becomes: by default the latest is run when the run before ends
)

// Grace is how late a tick may be run; later it is missed. The default, 0, is no limit, but for MissedNone a minute. Time for which no process knew how
// to run the schedule does not count.
type Grace time.Duration

// Jitter moves each run behind its tick by less than this, the same for all processes, so that not all schedules of a full hour run at
// once; default 0. It is to be less than the time between two ticks: of ticks that it would bring out of their order, those that are
// overtaken are missed.
type Jitter time.Duration

// PauseAfter pauses the schedule when so many ticks in a row are dead; default 0: never. Resume has it go on.
type PauseAfter int

// Key is the key under which runs never overlap, over all schedules and jobs of the group with that key; default the schedule's name; of
// a job its Unique key, or else one of its own.
type Key string

func (m Missed) set(r *record)  { r.Policy.Missed = m }
func (o Overlap) set(r *record) { r.Policy.Overlap = o }
func (g Grace) set(r *record)   { r.Policy.Grace = time.Duration(g) }
func (j Jitter) set(r *record)  { r.Policy.Jitter = time.Duration(j) }
func (n PauseAfter) set(r *record) {
	r.Policy.PauseAfter = int(n)
}
func (k Key) set(r *record) { r.Key = string(k) }

// check checks what was chosen for a schedule.
func (r *record) check() error {
	p := r.Policy
	switch {
	case p.Missed < MissedLatest || p.Missed > MissedAll:
		return fmt.Errorf("%v is none of MissedLatest, MissedNone and MissedAll", p.Missed)
	case p.Overlap < OverlapSkip || p.Overlap > OverlapBuffer:
		return fmt.Errorf("Overlap(%d) is neither OverlapSkip nor OverlapBuffer", p.Overlap)
	case p.Grace < 0:
		return fmt.Errorf("grace of %v is negative", p.Grace)
	case p.PauseAfter < 0:
		return fmt.Errorf("to pause after %d dead ticks is out of range: 1 or more, or 0 for never", p.PauseAfter)
	case p.Jitter < 0 || p.Jitter > 24*time.Hour:
		return fmt.Errorf("jitter of %v is out of range: 0 to 24h", p.Jitter)
	}
	return errors.Join(checkName("name", r.Name), checkName("key", r.Key))
}

func checkName(what, name string) error { return store.CheckName(what, name) }

// limits of the runs of a kind.
type limits struct {
	timeout, idle time.Duration
	attempts      int
	crashes       int
	pauses        Pauses
	limited       bool
	atOnce        int // where limited: over all processes
}

// A KindOption changes a kind of handlers.
type KindOption func(*limits)

// Timeout sets how long a run may take: 1ms to 24h, default 1min. Then the handler's context ends, with ErrTimeout, and nothing of it is committed: that is
// a failed attempt. The server ends each statement a second later than that at the latest, also where the process was
// stopped meanwhile.
func Timeout(d time.Duration) KindOption { return func(l *limits) { l.timeout = d } }

// Idle sets how long a run may pause between two statements: 1ms to 24h, default 30s. Then the server ends its transaction. So a process that is frozen in a
// run delays the next owner by that much.
func Idle(d time.Duration) KindOption { return func(l *limits) { l.idle = d } }

// Retry has a run that failed tried again, so many times in all: 1 to 1,000, default 1. Until then its tick has no fate, and counts as
// under way, see Overlap. Attempts that the database broke off in favour of another transaction (three at most), or by ending the
// connection (five), count as one.
func Retry(attempts int, pauses Pauses) KindOption {
	return func(l *limits) { l.attempts, l.pauses = attempts, pauses }
}

// Crashes sets how many processes may die while they run a tick: 2 to 100, default 3. Then it is dead. The first that dies does not count,
// as it is not known then what it ran; from the second on what it may have been runs alone in its process. What only ran beside it is not
// dead for that.
func Crashes(n int) KindOption { return func(l *limits) { l.crashes = n } }

// Limit has at most n runs of the kind at once, over all processes of the group: 1 to 1,000; default no limit. A run of InTx counts until
// its transaction has ended in the database, also where its process was frozen or cut off; any other until it is known to have ended, or
// its process has lost the partition.
//
// A run that finds no slot waits, says so in Waits, and tries again when one of this process's ends, and once a second; nothing of the
// process waits with it. That is no attempt, and for what it takes a tick is not late, see Grace. No process has precedence, so one
// whose runs follow each other may have most of the slots.
//
// Where processes give different limits, as in a deploy, each keeps its own: there are never more runs than the highest.
func Limit(n int) KindOption { return func(l *limits) { l.atOnce, l.limited = n, true } }

// Pauses are made by Backoff.
type Pauses struct {
	min, max time.Duration
	exact    bool // without what is random
}

// Backoff are pauses between attempts: min after the first that failed, twice as long after each further one, at most max; each up to a
// tenth longer, at random. Both are 1ms to 30 days.
func Backoff(min, max time.Duration) Pauses { return Pauses{min: min, max: max} }

// after is the pause after so many attempts that failed.
func (p Pauses) after(failed int) time.Duration {
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
	for _, limit := range []struct {
		what string
		d    time.Duration
	}{{"timeout", l.timeout}, {"idle limit", l.idle}} {
		if limit.d < time.Millisecond || limit.d > 24*time.Hour {
			return l, fmt.Errorf("%s %v is out of range: 1ms to 24h", limit.what, limit.d)
		}
	}
	if l.crashes < 2 || l.crashes > 100 {
		return l, fmt.Errorf("%d crashes is out of range: 2 to 100", l.crashes)
	}
	if l.limited && (l.atOnce < 1 || l.atOnce > 1000) {
		return l, fmt.Errorf("limit of %d runs at once is out of range: 1 to 1000", l.atOnce)
	}
	const longest = 30 * 24 * time.Hour
	switch b := l.pauses; {
	case l.attempts < 1 || l.attempts > 1000:
		return l, fmt.Errorf("%d attempts is out of range: 1 to 1000", l.attempts)
	case b == (Pauses{}) && l.attempts == 1:
	case b.min < time.Millisecond || b.max > longest || b.min > b.max:
		return l, fmt.Errorf(
			"backoff from %v to %v is out of range: from at least 1ms, to at most %v, the first no longer than the last", b.min, b.max,
			longest,
		)
	}
	return l, nil
}

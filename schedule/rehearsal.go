package schedule

import (
	"context"
	"maps"
	"math"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// This file is a process under the clock of a test, for package scheduletest, which decides what
// runs when.

// A rehearsal is a process. It is a bridge.Process, and the fence of its executor.
type rehearsal struct {
	s     *Scheduler
	clock serverClock
	exec  executor
	owned map[int]*ownership
	all   []int32               // all partitions
	held  map[subject]time.Time // do not begin these before an instant
	life  context.Context
}

// rehearsalLockWait is how long a statement of a rehearsal waits for a lock. Usually the
// transaction with the lock waits for the test.
const rehearsalLockWait = 100 * time.Millisecond

func init() {
	bridge.Rehearse = func(
		ctx context.Context, pool *pgxpool.Pool, schema, group string, stage *bridge.Stage, opts any,
	) (bridge.Process, error) {
		o, err := newOptions(append(opts.([]Option), WithSchema(schema), WithoutMigration()))
		if err != nil {
			return nil, err
		}
		s, err := newScheduler(ctx, nil, pool, group, o)
		if err != nil {
			return nil, err
		}
		s.stage, s.db.staged = stage, true
		s.times.LockWait = rehearsalLockWait
		r := &rehearsal{s: s, owned: make(map[int]*ownership), held: make(map[subject]time.Time)}
		for n := range o.partitions {
			r.all = append(r.all, int32(n))
		}
		r.clock.staged = stage.Now
		within := transactions{s.db, r.fence, &r.clock, unlimited{}, func(error) {}, newEnds()}
		r.exec = executor{
			transactions: within, registry: &s.registry, log: s.log, postponed: new(postponed),
			gotSlot: func(string) {}, parked: func(subject) {}, overdue: func(subject, error) {},
		}
		return r, nil
	}
}

func (r *rehearsal) Scheduler() any  { return r.s }
func (r *rehearsal) Partitions() int { return r.s.options.partitions }

// Start stores what the code declares.
func (r *rehearsal) Start(ctx context.Context) error {
	_, err := r.s.registry.start()
	if err == nil {
		_, err = r.s.putDeclared(ctx)
	}
	if err == nil {
		err = r.s.join(ctx)
	}
	return err
}

// Own gives all partitions to the process. Blocked schedules and jobs are due at once, as for a new
// owner.
func (r *rehearsal) Own(life context.Context, epoch int64) error {
	r.life = life
	clear(r.owned)
	clear(r.held)
	for n := range r.s.options.partitions {
		r.owned[n] = &ownership{
			Partition: pgleases.Partition{Number: n, Epoch: epoch}, life: life, ctx: life, cancel: func(error) {},
		}
	}
	all := &poll{partitions: r.all, fresh: r.all, least: 1, few: 1, total: math.MaxInt32}
	return r.s.db.sendPoll(life, r.s.db.pool, all, []string{})
}

// Drain records that all runs have ended.
func (r *rehearsal) Drain() {
	for _, o := range r.owned {
		r.exec.noteEnd(o)
	}
}

// Step polls for all that is due now or later, and runs the first item. If its result could not be
// recorded, the item is held for a while.
func (r *rehearsal) Step(ctx context.Context) (ran any, next time.Time, err error) {
	now := r.clock.now()
	maps.DeleteFunc(r.held, func(_ subject, until time.Time) bool { return !until.After(now) })
	enough := 1 + len(r.held) // one that is not held
	look := &poll{partitions: r.all, ahead: math.MaxInt64, least: enough, few: enough, total: math.MaxInt32}
	err = r.s.db.sendPoll(ctx, r.s.db.pool, look, []string{})
	var first *item
	for _, it := range look.due {
		at := it.due()
		at = when.Later(at, r.held[it.subject]) // the zero time if it is not held
		switch {
		case !at.After(now) && (first == nil || it.Priority > first.Priority):
			first = &it
		case at.After(now) && (next.IsZero() || at.Before(next)):
			next = at
		}
	}
	if first == nil {
		return nil, next, err
	}
	if !r.run(*first) {
		r.held[first.subject] = now.Add(r.s.times.Poll)
	}
	return first.subject, next, nil
}

// run runs what is due of a schedule or a job, and reports whether the result is recorded.
func (r *rehearsal) run(it item) bool {
	o := r.owned[it.Partition]
	if r.exec.noteRuns(o) != nil {
		return false
	}
	done := r.exec.execute(o.ctx, o, it)
	return done.again != nil && done.outcome != blocked || done.outcome == stepped || done.outcome == callable
}

// unlimited are the places of a rehearsal, which makes one run at a time.
type unlimited struct{}

func (unlimited) Take(context.Context, worker.Lane) (give func(), err error) { return func() {}, nil }

// fence is the fence of the process, which owns all partitions until its life ends.
func (r *rehearsal) fence(
	batch *pgx.Batch, p pgleases.Partition, statement string, args []any, read func(pgx.Row) error,
) error {
	refused := wrap.Errorf("schedule: guard partition %d under epoch %d: %w", p.Number, p.Epoch, pgleases.ErrNotOwner)
	if r.life.Err() != nil {
		return refused
	}
	args = append([]any{leaseOf + r.s.db.group, p.Number, p.Epoch}, args...)
	batch.Queue(statement, args...).QueryRow(func(row pgx.Row) error {
		err := read(row)
		if store.Refused(err) {
			return refused
		}
		return err
	})
	return nil
}

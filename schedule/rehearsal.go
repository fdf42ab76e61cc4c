package schedule

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
	engine "github.com/pgleases/pgleases/sql"
)

// This file is a process under the clock of a test, for package scheduletest, which says what runs when.

// A rehearsal is a process. It is a seam.Process, and the fence of its planner.
type rehearsal struct {
	s       *Scheduler
	planner *planner
	fencing string // the statement

	life context.Context
}

// rehearsalLockWait is how long a statement of a rehearsal waits for a lock. Mostly what has the lock waits for the test.
const rehearsalLockWait = 100 * time.Millisecond

func init() {
	seam.Rehearse = func(ctx context.Context, pool *pgxpool.Pool, schema, group string, stage *seam.Stage, opts any) (seam.Process, error) {
		o, err := newOptions(append(opts.([]Option), WithSchema(schema), WithoutMigration()))
		if err != nil {
			return nil, err
		}
		s, err := newScheduler(ctx, nil, pool, group, o)
		if err != nil {
			return nil, err
		}
		s.stage, s.lockWait = stage, rehearsalLockWait
		r := &rehearsal{s: s, planner: newPlanner(s, nil), fencing: store.Texts(engine.Files, schema)("guard")}
		r.planner.fence = r
		return r, nil
	}
}

func (r *rehearsal) Scheduler() any  { return r.s }
func (r *rehearsal) Partitions() int { return r.s.options.partitions }

// Start puts what the code declares.
func (r *rehearsal) Start(ctx context.Context) error {
	r.s.mu.Lock()
	err := errors.Join(r.s.broken...)
	r.s.running = true
	r.s.mu.Unlock()
	if err == nil {
		_, err = r.s.putDeclared(ctx)
	}
	if err == nil {
		err = r.s.join(ctx)
	}
	return err
}

// Own gives all partitions to the process. What waits is due at once, as for a new owner.
func (r *rehearsal) Own(life context.Context, epoch int64) error {
	r.life = life
	clear(r.planner.owned)
	all := make([]int32, r.s.options.partitions)
	for n := range all {
		all[n] = int32(n)
		r.planner.owned[n] = &ownership{Partition: pgleases.Partition{Number: n, Epoch: epoch}, life: life, ctx: life, cancel: func(error) {}}
	}
	_, _, _, err := r.s.sendLook(life, r.s.pool, all, all, time.Time{}, 0, 1, []string{}, []string{})
	return err
}

// Drain notes that all that ran has ended.
func (r *rehearsal) Drain() {
	for _, o := range r.planner.owned {
		r.planner.close(o)
	}
}

// Run does what is due of a schedule or a job.
func (r *rehearsal) Run(due seam.Due) bool {
	it := item{
		subject: subject{due.ID, due.Job}, Priority: due.Priority, Partition: due.Partition, Key: due.Key, Kind: due.Kind,
		DueMicro: due.At.UnixMicro(), Crashes: due.Crashes,
	}
	again, _ := r.planner.carryOut(r.planner.owned[it.Partition], it)
	return again != nil && !again.slotless
}

// queueGuard queues the guard of a partition.
func (r *rehearsal) queueGuard(_ context.Context, batch *pgx.Batch, p pgleases.Partition) error {
	if r.life.Err() != nil {
		return r.refused(p)
	}
	batch.Queue(r.fencing, leaseOf+r.s.group, p.Number, p.Epoch, time.Hour.Milliseconds()).Query(func(rows pgx.Rows) error {
		rows.Close()
		return r.guarded(p, rows.Err())
	})
	return nil
}

// queueGuarded queues a statement that guards a partition.
func (r *rehearsal) queueGuarded(batch *pgx.Batch, p pgleases.Partition, statement string, args []any, read func(pgx.Row) error) error {
	if r.life.Err() != nil {
		return r.refused(p)
	}
	batch.Queue(statement, append([]any{leaseOf + r.s.group, p.Number, p.Epoch}, args...)...).
		QueryRow(func(row pgx.Row) error { return r.guarded(p, read(row)) })
	return nil
}

func (r *rehearsal) guarded(p pgleases.Partition, err error) error {
	if store.Refused(err) {
		return r.refused(p)
	}
	return err
}

func (r *rehearsal) refused(p pgleases.Partition) error {
	return fmt.Errorf("schedule: guard partition %d under epoch %d: %w", p.Number, p.Epoch, pgleases.ErrNotOwner)
}

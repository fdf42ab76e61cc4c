package schedule

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/seam"
)

// This file is a process without a database, for package scheduletest, which says what runs when.

// A rehearsal is a process. Its methods are those of seam.Process.
type rehearsal struct {
	s       *Scheduler
	planner *planner

	life, runs context.Context
	epoch      int64
}

func init() {
	seam.Rehearse = func(group string, stage *seam.Stage, tables, opts any) (seam.Process, error) {
		r, err := rehearse(group, stage, tables, opts.([]Option))
		if err != nil {
			return nil, err
		}
		return r, nil
	}
}

func rehearse(group string, stage *seam.Stage, tables any, opts []Option) (*rehearsal, error) {
	o, err := newOptions(opts)
	if err == nil {
		err = checkGroup(group)
	}
	if err != nil {
		return nil, err
	}
	m, kept := tables.(*memory)
	if !kept {
		m = newMemory(stage, o.partitions)
	}
	s := &Scheduler{
		memory: m, pool: noPool(), group: group, options: o, log: o.logger.With(slog.String("group", group)), answers: closing, lockWait: lockWait,
		kinds: make(map[string]*kind), declared: make(map[string]*record), told: make(map[string]bool),
	}
	return &rehearsal{s: s, planner: newPlanner(s, nil)}, nil
}

// noPool is closed: nothing that is forgotten here reaches a database.
var noPool = sync.OnceValue(func() *pgxpool.Pool {
	config, err := pgxpool.ParseConfig("host=schedule.invalid")
	if err != nil {
		panic(err) // it is written above
	}
	pool, err := pgxpool.NewWithConfig(context.Background(), config)
	if err != nil {
		panic(err) // nothing is asked of it
	}
	pool.Close()
	return pool
})

func (r *rehearsal) Scheduler() any            { return r.s }
func (r *rehearsal) Enqueuer() any             { return &Enqueuer{r.s} }
func (r *rehearsal) Tables() any               { return r.s.memory }
func (r *rehearsal) DrainLimit() time.Duration { return r.s.options.drain }

// MaxRunning is how many run at once.
func (r *rehearsal) MaxRunning() int { return cmp.Or(r.s.options.maxRunning, 10) }

// run stands in for what Scheduler.Run does.
func (m *memory) run(ctx context.Context, s *Scheduler) error {
	return fmt.Errorf("schedule: run group %q: %w", s.group, m.stage.Wait(ctx))
}

// Start puts what the code declares.
func (r *rehearsal) Start(ctx context.Context) error {
	r.s.mu.Lock()
	err := errors.Join(r.s.broken...)
	r.s.running = true
	r.s.mu.Unlock()
	if err != nil {
		return err
	}
	return r.s.putDeclared(ctx)
}

// Own has the process own all partitions.
func (r *rehearsal) Own(life, runs context.Context, epoch int64) {
	r.life, r.runs, r.epoch = life, runs, epoch
	clear(r.planner.owned)
	r.s.memory.fresh()
}

// Drain notes that all that ran has ended.
func (r *rehearsal) Drain() {
	r.s.mu.Lock()
	names := slices.Collect(maps.Keys(r.s.declared))
	r.s.mu.Unlock()
	_ = r.s.memory.declare(names) // as it would have said all the time
	for _, o := range r.planner.owned {
		r.planner.close(o)
	}
}

// Due visits what is due.
func (r *rehearsal) Due(until time.Time, visit func(seam.Due) bool) { r.s.memory.look(until, visit) }

// Next is when the first is due after an instant.
func (r *rehearsal) Next(after time.Time) time.Time { return r.s.memory.next(after) }

// owned returns the ownership of a partition.
func (r *rehearsal) owned(partition int) *ownership {
	p := r.planner
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.owned[partition] == nil {
		o := &ownership{Partition: pgleases.Partition{Number: partition, Epoch: r.epoch}, life: r.life}
		o.ctx, o.cancel = r.runs, func(error) {}
		p.owned[partition] = o
	}
	return p.owned[partition]
}

// Limit is how many of a kind run at once; 0: any number.
func (r *rehearsal) Limit(kind string) int {
	if k := r.s.kind(kind); k != nil && k.limits.limited {
		return k.limits.atOnce
	}
	return 0
}

// Run does what is due of a schedule or a job.
func (r *rehearsal) Run(due seam.Due) (known, slotless bool) {
	it := item{
		subject: subject{due.ID, due.Job}, Priority: due.Priority, Partition: due.Partition, Key: due.Key, Kind: due.Kind,
		DueMicro: due.At.UnixMicro(), Crashes: due.Crashes,
	}
	before := r.s.memory.open(it.subject)
	r.s.memory.running(it.subject, true)
	again, _ := r.planner.carryOut(r.owned(it.Partition), it)
	r.s.memory.running(it.subject, false)
	if again != nil && again.slotless {
		return true, true
	}
	now := r.s.memory.open(it.subject)
	if again != nil || before == nil || now == nil {
		return true, false
	}
	sameDue := before.Due == nil && now.Due == nil || before.Due != nil && now.Due != nil && before.Due.Equal(*now.Due)
	return !sameDue || before.Revision != now.Revision || !before.Cursor.Equal(now.Cursor), false
}

// Tx has what is put in a transaction be there once that is committed.
func (r *rehearsal) Tx(tx pgx.Tx) pgx.Tx {
	of := r.s.memory.beginTx(context.Background())
	if tx != nil {
		of.begun = &tx
	}
	return of
}

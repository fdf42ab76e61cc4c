package cron

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/robfig/cron/v3"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// every is a schedule for tests: cron's own have whole seconds.
type every time.Duration

func (e every) Next(at time.Time) time.Time { return at.Add(time.Duration(e)) }

const jobs, partitions = 8, 16

type process struct {
	client *pgleases.Client
	lease  *pgleases.Lease
	cron   *cron.Cron
	ticks  atomic.Int32
	ran    [jobs]atomic.Int32
}

func start(t *testing.T, pool *pgxpool.Pool) *process {
	t.Helper()
	p := &process{client: clients.New(t, pool), cron: cron.New()}
	p.lease = testkit.Must(p.client.Lease(t.Context(), "cron", partitions))(t)
	p.cron.Schedule(every(20*time.Millisecond), cron.FuncJob(func() { p.ticks.Add(1) }))
	for i := range jobs {
		job := cron.NewChain(OnOwner(p.lease, fmt.Sprint("job-", i))).Then(cron.FuncJob(func() { p.ran[i].Add(1) }))
		p.cron.Schedule(every(20*time.Millisecond), job)
	}
	p.cron.Start()
	t.Cleanup(func() { <-p.cron.Stop().Done() })
	return p
}

func (p *process) all() bool {
	for i := range p.ran {
		if p.ran[i].Load() == 0 {
			return false
		}
	}
	return true
}

// reset waits for some ticks, begins to count again, and waits for more.
func count(t *testing.T, processes ...*process) {
	t.Helper()
	for _, p := range processes {
		ticks := p.ticks.Load()
		testkit.Until(t, "jobs from before end", func() bool { return p.ticks.Load() > ticks+2 })
		for i := range p.ran {
			p.ran[i].Store(0)
		}
	}
	for _, p := range processes {
		ticks := p.ticks.Load()
		testkit.Until(t, "cron ticks", func() bool { return p.ticks.Load() > ticks+5 })
	}
}

func TestJobRunsOnOwnerOnly(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	one := start(t, pool)
	testkit.Until(t, "the first process runs all", one.all)
	two := start(t, pool)
	testkit.Until(t, "each process owns half", func() bool {
		return one.client.Stats().Owned == partitions/2 && two.client.Stats().Owned == partitions/2
	})
	count(t, one, two)
	shared := map[bool]int{}
	for i := range jobs {
		number := one.lease.PartitionFor(fmt.Sprint("job-", i))
		_, first := one.lease.Partition(number)
		shared[first]++
		if a, b := one.ran[i].Load() > 0, two.ran[i].Load() > 0; a != first || b == first {
			t.Errorf("job %d: ran on the first process %v, on the second %v; the first owns it: %v", i, a, b, first)
		}
	}
	if len(shared) != 2 {
		t.Errorf("one process owns all jobs: %v", shared)
	}
	clients.Close(t, one.client)
	testkit.Until(t, "the second process runs all", two.all)
	count(t, one, two)
	for i := range jobs {
		if n := one.ran[i].Load(); n > 0 {
			t.Errorf("job %d ran %d times after Close", i, n)
		}
	}
}

// The partition moves when the job has ended. The job can fence its writes.
func TestJobKeepsItsPartition(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	one, two := clients.New(t, pool), clients.New(t, pool)
	lease := testkit.Must(one.Lease(t.Context(), "one", 1, pgleases.WithHandoffDelay(0)))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	other := testkit.Must(two.Lease(t.Context(), "one", 1))(t)

	begun, end := make(chan error), make(chan struct{})
	// A second call beside the first would hold the partition too, and nobody receives from it.
	c := cron.New(cron.WithChain(cron.SkipIfStillRunning(cron.DiscardLogger)))
	c.Schedule(every(20*time.Millisecond), Job(lease, "any", func(ctx context.Context, p pgleases.Partition) {
		begun <- pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return lease.Guard(ctx, tx, p) })
		<-end
		if err := context.Cause(ctx); err != nil {
			t.Errorf("the ownership ended before the job: %v", err)
		}
	}))
	c.Start()
	testkit.OK(t, testkit.Receive(t, "the job begins", begun))
	left := make(chan error, 1)
	go func() { left <- lease.Leave(context.Background()) }()
	testkit.Until(t, "the partition is to move, or has moved", func() bool {
		return one.Stats().Draining == 1 || other.Owns(0)
	})
	clients.Beats(t, one, 3)
	clients.Beats(t, two, 3)
	if _, owned := other.Partition(0); owned {
		t.Error("the partition moved while the job ran")
	}
	close(end)
	testkit.OK(t, testkit.Receive(t, "Leave returns", left))
	testkit.OK(t, other.Wait(t.Context()))
	<-c.Stop().Done()
}

// A job that panics, recovered by cron or not, does not keep its partition.
func TestPanicReleasesPartition(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	lease := testkit.Must(clients.New(t, pool).Lease(t.Context(), "one", 1, pgleases.WithHandoffDelay(0)))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	log := cron.DiscardLogger
	for name, chain := range map[string]cron.Chain{
		"recovered outside": cron.NewChain(cron.Recover(log), cron.SkipIfStillRunning(log), OnOwner(lease, "any")),
		"recovered inside":  cron.NewChain(OnOwner(lease, "any"), cron.DelayIfStillRunning(log), cron.Recover(log)),
		"not recovered":     cron.NewChain(OnOwner(lease, "any")),
	} {
		ran := false
		func() {
			defer func() { _ = recover() }()
			chain.Then(cron.FuncJob(func() { ran = true; panic("in the job") })).Run()
		}()
		if !ran {
			t.Errorf("%s: it did not run", name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), testkit.Patience)
	defer cancel()
	testkit.OK(t, lease.Leave(ctx))
}

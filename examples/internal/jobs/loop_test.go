package jobs

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/pgleasestest"
)

// The loop without a database: what is owned is decided by the test, the jobs are in memory, and time costs nothing.

// A list is a table of jobs in memory.
type list struct {
	working func(ctx context.Context, job Job) error // may be nil

	mu   sync.Mutex // guards jobs and done
	jobs []Job
	done []int64
}

func (l *list) add(jobs ...Job) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.jobs = append(l.jobs, jobs...)
}

func (l *list) doneSoFar() []int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.done)
}

func (l *list) pending(_ context.Context, partitions []int) ([]Job, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var jobs []Job
	for _, job := range l.jobs {
		if slices.Contains(partitions, job.Partition) && !slices.Contains(l.done, job.ID) {
			jobs = append(jobs, job)
		}
	}
	return jobs, nil
}

func (l *list) do(ctx context.Context, _ pgleases.Partition, job Job) error {
	if l.working != nil {
		if err := l.working(ctx, job); err != nil {
			return err
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.done = append(l.done, job.ID)
	return nil
}

// working runs a worker on the jobs, in a bubble, until the test ends.
func working(t *testing.T, jobs *list, test func(t *testing.T, lease *pgleasestest.Lease)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		lease := pgleasestest.NewLease(Lease, Partitions)
		defer lease.Close()
		ctx, stop := context.WithCancel(t.Context())
		worker := Worker{Client: lease.Client(), Lease: lease.Lease, inMemory: jobs}
		ended := make(chan error, 1)
		go func() { ended <- worker.Run(ctx) }()
		test(t, lease)
		stop()
		if err := <-ended; err != nil {
			t.Errorf("the worker ended with %v", err)
		}
	})
}

func wantDone(t *testing.T, jobs *list, want ...int64) {
	t.Helper()
	synctest.Wait()
	if done := jobs.doneSoFar(); !slices.Equal(done, want) {
		t.Errorf("did jobs %v, want %v", done, want)
	}
}

func TestLoopDoesTheJobsOfWhatIsOwned(t *testing.T) {
	jobs := &list{}
	jobs.add(Job{ID: 1, Partition: 3}, Job{ID: 2, Partition: 4}, Job{ID: 3, Partition: 3})
	working(t, jobs, func(t *testing.T, lease *pgleasestest.Lease) {
		wantDone(t, jobs)
		lease.Gain(3)
		wantDone(t, jobs, 1, 3) // at once: time stands still here until all wait
		jobs.add(Job{ID: 4, Partition: 3}, Job{ID: 5, Partition: 4})
		time.Sleep(poll)
		wantDone(t, jobs, 1, 3, 4)
		<-lease.Lose(3)
		lease.Gain(4)
		wantDone(t, jobs, 1, 3, 4, 2, 5)
	})
}

func TestHandoffIsBetweenTwoJobs(t *testing.T) {
	jobs := &list{}
	working(t, jobs, func(t *testing.T, lease *pgleasestest.Lease) {
		begun, finish := make(chan struct{}), make(chan struct{})
		jobs.working = func(context.Context, Job) error {
			begun <- struct{}{}
			<-finish
			return nil
		}
		jobs.add(Job{ID: 1, Partition: 3}, Job{ID: 2, Partition: 3})
		lease.Gain(3)
		<-begun
		lost := lease.Lose(3)
		time.Sleep(time.Minute)
		select {
		case <-lost:
			t.Error("handed over while a job is in hand")
		default:
		}
		finish <- struct{}{}
		<-lost
		wantDone(t, jobs, 1)
	})
}

func TestJobInHandHearsOfTheLossOfItsPartition(t *testing.T) {
	jobs := &list{}
	working(t, jobs, func(t *testing.T, lease *pgleasestest.Lease) {
		begun, causes := make(chan struct{}), make(chan error, 1)
		jobs.working = func(ctx context.Context, _ Job) error {
			begun <- struct{}{}
			<-ctx.Done()
			causes <- context.Cause(ctx)
			return context.Cause(ctx)
		}
		jobs.add(Job{ID: 1, Partition: 3}, Job{ID: 2, Partition: 3})
		lease.Gain(3)
		<-begun
		lease.Expire()
		if cause := <-causes; !errors.Is(cause, pgleases.ErrTrustLost) {
			t.Errorf("the job's context ended with %v", cause)
		}
		time.Sleep(time.Minute)
		wantDone(t, jobs)
	})
}

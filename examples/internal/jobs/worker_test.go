package jobs

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// newWorker returns a worker that owns all partitions, and count jobs of two customers in two partitions, in turns.
func newWorker(t *testing.T, count int) *Worker {
	t.Helper()
	ctx := t.Context()
	pool := testkit.Must(pgxpool.New(ctx, pgtest.Database(t)))(t)
	t.Cleanup(pool.Close)
	client := testkit.Must(pgleases.NewClient(ctx, pool, pgleases.WithClientID("worker-1"), pgleases.WithTTL(time.Minute)))(t)
	t.Cleanup(func() {
		if err := client.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	testkit.OK(t, Create(ctx, pool, count, 2))
	lease := testkit.Must(client.Lease(ctx, Lease, Partitions))(t)
	testkit.OK(t, lease.Wait(ctx))
	return &Worker{Pool: pool, Client: client, Lease: lease}
}

// done returns the jobs done of a customer.
func done(t *testing.T, w *Worker, customer string) (count int) {
	t.Helper()
	err := w.Pool.QueryRow(t.Context(), `
		SELECT count(*) FROM pgleases_example.job_runs AS r JOIN pgleases_example.jobs AS j ON j.id = r.job
		WHERE j.customer = $1 AND j.done_at IS NOT NULL`, customer).Scan(&count)
	testkit.OK(t, err)
	return count
}

func TestPartitionThatGuardRefusesIsLeftAlone(t *testing.T) {
	w := newWorker(t, 20)
	deaf, err := w.Pool.Begin(t.Context()) // the client cannot read what it owns while this is locked
	testkit.OK(t, err)
	defer func() { _ = deaf.Rollback(context.Background()) }()
	testkit.Must(deaf.Exec(t.Context(), "LOCK TABLE pgleases.leases IN ACCESS EXCLUSIVE MODE"))(t)
	stolen := w.Lease.PartitionFor("customer-2")
	w.Do = func(ctx context.Context, _ pgx.Tx, job Job) error {
		if job.ID > 1 {
			return nil
		}
		// A new owner of the other partition, which this client has not heard of yet.
		_, err := w.Pool.Exec(ctx, "UPDATE pgleases.partitions SET epoch = epoch + 1 WHERE partition = $1", stolen)
		return err
	}
	var refused []int
	w.Refused = func(p pgleases.Partition) { refused = append(refused, p.Number) }

	count, err := w.batch(t.Context(), nil)
	if count != 10 || err != nil {
		t.Errorf("did %d jobs, %v, want the other customer's 10", count, err)
	}
	if len(refused) != 1 || refused[0] != stolen {
		t.Errorf("refused %v, want %d once", refused, stolen)
	}
	if one, two := done(t, w, "customer-1"), done(t, w, "customer-2"); one != 10 || two != 0 {
		t.Errorf("did %d and %d jobs, want 10 and 0", one, two)
	}
}

func TestJobThatFailsHoldsUpOnlyItsPartition(t *testing.T) {
	w := newWorker(t, 20)
	broken := errors.New("broken")
	w.Do = func(_ context.Context, _ pgx.Tx, job Job) error {
		if job.ID == 6 { // the third of customer-2
			return broken
		}
		return nil
	}
	count, err := w.batch(t.Context(), nil)
	if count != 12 || !errors.Is(err, broken) {
		t.Errorf("did %d jobs, %v, want 12 and the error", count, err)
	}
	if one, two := done(t, w, "customer-1"), done(t, w, "customer-2"); one != 10 || two != 2 {
		t.Errorf("did %d and %d jobs, want 10 and 2", one, two)
	}
}

func TestJobInHandIsFinishedWhenTheWorkerIsToStop(t *testing.T) {
	w := newWorker(t, 20)
	ctx, stop := context.WithCancel(t.Context())
	w.Do = func(ctx context.Context, _ pgx.Tx, _ Job) error {
		stop()
		return ctx.Err()
	}
	testkit.OK(t, w.Run(ctx))
	if one, two := done(t, w, "customer-1"), done(t, w, "customer-2"); one != 1 || two != 0 {
		t.Errorf("did %d and %d jobs, want 1 and 0", one, two)
	}
}

func TestRunEndsWithTheClient(t *testing.T) {
	w := newWorker(t, 0)
	ended := make(chan error, 1)
	go func() { ended <- w.Run(t.Context()) }()
	testkit.OK(t, w.Client.Close(t.Context()))
	if err := <-ended; !errors.Is(err, pgleases.ErrClosed) {
		t.Errorf("Run returned %v, want ErrClosed", err)
	}
}

package worker_test

import (
	"context"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/schedule"
)

// Handlers in transactions use the pool once more. However many schedulers and consumers of a process
// share the pool, none of these uses waits for a connection that only another handler can release.
func TestHandlersOfOnePoolDoNotStopEachOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for _, c := range []struct{ conns, schedulers, consumers int }{
		{4, 1, 1}, {4, 3, 2}, {2, 1, 1}, {3, 1, 1}, {3, 2, 1},
	} {
		name := fmt.Sprintf("%d connections, %d schedulers, %d consumers", c.conns, c.schedulers, c.consumers)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newSharing(t, c.conns)
			for i := range c.schedulers {
				w.schedule(fmt.Sprintf("group-%d", i))
			}
			for i := range c.consumers {
				w.consume(fmt.Sprintf("queue_%d", i))
			}
			w.start()
			w.expect(each * (c.schedulers + c.consumers))
		})
	}
}

// With a pool of one connection, handlers that work in it alone take turns.
func TestHandlersShareOneConnection(t *testing.T) {
	t.Parallel()
	w := newSharing(t, 1)
	w.usesNoPool = true
	w.schedule("group")
	w.consume("queue")
	w.start()
	w.expect(2 * each)
}

// each is how many jobs, or rows, a Run has to handle.
const each = 30

// A sharing is a process whose Runs share a pool.
type sharing struct {
	t          *testing.T
	url        string
	owner      *pgxpool.Pool
	pool       *pgxpool.Pool
	client     *pgleases.Client
	usesNoPool bool // by its handlers

	runs    []func(context.Context) error
	handled atomic.Int64
	failed  atomic.Int64
	within  atomic.Int64 // handlers at once
	most    atomic.Int64
}

func newSharing(t *testing.T, conns int) *sharing {
	database := pgtest.MigratedDatabase(t, testkit.Must(consumer.Schema())(t), testkit.Must(schedule.Schema())(t))
	w := &sharing{t: t, url: pgtest.OwnerURL(database)}
	w.owner = testkit.Pool(t, pgtest.OwnerURL(w.url))
	w.pool = testkit.Pool(t, w.url, func(c *pgxpool.Config) { c.MaxConns = int32(conns) })
	quiet := pgleases.WithLogger(slog.New(slog.DiscardHandler))
	w.client = testkit.Must(pgleases.NewClient(t.Context(), w.pool, pgleases.WithoutMigration(), quiet))(t)
	t.Cleanup(func() { _ = w.client.Close(context.Background()) })
	return w
}

// handle is the handler of all Runs.
func (w *sharing) handle(ctx context.Context, tx pgx.Tx) error {
	for at := w.within.Add(1); ; {
		most := w.most.Load()
		if at <= most || w.most.CompareAndSwap(most, at) {
			break
		}
	}
	defer w.within.Add(-1)
	_, err := tx.Exec(ctx, "SELECT pg_catalog.pg_sleep(0.005)")
	if err == nil && !w.usesNoPool {
		_, err = w.pool.Exec(ctx, "SELECT 1") // as a repository does that has the pool
	}
	if err != nil {
		w.failed.Add(1)
		return err
	}
	w.handled.Add(1)
	return nil
}

func (w *sharing) schedule(group string) {
	s := testkit.Must(schedule.New(w.t.Context(), w.client, w.pool, group, schedule.WithoutMigration(),
		schedule.WithPartitions(4), schedule.WithLogger(slog.New(slog.DiscardHandler))))(w.t)
	kind := schedule.InTx(s, "kind", func(ctx context.Context, tx pgx.Tx, _ schedule.Run[int]) error {
		return w.handle(ctx, tx)
	})
	testkit.Must(kind.EnqueueMany(w.t.Context(), make([]int, each)))(w.t)
	w.runs = append(w.runs, s.Run)
}

func (w *sharing) consume(table string) {
	q := consumer.Queue{Table: "public." + table, Key: "customer", Partitions: 8}
	testkit.Execute(w.t, w.owner, consumer.TableSQL(table, "", q)+"; GRANT ALL ON public."+table+" TO PUBLIC")
	testkit.Execute(w.t, w.owner, fmt.Sprintf(
		"INSERT INTO public.%s (customer, payload) SELECT 'c' || i, '1' FROM generate_series(1, %d) AS i", table, each,
	))
	type row struct{ Payload []byte }
	handler := consumer.Each(func(ctx context.Context, tx pgx.Tx, _ consumer.Row[row]) error {
		return w.handle(ctx, tx)
	})
	c := testkit.Must(consumer.New(w.t.Context(), w.client, w.pool, table, q, handler,
		consumer.WithoutMigration(), consumer.WithLogger(slog.New(slog.DiscardHandler))))(w.t)
	w.runs = append(w.runs, c.Run)
}

// start starts all Runs.
func (w *sharing) start() {
	ctx, stop := context.WithCancel(context.Background())
	var running sync.WaitGroup
	for _, run := range w.runs {
		running.Go(func() { _ = run(ctx) })
	}
	w.t.Cleanup(func() { stop(); running.Wait() })
}

// expect waits until so many are handled.
func (w *sharing) expect(handled int) {
	w.t.Helper()
	testkit.Until(w.t, "all are handled", func() bool {
		return w.handled.Load() >= int64(handled) || w.failed.Load() > 0
	})
	half := max(1, int64(w.pool.Config().MaxConns)/2)
	if w.failed.Load() > 0 || w.most.Load() > half {
		w.t.Errorf("%d handlers found no connection, %d were called at once; want 0, and at most %d",
			w.failed.Load(), w.most.Load(), half)
	}
}

// Each Run on a pool has its share, which is two if it can be, and all together leave a connection.
func TestSharesOfAPool(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		size    int
		given   []int
		without int
		share   int // of each Run without a number
		places  int
	}{
		{size: 1, without: 3, share: 1, places: 1},
		{size: 2, without: 2, share: 1, places: 1},
		{size: 3, without: 1, share: 1, places: 1},
		{size: 4, without: 1, share: 2, places: 2},
		{size: 4, without: 5, share: 2, places: 2},
		{size: 20, without: 9, share: 2, places: 10},
		{size: 20, without: 2, share: 5, places: 10},
		{size: 4, given: []int{2}, without: 1, share: 2, places: 3},
		{size: 20, given: []int{3}, without: 2, share: 5, places: 13},
		{size: 20, given: []int{19, 19}, without: 1, share: 10, places: 19},
	} {
		pool := unconnected(t, c.size)
		var runs []*worker.Share
		for _, n := range c.given {
			runs = append(runs, worker.JoinWith(pool, n))
		}
		for range c.without {
			runs = append(runs, worker.Join(pool))
		}
		last := runs[len(runs)-1]
		_, _, places := last.Crowded()
		if last.Most() != c.share || places != c.places {
			t.Errorf("%+v: a Run has %d handlers at once, and there are %d places", c, last.Most(), places)
		}
		for _, run := range runs {
			run.Leave()
		}
	}
}

// Places go to those that have waited longest, and a wait that is given up costs none.
func TestPlacesGoInOrder(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := unconnected(t, 3)
		first, second := worker.Join(pool), worker.Join(pool)
		give := testkit.Must(first.Take(t.Context(), worker.Healthy))(t)
		took := make(chan string, 10)
		wait := func(name string, s *worker.Share, patience time.Duration) {
			go func() {
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				give, err := s.Take(ctx, worker.Healthy)
				if err == nil {
					took <- name
					give()
				}
			}()
			synctest.Wait()
		}
		wait("impatient", second, time.Second)
		wait("second", second, time.Hour)
		wait("first", first, time.Hour)
		time.Sleep(2 * time.Second)
		give()
		synctest.Wait()
		close(took)
		var order []string
		for name := range took {
			order = append(order, name)
		}
		if fmt.Sprint(order) != "[second first]" {
			t.Errorf("places went to %v, want second, then first", order)
		}
		testkit.Must(second.Take(t.Context(), worker.Healthy))(t)()
		first.Leave()
		second.Leave()
		pool.Close()
	})
}

// Slow work of all Runs together leaves a place of a pool to healthy work, and takes turns with itself.
func TestSlowWorkOfAllRunsLeavesAPlace(t *testing.T) {
	t.Parallel()
	for _, size := range []int{4, 5, 20} {
		synctest.Test(t, func(t *testing.T) {
			pool := unconnected(t, size)
			runs := []*worker.Share{worker.Join(pool), worker.Join(pool), worker.Join(pool)}
			slow := make(chan func(), 100)
			for n := range size {
				lane := []worker.Lane{worker.Slow, worker.Doubted}[n%2]
				go func() {
					give, err := runs[n%3].Take(t.Context(), lane)
					if err == nil {
						slow <- give
					}
				}()
			}
			synctest.Wait()
			if want := size/2 - 1; len(slow) != want {
				t.Errorf("pool of %d: slow work has %d places, want %d", size, len(slow), want)
			}
			for _, run := range runs {
				testkit.Must(run.Take(t.Context(), worker.Healthy))(t)()
			}
			for range size {
				(<-slow)()
				synctest.Wait()
			}
			for _, run := range runs {
				run.Leave()
			}
			pool.Close()
		})
	}
}

// A place that slow work has no longer waits for goes to other work.
func TestSlowWorkThatGivesUpCostsNoPlace(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		pool := unconnected(t, 2)
		run := worker.Join(pool)
		give := testkit.Must(run.Take(t.Context(), worker.Slow))(t)
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := run.Take(short, worker.Slow)
		if err == nil {
			t.Error("two have the only place")
		}
		give()
		give() // once
		for _, lane := range []worker.Lane{worker.Healthy, worker.Slow, worker.Doubted} {
			testkit.Must(run.Take(t.Context(), lane))(t)()
		}
		run.Leave()
		pool.Close()
	})
}

// unconnected returns a pool of a size, which connects to nothing.
func unconnected(t *testing.T, size int) *pgxpool.Pool {
	t.Helper()
	url := fmt.Sprintf("postgres://nobody@127.0.0.1:1/none?pool_max_conns=%d", size)
	config := testkit.Must(pgxpool.ParseConfig(url))(t)
	pool := testkit.Must(pgxpool.NewWithConfig(context.Background(), config))(t)
	t.Cleanup(pool.Close)
	return pool
}

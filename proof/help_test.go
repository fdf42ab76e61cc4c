//go:build unix

package proof_test

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/audit"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/oracle/leases"
	"github.com/pgleases/pgleases/proof/oracle/writes"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/tally"
)

// This test binary is also the worker's program; a worker must not run the tests.
func init() { faults.Main() }

// bouncerTo starts a PgBouncer for the test, and returns the URL of the same database through it.
func bouncerTo(t testing.TB, url string, opts ...pgserver.BouncerOption) string {
	t.Helper()
	bouncer, err := pgserver.PgBouncer(t.Context(), url, opts...)
	pgserver.Required(t, err)
	t.Cleanup(func() {
		if err := bouncer.Stop(); err != nil {
			t.Error(err)
		}
	})
	return testkit.Must(bouncer.Through(url))(t)
}

// newProxy returns a proxy for the test.
func newProxy(t testing.TB, url string) *faults.Proxy {
	t.Helper()
	proxy := testkit.Must(faults.NewProxy(url))(t)
	t.Cleanup(proxy.Close)
	return proxy
}

// size sets the size of a pool.
func size(n int32) func(*pgxpool.Config) { return func(c *pgxpool.Config) { c.MaxConns = n } }

// fast reports whether the clients of all tests have fast failover, if they connect to the server
// itself: see faults.Fast. With fast failover, a client loses its trust when its connection ends
// without a message from the server, or when the client ends it. A killed client is replaced long
// before its TTL. There is no other difference.
func fast(t testing.TB, pool *pgxpool.Pool) bool {
	t.Helper()
	return os.Getenv(faults.Fast) != "" && hasFastFailover(t, pool)
}

// lateWithoutNotify is the additional time for a deadline if a pooler drops notifications.
func lateWithoutNotify(url string, heartbeat time.Duration) time.Duration {
	if _, pooled := pgtest.DirectURL(url); pooled {
		return heartbeat
	}
	return 0
}

// quietly makes a client log only if the test fails.
func quietly(t testing.TB) pgleases.Option {
	book := new(logbook)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("what the clients logged:\n%s", lastLines(strings.Join(book.lines(), "\n"), 200))
		}
	})
	return book.option()
}

// newFleet starts a fleet that has joined. The seed 0 means a random one. At the end of the test it is closed. If the test failed,
// the incidents and the last lines of each process are logged.
func newFleet(t testing.TB, config faults.Config, size int, seed uint64) *faults.Fleet {
	t.Helper()
	seed = cmp.Or(seed, rand.Uint64())
	t.Logf("seed %d", seed)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	config.Patience, config.ProbeURL = patience, probeURL
	fleet, err := faults.NewFleet(ctx, config, t.TempDir(), size, seed)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := fleet.Close(ctx); err != nil {
			t.Error(err)
		}
		if !t.Failed() {
			return
		}
		for _, incident := range fleet.Incidents {
			t.Log(incident)
		}
		for path, text := range fleet.Output() {
			t.Logf("%s:\n%s", path, lastLines(text, 60))
		}
	})
	testkit.OK(t, err)
	return fleet
}

// without returns faults without one of them.
func without(name string, all []faults.Fault) []faults.Fault {
	return slices.DeleteFunc(slices.Clone(all), func(f faults.Fault) bool { return f.Name == name })
}

// only returns the faults with these names.
func only(all []faults.Fault, names ...string) []faults.Fault {
	return slices.DeleteFunc(slices.Clone(all), func(f faults.Fault) bool { return !slices.Contains(names, f.Name) })
}

func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// opened opens a client, which is closed at the end of the test.
func opened(t testing.TB, url, id string, opts ...pgleases.Option) *pgleases.Client {
	t.Helper()
	began := time.Now()
	c, err := faults.Opened(func(opts ...pgleases.Option) (*pgleases.Client, error) {
		return pgleases.Open(t.Context(), url, opts...)
	}, append([]pgleases.Option{pgleases.WithClientID(id)}, opts...)...)
	if err != nil { // a statement may have waited too long for a lock
		missed(t, began, time.Since(began), "%s was not opened: %v", id, err)
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = c.Close(ctx) // tests that check Close call it themselves
	})
	return c
}

// verify reports all violations in the logs of one lease.
func verify(t testing.TB, logs []oracle.Log) oracle.Report {
	t.Helper()
	report := oracle.Check(logs)
	weighed(t, report)
	if err := report.Err(); err != nil {
		t.Error(err)
	}
	return report
}

// weighed records what an oracle of leases or locks has looked at, and what it has found.
func weighed(t testing.TB, report oracle.Report) {
	t.Helper()
	tally.Checked(t, "reads", report.Reads)
	tally.Checked(t, "ownerships and holds", report.Intervals)
	tally.Violations(t, "exclusion", len(report.Violations))
}

// audited audits the records of a database as operators do, and returns the violation, if there is
// one. So each attack also shows that pgleases audit convicts no history that is right.
func audited(t testing.TB, pool *pgxpool.Pool) (violations []string) {
	t.Helper()
	report := testkit.Must(audit.Run(t.Context(), pool, "pgleases", 24*time.Hour))(t)
	for _, part := range report.Parts {
		for _, count := range part.Counts {
			tally.Checked(t, "recorded "+count.Of, count.Number)
		}
	}
	if v := report.Violation; v != nil {
		violations = append(violations, fmt.Sprintf("audit: %s: %s: %q", v.Subject, v.Text, v.Records))
	}
	tally.Violations(t, "records", len(violations))
	return violations
}

// weighedWrites records how many guarded writes were checked, and returns those that came late.
func weighedWrites(t testing.TB, ledger *writes.Ledger) (late []string) {
	t.Helper()
	late = ledger.Check()
	tally.Checked(t, "guarded writes", len(ledger.Writes))
	tally.Violations(t, "guarded writes", len(late))
	return late
}

// watched starts an oracle for leases of clients in this process. The function that it returns
// stops it and returns the logs.
func watched(t testing.TB, byName map[string]*pgleases.Lease) func() []oracle.Log {
	t.Helper()
	return watchedEvery(t, 2*time.Millisecond, byName) // one process may have dozens of them
}

// watchedEvery is watched with a pause between bursts of reads.
func watchedEvery(t testing.TB, pause time.Duration, byName map[string]*pgleases.Lease) func() []oracle.Log {
	t.Helper()
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	var wait sync.WaitGroup
	for name, lease := range byName {
		recorder := testkit.Must(leases.Create(dir + "/" + name + ".log"))(t)
		recorder.Pause = pause
		wait.Go(func() {
			if err := recorder.Watch(ctx, lease); err != nil {
				t.Error(err)
			}
			recorder.Close()
		})
	}
	end := func() { cancel(); wait.Wait() }
	t.Cleanup(end)
	return func() []oracle.Log {
		end()
		return testkit.Must(leases.Read(dir))(t)
	}
}

// smallDisk mounts a disk that can be filled, and returns the options of a server on it, or ""
// without the right to mount.
func smallDisk(t testing.TB) (dir string, options []pgserver.Option) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Log("no disk is filled: only root may mount one")
		return "", nil
	}
	dir = testkit.Must(os.MkdirTemp("", "pgleases-disk-"))(t)
	t.Cleanup(func() {
		if err := os.Remove(dir); err != nil {
			t.Error(err)
		}
	})
	mount := exec.Command("mount", "-t", "tmpfs", "-o", "size=192m,mode=755", "tmpfs", dir)
	if text, err := mount.CombinedOutput(); err != nil {
		t.Logf("no disk is filled: mount: %v %s", err, text)
		return "", nil
	}
	t.Cleanup(func() {
		if text, err := exec.Command("umount", dir).CombinedOutput(); err != nil {
			t.Errorf("umount: %v %s", err, text)
		}
	})
	small := map[string]string{"min_wal_size": "32MB", "max_wal_size": "64MB"}
	return dir, []pgserver.Option{pgserver.WithDir(dir), pgserver.WithSettings(small)}
}

// asynchronous lets later sessions of the database wait for no flush.
const asynchronous = `DO $$ BEGIN
	EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database());
END $$`

// worker returns the configuration of a worker process whose Values is watched.
func worker(url, lease string, partitions int, dir, id string, n int) faults.Config {
	return faults.Config{
		URL: url, ID: id, Log: fmt.Sprintf("%s/%s.%d.log", dir, id, n),
		Lease: lease, Partitions: partitions, TTL: time.Second,
		Patience: patience,
	}
}

// startWorker starts a worker process, which is killed at the end of the test.
func startWorker(t testing.TB, config faults.Config) *faults.Process {
	t.Helper()
	config.ProbeURL = probeURL
	p := testkit.Must(faults.Start(config))(t)
	t.Cleanup(func() {
		p.Kill()
		if t.Failed() && config.Log != "" {
			t.Logf("what %s logged:\n%s", config.Log, lastLines(p.Output(), 100))
		}
	})
	return p
}

// startWorkers starts worker processes, and waits until they have joined.
func startWorkers(t testing.TB, config faults.Config, dir string, n int) (workers []*faults.Process) {
	t.Helper()
	for i := range n {
		config.ID = fmt.Sprintf("worker-%d", i)
		config.Log = fmt.Sprintf("%s/%s.log", dir, config.ID)
		workers = append(workers, startWorker(t, config))
	}
	for _, w := range workers {
		hasJoined(t, w)
	}
	return workers
}

// closeWorkers closes worker processes.
func closeWorkers(t testing.TB, workers []*faults.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for _, w := range workers {
		if _, err := w.Close(ctx); err != nil {
			t.Error(err)
		}
	}
}

func hasJoined(t testing.TB, p *faults.Process) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	err := p.Joined(ctx)
	if err != nil {
		missed(t, began, time.Since(began), "%v", err)
	}
}

// held returns the partitions that a worker's Values last showed.
func held(t testing.TB, p *faults.Process) []int {
	t.Helper()
	log := testkit.Must(p.Watched())(t)
	return log.Held()
}

// shared reports whether leases own all partitions together, each within one of an even share.
func shared(leases ...*pgleases.Lease) bool {
	var all []int
	for _, l := range leases {
		all = append(all, l.Values()...)
	}
	slices.Sort(all)
	n := leases[0].NumPartitions()
	if len(all) != n || len(slices.Compact(all)) != n {
		return false
	}
	for _, l := range leases {
		if own := len(l.Values()); own < n/len(leases) || own > (n+len(leases)-1)/len(leases) {
			return false
		}
	}
	return true
}

// median returns the median of at least one duration.
func median(ds []time.Duration) time.Duration {
	ds = slices.Sorted(slices.Values(ds))
	return ds[len(ds)/2]
}

// medianWithin checks that the median of durations measured since a time is within the limit.
func medianWithin(t testing.TB, since time.Time, limit time.Duration, of []time.Duration, what string) {
	t.Helper()
	if m := median(of); m > limit {
		missed(t, since, limit, "%s took %v, not %v", what, m, limit)
	}
}

// bears returns the longest time without heartbeats that does not end a client's trust.
func bears(ttl, heartbeat time.Duration) time.Duration {
	return ttl - max(ttl/20, 100*time.Millisecond) - 3*heartbeat/2
}

// figures prints durations with their median and maximum.
func figures(ds []time.Duration) string {
	return fmt.Sprintf("median %v, max %v of %d", median(ds).Round(100*time.Microsecond),
		slices.Max(ds).Round(100*time.Microsecond), len(ds))
}

// verifyDir reports all violations in the logs of worker processes in a folder.
func verifyDir(t testing.TB, dir string) oracle.Report {
	t.Helper()
	logs := testkit.Must(leases.Read(dir))(t)
	return verify(t, logs)
}

// pause waits between steps in the background.
func pause(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}

// ownership returns the ownership of a partition.
func ownership(t testing.TB, l *pgleases.Lease, n int) pgleases.Partition {
	t.Helper()
	p, ok := l.Partition(n)
	if !ok {
		t.Fatalf("partition %d is not owned", n)
	}
	return p
}

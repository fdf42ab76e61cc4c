//go:build unix

package gocron

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/go-co-op/gocron/v2"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/lock"
)

const (
	workerOf = "PGLEASES_GOCRON_WORKER" // the database of a process that runs a job each second
	// workerTTL is longer than a period: the lock of a killed process stays until no other process
	// has the same tick any more.
	workerTTL = 3 * time.Second
)

// This test binary is also the program of the workers.
func init() {
	url := os.Getenv(workerOf)
	if url == "" {
		return
	}
	if err := work(url); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// told is a Locker that tells which lock each run has.
type told struct {
	*Locker
	names chan string
}

func (t told) Lock(ctx context.Context, key string) (gocron.Lock, error) {
	l, err := t.Locker.Lock(ctx, key)
	if err == nil {
		t.names <- l.(kept).held.Name()
	}
	return l, err
}

// work runs the job until the input ends.
func work(url string) error {
	ctx := context.Background()
	config, err := pgtest.ParseConfig(url)
	if err != nil {
		return err
	}
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	client, err := pgleases.NewClient(
		ctx, pool,
		pgleases.WithoutMigration(),
		pgleases.WithTTL(workerTTL),
		pgleases.WithLogger(slog.New(slog.DiscardHandler)),
	)
	if err != nil {
		return err
	}
	locker := told{NewLocker(lock.New(client, pool), time.Minute), make(chan string, 100)}
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return err
	}
	locker.Attach(s)
	report := gocron.NewTask(func() {
		_, _ = pool.Exec(ctx, "INSERT INTO public.ran VALUES ($1, $2)", <-locker.names, os.Getpid())
	})
	if _, err := s.NewJob(gocron.DurationJob(time.Second), report, gocron.WithName("report")); err != nil {
		return err
	}
	s.Start()
	_, err = io.Copy(io.Discard, os.Stdin)
	return err
}

// Three processes run a job each second. They are killed, or stopped for so long that their locks go
// to others, again and again. No tick runs twice.
func TestLockerRunsNoTickTwiceUnderFaults(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	url := pgtest.MigratedDatabase(t,
		"CREATE TABLE public.ran (tick text, pid int); GRANT SELECT, INSERT ON public.ran TO PUBLIC")
	pool := testkit.Pool(t, url)
	runs := func() int { return testkit.Value[int](t, pool, "SELECT count(*) FROM public.ran") }
	var processes []*exec.Cmd
	for range 3 {
		processes = append(processes, startWorker(t, url))
	}
	const faults = 9
	for n := range faults {
		p := processes[n%len(processes)]
		before := runs()
		if n%2 == 0 {
			testkit.OK(t, p.Process.Kill())
			_ = p.Wait()
			processes[n%len(processes)] = startWorker(t, url)
		} else {
			testkit.OK(t, p.Process.Signal(syscall.SIGSTOP))
			time.Sleep(workerTTL + time.Second) // the length of the stop, not a wait for a condition
			testkit.OK(t, p.Process.Signal(syscall.SIGCONT))
		}
		testkit.Until(t, "the job runs", func() bool { return runs() >= before+2 })
	}
	all, twice := runs(), testkit.Value[int](t, pool, "SELECT count(*) - count(DISTINCT tick) FROM public.ran")
	pids := testkit.Value[int](t, pool, "SELECT count(DISTINCT pid) FROM public.ran")
	t.Logf("%d runs in %d processes, under %d faults; ticks that ran twice: %d", all, pids, faults, twice)
	if twice > 0 {
		t.Errorf("%d ticks ran twice", twice)
	}
}

// startWorker starts a process that is killed at the end of the test.
func startWorker(t *testing.T, url string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), workerOf+"="+url)
	cmd.Stderr = os.Stderr
	input := testkit.Must(cmd.StdinPipe())(t)
	testkit.OK(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = input.Close()
	})
	return cmd
}

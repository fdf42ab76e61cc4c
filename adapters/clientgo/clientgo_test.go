package clientgo

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/internal/timeguard"
)

const (
	ttl           = 4 * time.Second
	heartbeat     = 400 * time.Millisecond
	renewDeadline = 2 * time.Second
	retryPeriod   = 300 * time.Millisecond
	trust         = renewDeadline + retryPeriod
	leaseDuration = renewDeadline + time.Millisecond // below the TTL, which replaces it

	childURL = "PGLEASES_CLIENTGO_CHILD" // set: the test binary is a candidate in a process of its own
)

func TestMain(m *testing.M) {
	klog.SetLogger(logr.Discard())
	if url := os.Getenv(childURL); url != "" {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // its end is that of the test
			os.Exit(1)
		}()
		if err := child(url); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	testkit.Main(m)
}

func child(url string) error {
	ctx := context.Background()
	pool, err := pgtest.NewPool(ctx, url)
	if err != nil {
		return err
	}
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithTTL(ttl), pgleases.WithHeartbeat(heartbeat))
	if err != nil {
		return err
	}
	leaderelection.RunOrDie(ctx, config(candidate(client), leaderelection.LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) { fmt.Println("leads"); <-ctx.Done() },
		OnStoppedLeading: func() { fmt.Println("stopped") },
	}))
	return nil
}

func candidate(client *pgleases.Client) *Lock {
	return &Lock{Client: client, Name: "controller", Trust: trust}
}

func config(lock *Lock, callbacks leaderelection.LeaderCallbacks) leaderelection.LeaderElectionConfig {
	return leaderelection.LeaderElectionConfig{
		Lock:            lock,
		LeaseDuration:   leaseDuration,
		RenewDeadline:   renewDeadline,
		RetryPeriod:     retryPeriod,
		Callbacks:       callbacks,
		ReleaseOnCancel: true,
	}
}

// An elector runs client-go's leaderelection in this process until it has ended.
type elector struct {
	lock           *Lock
	began, ended   chan time.Time // of the leader's context
	leader         chan string
	cancel         context.CancelFunc
	stopped        chan struct{}
	client         *pgleases.Client
	leaderElection *leaderelection.LeaderElector
}

func elect(t testing.TB, pool *pgxpool.Pool, opts ...pgleases.Option) *elector {
	t.Helper()
	client := clients.New(t, pool, append(opts, pgleases.WithTTL(ttl), pgleases.WithHeartbeat(heartbeat))...)
	ctx, cancel := context.WithCancel(context.Background())
	e := &elector{
		lock:    candidate(client),
		client:  client,
		cancel:  cancel,
		began:   make(chan time.Time, 10),
		ended:   make(chan time.Time, 10),
		leader:  make(chan string, 10),
		stopped: make(chan struct{}),
	}
	e.leaderElection = testkit.Must(leaderelection.NewLeaderElector(config(e.lock, leaderelection.LeaderCallbacks{
		OnStartedLeading: func(ctx context.Context) {
			e.began <- time.Now()
			<-ctx.Done()
			e.ended <- time.Now()
		},
		OnStoppedLeading: func() {},
		OnNewLeader:      func(identity string) { e.leader <- identity },
	})))(t)
	go func() {
		defer close(e.stopped)
		e.leaderElection.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-e.stopped
	})
	return e
}

// A released leadership goes to the next candidate. Each sees which client leads, and can fence its
// writes.
func TestElectionAndRelease(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	one := elect(t, pool)
	testkit.Receive(t, "the first leads", one.began)
	two := elect(t, pool)
	if id := testkit.Receive(t, "the second sees a leader", two.leader); id != one.client.ID() {
		t.Errorf("%q leads, want %q", id, one.client.ID())
	}
	lease, p, leading := one.lock.Leading()
	if !leading {
		t.Fatal("the first is not leading")
	}
	guard := func() error {
		return pgx.BeginFunc(t.Context(), pool, func(tx pgx.Tx) error { return lease.Guard(t.Context(), tx, p) })
	}
	testkit.OK(t, guard())
	clients.Beats(t, one.client, 5)
	select {
	case <-two.began:
		t.Error("two lead")
	case <-one.ended:
		t.Error("the first stopped leading")
	default:
	}
	one.cancel()
	testkit.Receive(t, "the second leads", two.began)
	testkit.Until(t, "the second knows it", func() (leading bool) {
		lease, _, leading = two.lock.Leading()
		return leading
	})
	if err := guard(); !errors.Is(err, pgleases.ErrNotOwner) { // p is the first one's
		t.Errorf("Guard of the first ownership returned %v", err)
	}
	if _, _, leading := one.lock.Leading(); leading {
		t.Error("the first still leads")
	}
}

// A leader whose network is cut stops before another leads.
func TestCutLeaderStopsFirst(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, cutLeaderStopsFirst)
}

func cutLeaderStopsFirst(t *timeguard.Try) {
	t.Brief(ttl)
	url := pgtest.MigratedDatabase(t)
	wire := &testkit.Wire{}
	one := elect(t, testkit.Pool(t, url, wire.Carry))
	testkit.Receive(t, "the first leads", one.began)
	two := elect(t, testkit.Pool(t, url))
	clients.Beats(t, two.client, int(ttl/heartbeat)+1) // it has watched the first
	wire.Cut()
	cut := time.Now()
	ended, began := testkit.Receive(t, "the first stops", one.ended), testkit.Receive(t, "the second leads", two.began)
	if !ended.Before(began) {
		t.Errorf("two led for %v", ended.Sub(began))
	}
	t.Logf("stopped after %v, the next led after %v", ended.Sub(cut), began.Sub(cut))
	wire.Mend()
	clients.Beats(t, one.client, 2)
}

// An operator drains the leader's client: the next leads when the first has stopped.
func TestDrainedLeaderStopsFirst(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, drainedLeaderStopsFirst)
}

func drainedLeaderStopsFirst(t *timeguard.Try) {
	t.Brief(retryPeriod)
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	one := elect(t, pool)
	testkit.Receive(t, "the first leads", one.began)
	two := elect(t, pool)
	testkit.Receive(t, "the second sees a leader", two.leader)
	testkit.Execute(t, pool, "SELECT pgleases.drain($1, 'test')", one.client.ID())
	ended, began := testkit.Receive(t, "the first stops", one.ended), testkit.Receive(t, "the second leads", two.began)
	// The context ends just after the lease is left, in another goroutine.
	if overlap := ended.Sub(began); overlap > retryPeriod/2 {
		t.Errorf("two led for %v", overlap)
	}
}

// A process starts with the ID of the leader: it leads when the first has stopped.
func TestSupersededLeaderStopsFirst(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, supersededLeaderStopsFirst)
}

func supersededLeaderStopsFirst(t *timeguard.Try) {
	t.Brief(retryPeriod)
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	one := elect(t, pool, pgleases.WithClientID("same"))
	testkit.Receive(t, "the first leads", one.began)
	two := elect(t, pool, pgleases.WithClientID("same"))
	ended, began := testkit.Receive(t, "the first stops", one.ended), testkit.Receive(t, "the second leads", two.began)
	if overlap := ended.Sub(began); overlap > retryPeriod/2 {
		t.Errorf("two led for %v", overlap)
	}
}

// An elector may run again with its Lock. Without a database, nothing but Get waits for one.
func TestElectorRunsAgain(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	wire := &testkit.Wire{}
	one, other := elect(t, testkit.Pool(t, url, wire.Carry)), clients.New(t, testkit.Pool(t, url))
	testkit.Receive(t, "it leads", one.began)
	one.cancel()
	<-one.stopped
	ctx, cancel := context.WithCancel(t.Context())
	stopped := make(chan struct{})
	go func() { defer close(stopped); one.leaderElection.Run(ctx) }()
	testkit.Receive(t, "it leads again", one.began)
	cancel()
	<-stopped

	wire.Cut()
	one.lock.Trust = time.Hour // Get waits as long
	ctx, cancel = context.WithCancel(t.Context())
	got := make(chan error, 1)
	go func() {
		_, _, err := one.lock.Get(ctx)
		got <- err
	}()
	clients.Beats(t, other, 3) // Get waits
	called := make(chan error, 1)
	go func() {
		one.lock.Leading()
		one.lock.RecordEvent("stopped leading")
		called <- one.lock.Update(t.Context(), resourcelock.LeaderElectionRecord{HolderIdentity: one.lock.Identity()})
	}()
	select {
	case err := <-called:
		if !errors.Is(err, ErrNotLeading) {
			t.Errorf("Update returned %v", err)
		}
	case err := <-got:
		t.Errorf("Get has not waited: %v", err)
	case <-time.After(testkit.Patience):
		t.Error("Leading, RecordEvent or Update waits for Get")
	}
	cancel()
	if err := testkit.Receive(t, "Get ends", got); !errors.Is(err, context.Canceled) {
		t.Errorf("Get returned %v", err)
	}
	wire.Mend()
}

// Candidates that fail and stand again keep no other one from leading, whatever their IDs are.
func TestHealthyCandidateLeadsSoon(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	ctx, cancel := context.WithCancel(t.Context())
	var failing sync.WaitGroup
	defer failing.Wait()
	defer cancel()
	terms := make(chan string, 1000)
	for _, id := range []string{"a", "b"} {
		client := clients.New(
			t, pool, pgleases.WithClientID(id), pgleases.WithTTL(ttl), pgleases.WithHeartbeat(heartbeat),
		)
		failing.Go(func() {
			for ctx.Err() == nil {
				term, end := context.WithCancel(ctx)
				leaderelection.RunOrDie(term, config(candidate(client), leaderelection.LeaderCallbacks{
					OnStartedLeading: func(context.Context) { terms <- id; end() }, // it fails
					OnStoppedLeading: func() {},
				}))
			}
		})
	}
	for range 3 {
		testkit.Receive(t, "a failing candidate leads", terms)
	}
	healthy := elect(t, pool, pgleases.WithClientID("z"))
	const stands = "SELECT count(*)::int FROM pgleases.members_status WHERE client = 'z'"
	testkit.Becomes(t, pool, "the healthy candidate stands", 1, stands)
	before := len(terms) // while it connected, which may take long
	testkit.Receive(t, "the healthy candidate leads", healthy.began)
	if n := len(terms) - before; n > 8 {
		t.Errorf("while it stood, the failing ones had %d terms", n)
	}
}

// After SIGKILL of the leader's process another one leads within the bounds.
func TestKilledLeaderIsReplaced(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, killedLeaderIsReplaced)
}

func killedLeaderIsReplaced(t *timeguard.Try) {
	t.Brief(ttl)
	url := pgtest.MigratedDatabase(t)
	var mayEnd atomic.Pointer[exec.Cmd] // the test kills it
	start := func() (*exec.Cmd, chan time.Time) {
		cmd := exec.Command(testkit.Must(os.Executable())(t))
		cmd.Env = append(os.Environ(), childURL+"="+url)
		cmd.Stderr = os.Stderr
		testkit.Must(cmd.StdinPipe())(t) // see TestMain
		out := testkit.Must(cmd.StdoutPipe())(t)
		testkit.OK(t, cmd.Start())
		leads := make(chan time.Time, 1)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for lines := bufio.NewScanner(out); lines.Scan(); {
				if lines.Text() == "leads" {
					leads <- time.Now()
				}
			}
			_ = cmd.Wait() // its ProcessState tells more
		}()
		testkit.Need(t, func() error {
			select {
			case <-ended:
			default:
				return nil
			}
			if mayEnd.Load() == cmd {
				return nil
			}
			return fmt.Errorf("the candidate has ended: %v", cmd.ProcessState)
		})
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			<-ended
		})
		return cmd, leads
	}
	one, leads := start()
	testkit.Receive(t, "the first leads", leads)
	_, leads = start()
	pool := testkit.Pool(t, url)
	testkit.Becomes(t, pool, "both are members", 2, "SELECT count(*)::int FROM pgleases.members_status")
	other := clients.New(t, pool, pgleases.WithHeartbeat(heartbeat))
	clients.Beats(t, other, int(ttl/heartbeat)+2) // the second has watched the first for a TTL
	mayEnd.Store(one)
	testkit.OK(t, one.Process.Kill())
	killed := time.Now()
	took := testkit.Receive(t, "the second leads", leads).Sub(killed)
	const most = ttl + heartbeat + 22*retryPeriod/10
	t.Logf("another led %v after SIGKILL, the bound is %v", took, most)
	if took < ttl-2*heartbeat || took > most {
		t.Errorf("another led after %v, want %v to %v", took, ttl-2*heartbeat, most)
	}
}

// asked counts the elector's attempts.
type asked struct {
	*Lock
	times *atomic.Int32
}

func (a asked) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	a.times.Add(1)
	return a.Lock.Get(ctx)
}

func (a asked) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	a.times.Add(1)
	return a.Lock.Update(ctx, record)
}

// controller-runtime's manager starts its runnables when its process leads. It needs no API server for
// that.
func TestControllerRuntimeManager(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	start := func() (began chan time.Time, attempts *atomic.Int32, stop func()) {
		client := clients.New(t, pool)
		attempts = new(atomic.Int32)
		// Its Start returns an error if the leadership is lost, which no busy machine may cause.
		renew, retry := clients.TTL/2, retryPeriod
		lease := renew + time.Millisecond
		candidate := &Lock{Client: client, Name: "controller", Trust: renew + retry}
		m := testkit.Must(manager.New(&rest.Config{Host: "http://127.0.0.1:1"}, manager.Options{
			LeaderElection:                      true,
			LeaderElectionResourceLockInterface: asked{candidate, attempts},
			LeaderElectionReleaseOnCancel:       true,
			LeaseDuration:                       &lease,
			RenewDeadline:                       &renew,
			RetryPeriod:                         &retry,
			Metrics:                             server.Options{BindAddress: "0"},
			Logger:                              logr.FromSlogHandler(slog.DiscardHandler),
		}))(t)
		began = make(chan time.Time, 1)
		testkit.OK(t, m.Add(manager.RunnableFunc(func(ctx context.Context) error {
			began <- time.Now()
			<-ctx.Done()
			return nil
		})))
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- m.Start(ctx) }()
		stop = sync.OnceFunc(func() {
			cancel()
			testkit.OK(t, <-done)
		})
		t.Cleanup(stop)
		return began, attempts, stop
	}
	began, _, stop := start()
	testkit.Receive(t, "the first manager runs", began)
	next, attempts, _ := start()
	testkit.Until(t, "the second tries to lead", func() bool { return attempts.Load() > 3 })
	select {
	case <-next:
		t.Fatal("two managers run")
	default:
	}
	stop()
	testkit.Receive(t, "the second manager runs", next)
}

//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/timeguard"
)

// Values becomes empty at the trust deadline, seen from outside. Not in parallel, because the limit
// is 10 ms.
func TestFrozenConnectionEmptiesValuesInTime(t *testing.T) {
	timeguard.Run(t, func(t *timeguard.Try) {
		rounds := 5
		if testing.Short() {
			rounds = 3
		}
		url := pgserver.Database(t)
		proxy := newProxy(t, url)
		cut := joined(t, opened(t, proxy.URL(), "cut", pgleases.WithTTL(time.Second), quietly(t)), "l", 8, pgleases.WithHandoffDelay(0))
		other := joined(t, opened(t, url, "other", pgleases.WithTTL(time.Second), quietly(t)), "l", 8, pgleases.WithHandoffDelay(0))
		logs := watched(t, map[string]*pgleases.Lease{"cut": cut, "other": other})
		var values, contexts, taken []time.Duration
		since := time.Now()
		for range rounds {
			waitFor(t, patience, "both own half", func() bool { return shared(cut, other) })
			// The ownerships of this moment, because another assignment may have begun in between.
			first := cut.Values()[0]
			p, ok := cut.Partition(first)
			if !ok {
				missed(t, since, bears(time.Second, time.Second/3), "partition %d moved without a fault", first)
			}
			if err := proxy.Freeze(); err != nil {
				t.Fatal(err)
			}
			// A heartbeat that was answered just before may still prolong the trust.
			var deadline time.Time
			waitFor(t, patience, "Values is empty", func() bool {
				if d := cut.TrustDeadline(); !d.IsZero() {
					deadline = d
				}
				return len(cut.Values()) == 0
			})
			values = append(values, time.Since(deadline))
			<-p.Context().Done()
			contexts = append(contexts, time.Since(deadline))
			if cause := context.Cause(p.Context()); !errors.Is(cause, pgleases.ErrTrustLost) {
				t.Errorf("the ownership ended for %v", cause)
			}
			waitFor(t, patience, "the other owns all", func() bool { return len(other.Values()) == 8 })
			taken = append(taken, time.Since(deadline))
			if err := proxy.Thaw(); err != nil {
				t.Fatal(err)
			}
		}
		report := verify(t, logs())
		t.Logf("after the trust deadline: Values empty %s, contexts canceled %s, the other owns all %s; %v",
			figures(values), figures(contexts), figures(taken), report)
		// The looks are some milliseconds apart.
		medianWithin(t, since, 10*time.Millisecond, values, "until Values was empty, from the trust deadline,")
		medianWithin(t, since, 10*time.Millisecond, contexts, "until contexts ended, from the trust deadline,")
		// The deadline is a margin of 100 ms before the session expires.
		medianWithin(t, since, 300*time.Millisecond+lateWithoutNotify(url, time.Second/3), taken, "until partitions of a client that was cut off were owned again, from its trust deadline,")
	})
}

// worker returns the configuration of a worker process whose Values is watched.
func worker(url, lease string, partitions int, dir, id string, n int) faults.Config {
	return faults.Config{
		URL: url, ID: id, Log: fmt.Sprintf("%s/%s.%d.log", dir, id, n), Lease: lease, Partitions: partitions, TTL: time.Second,
		Patience: patience,
	}
}

// One process per ID: the newer one supersedes the older one, which was stopped meanwhile.
func TestOlderOfTwoProcessesIsSuperseded(t *testing.T) {
	t.Parallel()
	timeguard.Run(t, func(t *timeguard.Try) {
		url, dir := pgserver.Database(t), t.TempDir()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		older := startWorker(t, worker(url, "l", 8, dir, "pod-0", 1))
		hasJoined(t, older)
		waitFor(t, patience, "the older owns all", func() bool { return len(held(t, older)) == 8 })
		if err := older.Pause(); err != nil { // like an evicted pod
			t.Fatal(err)
		}
		newer := startWorker(t, worker(url, "l", 8, dir, "pod-0", 2))
		hasJoined(t, newer)
		waitFor(t, patience, "the newer owns all", func() bool { return len(held(t, newer)) == 8 })
		if err := older.Resume(); err != nil {
			t.Fatal(err)
		}
		ended, err := older.Ended(ctx)
		if err != nil {
			t.Fatal(err)
		}
		host, err := os.Hostname()
		if err != nil {
			t.Fatal(err)
		}
		if !ended.Superseded || !strings.Contains(ended.Error, fmt.Sprintf("pid %d", newer.PID())) || !strings.Contains(ended.Error, host) {
			t.Errorf("the older ended with %+v, which does not name process %d on %s", ended, newer.PID(), host)
		}
		waitFor(t, patience, "the newer owns all", func() bool { return len(held(t, newer)) == 8 })
		began := time.Now()
		ended, err = newer.Close(ctx)
		if err != nil || ended.Superseded {
			t.Errorf("the newer ended with %+v, %v", ended, err)
		}
		if ended.Left != "" { // without trust, there is no time to leave
			missed(t, began, bears(time.Second, time.Second/3), "the newer left %s behind", ended.Left)
		}
		t.Log(verifyDir(t, dir))
	})
}

// A killed process that restarts under its ID gets its own partitions back.
func TestRestartUnderSameIDKeepsPartitions(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name       string
		partitions int
		late       bool // it returns after its partitions went to others
	}{
		{"at once", 13, false},
		// An even number, because a remaining partition would stay where it is.
		{"after its partitions went", 12, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				url, dir := pgserver.Database(t), t.TempDir()
				pods := make([]*faults.Process, 3)
				for i := range pods {
					pods[i] = startWorker(t, worker(url, "l", test.partitions, dir, fmt.Sprintf("pod-%d", i), 1))
				}
				for _, p := range pods {
					hasJoined(t, p)
				}
				balanced := func() bool {
					total := 0
					for _, p := range pods {
						n := len(held(t, p))
						if n != 4 && n != 5 {
							return false
						}
						total += n
					}
					return total == test.partitions
				}
				waitFor(t, patience, "all have their share", balanced)
				var before [3][]int
				began := time.Now()
				for i, p := range pods {
					before[i] = held(t, p)
				}
				pods[1].Kill()
				if test.late {
					waitFor(t, patience, "the others own all", func() bool { return len(held(t, pods[0]))+len(held(t, pods[2])) == test.partitions })
				}
				pods[1] = startWorker(t, worker(url, "l", test.partitions, dir, "pod-1", 2))
				hasJoined(t, pods[1])
				waitFor(t, patience, "all have their share again", balanced)
				for i, p := range pods {
					if now := held(t, p); !slices.Equal(now, before[i]) {
						missed(t, began, bears(time.Second, time.Second/3), "pod %d owned %v before the restart, %v after it", i, before[i], now)
					}
				}
				if !test.late { // then the others kept their own partitions all the time
					for _, i := range []int{0, 2} {
						log, err := pods[i].Watched()
						if err != nil {
							t.Fatal(err)
						}
						for _, interval := range log.Intervals {
							if !interval.Open && slices.Contains(before[i], interval.Partition) {
								missed(t, began, bears(time.Second, time.Second/3), "the restart of another moved: %v", interval)
							}
						}
					}
				}
				verifyDir(t, dir)
			})
		})
	}
}

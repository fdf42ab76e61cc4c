//go:build unix

package proof_test

import (
	"context"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/pgserver"
	"github.com/pgleases/pgleases/proof/timeguard"
)

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

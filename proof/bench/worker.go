package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// jobVariable makes a process that calls workIfAsked a worker. It holds the job as JSON.
const jobVariable = "PGLEASES_BENCH_JOB"

// A job is the work of a worker process until it is killed or its parent ends: it opens clients
// that join leases, and reports what they own.
type job struct {
	URL        string
	Prefix     string // of the clients' IDs
	Clients    int
	AtOnce     int // how many of them open and join at the same time
	Leases     int // each client joins one
	Partitions int // of each lease
	TTL        time.Duration
	Schedules  bool // run schedules instead, as a client whose ID is the prefix
	Route      bool // each client asks for all owners, ten times a second
	Bare       bool // update rows instead, one per connection, at the pace of heartbeats
	ByHand     bool // write what a start cannot do without instead, and then wait
	All, First int  // by hand: the clients of all workers, and how many of them other workers have before
}

// workIfAsked makes this process a worker, and does not return, if census.start started it.
func workIfAsked() {
	text := os.Getenv(jobVariable)
	if text == "" {
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
		os.Exit(0)
	}()
	var mu sync.Mutex // guards out
	out := json.NewEncoder(os.Stdout)
	report := func(h holding) {
		mu.Lock()
		defer mu.Unlock()
		_ = out.Encode(h)
	}
	if err == nil {
		err = attempt(func() { j.work(context.Background(), report) })
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

func (j job) work(ctx context.Context, report func(holding)) {
	if j.Schedules {
		check(newRunner(ctx, j.URL, j.Prefix, j.TTL, runsAtOnce).Run(ctx))
	}
	leases := []string{leaseName}
	for i := 1; i < j.Leases; i++ {
		leases = append(leases, fmt.Sprintf("%s-%d", leaseName, i))
	}
	turn := make(chan struct{}, j.AtOnce)
	together(j.Clients, func(i int) {
		if j.Bare {
			j.updateBare(ctx, i, report)
		}
		if j.ByHand {
			j.startByHand(ctx, i, report)
		}
		turn <- struct{}{}
		m := open(ctx, j.URL, fmt.Sprintf("%s-%d", j.Prefix, i), j.TTL)
		m.join(ctx, leases[i*j.Leases/j.Clients], j.Partitions)
		<-turn
		m.watch(report)
		for j.Route {
			_, _ = m.Owners(ctx) // an error: it asks again
			time.Sleep(100 * time.Millisecond)
		}
	})
	select {} // until it is killed
}

// updateBare does the minimum of a heartbeat, at the pace of heartbeats.
func (j job) updateBare(ctx context.Context, id int, report func(holding)) {
	time.Sleep(rand.N(j.TTL / 3))
	for conn := must(pgx.Connect(ctx, j.URL)); ; time.Sleep(j.TTL / 3) {
		updateBare(ctx, conn, id)
		report(holding{fmt.Sprint("bare-", id), time.Now(), 1, false})
	}
}

// A worker is a process with many clients.
type worker struct {
	cmd    *exec.Cmd
	stderr strings.Builder
	killed chan struct{} // closed before it is killed
	done   chan struct{} // closed when it is gone
}

// start starts a worker: this program again. Its clients count in the census until it is killed.
func (c *census) start(j job) *worker {
	w := &worker{cmd: exec.Command(must(os.Executable())), killed: make(chan struct{}), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), jobVariable+"="+string(must(json.Marshal(j))))
	w.cmd.Stderr = &w.stderr
	must(w.cmd.StdinPipe()) // the worker ends when this pipe closes
	output := must(w.cmd.StdoutPipe())
	check(w.cmd.Start())
	go func() {
		defer close(w.done)
		reports, known := json.NewDecoder(output), make(map[string]bool)
		var h holding
		for reports.Decode(&h) == nil {
			known[h.ID] = true
			c.report(h)
		}
		err := w.cmd.Wait()
		select {
		case <-w.killed:
		default:
			c.update(func() { c.failed = fmt.Errorf("worker %s ended: %v %s", j.Prefix, err, w.stderr.String()) })
		}
		for id := range known {
			c.report(holding{ID: id, Ended: true})
		}
	}()
	return w
}

// kill kills the process and waits until it is gone.
func (w *worker) kill() {
	select {
	case <-w.killed:
		return
	default:
	}
	close(w.killed)
	_ = w.cmd.Process.Kill() // an error means that it has ended
	<-w.done
}

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
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

// envWork makes a process that calls workIfAsked a worker; it holds the job as JSON.
const envWork = "PGLEASES_BENCH_WORK"

// A job is what a worker process does: it opens clients that join leases, and tells what they own until it is killed
// or its parent ends.
type job struct {
	URL        string
	Prefix     string // of the clients' IDs
	Clients    int
	AtOnce     int      // how many of them open and join at a time
	Leases     []string // each client joins one, as many the first as the last; one lease after the other
	Partitions int      // of each lease
	TTL        time.Duration
	Schedules  bool // run schedules instead, as a client with the prefix for its ID
	Bare       bool // instead, on as many connections, update a row of its own at the pace of heartbeats
}

// A tiding is what a worker tells at every change.
type tiding struct {
	At          time.Time
	Joined      int
	Owned       int    // by all its clients
	Least, Most int    // by one
	Repeated    int    // attempts to open or join that failed before
	Why         string // the last of them
}

// workIfAsked makes this process a worker, and does not return, if startWorker started it.
func workIfAsked() {
	text := os.Getenv(envWork)
	if text == "" {
		return
	}
	var j job
	err := json.Unmarshal([]byte(text), &j)
	if err == nil {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // ends with the parent
			os.Exit(0)
		}()
		switch ctx, out := context.Background(), json.NewEncoder(os.Stdout); {
		case j.Schedules:
			err = j.runSchedules(ctx)
		case j.Bare:
			err = j.updateBare(ctx, out)
		default:
			err = j.work(ctx, out)
		}
	}
	fmt.Fprintln(os.Stderr, "bench:", err)
	os.Exit(1)
}

func (j job) work(ctx context.Context, out *json.Encoder) error {
	c := newCensus()
	var mu sync.Mutex // guards repeated and why
	repeated, why := 0, ""
	turn := make(chan struct{}, j.AtOnce)
	for i := range j.Clients {
		m := &member{url: j.URL, id: fmt.Sprintf("%s-%d", j.Prefix, i), lease: j.Leases[i*len(j.Leases)/j.Clients], partitions: j.Partitions, ttl: j.TTL}
		again := func(err error) bool {
			if err == nil {
				return false
			}
			mu.Lock()
			defer mu.Unlock()
			if repeated, why = repeated+1, err.Error(); repeated > 10*j.Clients {
				fmt.Fprintln(os.Stderr, "bench:", err)
				os.Exit(1)
			}
			return true
		}
		go func() {
			turn <- struct{}{}
			for again(m.open(ctx)) {
			}
			for again(m.join(ctx)) {
			}
			<-turn
			c.watch(m)
		}()
	}
	for {
		owned, at, changed := c.now()
		if len(owned) > 0 {
			mu.Lock()
			t := tiding{At: at, Joined: len(owned), Owned: total(owned), Least: owned[0], Most: owned[0], Repeated: repeated, Why: why}
			mu.Unlock()
			for _, n := range owned {
				t.Least, t.Most = min(t.Least, n), max(t.Most, n)
			}
			if err := out.Encode(t); err != nil {
				return err
			}
		}
		<-changed
	}
}

// updateBare does what heartbeats cannot do with less, at times of its own for each connection. It tells when all have begun.
func (j job) updateBare(ctx context.Context, out *json.Encoder) error {
	pace := j.TTL / 3
	begun, failed := make(chan struct{}), make(chan error)
	for id := range j.Clients {
		go func() {
			time.Sleep(rand.N(pace))
			conn, err := pgx.Connect(ctx, j.URL)
			for turn := 0; err == nil; turn++ {
				if err = updateBare(ctx, conn, id); turn == 0 {
					begun <- struct{}{}
				}
				time.Sleep(pace)
			}
			failed <- err
		}()
	}
	for n := 0; ; {
		select {
		case <-begun:
			if n++; n == j.Clients {
				if err := out.Encode(tiding{At: time.Now(), Joined: n}); err != nil {
					return err
				}
			}
		case err := <-failed:
			return err
		}
	}
}

// A newsroom has the last tidings of some workers. All methods are safe for concurrent use.
type newsroom struct {
	// mu guards the rest.
	mu      sync.Mutex
	last    map[*worker]tiding
	ended   error         // of a worker that was not killed
	changed chan struct{} // closed at the next change

	patience time.Duration // of until
	program  string        // of its workers; empty: this one
}

func newNewsroom(patience time.Duration) *newsroom {
	return &newsroom{last: make(map[*worker]tiding), changed: make(chan struct{}), patience: patience}
}

// A worker is a process full of clients.
type worker struct {
	job    job
	cmd    *exec.Cmd
	input  io.WriteCloser // its end is the worker's
	stderr strings.Builder
	killed bool          // guarded by newsroom.mu
	done   chan struct{} // closed when it is gone
}

// start starts a worker: this program anew, where no other is named, which has the job's URL alone.
func (n *newsroom) start(j job) (_ *worker, err error) {
	program := n.program
	if program == "" {
		if program, err = os.Executable(); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(j)
	if err != nil {
		return nil, err
	}
	w := &worker{job: j, cmd: exec.Command(program), done: make(chan struct{})}
	w.cmd.Env = append(os.Environ(), envWork+"="+string(text), "DATABASE_URL="+j.URL)
	w.cmd.Stderr = &w.stderr
	if w.input, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	output, err := w.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go n.listen(w, output)
	return w, nil
}

func (n *newsroom) listen(w *worker, output io.Reader) {
	tidings := json.NewDecoder(output)
	for {
		var t tiding
		if tidings.Decode(&t) != nil {
			break
		}
		n.update(func() { n.last[w] = t })
	}
	err := w.cmd.Wait()
	n.update(func() {
		delete(n.last, w)
		if !w.killed {
			n.ended = errors.Join(n.ended, fmt.Errorf("worker %s ended by itself: %v %s", w.job.Prefix, err, w.stderr.String()))
		}
	})
	close(w.done)
}

func (n *newsroom) update(change func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	change()
	close(n.changed)
	n.changed = make(chan struct{})
}

// kill kills a worker and waits until it is gone.
func (n *newsroom) kill(w *worker) {
	n.update(func() { w.killed = true })
	_ = w.cmd.Process.Kill() // an error tells that it is gone
	<-w.done
}

// summary is what all workers tell together.
func (n *newsroom) summary() (tiding, <-chan struct{}, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	var all tiding
	for _, t := range n.last {
		if all.Joined == 0 {
			all.Least = t.Least
		}
		if t.At.After(all.At) {
			all.At = t.At
		}
		all.Joined += t.Joined
		all.Owned += t.Owned
		all.Least, all.Most = min(all.Least, t.Least), max(all.Most, t.Most)
		all.Repeated += t.Repeated
		all.Why = cmp.Or(t.Why, all.Why)
	}
	return all, n.changed, n.ended
}

// until waits until all workers together satisfy holds, and returns what they told then.
func (n *newsroom) until(ctx context.Context, what string, holds func(tiding) bool) (tiding, error) {
	late := time.NewTimer(n.patience)
	defer late.Stop()
	for {
		all, changed, err := n.summary()
		if err != nil || holds(all) {
			return all, err
		}
		select {
		case <-changed:
		case <-late.C:
			return all, fmt.Errorf("%w: %s, within %v; told was %+v", errLate, what, n.patience, all)
		case <-ctx.Done():
			return all, context.Cause(ctx)
		}
	}
}

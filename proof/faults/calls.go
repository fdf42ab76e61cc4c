//go:build unix

package faults

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/pgleases/pgleases/proof/oracle"
)

// callsSuffix is appended to the name of a worker's log; the file of that name holds the worker's
// calls.
const callsSuffix = ".calls"

// A Call is one call of a handler whose effects are outside the database, as the worker wrote it to
// its file.
type Call struct {
	N             int // the call's number in its worker
	Worker        string
	Kind          string
	Idempotency   string // the idempotency key that the handler received
	Name, Key     string
	Job           int64
	Order         string // the name of the order that the job was enqueued for
	At            time.Time
	Attempt       int
	Partition     int
	Epoch         int64
	Began         oracle.Instant
	Trusted       oracle.Instant // the last instant when the worker saw that it may continue
	Returned      bool
	Error         string // the error that the call returned
	ReturnedAfter oracle.Instant
}

// calls writes a worker's calls to a file.
type calls struct {
	mu   sync.Mutex // guards the rest
	n    int
	file *os.File
}

func openCalls(log string) (*calls, error) {
	file, err := os.OpenFile(log+callsSuffix, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return &calls{file: file}, err
}

// note appends what is known of a call in one write, so a killed process leaves whole lines only.
func (c *calls) note(call *Call) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if call.N == 0 {
		c.n++
		call.N = c.n
	}
	text, err := json.Marshal(call)
	if err == nil {
		_, err = c.file.Write(append(text, '\n'))
	}
	return err
}

const (
	beat = 10 * time.Millisecond
	// A process that stood still for this long may notice only later that it has lost its trust.
	still = 100 * time.Millisecond
	wakes = 400 * time.Millisecond
)

// work is a call. It lasts up to most, and checks every beat whether it may continue. Then it runs
// do, and records the result.
func (c *calls) work(ctx context.Context, call Call, most time.Duration, do func() error) error {
	call.Began = oracle.Now()
	call.Trusted = call.Began
	if err := c.note(&call); err != nil {
		return err
	}
	before, awake := call.Began, call.Began-oracle.Instant(wakes)
	for end := call.Began + oracle.Instant(rand.N(most)); before < end && pause(ctx, beat); {
		now := oracle.Now()
		switch {
		case now-before > oracle.Instant(still):
			awake = now
		case now-awake >= oracle.Instant(wakes) && ctx.Err() == nil:
			call.Trusted = before
			if err := c.note(&call); err != nil {
				return err
			}
		}
		before = now
	}
	err := context.Cause(ctx)
	if err == nil {
		err = do()
	}
	call.Returned, call.ReturnedAfter = true, oracle.Now()
	if err != nil {
		call.Error = err.Error()
	}
	return errors.Join(err, c.note(&call))
}

// Calls returns the calls that the workers recorded in files beside their logs in dir. Each line has
// the whole state of a call, so the last line of a call wins.
func Calls(dir string) (all []Call, err error) {
	err = oracle.EachFile(filepath.Join(dir, "*"+callsSuffix), func(lines *bufio.Scanner) error {
		first := len(all)
		for lines.Scan() {
			var c Call
			if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
				return err
			}
			n := first + c.N
			if n > len(all) {
				all = append(all, c)
			} else {
				all[n-1] = c
			}
		}
		return nil
	})
	return all, err
}

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

// callsSuffix is what the file of a worker's calls is called beyond its log.
const callsSuffix = ".calls"

// A Call is one of a handler whose effects are outside of the database, as the worker has written it to a file.
type Call struct {
	N             int // in its worker
	Worker        string
	Kind          string
	Idempotency   string // the key that it was given
	Name, Key     string
	Job           int64
	Order         string // what it was put for
	At            time.Time
	Attempt       int
	Partition     int
	Epoch         int64
	Began         oracle.Instant
	Trusted       oracle.Instant // at the latest of these instants the worker still saw that it might go on
	Returned      bool
	Error         string // that it returned
	ReturnedAfter oracle.Instant
}

// calls writes down a worker's.
type calls struct {
	mu   sync.Mutex // guards the rest
	n    int
	file *os.File
}

func openCalls(log string) (*calls, error) {
	file, err := os.OpenFile(log+callsSuffix, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	return &calls{file: file}, err
}

// note appends what is known of a call, in one write: who is killed leaves whole lines.
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
	// A process that stood still for so long may find only a while later that it has lost its trust meanwhile.
	still = 100 * time.Millisecond
	wakes = 400 * time.Millisecond
)

// work is a call: it lasts a while, and sees all the time whether it may go on. When it returns what do does, that is written down.
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

// Calls are those that the workers have written down that log into a directory.
func Calls(dir string) (all []Call, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*"+callsSuffix))
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		of, err := readCalls(path)
		if err != nil {
			return nil, err
		}
		all = append(all, of...)
	}
	return all, nil
}

// readCalls reads a file, whose last line of a call tells all of it.
func readCalls(path string) ([]Call, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var all []Call
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		var c Call
		if err := json.Unmarshal(lines.Bytes(), &c); err != nil {
			return nil, err
		}
		if c.N > len(all) {
			all = append(all, c)
		} else {
			all[c.N-1] = c
		}
	}
	return all, lines.Err()
}

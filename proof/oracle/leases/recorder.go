// Package leases is the oracle of leases. A [Recorder] reads Lease.Values of one client in a tight
// loop, and writes what it saw to a file. [Read] reads the files of all clients, of one process or
// of many, and oracle.Check returns the violations.
package leases

import (
	"context"
	"path/filepath"
	"slices"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/proof/oracle"
)

// Suffix ends the names of the files.
const Suffix = ".log"

// Read reads what all clients have written in a folder.
func Read(dir string) ([]oracle.Log, error) { return oracle.ReadAll(filepath.Join(dir, "*"+Suffix)) }

// A Lease is the part of a *pgleases.Lease that a Recorder uses.
type Lease interface {
	Values() []int
	Partition(int) (pgleases.Partition, bool)
	Changed() <-chan struct{}
	TrustDeadline() time.Time
}

const (
	burst        = 64
	defaultPause = time.Millisecond
	// undecided is the longest time from the beginning of a read to the check of its trust
	// deadline, if the check is to count.
	undecided = 100 * time.Microsecond
	// endsWithin is the time after a loss by which its context must have ended. Time when the
	// process did not run does not count.
	endsWithin = 10 * time.Second
	step       = 20 * time.Millisecond
)

// A Recorder records what one client's Values showed. It is not safe for concurrent use.
type Recorder struct {
	// Pause is the time between bursts of reads, which leaves the processor to the clients. The
	// default is 1 ms.
	Pause time.Duration

	file  *oracle.Writer
	began oracle.Instant
	last  oracle.Instant // beginning of the last read
	reads int64
	stale int64

	untold  int64
	losses  []loss         // losses whose contexts have not ended
	checked oracle.Instant // when the losses were last checked

	values []int // from the last read
	open   map[int]opened
	// The last interval of each partition whose context had not ended: a client may hide such a
	// partition for a while.
	refused  map[int]opened
	deadline oracle.Instant // the last known trust deadline
}

type opened struct {
	record int64
	epoch  int64
	// Closed when the ownership's context ends; nil: the ownership was gone before its context
	// could be read.
	ended <-chan struct{}
}

// A loss is a partition that Values no longer shows.
type loss struct {
	ended <-chan struct{}
	left  time.Duration
}

// Create creates the log at path, whose base name is the client's name. The file must not exist.
func Create(path string) (*Recorder, error) {
	f, err := oracle.NewWriter(path)
	if err != nil {
		return nil, err
	}
	return &Recorder{Pause: defaultPause, file: f, open: make(map[int]opened), refused: make(map[int]opened)}, nil
}

// Watch reads the lease until ctx ends. It returns an error if it cannot write the log. It may be
// called again.
func (r *Recorder) Watch(ctx context.Context, lease Lease) error {
	changed := lease.Changed()
	if r.began == 0 { // the header comes before any record, because the log may be read meanwhile
		r.began = oracle.Now()
		if err := r.file.Header(r.began, r.began, 0, 0, 0); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		begin := oracle.Now()
		for range burst {
			values := lease.Values()
			end := oracle.Now()
			anew := false
			select {
			case <-changed: // possibly only the epochs
				changed, anew = lease.Changed(), true
			default:
			}
			if begin > r.deadline && len(values) > 0 {
				r.checkTrust(lease, begin)
			}
			if anew || !same(values, r.values) {
				if err := r.note(lease, values); err != nil {
					return err
				}
			}
			r.last = begin
			r.reads++
			begin = end
		}
		r.checkLosses()
		if err := r.file.Header(r.began, r.last, r.reads, r.stale, r.untold); err != nil {
			return err
		}
		// Until first: if the process stops before Now, the deadline is too late, which may hide a
		// violation but reports no false one.
		left := time.Until(lease.TrustDeadline())
		r.deadline = oracle.Now() + oracle.Instant(left)
		time.Sleep(r.Pause)
	}
	return nil
}

// Close closes the log. Open intervals last until the last read.
func (r *Recorder) Close() error { return r.file.Close() }

// checkTrust counts a stale read: it began past the trust deadline that was known before, and still
// showed partitions. The read was right if a heartbeat has succeeded since, because then the
// deadline is after the read.
func (r *Recorder) checkTrust(lease Lease, begin oracle.Instant) {
	deadline := lease.TrustDeadline()
	left := time.Until(deadline)
	now := oracle.Now()
	if now.Sub(begin) < undecided && (deadline.IsZero() || now+oracle.Instant(left) < begin) {
		r.stale++
	}
}

// checkLosses counts the losses whose contexts did not end in time.
func (r *Recorder) checkLosses() {
	now := oracle.Now()
	passed := min(now.Sub(r.checked), step)
	r.checked = now
	r.losses = slices.DeleteFunc(r.losses, func(l loss) bool {
		select {
		case <-l.ended:
			return true
		default:
			return false
		}
	})
	for i := range r.losses {
		l := &r.losses[i]
		if l.left > 0 && l.left <= passed {
			r.untold++
		}
		l.left -= passed
	}
}

// note records the changes since the last read.
func (r *Recorder) note(lease Lease, values []int) error {
	shown := make(map[int]opened, len(values))
	for _, n := range values {
		if p, ok := lease.Partition(n); ok {
			shown[n] = opened{epoch: p.Epoch, ended: p.Context().Done()}
		} else {
			shown[n] = r.open[n] // withdrawn just now; the next read will show that
		}
	}
	first := oracle.Now() // not the return of Values, because the epochs may be of a later ownership
	for n, o := range r.open {
		now, still := shown[n]
		if still && now.epoch == o.epoch {
			continue
		}
		if o.ended != nil {
			r.losses = append(r.losses, loss{o.ended, endsWithin})
			r.refused[n] = o
		}
		if err := r.file.End(o.record, r.last); err != nil {
			return err
		}
		delete(r.open, n)
	}
	for _, n := range values {
		if _, ok := r.open[n]; ok {
			continue
		}
		o := shown[n]
		epoch := o.epoch
		// The same ownership continues, so its epoch is not recorded again.
		if o.ended != nil && r.refused[n].ended == o.ended {
			r.losses = slices.DeleteFunc(r.losses, func(l loss) bool { return l.ended == o.ended })
			epoch = 0
		}
		record, err := r.file.Begin(n, epoch, false, first)
		if err != nil {
			return err
		}
		o.record = record
		r.open[n] = o
	}
	r.values = values
	return nil
}

// same reports whether two reads returned the same slice. If a lease publishes equal values again,
// the slices differ.
func same(a, b []int) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

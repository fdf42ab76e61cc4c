package oracle

import (
	"context"
	"slices"
	"time"

	"github.com/pgleases/pgleases"
)

// A Lease is what a Recorder reads of a *pgleases.Lease.
type Lease interface {
	Values() []int
	Partition(int) (pgleases.Partition, bool)
	Changed() <-chan struct{}
	TrustDeadline() time.Time
}

const (
	burst        = 64
	defaultPause = time.Millisecond
	// undecided is how long after a read its trust deadline must have been asked for to count against it.
	undecided = 100 * time.Microsecond
	// told is how long after a loss its context must have ended; time in which the process did not run does not count.
	told = 10 * time.Second
	step = 20 * time.Millisecond
)

// A Recorder writes what one client's Values showed. It is for one goroutine.
type Recorder struct {
	// Pause between bursts of reads leaves the processor to those who are watched. Default 1 ms.
	Pause time.Duration

	file  *file
	began Instant
	last  Instant // beginning of the last read
	reads int64
	stale int64

	untold  int64
	losses  []loss  // that may still be told
	checked Instant // when they were last

	values   []int // as the last read showed them
	open     map[int]opened
	refused  map[int]opened // what was open last, as its context has not ended: a client may refuse to show it for a while
	deadline Instant        // no trust is known beyond
}

type opened struct {
	record int64
	epoch  int64
	told   <-chan struct{} // closed when the ownership's end is told; nil: there was no time to ask
}

// A loss is a partition that Values does not show any more.
type loss struct {
	told <-chan struct{}
	left time.Duration
}

// Create creates the log at the path, whose base name names the client. Nothing may be there.
func Create(path string) (*Recorder, error) {
	f, err := createFile(path)
	if err != nil {
		return nil, err
	}
	return &Recorder{Pause: defaultPause, file: f, open: make(map[int]opened), refused: make(map[int]opened)}, nil
}

// Watch reads the lease until ctx ends, and returns what writing the log failed of, if it did. It may be called again.
func (r *Recorder) Watch(ctx context.Context, lease Lease) error {
	changed := lease.Changed()
	if r.began == 0 { // the header comes before any record: the log may be read meanwhile
		r.began = Now()
		if err := r.file.header(r.began, r.began, 0, 0, 0); err != nil {
			return err
		}
	}
	for ctx.Err() == nil {
		begin := Now()
		for range burst {
			values := lease.Values()
			end := Now()
			anew := false
			select {
			case <-changed: // perhaps the epochs only
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
		if err := r.file.header(r.began, r.last, r.reads, r.stale, r.untold); err != nil {
			return err
		}
		// The distance first: a stop in between then makes the deadline too late, which hides, and not too early.
		left := time.Until(lease.TrustDeadline())
		r.deadline = Now() + Instant(left)
		time.Sleep(r.Pause)
	}
	return nil
}

// Close ends the log. What was open stays so, until the last read.
func (r *Recorder) Close() error { return r.file.f.Close() }

// checkTrust counts a read that began past the trust deadline, as that was known before, and yet showed something. It was
// right if a heartbeat has succeeded since; then there is a new deadline, after the read.
func (r *Recorder) checkTrust(lease Lease, begin Instant) {
	deadline := lease.TrustDeadline()
	left := time.Until(deadline)
	now := Now()
	if now.Sub(begin) < undecided && (deadline.IsZero() || now+Instant(left) < begin) {
		r.stale++
	}
}

// checkLosses counts the losses that nobody was told of in time.
func (r *Recorder) checkLosses() {
	now := Now()
	passed := min(now.Sub(r.checked), step)
	r.checked = now
	r.losses = slices.DeleteFunc(r.losses, func(l loss) bool {
		select {
		case <-l.told:
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

// note writes what changed with a read.
func (r *Recorder) note(lease Lease, values []int) error {
	shown := make(map[int]opened, len(values))
	for _, n := range values {
		if p, ok := lease.Partition(n); ok {
			shown[n] = opened{epoch: p.Epoch, told: p.Context().Done()}
		} else {
			shown[n] = r.open[n] // withdrawn just now, as the next read will show
		}
	}
	first := Now() // not of the return of Values: the epochs may be of something that came after it
	for n, o := range r.open {
		if now, ok := shown[n]; ok && now.epoch == o.epoch {
			continue
		}
		if o.told != nil {
			r.losses = append(r.losses, loss{o.told, told})
			r.refused[n] = o
		}
		if err := r.file.close(o.record, r.last); err != nil {
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
		if o.told != nil && r.refused[n].told == o.told { // the same ownership goes on, so its epoch does not come again
			r.losses = slices.DeleteFunc(r.losses, func(l loss) bool { return l.told == o.told })
			epoch = 0
		}
		var err error
		if o.record, err = r.file.open(n, epoch, false, first); err != nil {
			return err
		}
		r.open[n] = o
	}
	r.values = values
	return nil
}

// same reports whether two reads returned the same slice. A lease that publishes equal values anew is looked at anew.
func same(a, b []int) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

package logqueue

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// JoinedFor is how long lines for the same reason wait to be joined, after one of them was written.
const JoinedFor = 10 * time.Second

// A Joiner joins lines that come again and again: those that say in which partitions something
// happened. The first line for a reason is written at once. Those that follow are written as one
// line, JoinedFor after the line before. The zero Joiner is ready. Its methods may be called at the
// same time.
type Joiner struct {
	mu      sync.Mutex // guards the rest; held while lines are written, which keeps their order
	reasons map[Reason]*joined
	added   int // lines until now
}

// A Reason says which lines are joined: those with one message about one thing, such as a lease.
type Reason struct{ Message, Of string }

// joined are the lines for one reason since the last one was written.
type joined struct {
	lines    int // that wait
	numbers  []int
	distinct int // how many numbers there were when each was last kept only once
	write    func(numbers []int, lines int)
	then     func() // writes a line after it, if it is not nil
	last     int    // the number of the last line that waits
	timer    *time.Timer
}

// Add calls write with the numbers and 0, or later with the numbers of all lines that waited, in
// ascending order, and with how many lines that were. Then it calls the write of the last of them.
// A write must not block, and must not call the Joiner.
func (j *Joiner) Add(r Reason, numbers []int, write func(numbers []int, lines int)) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.reasons[r]
	if w == nil {
		w = new(joined)
		w.timer = time.AfterFunc(JoinedFor, func() { j.due(r, w) })
		if j.reasons == nil {
			j.reasons = make(map[Reason]*joined)
		}
		j.reasons[r] = w
		write(numbers, 0)
		return
	}
	j.added++
	w.last = j.added
	w.add(numbers)
	w.write, w.then = write, nil
}

func (w *joined) add(numbers []int) {
	w.lines++
	w.numbers = append(w.numbers, numbers...)
	if len(w.numbers) > 2*w.distinct+1024 { // numbers that come again must not fill the memory
		w.once()
	}
}

// once keeps each number only once.
func (w *joined) once() {
	slices.Sort(w.numbers)
	w.numbers = slices.Compact(w.numbers)
	w.distinct = len(w.numbers)
}

// Follow calls write, for a line that ends what the last line for a reason began. If that line
// waits, it calls write after that line, unless another line is added before.
func (j *Joiner) Follow(r Reason, write func()) {
	j.mu.Lock()
	defer j.mu.Unlock()
	w := j.reasons[r]
	if w != nil && w.lines > 0 {
		w.then = write
		return
	}
	write()
}

// due writes what waits for a reason. If no line waits, the next line is written at once again.
func (j *Joiner) due(r Reason, w *joined) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.reasons[r] != w: // flushed meanwhile
	case w.lines == 0:
		delete(j.reasons, r)
	default:
		w.out()
	}
}

// out writes what waits, and begins to wait again.
func (w *joined) out() {
	w.once()
	w.write(w.numbers, w.lines)
	if w.then != nil {
		w.then()
	}
	w.timer.Reset(JoinedFor)
	*w = joined{timer: w.timer}
}

// FlushOf writes what waits about one thing, before a line about it that does not wait. The next
// line about it is written at once.
func (j *Joiner) FlushOf(of string) { j.flush(func(r Reason) bool { return r.Of == of }) }

// Flush writes all that waits, before the end of what is logged, or a line about everything.
func (j *Joiner) Flush() { j.flush(func(Reason) bool { return true }) }

// flush writes what waits for some reasons, in the order of their last lines.
func (j *Joiner) flush(some func(Reason) bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	byLast := func(a, b Reason) int { return cmp.Compare(j.reasons[a].last, j.reasons[b].last) }
	for _, r := range slices.SortedFunc(maps.Keys(j.reasons), byLast) {
		if !some(r) {
			continue
		}
		w := j.reasons[r]
		if w.lines > 0 {
			w.out()
		}
		w.timer.Stop()
		delete(j.reasons, r)
	}
}

package schedule

import (
	"maps"
	"slices"
	"time"
)

// priorities is how many there are.
const priorities = 4

const suspectHold = 5 * time.Second // so long others wait at most for a crash suspect

// An item is a schedule or a job that is due now or soon.
type item struct {
	subject
	Priority  int
	Partition int
	Key       string
	Kind      string
	DueMicro  int64
	Crashes   int // counted

	// earliest is by this host: the item is not due before, by what the database returned when its
	// last run began; zero: it said nothing.
	earliest time.Time
}

func (i item) due() time.Time { return time.UnixMicro(i.DueMicro) }

// A finish is the end of a run.
type finish struct {
	item
	result
}

// A queue has what is due soon, and what runs. It decides which item begins next: of those that are
// due, the highest priority first, then the earliest; one at a time under a key; as many of a kind
// as its limit allows; a crash suspect alone. It knows no database and no clock. One goroutine uses
// it.
type queue struct {
	times *timings
	most  func() int            // how many run at once
	limit func(kind string) int // how many of a kind; 0: any number

	bands    [priorities][]item // what does not run, by its priority, and by when it is due
	running  map[subject]item   // as it was due
	keys     map[string]struct{}
	finished map[subject]finish // since the last poll was sent

	alone   bool                 // a crash suspect runs, and nothing else begins
	suspect time.Time            // when the last began
	held    time.Time            // until then crash suspects may keep others from beginning; zero: none has, since none was due
	beside  map[subject]struct{} // those that began beside others meanwhile

	ofKind map[string]int     // how many run of each kind
	scarce map[string]*scarce // kinds of which a run found no slot
}

// A scarce kind is one of which a run found no slot.
type scarce struct {
	tried  time.Time        // when one last found none
	until  time.Time        // then one tries anyway
	tries  int              // how many may try now, because slots became free
	marked map[subject]bool // schedules that are blocked: the time from there on makes no tick late
}

// leftOut is what a poll leaves out: what is due of these keys and kinds has to wait anyway, and
// may hide what is behind it.
type leftOut struct {
	keys  map[string]struct{} // under which something runs
	kinds []string            // of which there was no slot
}

func (l leftOut) empty() bool { return len(l.keys)+len(l.kinds) == 0 }

func (l leftOut) has(it item) bool {
	_, key := l.keys[it.Key]
	return key || slices.Contains(l.kinds, it.Kind)
}

func newQueue(times *timings, most func() int, limit func(kind string) int) queue {
	return queue{
		times: times, most: most, limit: limit, running: make(map[subject]item), keys: make(map[string]struct{}),
		finished: make(map[subject]finish), beside: make(map[subject]struct{}), ofKind: make(map[string]int), scarce: make(map[string]*scarce),
	}
}

// next takes the item out of the queue that may begin now, at this time of the host and of the
// server. If none may, it returns how long to wait for the next.
func (q *queue) next(now, server time.Time) (it item, wait time.Duration, ok bool) {
	wait = q.times.poll
	left := q.holdLeft(now)
	if q.alone = q.alone && left > 0; q.alone {
		return item{}, min(wait, left), false
	}
	if !q.hasRoom() {
		return item{}, wait, false
	}
	for n := priorities - 1; n >= 0; n-- {
		for i, it := range q.bands[n] {
			if early := max(it.due().Sub(server), it.earliest.Sub(now)); early > 0 {
				wait = min(wait, early)
				break
			}
			if ok, after := q.mayBegin(it, now); !ok {
				wait = min(wait, after)
				continue
			}
			if it.Crashes > 0 && len(q.running) > 0 { // nothing else begins before it
				q.hold(now)
				if left = q.holdLeft(now); left > 0 {
					return item{}, min(wait, left), false
				}
			}
			if i == 0 {
				q.bands[n] = q.bands[n][1:]
			} else {
				q.bands[n] = slices.Delete(q.bands[n], i, i+1)
			}
			return it, 0, true
		}
	}
	return item{}, wait, false
}

// mayBegin reports whether an item may begin beside what runs; if not, after which time it may.
func (q *queue) mayBegin(it item, now time.Time) (ok bool, wait time.Duration) {
	if ok, wait := q.admits(it, now); !ok {
		return false, wait
	}
	if _, busy := q.keys[it.Key]; busy {
		return false, q.times.poll // it begins after that one's end
	}
	if after := q.suspect.Add(q.times.suspectHold).Sub(now); it.Crashes > 0 && after > 0 && q.runsSuspect() {
		return false, after // others do not wait for that
	}
	return true, 0
}

func (q *queue) hold(now time.Time) {
	if q.held.IsZero() {
		q.held = now.Add(q.times.suspectHold)
	}
}

// holdLeft is how long crash suspects may still keep others from beginning.
func (q *queue) holdLeft(now time.Time) time.Duration {
	if q.held.IsZero() {
		return q.times.suspectHold
	}
	return q.held.Sub(now)
}

// runsSuspect reports whether a crash suspect runs.
func (q *queue) runsSuspect() bool {
	for _, it := range q.running {
		if it.Crashes > 0 {
			return true
		}
	}
	return false
}

// began notes that an item runs. It reports false for a crash suspect beside which others run,
// once.
func (q *queue) began(it item, now time.Time) (ok bool) {
	q.ofKind[it.Kind]++
	switch s := q.scarce[it.Kind]; {
	case s == nil:
	case s.tries > 0:
		s.tries--
	case !now.Before(s.until):
		s.until = now.Add(q.times.poll)
	}
	ok = true
	if it.Crashes > 0 {
		q.hold(now)
		q.suspect = now
		if q.alone = len(q.running) == 0; !q.alone {
			_, known := q.beside[it.subject]
			q.beside[it.subject], ok = struct{}{}, known
		}
	}
	q.running[it.subject], q.keys[it.Key] = it, struct{}{}
	return ok
}

// end takes the end of a run.
func (q *queue) end(f finish, now time.Time) {
	q.endOfKind(f, now)
	delete(q.running, f.subject)
	delete(q.keys, f.Key)
	if f.Crashes > 0 {
		q.alone = false
	}
	q.finished[f.subject] = f
	q.insert(f)
}

// insert inserts what is due again in its place.
func (q *queue) insert(f finish) {
	if _, runs := q.running[f.subject]; f.again == nil || runs {
		return
	}
	band := &q.bands[f.again.Priority]
	i, _ := slices.BinarySearchFunc(*band, f.again.due(), func(it item, t time.Time) int { return it.due().Compare(t) })
	*band = slices.Insert(*band, i, *f.again)
}

// polled notes that a poll is sent: what ends from now on may be in its answer as it was before.
func (q *queue) polled(now time.Time) {
	clear(q.finished)
	// Nothing of these kinds has tried for a while: nothing waits for a slot, or for something else.
	maps.DeleteFunc(q.scarce, func(_ string, s *scarce) bool { return now.Sub(s.tried) >= 2*q.times.poll+time.Second })
}

// clear empties the queue. What runs goes on.
func (q *queue) clear() { q.bands = [priorities][]item{} }

// replace replaces what is queued by the answer of a poll, and keeps what that left out. It returns
// how many of the items are crash suspects.
func (q *queue) replace(due []item, left leftOut) (suspects int) {
	if !left.empty() {
		due = slices.Clone(due)
		for _, band := range q.bands {
			for _, it := range band {
				if left.has(it) {
					due = append(due, it)
				}
			}
		}
		slices.SortStableFunc(due, func(a, b item) int { return a.due().Compare(b.due()) })
	}
	q.clear()
	for _, it := range due {
		if it.Crashes > 0 {
			suspects++
		}
		_, runs := q.running[it.subject]
		_, finished := q.finished[it.subject]
		if !runs && !finished {
			q.bands[it.Priority] = append(q.bands[it.Priority], it)
		}
	}
	if suspects == 0 && !q.runsSuspect() {
		q.held = time.Time{}
		clear(q.beside)
	}
	for _, f := range q.finished {
		q.insert(f)
	}
	return suspects
}

// earliest returns when the first is due of what is queued, runs, or has ended since the last poll
// was sent, if that is before t.
func (q *queue) earliest(t time.Time) time.Time {
	for _, band := range q.bands {
		for _, it := range band {
			t = earlier(t, it.due())
		}
	}
	for _, it := range q.running {
		t = earlier(t, it.due())
	}
	for _, f := range q.finished {
		t = earlier(t, earlier(f.due(), f.from))
	}
	return t
}

// blocked returns what more is due under keys under which something runs, also of keys that were
// left out, and of kinds of which as much is queued as may begin next, or some, and others have the
// slots.
func (q *queue) blocked(passed map[string]struct{}) leftOut {
	left := leftOut{keys: make(map[string]struct{})}
	for key := range q.keys {
		if _, ok := passed[key]; ok {
			left.keys[key] = struct{}{}
		}
	}
	waiting := make(map[string]int)
	for _, band := range q.bands {
		for _, it := range band {
			if _, runs := q.keys[it.Key]; runs {
				left.keys[it.Key] = struct{}{}
			}
			if q.scarce[it.Kind] == nil && !q.hasAll(it.Kind) {
				continue
			}
			if waiting[it.Kind]++; waiting[it.Kind] == min(q.limit(it.Kind), pollLeast) {
				left.kinds = append(left.kinds, it.Kind)
			}
		}
	}
	return left
}

// has reports whether something of a key is queued.
func (q *queue) has(key string) bool {
	return slices.ContainsFunc(q.bands[:], func(band []item) bool {
		return slices.ContainsFunc(band, func(it item) bool { return it.Key == key })
	})
}

// short reports whether less is queued than can run at once.
func (q *queue) short() bool {
	queued := 0
	for _, band := range q.bands {
		queued += len(band)
	}
	return queued < q.most()
}

// hasRoom reports whether another can run.
func (q *queue) hasRoom() bool { return len(q.running) < q.most() }

// due returns how many of what is queued are due.
func (q *queue) due(server time.Time) (n int) {
	for _, band := range q.bands {
		due, _ := slices.BinarySearchFunc(band, server, func(it item, t time.Time) int { return it.due().Compare(t) })
		n += due
	}
	return n
}

// admits reports whether an item may try to begin as far as its kind's limit goes; if not, after
// which time one may.
func (q *queue) admits(it item, now time.Time) (ok bool, wait time.Duration) {
	if q.limit(it.Kind) == 0 {
		return true, 0
	}
	s := q.scarce[it.Kind]
	switch {
	case !it.Job && (s == nil || !s.marked[it.subject]): // or its tick would be late for it
		return true, 0
	case q.hasAll(it.Kind):
		return false, q.times.poll
	case s == nil || s.tries > 0 || !now.Before(s.until):
		return true, 0
	}
	return false, s.until.Sub(now)
}

// hasAll reports whether as many of a kind run in this process as may at once.
func (q *queue) hasAll(kind string) bool {
	limit := q.limit(kind)
	return limit > 0 && q.ofKind[kind] >= limit
}

// endOfKind notes at the end of a run whether it had found a slot.
func (q *queue) endOfKind(f finish, now time.Time) {
	if q.ofKind[f.Kind]--; q.ofKind[f.Kind] == 0 {
		delete(q.ofKind, f.Kind)
	}
	s := q.scarce[f.Kind]
	if f.outcome != blocked {
		q.slotFree(f.Kind) // what it had is free
		return
	}
	if s == nil {
		s = &scarce{until: now.Add(q.times.poll), marked: make(map[subject]bool)}
		q.scarce[f.Kind] = s
	}
	s.tried = now
	if !f.Job {
		s.marked[f.subject] = true
	}
}

// slotFree lets another run of a kind try: one has got a slot, or has ended.
func (q *queue) slotFree(kind string) {
	if s := q.scarce[kind]; s != nil {
		s.tries = min(s.tries+1, q.most())
	}
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

package schedule

import (
	"iter"
	"maps"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/internal/worker"
)

// mostParked is how many runs may go on without a place: they wait for the record of their
// outcomes, or for the end of their slots, or their handlers do not end.
const mostParked = 100

// illMost is how long an item that took long itself waits at most for those of which only the kind
// is doubted.
const illMost = 10 * time.Minute

// priorities is the number of priorities.
const priorities = 4

// An item is a schedule or a job that is due now or soon.
type item struct {
	subject
	Priority  int
	Partition int
	Key       string
	Kind      string
	DueMicro  int64
	Crashes   int // counted crashes

	locked bool // it met a locked row last, so the row is tried before the run
	lane   worker.Lane
	begun  time.Time // when its run began

	// earliest is a time of this host, before which the item is not due, computed from the answer
	// of the database when its last run began; zero: unknown.
	earliest time.Time
}

func (i item) due() time.Time { return time.UnixMicro(i.DueMicro) }

// A piece is an item as worker.Slots know it. It is forgotten with its partition.
type piece struct {
	subject
	partition int
}

func (i item) piece() piece { return piece{i.subject, i.Partition} }

// A finish is the end of a run.
type finish struct {
	item
	result
}

// A queue has what is due soon, and what is running. It decides which item begins next. Of those
// that are due the highest priority goes first, then the earliest due time. At most one item of a
// key runs at a time, and at most as many of a kind as its limit. A crash suspect runs alone. What
// took long to no effect comes after what did not, see worker.Slots. The queue knows no database
// and no clock. The goroutine of loop uses it.
type queue struct {
	times *timings
	most  func() int            // the limit of runs at once
	limit func(kind string) int // the limit of a kind; 0: no limit

	bands   [priorities][]item // what is not running, by priority, each in the order of due times
	running map[subject]item   // what runs, each as the item that was due
	order   []subject          // what runs, in the order in which it began
	overdue map[subject]bool   // what runs although its context has ended
	// parked is what runs without a place: it is overdue, or the record of its outcome or the end of
	// its slot is delayed
	parked   map[subject]bool
	keys     map[string]struct{}
	finished map[subject]finish // what has ended since the last poll was sent

	suspect time.Time // when the last crash suspect began
	// held is until when crash suspects may delay other items; zero: no suspect was due
	held   time.Time
	beside map[subject]struct{} // suspects that began beside other runs in that time

	slots    worker.Slots[piece] // its groups are the kinds, as those of outages
	illSince time.Time           // since when no ill item has begun, although one might; zero: none waits
	outages  worker.Outages
	tries    map[string]item // by kind: the last run that began during its outage, while it runs

	ofKind map[string]int     // number of runs of each kind
	scarce map[string]*scarce // kinds whose last run found no slot
}

// A scarce kind is one whose run found no slot.
type scarce struct {
	tried time.Time // when a run last found no slot
	until time.Time // then a run tries anyway
	tries int       // runs that may try now, because slots became free
	// schedules that are recorded as blocked, so the time does not count as lateness
	marked map[subject]bool
}

// leftOut is what a poll leaves out: keys and kinds whose due items must wait anyway, and might
// fill the answer, so that it lacks the items after them.
type leftOut struct {
	keys  map[string]struct{} // with an item that is running
	kinds []string            // without a free slot
}

func (l leftOut) empty() bool { return len(l.keys)+len(l.kinds) == 0 }

func (l leftOut) has(it item) bool {
	_, key := l.keys[it.Key]
	return key || slices.Contains(l.kinds, it.Kind)
}

func newQueue(times *timings, most func() int, limit func(kind string) int) queue {
	return queue{
		times: times, most: most, limit: limit, running: make(map[subject]item), keys: make(map[string]struct{}),
		overdue: make(map[subject]bool), parked: make(map[subject]bool),
		finished: make(map[subject]finish), beside: make(map[subject]struct{}),
		ofKind: make(map[string]int), scarce: make(map[string]*scarce), tries: make(map[string]item),
	}
}

// next removes and returns the item that may begin now, at this time of the host and of the server.
// If no item may begin, it returns how long to wait.
func (q *queue) next(now, server time.Time) (it item, wait time.Duration, ok bool) {
	wait = q.times.Poll
	left := q.holdLeft(now)
	if left > 0 && q.runsSuspect() && len(q.running) == 1 { // it runs alone
		return item{}, min(wait, left), false
	}
	if !q.hasRoom() {
		return item{}, wait, false
	}
	healthy, after := q.first(trusted, now, server)
	wait = min(wait, after)
	slow := place{}
	if q.slots.AnySlow() {
		slow, after = q.firstSlow(now, server)
		wait = min(wait, after)
	}
	at := healthy
	switch q.slots.Next(q.most(), healthy.found, slow.found, now) {
	case worker.Neither:
		return item{}, wait, false
	case worker.Slow:
		at = slow
	}
	if q.bands[at.band][at.index].Crashes > 0 && len(q.running) > 0 { // no other item begins before it
		q.hold(now)
		left = q.holdLeft(now)
		if left > 0 {
			return item{}, min(wait, left), false
		}
	}
	return q.remove(at, now), 0, true
}

// firstSlow returns the item of slow work that may begin next: a doubted one, unless those that are
// ill have waited for it for long. Otherwise it returns how long to wait.
func (q *queue) firstSlow(now, server time.Time) (p place, wait time.Duration) {
	known, wait := q.first(ill, now, server)
	switch {
	case !known.found:
		q.illSince = time.Time{}
	case q.illSince.IsZero():
		q.illSince = now
	}
	fresh, after := q.first(doubted, now, server)
	if !fresh.found || known.found && now.Sub(q.illSince) >= illMost {
		return known, min(wait, after)
	}
	return fresh, min(wait, after)
}

// A health is what is known of an item before it begins.
type health int

const (
	trusted health = iota
	doubted        // an item of its kind, which was not known as ill, took long to no effect, or was blocked
	ill            // it did so itself
)

func (q *queue) healthOf(it item, now time.Time) health {
	switch _, slow := q.slots.Slow(it.piece()); {
	case slow:
		return ill
	case q.slots.Doubts(it.Kind, now):
		return doubted
	}
	return trusted
}

// A place is that of an item in the queue.
type place struct {
	found       bool
	band, index int
}

// first returns the first item of a health that may begin now. Otherwise it returns how long to
// wait.
func (q *queue) first(of health, now, server time.Time) (p place, wait time.Duration) {
	wait = q.times.Poll
	for n := priorities - 1; n >= 0; n-- {
		for i, it := range q.bands[n] {
			early := max(it.due().Sub(server), it.earliest.Sub(now))
			if early > 0 {
				wait = min(wait, early)
				break
			}
			if q.healthOf(it, now) != of {
				continue
			}
			after := q.mustWait(it, now)
			if after > 0 {
				wait = min(wait, after)
				continue
			}
			return place{true, n, i}, wait
		}
	}
	return place{}, wait
}

// remove removes an item from the queue, and returns it as it begins.
func (q *queue) remove(p place, now time.Time) item {
	band := q.bands[p.band]
	it := band[p.index]
	if p.index == 0 {
		q.bands[p.band] = band[1:]
	} else {
		q.bands[p.band] = slices.Delete(band, p.index, p.index+1)
	}
	it.lane = worker.Slow
	switch q.healthOf(it, now) {
	case trusted:
		it.lane = worker.Healthy
	case ill:
		q.illSince = time.Time{}
		it.locked = q.slots.Why(it.piece()) == worker.Locked
	}
	return it
}

// mustWait returns after which time to ask again whether an item may begin beside the running
// items; 0: it may begin now.
func (q *queue) mustWait(it item, now time.Time) time.Duration {
	after := max(q.waitsForSlot(it, now), q.waitsForOutage(it, now))
	if after > 0 {
		return after
	}
	if _, busy := q.keys[it.Key]; busy {
		return q.times.Poll // it begins when the running item of its key has ended
	}
	if it.Crashes > 0 && q.runsSuspect() { // other items do not wait for the suspect
		return max(0, q.suspect.Add(q.times.SuspectHold).Sub(now))
	}
	again, slow := q.slots.Slow(it.piece())
	if !slow || q.hasDistance(it) {
		return 0
	}
	return max(0, again.Sub(now))
}

// waitsForOutage returns after which time to ask again whether an item may begin, although
// something that its kind needs is away; 0: it may begin now.
func (q *queue) waitsForOutage(it item, now time.Time) time.Duration {
	next, away := q.outages.Under(it.Kind)
	if !away {
		return 0
	}
	after := next.Sub(now)
	if try, runs := q.tries[it.Kind]; runs { // it finds out, unless it hangs
		after = max(after, try.begun.Add(q.times.Try).Sub(now))
	}
	return max(0, after)
}

// hasDistance reports whether the database says when an ill item comes back: by its retry, by its
// rule, or as one that is blocked.
func (q *queue) hasDistance(it item) bool {
	why := q.slots.Why(it.piece())
	return why == worker.TimedOut || why == worker.Blocked
}

func (q *queue) hold(now time.Time) {
	if q.held.IsZero() {
		q.held = now.Add(q.times.SuspectHold)
	}
}

// holdLeft returns how much longer crash suspects may delay other items.
func (q *queue) holdLeft(now time.Time) time.Duration {
	if q.held.IsZero() {
		return q.times.SuspectHold
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

// began records that an item runs. It returns false the first time that a crash suspect begins
// beside others.
func (q *queue) began(it item, now time.Time) (ok bool) {
	q.ofKind[it.Kind]++
	switch s := q.scarce[it.Kind]; {
	case s == nil:
	case s.tries > 0:
		s.tries--
	case !now.Before(s.until):
		s.until = now.Add(q.times.Poll)
	}
	ok = true
	if it.Crashes > 0 {
		q.hold(now)
		q.suspect = now
		if len(q.running) > 0 {
			_, known := q.beside[it.subject]
			q.beside[it.subject], ok = struct{}{}, known
		}
	}
	it.begun = now
	if q.isAway(it.Kind) {
		q.tries[it.Kind] = it
	}
	q.slots.Begin(it.lane)
	q.running[it.subject], q.keys[it.Key] = it, struct{}{}
	q.order = append(q.order, it.subject)
	return ok
}

// park frees the place of a run whose handler has ended, because a lock delays the record of its
// outcome, or its slot cannot be freed. Its key stays busy.
func (q *queue) park(s subject, now time.Time) {
	it, runs := q.running[s]
	if runs && !q.parked[s] && len(q.parked) < mostParked {
		q.parked[s] = true
		q.slots.End(it.lane, q.most(), now.Sub(it.begun), now)
	}
}

// giveUp lets others have the place of a run in which code of the application goes on after its
// context has ended. Its key stays busy. If it ended by the timeout, the item is slow.
func (q *queue) giveUp(s subject, timedOut bool, now time.Time) {
	it, runs := q.running[s]
	if !runs {
		return
	}
	q.overdue[s] = true
	q.park(s, now)
	if timedOut {
		q.slowDown(it, worker.TimedOut, now)
	}
}

// end records the end of a run, and reports whether it is news that something that its kind needs
// is away.
func (q *queue) end(f finish, now time.Time) (outage bool) {
	q.endOfKind(f, now)
	it := q.running[f.subject]
	f.begun = it.begun
	if !q.parked[f.subject] {
		q.slots.End(it.lane, q.most(), now.Sub(it.begun), now)
	}
	q.judge(f, now)
	if q.tries[f.Kind].subject == f.subject {
		delete(q.tries, f.Kind)
	}
	switch {
	case f.away != nil:
		outage = q.outages.Found(f.Kind, now)
	case f.called && !f.timedOut(): // a call that hangs does not show it
		q.outages.Over(f.Kind)
		delete(q.tries, f.Kind) // a run that tried does not count in a later outage
	}
	delete(q.parked, f.subject)
	delete(q.overdue, f.subject)
	delete(q.running, f.subject)
	q.order = slices.DeleteFunc(q.order, func(s subject) bool { return s == f.subject })
	delete(q.keys, f.Key)
	q.finished[f.subject] = f
	q.insert(f)
	return outage
}

// judge decides whether an item whose run has ended, and those of its kind, are slow from now on.
func (q *queue) judge(f finish, now time.Time) {
	switch {
	case f.slow:
		q.slowDown(f.item, f.why, now)
	case f.outcome == stepped || f.outcome == callable:
		q.slots.Heal(f.piece())
		q.slots.Trust(f.Kind)
	}
}

// slowDown makes an item slow, whose run has begun, and those of its kind if that was not known.
func (q *queue) slowDown(it item, why worker.Reason, now time.Time) {
	_, known := q.slots.Slow(it.piece())
	q.slots.Fail(it.piece(), why, now)
	if !known && q.hasDistance(it) { // a lock, or a connection, says nothing about the kind
		q.slots.Doubt(it.Kind, now.Sub(it.begun), now)
	}
}

// forget forgets what is known of ill items whose partition this process does not own any more, and
// of those that have not come back for long, and of the outages of their kinds.
func (q *queue) forget(owns func(partition int) bool, now time.Time) {
	if !q.slots.AnySlow() && !q.outages.Any() {
		return
	}
	waits, kinds := make(map[piece]bool), make(map[string]bool)
	for it := range q.items() {
		waits[it.piece()], kinds[it.Kind] = true, true
	}
	q.outages.Forget(func(kind string) bool { return kinds[kind] }, now)
	here := func(p piece) bool { return owns(p.partition) }
	q.slots.Forget(here, func(p piece) bool { return waits[p] }, now)
}

// items returns all items, first those that run.
func (q *queue) items() iter.Seq[item] {
	return func(yield func(item) bool) {
		for _, it := range q.running {
			if !yield(it) {
				return
			}
		}
		for _, band := range q.bands {
			for _, it := range band {
				if !yield(it) {
					return
				}
			}
		}
	}
}

// slowBy counts the ill items by what they wait for. An ill item that neither runs nor is due soon
// waits for its time only. An item that this process cannot run is not counted, because the
// database counts all of these.
func (q *queue) slowBy() map[worker.Reason]int {
	n := make(map[worker.Reason]int)
	if !q.slots.AnySlow() {
		return n
	}
	for it := range q.items() {
		if _, slow := q.slots.Slow(it.piece()); !slow {
			continue
		}
		why := q.slots.Why(it.piece())
		if slices.Contains(worker.Reasons, why) {
			n[why]++
		}
	}
	return n
}

// insert inserts an item that is due again, in the order of due times.
func (q *queue) insert(f finish) {
	_, runs := q.running[f.subject]
	if f.again == nil || runs {
		return
	}
	band := &q.bands[f.again.Priority]
	i, _ := slices.BinarySearchFunc(*band, f.again.due(), func(it item, t time.Time) int { return it.due().Compare(t) })
	*band = slices.Insert(*band, i, *f.again)
}

// polled records that a poll is sent. Its answer may show what ends from now on as it was before.
func (q *queue) polled(now time.Time) {
	clear(q.finished)
	// No run of these kinds has tried for a while, so no run waits for a slot.
	maps.DeleteFunc(q.scarce, func(_ string, s *scarce) bool { return now.Sub(s.tried) >= 2*q.times.Poll+time.Second })
}

// clear empties the queue, except what is running.
func (q *queue) clear() { q.bands = [priorities][]item{} }

// replace replaces the queued items with the answer of a poll, and keeps queued items that the poll
// left out. It returns how many of the items are crash suspects.
func (q *queue) replace(due []item, left leftOut) (suspects int) {
	for _, band := range q.bands {
		for _, it := range band {
			if left.has(it) {
				due = append(due, it)
			}
		}
	}
	slices.SortStableFunc(due, func(a, b item) int { return a.due().Compare(b.due()) })
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

// earliest returns the earliest due time in each partition of the items that are queued, running,
// or have ended since the last poll was sent.
func (q *queue) earliest() map[int]time.Time {
	first := make(map[int]time.Time)
	note := func(it item, t time.Time) {
		at, known := first[it.Partition]
		if !known || t.Before(at) {
			first[it.Partition] = t
		}
	}
	for _, band := range q.bands {
		for _, it := range band {
			note(it, it.due())
		}
	}
	for _, it := range q.running {
		note(it, it.due())
	}
	for _, f := range q.finished {
		note(f.item, when.Earlier(f.due(), f.from))
	}
	return first
}

// blocked returns what the next poll may leave out. That is each key of a running item if more of
// the key is due, or was left out before. It is also each kind without a free slot if enough of it
// is queued.
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
			if q.scarce[it.Kind] == nil && !q.hasAll(it.Kind) && !q.isAway(it.Kind) {
				continue
			}
			waiting[it.Kind]++
			if waiting[it.Kind] == q.enough(it.Kind) {
				left.kinds = append(left.kinds, it.Kind)
			}
		}
	}
	return left
}

// isAway reports whether something is away that a kind needs.
func (q *queue) isAway(kind string) bool {
	_, away := q.outages.Under(kind)
	return away
}

// enough returns how many items of a kind are queued at least before polls may leave out the kind.
func (q *queue) enough(kind string) int {
	limit := q.limit(kind)
	if limit > 0 {
		return min(limit, pollLeast)
	}
	return pollLeast
}

// has reports whether an item of the key is queued.
func (q *queue) has(key string) bool {
	return slices.ContainsFunc(q.bands[:], func(band []item) bool {
		return slices.ContainsFunc(band, func(it item) bool { return it.Key == key })
	})
}

// short reports whether fewer of the queued items are due than can run at once.
func (q *queue) short(server time.Time) bool { return q.due(server) < q.most() }

// waitIn returns how many items in each partition run, or are ill and wait for that: they are due,
// but not what an answer is to find.
func (q *queue) waitIn() map[int]int {
	n := make(map[int]int)
	for _, it := range q.running {
		n[it.Partition]++
	}
	if !q.slots.AnySlow() {
		return n
	}
	for _, band := range q.bands {
		for _, it := range band {
			if _, slow := q.slots.Slow(it.piece()); slow {
				n[it.Partition]++
			}
		}
	}
	return n
}

// hasRoom reports whether another item can run.
func (q *queue) hasRoom() bool { return q.slots.Busy() < q.most() }

// due returns how many of the queued items are due.
func (q *queue) due(server time.Time) (n int) {
	for _, band := range q.bands {
		due, _ := slices.BinarySearchFunc(band, server, func(it item, t time.Time) int { return it.due().Compare(t) })
		n += due
	}
	return n
}

// waitsForSlot returns after which time to ask again whether the limit of the item's kind lets it
// try to begin; 0: it may try now.
func (q *queue) waitsForSlot(it item, now time.Time) time.Duration {
	if q.limit(it.Kind) == 0 {
		return 0
	}
	s := q.scarce[it.Kind]
	switch {
	case !it.Job && (s == nil || !s.marked[it.subject]): // so its blocked time is recorded
		return 0
	case q.hasAll(it.Kind):
		return q.times.Poll
	case s == nil || s.tries > 0:
		return 0
	}
	return max(0, s.until.Sub(now))
}

// hasAll reports whether this process alone runs as many of a kind as its limit allows.
func (q *queue) hasAll(kind string) bool {
	limit := q.limit(kind)
	return limit > 0 && q.ofKind[kind] >= limit
}

// endOfKind records at the end of a run whether the run had found a slot.
func (q *queue) endOfKind(f finish, now time.Time) {
	q.ofKind[f.Kind]--
	if q.ofKind[f.Kind] == 0 {
		delete(q.ofKind, f.Kind)
	}
	s := q.scarce[f.Kind]
	if f.outcome != blocked {
		q.slotFree(f.Kind) // its slot is free
		return
	}
	if s == nil {
		s = &scarce{until: now.Add(q.times.Poll), marked: make(map[subject]bool)}
		q.scarce[f.Kind] = s
	}
	s.tried = now
	if !f.Job {
		s.marked[f.subject] = true
	}
}

// slotFree lets another run of a kind try, because a run has got a slot or has ended.
func (q *queue) slotFree(kind string) {
	if s := q.scarce[kind]; s != nil {
		s.tries = min(s.tries+1, q.most())
	}
}

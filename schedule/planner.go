package schedule

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

const (
	lookEvery  = time.Second
	lookAhead  = 2 * time.Second // so that a look that takes long makes nothing late
	lookLimit  = 5 * time.Second
	lookMost   = 100              // rows of each partition
	lookLeast  = 10               // of many partitions
	lookTotal  = 2000             // or so, of all
	behind     = time.Second      // so long after it was written something may be committed, and is found at once
	farBehind  = 10 * time.Second // and so long, and is found within about a second: behind an old snapshot it costs more to look back farther
	sweepEvery = time.Minute      // everything that is due, also what was committed later than that
	suspects   = 5 * time.Second  // so long others wait at most for what may kill the process
)

// A planner starts what is due in the partitions that this process owns. One goroutine has it looked at once a second what is due soon,
// which makes nothing wait, and has that in order.
type planner struct {
	s     *Scheduler
	lease *pgleases.Lease
	fence fence

	mu    sync.Mutex // guards what follows
	owned map[int]*ownership
	clock serverClock
	// closing are ownerships whose end is to be written down, by who has closes.
	closing []*ownership
	closes  sync.Mutex // before mu

	wake     chan struct{} // of capacity one: look at once
	finished chan finish
	found    chan *look // of capacity one

	gained map[string]int // kinds of which runs have got slots; mu guards it
	stir   chan struct{}  // of capacity one: gained has changed

	// The rest is the goroutine's alone.
	lookout *lookout            // of a look while one is under way
	ofKind  map[string]int      // how many run of each kind
	scarce  map[string]*scarce  // kinds of which there was no slot
	queues  [priorities][]item  // what is due soon and does not run, by its priority, and by when it is due
	running map[subject]item    // as it was due
	keys    map[string]struct{} // under which something runs
	alone   bool                // what runs is suspected to kill the process, and nothing else begins
	held    time.Time           // since when one that is suspected keeps others from beginning; zero: none does
	looking bool                // a look is under way
	ended   map[subject]finish  // while it was
	crowded bool                // so it was when it last looked
	plain   time.Time           // until then nothing is left out, as a look that did so failed
	hides   bool                // and what waits for others may hide what is behind it
	passed  map[string]struct{} // keys that were left out when it last looked, and have more that is due
	more    bool                // there may be more that is due and was not found: it looks when there is room for it
	low     time.Time           // nothing that was due before is left
	behind  time.Time           // when it last looked far behind that, for what was committed late
	swept   time.Time           // when it last looked at everything
	news    bool                // something was put, or may have been
	failing bool                // the last look failed
	few     bool                // new partitions are looked at one by one, as that failed for more
	without bool                // the next look is at none of them
}

// A finish is the end of a run.
type finish struct {
	item
	again *item     // when it is due again; nil: that is to be looked up
	from  time.Time // the instant before which it is not due
}

// A look is what is asked about what is due soon, and the answer.
type look struct {
	partitions, fresh []int32
	of                []*ownership // which are fresh until it is answered
	more              bool         // others are fresh, too
	since             time.Time
	sweeps            bool
	but               []string            // keys under which something runs, and more is due
	butKinds          []string            // of which there was no slot: what is queued of them stays so
	passed            map[string]struct{} // those of them that have more that is due
	atMost            int

	sent, answered time.Time
	clock          time.Time     // of the database, when it began
	took           time.Duration // the database
	due            []item
	err            error
}

func newPlanner(s *Scheduler, lease *pgleases.Lease) *planner {
	s.counts.looked.Store(int64(time.Since(processStart)))
	return &planner{
		s: s, lease: lease, fence: leaseFence{lease}, owned: make(map[int]*ownership), lookout: newLookout(s),
		gained: make(map[string]int), stir: make(chan struct{}, 1), ofKind: make(map[string]int), scarce: make(map[string]*scarce),
		wake: make(chan struct{}, 1), finished: make(chan finish), found: make(chan *look, 1), running: make(map[subject]item), keys: make(map[string]struct{}),
	}
}

// serve is the callback for a partition: it is worked on until the callback's context ends, and its runs have.
func (p *planner) serve(ctx context.Context, partition pgleases.Partition) error {
	o := &ownership{Partition: partition, life: partition.Context(), fresh: true}
	o.ctx, o.cancel = context.WithCancelCause(o.life)
	defer o.cancel(nil)
	p.mu.Lock()
	p.owned[o.Number] = o
	p.mu.Unlock()
	p.look()
	if o.Number == 0 {
		trimming := make(chan struct{})
		go func() {
			defer close(trimming)
			p.trim(ctx)
		}()
		defer func() { <-trimming }()
	}
	<-ctx.Done()
	p.mu.Lock()
	delete(p.owned, o.Number)
	p.mu.Unlock()
	o.drain(p.s.options.drain)
	p.close(o)
	return ctx.Err()
}

// look has the goroutine look at once.
func (p *planner) look() {
	select {
	case p.wake <- struct{}{}:
	default: // it will look anyway
	}
}

// start sets the goroutine going. It looks until ctx ends, and takes the ends of runs until the returned function is called.
func (p *planner) start(ctx context.Context) (stop func()) {
	stopped, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		p.loop(ctx, stopped)
	}()
	return func() { close(stopped); <-done }
}

func (p *planner) loop(ctx context.Context, stopped <-chan struct{}) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer p.lookout.close()
	done, next, looked := ctx.Done(), time.Now(), time.Time{}
	pause := p.s.lookEvery / 100 // between two looks, however many jobs are put
	var again time.Time          // what was put without a word, since another was told of, is found then
	for {
		var timer <-chan time.Time
		if ctx.Err() == nil {
			if !p.looking && !time.Now().Before(next) {
				next = time.Now().Add(p.s.lookEvery)
				p.find(ctx)
			}
			wait := p.begin()
			if p.hides && !p.looking { // what it has begun tells
				p.hides, p.more = false, p.more || len(p.slotWaits())+len(p.passing()) > 0
			}
			if p.more && !p.looking && (len(p.running) < p.s.mostRunning() || p.short()) {
				p.more = false
				next = earlier(next, looked.Add(pause))
			}
			if !p.looking {
				p.lookout.hark()
				wait = min(wait, time.Until(next))
			}
			timer = time.After(wait)
		}
		select {
		case <-timer:
		case <-p.wake:
			p.news = true
			next = earlier(next, looked.Add(pause))
		case <-p.lookout.heard:
			p.news = true
			again = time.Now().Add(p.s.tellEvery)
			next = earlier(next, looked.Add(pause))
		case l := <-p.found:
			asked := next.Before(looked.Add(p.s.lookEvery)) // since it was sent
			p.take(ctx, l)
			looked = time.Now()
			next = looked.Add(p.s.lookEvery)
			if again.After(l.sent) {
				next, p.news = earlier(next, again), true
			}
			if asked {
				next = looked.Add(pause)
			}
		case f := <-p.finished:
			p.end(f)
		case <-p.stir:
			p.regain()
		case <-done:
			done = nil
		case <-stopped:
			if cancel(); p.looking {
				<-p.found
			}
			return
		}
	}
}

// find has it looked what is due soon: take takes the answer.
func (p *planner) find(ctx context.Context) {
	l := p.wanted()
	if len(l.partitions) == 0 {
		p.queues = [priorities][]item{}
		return
	}
	p.looking, p.ended, p.more = true, make(map[subject]finish), false
	go func() {
		limited, cancel := context.WithTimeout(ctx, p.s.lookLimit)
		defer cancel()
		l.sent = time.Now()
		l.err = p.ask(limited, l)
		p.found <- l
	}()
}

// wanted is what is to be asked.
func (p *planner) wanted() *look {
	now := time.Now()
	l := &look{
		since: p.low.Add(-time.Microsecond), sweeps: now.Sub(p.swept) >= p.s.sweepEvery, but: []string{}, butKinds: []string{},
		passed: make(map[string]struct{}),
	}
	p.forget()
	switch {
	case l.sweeps:
		l.since = time.Time{}
	case now.Sub(p.behind) >= p.s.lookEvery:
		l.since, p.behind, p.news = l.since.Add(-farBehind), now, false
	case p.news: // else it is only for more of what there was
		l.since, p.news = l.since.Add(-behind), false
	}
	// It is crowded perhaps by keys under which something runs, or by what waits for a slot: what is behind them is to be found too.
	if p.crowded && !l.sweeps && !now.Before(p.plain) {
		l.butKinds = append(l.butKinds, p.slotWaits()...)
		l.passed = p.passing()
		l.but = slices.AppendSeq(l.but, maps.Keys(l.passed))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	fresh := len(p.owned)
	switch {
	case p.without:
		fresh = 0
	case p.few:
		fresh = 1
	}
	p.without = false
	for n, o := range p.owned {
		if o.fresh && len(l.fresh) == fresh {
			l.more = true
			continue
		}
		l.partitions = append(l.partitions, int32(n))
		if o.fresh {
			l.fresh, l.of = append(l.fresh, int32(n)), append(l.of, o)
		}
	}
	running, most := make(map[int]int), 0 // in each partition: it is found once more
	for _, it := range p.running {
		running[it.Partition]++
		most = max(most, running[it.Partition])
	}
	l.atMost = most + min(lookMost, max(lookLeast, lookTotal/max(1, len(l.partitions))))
	return l
}

// passing returns the keys under which something runs, and more waits for that.
func (p *planner) passing() map[string]struct{} {
	keys := make(map[string]struct{})
	for key := range p.keys {
		if _, ok := p.passed[key]; ok {
			keys[key] = struct{}{}
		}
	}
	for _, queue := range p.queues {
		for _, it := range queue {
			if _, runs := p.keys[it.Key]; runs {
				keys[it.Key] = struct{}{}
			}
		}
	}
	return keys
}

// take takes what was found, which takes the place of what was found before.
func (p *planner) take(ctx context.Context, l *look) {
	p.looking = false
	p.s.counts.look(l.sent, l.err)
	if l.err != nil {
		if l.sweeps {
			p.swept = l.sent // it may take too long each time, behind an old snapshot: the looks until the next do not
		}
		if len(l.but)+len(l.butKinds) > 0 {
			p.plain = time.Now().Add(p.s.sweepEvery) // it passes over all of that, and may take too long: what is not behind it goes on
		}
		if len(l.fresh) > 0 {
			p.few, p.without = true, true // and so may this: the other partitions go on
		}
		if !p.failing && ctx.Err() == nil {
			p.s.log.Warn("schedule: cannot look for what is due, again each second", slog.Any("error", store.Advised(l.err)))
		}
		p.failing = true
		return
	}
	p.failing = false
	due := p.withKept(l)
	p.queues = [priorities][]item{}
	if !p.hear(l.clock.Add(l.took/2), l.sent, l.answered) {
		return
	}
	p.mu.Lock()
	for _, o := range l.of {
		o.fresh = false
	}
	p.mu.Unlock()
	if p.few = p.few && l.more; l.more {
		p.look()
	}
	all := len(l.but) == 0 && len(l.butKinds) == 0
	p.passed, p.crowded = l.passed, crowded(l.due, l.atMost) || !all // what was left out is a crowd still, until nothing of it is queued
	p.hides = p.crowded && all && !time.Now().Before(p.plain)
	if all {
		if l.sweeps {
			p.swept = l.sent
		}
		p.low = l.clock // what is more than was found is due after that
	}
	suspects := int64(0)
	for _, it := range due {
		if it.Crashes > 0 {
			suspects++
		}
		_, runs := p.running[it.subject]
		_, ended := p.ended[it.subject]
		if !runs && !ended {
			p.queues[it.Priority] = append(p.queues[it.Priority], it)
		}
		p.low = earlier(p.low, it.due())
	}
	p.s.counts.suspects.Store(suspects)
	for _, it := range p.running {
		p.low = earlier(p.low, it.due())
		if it.Crashes > 0 {
			suspects++
		}
	}
	if suspects == 0 {
		p.held = time.Time{}
	}
	for _, f := range p.ended {
		p.ends(f)
	}
}

// ask sends a look on the planner's own connection.
func (p *planner) ask(ctx context.Context, l *look) error {
	conn, err := p.lookout.ready(ctx)
	if err != nil {
		return err
	}
	l.sent = time.Now()
	l.clock, l.took, l.due, err = p.s.sendLook(ctx, conn, l.partitions, l.fresh, l.since, lookAhead, l.atMost, l.but, l.butKinds)
	l.answered = time.Now()
	var misplaced []subject // what has its key in another partition may run there
	l.due = slices.DeleteFunc(l.due, func(it item) bool {
		wrong := p.lease.PartitionFor(it.Key) != it.Partition
		if wrong {
			misplaced = append(misplaced, it.subject)
		}
		return wrong
	})
	if err == nil && len(misplaced) > 0 {
		err = p.s.sendPlace(ctx, conn, misplaced)
	}
	if err != nil {
		p.lookout.close() // it may lead to a server that is none any more
	}
	return err
}

// priorities is how many there are.
const priorities = 4

// crowded reports whether there may be more in a partition than was found.
func crowded(due []item, atMost int) bool {
	type found struct {
		partition, priority int
		job                 bool
	}
	n := make(map[found]int)
	for _, it := range due {
		f := found{it.Partition, it.Priority, it.Job}
		n[f]++
		if n[f] == atMost {
			return true
		}
	}
	return false
}

// begin begins what is due, as far as there is room, and returns how long the next is not due.
func (p *planner) begin() time.Duration {
	p.mu.Lock()
	clock := p.clock
	p.mu.Unlock()
	wait := p.s.lookEvery
	for n := range p.queues {
		q, more := &p.queues[priorities-1-n], false
		if wait, more = p.beginFrom(q, clock, wait); !more {
			break
		}
	}
	p.s.counts.waiting.Store(p.waiting(clock.at(time.Now())))
	return wait
}

// waiting returns how many of what was found are due.
func (p *planner) waiting(now time.Time) (n int64) {
	for _, q := range p.queues {
		due, _ := slices.BinarySearchFunc(q, now, func(it item, t time.Time) int { return it.due().Compare(t) })
		n += int64(due)
	}
	return n
}

// beginFrom begins what is due in one queue. It returns how long the next is not due, and whether what has a lower priority may begin.
func (p *planner) beginFrom(queue *[]item, clock serverClock, wait time.Duration) (next time.Duration, more bool) {
	for i := 0; i < len(*queue); {
		now := time.Now()
		left := p.s.suspects // to keep others from beginning
		if !p.held.IsZero() {
			left -= now.Sub(p.held)
		}
		p.alone = p.alone && left > 0
		if p.alone {
			return min(wait, left), false
		}
		if len(p.running) >= p.s.mostRunning() {
			return wait, false
		}
		it := (*queue)[i]
		if left := max(it.due().Sub(clock.at(now)), it.earliest.Sub(now)); left > 0 {
			return min(wait, left), true
		}
		if ok, after := p.admits(it, now); !ok {
			i, wait = i+1, min(wait, after)
			continue
		}
		if _, busy := p.keys[it.Key]; busy {
			i++ // begun after that one's end
			continue
		}
		if it.Crashes > 0 && len(p.running) > 0 { // nothing else begins before it
			if p.held.IsZero() {
				p.held = now
			}
			if left > 0 {
				return min(wait, left), false
			}
		}
		if i == 0 {
			*queue = (*queue)[1:]
		} else {
			*queue = slices.Delete(*queue, i, i+1)
		}
		p.mu.Lock()
		o := p.owned[it.Partition]
		p.mu.Unlock()
		if o == nil || !o.begin() {
			continue
		}
		p.admitted(it, now)
		if it.Crashes > 0 {
			if p.held.IsZero() {
				p.held = now
			}
			if p.alone = len(p.running) == 0; !p.alone {
				p.s.logOf(it).Warn("schedule: what may kill its process runs beside others, which have waited for it", slog.Int("crashes", it.Crashes))
			}
		}
		p.running[it.subject], p.keys[it.Key] = it, struct{}{}
		go func() {
			defer o.runs.Done()
			again, from := p.carryOut(o, it)
			p.finished <- finish{it, again, from}
		}()
	}
	return wait, true
}

// short reports whether less is queued than can run at once.
func (p *planner) short() bool {
	queued := 0
	for _, q := range p.queues {
		queued += len(q)
	}
	return queued < p.s.mostRunning()
}

// end takes the end of a run.
func (p *planner) end(f finish) {
	p.slotless(f, time.Now())
	delete(p.running, f.subject)
	delete(p.keys, f.Key)
	if f.Crashes > 0 {
		p.alone, p.held = false, time.Time{}
	}
	if p.looking {
		p.ended[f.subject] = f
	}
	p.ends(f)
}

// ends has what ended in its place among what was found.
func (p *planner) ends(f finish) {
	if _, ok := p.passed[f.Key]; ok && !p.queued(f.Key) || p.crowded && p.short() {
		p.more = true
	}
	p.low = earlier(p.low, f.from) // where it catches up it is due before it was, and it may be looked for before it begins
	if _, runs := p.running[f.subject]; f.again == nil || runs {
		return
	}
	queue := &p.queues[f.again.Priority]
	i, _ := slices.BinarySearchFunc(*queue, f.again.due(), func(it item, t time.Time) int { return it.due().Compare(t) })
	*queue = slices.Insert(*queue, i, *f.again)
}

// queued reports whether something of a key is.
func (p *planner) queued(key string) bool {
	for _, q := range p.queues {
		if slices.ContainsFunc(q, func(it item) bool { return it.Key == key }) {
			return true
		}
	}
	return false
}

// hear takes the database's time, and reports whether it is believed.
func (p *planner) hear(told, sent, answered time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	doubtedBefore, expected := !p.clock.doubt.IsZero(), p.clock.at(answered)
	believed := p.clock.heard(told, sent, answered, p.s.doubted)
	switch {
	case !believed && !doubtedBefore:
		p.s.log.Warn("schedule: the database's clock has stepped: nothing runs until it is believed", slog.Time("tells", told), slog.Time("expected", expected))
	case believed && doubtedBefore:
		p.s.log.Warn("schedule: the database's clock is believed again", slog.Time("tells", told), slog.Time("expected", expected))
	}
	return believed
}

// now is the database's time, as far as it is believed.
func (p *planner) now() time.Time {
	if p.s.stage != nil {
		return p.s.stage.Now()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.at(time.Now())
}

// rouse has more of what waits in a partition looked at, as some of it has run: so this process knows what the last did not. A look wakes only so many.
func (p *planner) rouse(o *ownership) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if time.Since(o.roused) >= p.s.lookEvery {
		o.fresh, o.roused = true, time.Now()
	}
}

// believes reports whether the database's time now is the expected. If not, it is looked at.
func (p *planner) believes(told time.Time) bool {
	if told.Sub(p.now()).Abs() <= doubted {
		return true
	}
	p.look()
	return false
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

package schedule

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/pgleases/pgleases"
)

const (
	lookEvery  = time.Second
	lookAhead  = 2 * time.Second // so that a look that takes long makes nothing late
	lookLimit  = 5 * time.Second
	lookMost   = 100  // rows of each partition
	lookLeast  = 10   // of many partitions
	lookTotal  = 2000 // or so, of all
	behind     = 10 * time.Second
	sweepEvery = time.Minute // everything that is due, also what was committed long after it was written
)

// A planner starts what is due in the partitions that this process owns. One goroutine looks once a second, and has what is due soon in order.
type planner struct {
	s     *Scheduler
	lease *pgleases.Lease

	mu    sync.Mutex // guards what follows
	owned map[int]*ownership
	clock serverClock

	wake     chan struct{} // of capacity one: look at once
	finished chan finish

	// The rest is the goroutine's alone.
	lookout *lookout
	queues  [priorities][]item    // what is due soon and does not run, by its priority, and by when it is due
	running map[subject]time.Time // for when it was due
	keys    map[string]struct{}   // under which something runs
	alone   bool                  // what runs is suspected to kill the process
	crowded bool                  // so it was when it last looked
	passed  map[string]struct{}   // keys that were left out when it last looked
	more    bool                  // there may be more that is due and was not found: it looks when there is room for it
	low     time.Time             // nothing that was due before is left
	swept   time.Time             // when it last looked at everything
	failing bool                  // the last look failed
	few     bool                  // new partitions are looked at one by one, as that failed for more
	without bool                  // the next look is at none of them
}

// A finish is the end of a run.
type finish struct {
	item
	again *item     // when it is due again; nil: that is to be looked up
	from  time.Time // the instant before which it is not due
}

func newPlanner(s *Scheduler, lease *pgleases.Lease) *planner {
	s.counts.looked.Store(int64(time.Since(processStart)))
	return &planner{
		s: s, lease: lease, owned: make(map[int]*ownership), lookout: newLookout(s),
		wake: make(chan struct{}, 1), finished: make(chan finish), running: make(map[subject]time.Time), keys: make(map[string]struct{}),
	}
}

// serve is the callback for a partition: it is worked on until the callback's context ends, and its runs have.
func (p *planner) serve(ctx context.Context, partition pgleases.Partition) error {
	o := &ownership{Partition: partition, fresh: true}
	o.ctx, o.cancel = context.WithCancelCause(partition.Context())
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
	defer p.lookout.close()
	ended, next, looked := ctx.Done(), time.Now(), time.Time{}
	var again time.Time // what was put without a word, since another was told of, is found then
	for {
		var timer <-chan time.Time
		if ctx.Err() == nil {
			if now := time.Now(); !now.Before(next) {
				p.find(ctx)
				looked = time.Now()
				next = looked.Add(p.s.lookEvery)
				if again.After(now) {
					next = earlier(next, again)
				}
			}
			p.lookout.hark()
			wait := p.begin()
			if p.more && len(p.running) < p.s.options.maxRunning {
				p.more = false
				p.look()
			}
			timer = time.After(min(time.Until(next), wait))
		}
		select {
		case <-timer:
		case <-p.wake:
			next = earlier(next, looked.Add(p.s.lookEvery/100)) // however many jobs are put
		case <-p.lookout.heard:
			again = time.Now().Add(p.s.tellEvery)
			next = earlier(next, looked.Add(p.s.lookEvery/100))
		case f := <-p.finished:
			p.end(f)
		case <-ended:
			ended = nil
		case <-stopped:
			return
		}
	}
}

// find looks for what is due soon, which takes the place of what was found before.
func (p *planner) find(ctx context.Context) {
	p.mu.Lock()
	most := len(p.owned)
	switch {
	case p.without:
		most = 0
	case p.few:
		most = 1
	}
	p.without = false
	var partitions, fresh []int32
	var looked []*ownership // which are fresh no more
	more := false           // are fresh still
	for n, o := range p.owned {
		if o.fresh && len(fresh) == most {
			more = true
			continue
		}
		partitions = append(partitions, int32(n))
		if o.fresh {
			fresh, looked = append(fresh, int32(n)), append(looked, o)
		}
	}
	p.mu.Unlock()
	if len(partitions) == 0 {
		p.queues = [priorities][]item{}
		return
	}
	since := p.low.Add(-behind)
	sent := time.Now()
	sweeps := sent.Sub(p.swept) >= p.s.sweepEvery
	if sweeps {
		since = time.Time{}
	}
	passed := make(map[string]struct{})
	if p.crowded { // perhaps by keys under which something runs: what is behind them is to be found too
		maps.Copy(passed, p.keys)
	}
	limited, cancel := context.WithTimeout(ctx, p.s.lookLimit)
	defer cancel()
	atMost := min(lookMost, max(lookLeast, lookTotal/len(partitions)))
	clock, due, err := p.ask(limited, partitions, fresh, since, atMost, slices.AppendSeq([]string{}, maps.Keys(passed)))
	p.s.counts.look(sent, err)
	if err != nil {
		if sweeps {
			p.swept = sent // it may take too long each time, behind an old snapshot: the looks until the next do not
		}
		if len(fresh) > 0 {
			p.few, p.without = true, true // and so may this: the other partitions go on
		}
		if !p.failing && ctx.Err() == nil {
			p.s.log.Warn("schedule: cannot look for what is due, again each second", slog.Any("error", err))
		}
		p.failing = true
		return
	}
	p.failing = false
	p.queues = [priorities][]item{}
	if !p.hear(clock, sent, time.Now()) {
		return
	}
	p.mu.Lock()
	for _, o := range looked {
		o.fresh = false
	}
	p.mu.Unlock()
	if p.few = p.few && more; more {
		p.look()
	}
	p.passed, p.crowded, p.more = passed, crowded(due, atMost), false
	if len(passed) == 0 {
		if sweeps {
			p.swept = sent
		}
		if !p.crowded {
			p.low = clock
		}
	}
	suspects := int64(0)
	for _, it := range due {
		if it.Crashes > 0 {
			suspects++
		}
		if _, runs := p.running[it.subject]; !runs {
			p.queues[it.Priority] = append(p.queues[it.Priority], it)
		}
		p.low = earlier(p.low, it.due())
	}
	p.s.counts.suspects.Store(suspects)
	for _, due := range p.running {
		p.low = earlier(p.low, due)
	}
}

// ask sends the look on the planner's own connection.
func (p *planner) ask(ctx context.Context, partitions, fresh []int32, since time.Time, atMost int, but []string) (clock time.Time, due []item, err error) {
	conn, err := p.lookout.ready(ctx)
	if err != nil {
		return clock, nil, err
	}
	clock, due, err = p.s.sendLook(ctx, conn, partitions, fresh, since, lookAhead, atMost, but)
	if err != nil {
		p.lookout.close() // it may lead to a server that is none any more
	}
	return clock, due, err
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
		if p.alone || len(p.running) >= p.s.options.maxRunning {
			return wait, false
		}
		it := (*queue)[i]
		now := time.Now()
		if left := max(it.due().Sub(clock.at(now)), it.earliest.Sub(now)); left > 0 {
			return min(wait, left), true
		}
		if it.Crashes > 0 && len(p.running) > 0 {
			return wait, false // nothing else begins before it
		}
		if _, busy := p.keys[it.Key]; busy {
			i++ // begun after that one's end
			continue
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
		p.running[it.subject], p.keys[it.Key], p.alone = it.due(), struct{}{}, it.Crashes > 0
		go func() {
			defer o.runs.Done()
			again, from := p.carryOut(o, it)
			p.finished <- finish{it, again, from}
		}()
	}
	return wait, true
}

// empty reports whether nothing is queued.
func (p *planner) empty() bool {
	for _, q := range p.queues {
		if len(q) > 0 {
			return false
		}
	}
	return true
}

// end takes the end of a run.
func (p *planner) end(f finish) {
	delete(p.running, f.subject)
	delete(p.keys, f.Key)
	p.alone = false
	if _, ok := p.passed[f.Key]; ok || p.crowded && p.empty() {
		p.more = true
	}
	p.low = earlier(p.low, f.from) // where it catches up it is due before it was, and it may be looked for before it begins
	if f.again == nil {
		return
	}
	queue := &p.queues[f.again.Priority]
	i, _ := slices.BinarySearchFunc(*queue, f.again.due(), func(it item, t time.Time) int { return it.due().Compare(t) })
	*queue = slices.Insert(*queue, i, *f.again)
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
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.at(time.Now())
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

package schedule

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/worker"
)

// Other runs wait 5 s in all for crash suspects: for one that tries each second and finds no slot,
// and for six that run 4 s each. Suspects begin one after the other.
func TestOthersWaitForAllSuspectsTogether(t *testing.T) {
	for _, c := range []struct {
		suspects int64
		kind     string
		takes    time.Duration
		result
	}{{1, "limited", 0, result{outcome: blocked}}, {6, "", 4 * time.Second, result{outcome: stepped}}} {
		q := newQueue(&defaultTimings, func() int { return 1000 }, func(kind string) int { return len(kind) })
		now, ends := processStart, make(map[subject]time.Time)
		take := func(it item) {
			it.Job, it.Key, it.DueMicro = true, fmt.Sprint(it.ID), now.UnixMicro()
			q.insert(finish{it, result{again: &it}})
		}
		var waits time.Duration
		began := 0
		for step := range int64(600) { // a minute
			now = now.Add(100 * time.Millisecond)
			for s, end := range ends {
				if it := q.running[s]; !now.Before(end) {
					f := finish{it, c.result}
					if it.Kind != "" {
						f.again = &it
					}
					q.end(f, now)
					delete(ends, s)
				}
			}
			if step == 10 {
				for n := range c.suspects {
					take(item{subject: subject{ID: n}, Kind: c.kind, Crashes: 1})
				}
			}
			take(item{subject: subject{ID: 100 + step}})
			suspects := 0
			for it, _, ok := q.next(now, now); ok; it, _, ok = q.next(now, now) {
				q.began(it, now)
				ends[it.subject] = now.Add(300 * time.Millisecond) // so that some always run
				if it.Crashes > 0 {
					suspects++
					ends[it.subject] = now.Add(c.takes)
				}
			}
			if began += suspects; suspects > 1 {
				t.Errorf("%d suspects began at once", suspects)
			}
			if slices.ContainsFunc(q.bands[0], func(it item) bool { return it.Crashes == 0 }) {
				waits += 100 * time.Millisecond
			}
		}
		if waits > 5*time.Second || began < 6 {
			t.Errorf("%d suspects, which began %d times: others waited for %v in all", c.suspects, began, waits)
		}
	}
}

// While a crash suspect runs alone, nothing begins beside it for 5 s.
func TestNothingBeginsBesideASuspect(t *testing.T) {
	t.Parallel()
	q := newQueue(&defaultTimings, func() int { return 10 }, func(string) int { return 0 })
	now := processStart
	for n := range int64(2) {
		it := jobOf(n, "", now.Add(time.Duration(n)*time.Microsecond))
		it.Crashes = int(1 - n)
		q.insert(finish{it, result{again: &it}})
	}
	now = now.Add(time.Second)
	it, _, ok := q.next(now, now)
	if !ok || it.Crashes != 1 {
		t.Fatalf("first began %+v, %v, want the suspect", it, ok)
	}
	q.began(it, now)
	if it, wait, ok := q.next(now.Add(4*time.Second), now.Add(4*time.Second)); ok || wait > time.Second {
		t.Errorf("beside it began %+v, or others wait for %v", it, wait)
	}
	if _, _, ok := q.next(now.Add(6*time.Second), now.Add(6*time.Second)); !ok {
		t.Error("others wait for ever")
	}
}

// A hundred schedules whose rows are locked, or whose handlers take as long as they may, come again
// and again beside healthy jobs. These have nine tenths of what they have alone, and wait for a
// second at most, as one job in a hundred may.
func TestIllWorkDelaysNoHealthyWork(t *testing.T) {
	t.Parallel()
	const places, healthy, ill = 4, 30, 100 // handlers at once; jobs a second, half of what there is room for
	for _, c := range []struct {
		name  string
		takes time.Duration // an ill run
		result
	}{
		{"locked", 200 * time.Millisecond, result{outcome: rowLocked, slow: true, why: worker.Locked}},
		{"timed out", time.Minute, result{outcome: stepped, slow: true, why: worker.TimedOut}},
		{"blocked", 10 * time.Millisecond, result{outcome: stepped, slow: true, why: worker.Blocked}},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := newQueue(&defaultTimings, func() int { return places }, func(string) int { return 0 })
			now, ends := processStart, make(map[subject]time.Time)
			var waits []time.Duration
			id := int64(ill)
			insert := func(it item) {
				it.Key, it.DueMicro = fmt.Sprint(it.subject), now.UnixMicro()
				q.insert(finish{it, result{again: &it}})
			}
			for n := range int64(ill) {
				insert(item{subject: subject{ID: n}, Kind: "ill", Priority: 1})
			}
			begin := func() {
				for it, _, ok := q.next(now, now); ok; it, _, ok = q.next(now, now) {
					q.began(it, now)
					takes := 60 * time.Millisecond
					if it.Kind == "ill" {
						takes = c.takes
					} else if now.Sub(processStart) > 200*time.Second { // when the backlog of the first minute is done
						waits = append(waits, now.Sub(it.due()))
					}
					ends[it.subject] = now.Add(takes)
				}
			}
			for range 400 * healthy { // 400 s
				now = now.Add(time.Second / healthy)
				for s, end := range ends {
					if now.Before(end) {
						continue
					}
					it := q.running[s]
					delete(ends, s)
					if it.Kind == "ill" {
						q.end(finish{it, c.result}, now)
						insert(it)
					} else {
						q.end(finish{it, result{outcome: stepped}}, now)
					}
				}
				id++
				insert(item{subject: subject{ID: id, Job: true}, Kind: "healthy", Priority: 1})
				begin()
			}
			slices.Sort(waits)
			want := 200 * healthy * 9 / 10
			if len(waits) < want {
				t.Fatalf("%d healthy jobs began in 200 s, want %d", len(waits), want)
			}
			if p99 := waits[len(waits)*99/100]; p99 > time.Second {
				t.Errorf("99 %% of the healthy jobs began after %v at most, want 1 s", p99)
			}
		})
	}
}

// Items that are queued and not due yet are no reason to wait for the next poll: the queue is short of items
// that may begin.
func TestItemsToComeLeaveTheQueueShort(t *testing.T) {
	t.Parallel()
	q := newQueue(&defaultTimings, func() int { return 4 }, func(string) int { return 0 })
	now := processStart
	for n := range int64(4) {
		it := item{subject: subject{ID: n}, Key: fmt.Sprint(n), DueMicro: now.Add(time.Second).UnixMicro()}
		q.insert(finish{it, result{again: &it}})
	}
	if !q.short(now) || q.short(now.Add(time.Second)) {
		t.Errorf("short before the items are due: %v, then %v; want true, false",
			q.short(now), q.short(now.Add(time.Second)))
	}
}

// The rows that a poll asks for do not grow with the runs of the process in each partition, and what
// waits in one partition makes no other partition read further back.
func TestAPollAsksForNoMoreThanCanBegin(t *testing.T) {
	t.Parallel()
	const partitions, runs = 128, 300
	var owned []*ownership
	for n := range partitions {
		owned = append(owned, newOwnership(pgleases.Partition{Number: n}))
	}
	waiting := make(map[int]int)
	for n := range runs {
		waiting[n%partitions]++
	}
	p := newPoller(&defaultTimings, nil)
	at := processStart
	p.low, p.swept, p.behind = at, time.Now(), time.Now()
	p.lower(7, at.Add(-time.Hour))
	q := p.question(time.Now(), owned, leftOut{}, waiting)
	var rows int
	for _, n := range q.mostOf() {
		rows += int(n)
	}
	if rows > pollTotal+runs || q.total != pollTotal+runs {
		t.Errorf("with %d runs a poll asks for %d rows, and %d in all", runs, rows, q.total)
	}
	for i, further := range q.furtherBack() {
		if want := map[bool]int64{true: time.Hour.Microseconds()}[q.partitions[i] == 7]; further != want {
			t.Errorf("partition %d is read back %d µs further, want %d", q.partitions[i], further, want)
		}
	}
}

// A schedule that took as long as it may once begins again, although jobs of another kind, which take
// as long each, have come before it for longer. Other kinds keep a place.
func TestKnownHangComesAgainBesideOthersToLearn(t *testing.T) {
	t.Parallel()
	for _, places := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d places", places), func(t *testing.T) {
			t.Parallel()
			q := newQueue(&defaultTimings, func() int { return places }, func(string) int { return 0 })
			now, ends := processStart, make(map[subject]time.Time)
			insert := func(it item) {
				it.Key, it.DueMicro = fmt.Sprint(it.subject), now.UnixMicro()
				q.insert(finish{it, result{again: &it}})
			}
			known := item{subject: subject{ID: 1}, Kind: "report"}
			insert(known)
			begun, last := 0, now
			for range 60 * 60 { // an hour
				for s, end := range ends {
					if !now.Before(end) {
						delete(ends, s)
						it := q.running[s]
						q.end(finish{it, result{outcome: stepped, slow: true, why: worker.TimedOut}}, now)
						if it.Kind == "report" {
							insert(it)
						}
					}
				}
				if now.Equal(processStart.Add(time.Second)) {
					for n := range int64(300) {
						insert(item{subject: subject{ID: n, Job: true}, Kind: "mail"})
					}
				}
				for it, _, ok := q.next(now, now); ok; it, _, ok = q.next(now, now) {
					q.began(it, now)
					ends[it.subject] = now.Add(time.Minute)
					if it.Kind == "report" {
						if now.Sub(last) > illMost+2*time.Minute {
							t.Errorf("it began after %v", now.Sub(last))
						}
						begun, last = begun+1, now
					}
				}
				now = now.Add(time.Second)
			}
			if begun < 4 || begun > 10 {
				t.Errorf("it began %d times in an hour in which others were learned", begun)
			}
		})
	}
}

// A job that cannot be decoded comes again and again, and two handlers of its kind hang for ever. The
// other jobs of the kind are delayed for a minute at most.
func TestDoubtOfKindEndsByItself(t *testing.T) {
	t.Parallel()
	q := newQueue(&defaultTimings, func() int { return 4 }, func(string) int { return 0 })
	now, ends := processStart, make(map[subject]time.Time)
	insert := func(id int64, due time.Time) {
		it := jobOf(id, "mail", due)
		q.insert(finish{it, result{again: &it}})
	}
	const unreadable, hangs = 0, 2 // the first IDs
	began, late := 0, time.Duration(0)
	for id := int64(0); now.Before(processStart.Add(10 * time.Minute)); id++ {
		insert(id, now)
		for it, _, ok := q.next(now, now); ok; it, _, ok = q.next(now, now) {
			q.began(it, now)
			switch {
			case it.ID == unreadable:
				ends[it.subject] = now
			case it.ID > hangs:
				ends[it.subject] = now.Add(50 * time.Millisecond)
				began, late = began+1, max(late, now.Sub(it.due()))
			}
		}
		now = now.Add(time.Second)
		for s, end := range ends {
			if now.Before(end) {
				continue
			}
			delete(ends, s)
			r := result{outcome: stepped}
			if s.ID == unreadable {
				r.slow, r.why = true, worker.Blocked
			}
			q.end(finish{q.running[s], r}, now)
			if s.ID == unreadable {
				insert(unreadable, now.Add(time.Minute))
			}
		}
	}
	if left := q.due(now); began < 500 || late > time.Minute+time.Second || left > 1 {
		t.Errorf("%d jobs began, the latest %v late, and %d wait", began, late, left)
	}
}

// What is known of ill items is forgotten when their partition has moved away, or when they have not
// come back for long. Items that wait in the queue are remembered.
func TestIllItemsThatAreGoneAreForgotten(t *testing.T) {
	t.Parallel()
	q := newQueue(&defaultTimings, func() int { return 4 }, func(string) int { return 0 })
	now := processStart
	for id := range int64(4) {
		it := jobOf(id, "mail", now)
		it.Partition = int(id)
		r := result{outcome: stepped, slow: true, why: worker.TimedOut}
		if id == 1 {
			r.again = &it
		}
		q.began(it, now)
		q.end(finish{it, r}, now)
	}
	waiting := func() int { return q.slots.Waiting(worker.TimedOut) }
	own := func(partition int) bool { return partition != 3 }
	if q.forget(own, now); waiting() != 3 {
		t.Errorf("%d ill items are remembered, want those of the partitions 0 to 2", waiting())
	}
	if q.forget(own, now.Add(2*time.Hour)); waiting() != 1 {
		t.Errorf("%d ill items are remembered, want that in the queue", waiting())
	}
	if _, ill := q.slots.Slow(piece{subject{1, true}, 1}); !ill {
		t.Error("the item in the queue is forgotten")
	}
}

// While something is away that a kind needs, a process tries one of its 1,000 jobs at a time, and the
// other kinds go on. When it is back, all run.
func TestOutageOfKindIsTriedByOneJob(t *testing.T) {
	t.Parallel()
	q := newQueue(&defaultTimings, func() int { return 10 }, func(string) int { return 0 })
	now, ends, id := processStart, make(map[subject]time.Time), int64(0)
	insert := func(kind string) {
		id++
		it := jobOf(id, kind, now)
		q.insert(finish{it, result{again: &it}})
	}
	for range 1000 {
		insert("mail")
	}
	back := now.Add(10 * time.Minute)
	calls := make(map[bool]int) // by whether it was away
	news, others := 0, 0
	for ; now.Before(back.Add(2 * time.Minute)); now = now.Add(50 * time.Millisecond) {
		insert("other")
		for s, end := range ends {
			if now.Before(end) {
				continue
			}
			delete(ends, s)
			it := q.running[s]
			f := finish{it, result{outcome: stepped, called: true}}
			if it.Kind == "mail" && now.Before(back) {
				it.DueMicro = now.Add(time.Minute).UnixMicro()
				f = finish{it, result{outcome: failed, called: true, away: fmt.Errorf("mail is away"), again: &it}}
			}
			if q.end(f, now) {
				news++
			}
		}
		for it, _, ok := q.next(now, now); ok; it, _, ok = q.next(now, now) {
			q.began(it, now)
			ends[it.subject] = now.Add(20 * time.Millisecond)
			if it.Kind == "mail" {
				calls[now.Before(back)]++
			} else {
				others++
			}
		}
	}
	if calls[true] > 40 || calls[true] < 15 || news != 1 {
		t.Errorf("in 10 minutes %d calls found that mail is away, and it was logged %d times", calls[true], news)
	}
	if calls[false] != 1000 || others < int(id-1000)-10 {
		t.Errorf("%d jobs ran afterwards, and %d of %d others", calls[false], others, id-1000)
	}
}

// A handler that does not return, because it ignores its context, does not stop its kind when what
// the kind needs is back, whether it began before the outage or tries during it.
func TestHungHandlerDoesNotProlongOutage(t *testing.T) {
	t.Parallel()
	for name, hangs := range map[string]int64{"it began before": 1, "it tries": 22} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			q := newQueue(&defaultTimings, func() int { return 10 }, func(string) int { return 0 })
			now, ran := processStart, 0
			insert := func(id int64) {
				it := jobOf(id, "mail", now)
				q.insert(finish{it, result{again: &it}})
			}
			if hangs == 1 {
				insert(1)
			}
			insert(2)
			ends := func(now time.Time) {
				for _, it := range q.running {
					switch it.ID {
					case hangs:
					case 2:
						q.end(finish{it, result{outcome: failed, called: true, away: fmt.Errorf("mail is away")}}, now)
					default:
						ran++
						q.end(finish{it, result{outcome: stepped, called: true}}, now)
					}
				}
			}
			begin := func() {
				for it, _, ok := q.next(now, now); ok; it, _, ok = q.next(now, now) {
					q.began(it, now)
				}
			}
			begin()
			ends(now)
			for id := range int64(20) {
				insert(3 + id)
			}
			most := 0
			for range 130 {
				now = now.Add(time.Second)
				begin()
				if q.isAway("mail") {
					most = max(most, len(q.running))
				}
				ends(now)
			}
			if ran < 19 || len(q.running) != 1 || q.isAway("mail") {
				t.Errorf("%d jobs ran, %d run, and mail is away: %v", ran, len(q.running), q.isAway("mail"))
			}
			if most > 2 {
				t.Errorf("%d jobs ran at once while mail was away", most)
			}
		})
	}
}

// Runs in which code of the application goes on after their contexts leave their places to others, and
// their kind has half of the places from then on. They count once at their end.
func TestOverdueRunsGiveTheirPlaces(t *testing.T) {
	t.Parallel()
	const places = 4
	q := newQueue(&defaultTimings, func() int { return places }, func(string) int { return 0 })
	now := processStart
	for n := range int64(30) {
		it := jobOf(n, "deaf", now)
		q.insert(finish{it, result{again: &it}})
	}
	begin := func() (all []item) {
		for it, _, ok := q.next(now, now); ok; it, _, ok = q.next(now, now) {
			q.began(it, now)
			all = append(all, it)
		}
		return all
	}
	deaf := begin()
	for _, it := range deaf {
		q.giveUp(it.subject, true, now.Add(time.Minute))
	}
	now = now.Add(time.Minute)
	more := begin()
	if len(deaf) != places || len(more) != places/2 {
		t.Errorf("%d runs began, and %d when they were overdue", len(deaf), len(more))
	}
	healthy := item{subject: subject{ID: 100, Job: true}, Key: "healthy", Kind: "healthy", DueMicro: now.UnixMicro()}
	q.insert(finish{healthy, result{again: &healthy}})
	if began := begin(); len(began) != 1 || began[0].subject != healthy.subject {
		t.Errorf("%v began, want one healthy run", began)
	}
	for _, it := range slices.Concat(deaf, more) {
		q.end(finish{it, result{outcome: stepped, slow: true, why: worker.TimedOut}}, now)
		q.giveUp(it.subject, true, now) // it comes too late
	}
	if q.slots.Busy() != 1 || len(q.overdue)+len(q.parked) != 0 {
		t.Errorf("%d places are taken; %d overdue and %d parked", q.slots.Busy(), len(q.overdue), len(q.parked))
	}
}

// Nothing runs in a partition until its first poll. So that does not wait for PollPause, and neither
// do those that follow when partitions are gained while a poll is under way.
func TestGainedPartitionIsPolledWithoutPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPoller(&defaultTimings, nil)
		var owned []*ownership
		for n := range 3 {
			owned = append(owned, newOwnership(pgleases.Partition{Number: n}))
		}
		answer := func(q *poll) {
			time.Sleep(time.Microsecond) // the server answers
			p.received(q)
			p.accepted(q)
		}
		dueIn := func(want time.Duration, when string) {
			if wait := time.Until(p.next); wait != want {
				t.Errorf("%s: the next poll is sent after %v, want %v", when, wait, want)
			}
		}
		q := p.question(time.Now(), owned[:1], leftOut{}, nil)
		p.soon()
		p.gained()
		time.Sleep(gainedTogether / 2)
		p.gained()
		answer(q)
		dueIn(gainedTogether/2-time.Microsecond, "partitions are gained during a poll")
		time.Sleep(time.Until(p.next))
		q = p.question(time.Now(), owned[:2], leftOut{}, nil)
		answer(q)
		dueIn(defaultTimings.Poll, "none is gained since the poll was sent")
		p.gained()
		dueIn(gainedTogether, "a partition is gained after a poll")
		q = p.question(time.Now(), owned, leftOut{}, nil)
		p.soon()
		answer(q)
		dueIn(defaultTimings.PollPause, "something is enqueued during a poll")
	})
}

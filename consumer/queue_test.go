package consumer

import (
	"slices"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/worker"
)

// start is when simulations begin.
var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// A plant is a queue whose jobs take time, but no goroutine.
type plant struct {
	t     *testing.T
	q     *queue
	now   time.Time
	room  room
	under map[*job]time.Time                 // when they end
	takes func(j *job) time.Duration         // how long a job takes
	ends  func(j *job, parts []*part) result // what it comes back with
	began func(j *job)
}

func newPlant(t *testing.T, partitions, size int) *plant {
	return &plant{
		t: t, q: queued(partitions), now: start, room: room{size: size, rows: 100}, under: make(map[*job]time.Time),
		takes: func(*job) time.Duration { return 20 * time.Millisecond },
		ends:  func(_ *job, parts []*part) result { return succeed(parts) }, began: func(*job) {},
	}
}

// succeed returns the result of a job that has handled all rows, and found more of them.
func succeed(parts []*part) result {
	r := result{parts: parts, handled: true}
	for _, p := range parts {
		r.recovered = r.recovered || p.rows.away > 0
		p.rows, p.healed, p.answered, p.due, p.expect = delay{}, true, true, true, 1
	}
	return r
}

// run lets time pass.
func (p *plant) run(d time.Duration) {
	for end := p.now.Add(d); p.now.Before(end); {
		next := end
		for j, at := range p.under {
			if !at.After(p.now) {
				delete(p.under, j)
				p.q.end(j, p.ends(j, j.parts()), p.now, p.room.size)
			} else if at.Before(next) {
				next = at
			}
		}
		for {
			j, wait := p.q.next(p.now, p.room)
			if j == nil {
				if at := p.now.Add(max(wait, time.Millisecond)); at.Before(next) {
					next = at
				}
				break
			}
			p.began(j)
			at := p.now.Add(p.takes(j))
			p.under[j] = at
			if at.Before(next) {
				next = at
			}
		}
		p.now = next
	}
}

// due makes all partitions have rows.
func (p *plant) due() {
	for _, of := range p.q.partitions {
		of.due, of.expect = true, 1
	}
}

// Partitions that always have rows take turns, and no partition has two jobs at once.
func TestPartitionsThatAreDueTakeTurns(t *testing.T) {
	p := newPlant(t, 50, 4)
	p.room.rows = 3 // so that a batch has few of them
	p.due()
	counts, busy := make(map[int]int), make(map[int]bool)
	p.began = func(j *job) {
		for _, of := range j.of {
			if counts[of.Number]++; busy[of.Number] {
				t.Fatalf("partition %d has two jobs", of.Number)
			}
			busy[of.Number] = true
		}
	}
	p.ends = func(_ *job, parts []*part) result {
		for _, of := range parts {
			busy[of.Number] = false
		}
		return succeed(parts)
	}
	p.run(10 * time.Second)
	least, most := counts[0], counts[0]
	for n := range p.q.partitions {
		least, most = min(least, counts[n]), max(most, counts[n])
	}
	if least == 0 || most > least+2 {
		t.Errorf("a partition had %d jobs, and another %d", least, most)
	}
}

// Beside 25 partitions whose handlers hang until their timeout, others keep most of what they
// handle alone: slow work gets a tenth of the time.
func TestHungPartitionsDelayNoOthers(t *testing.T) {
	for _, size := range []int{2, 4} {
		handled := func(ill int) (healthy int) {
			p := newPlant(t, 50, size)
			p.room.rows = 1
			p.due()
			hung := func(j *job) bool { return j.of[0].Number%2 == 1 && j.of[0].Number < 2*ill }
			p.takes = func(j *job) time.Duration {
				if hung(j) {
					return 10 * time.Second
				}
				return 100 * time.Millisecond
			}
			p.ends = func(j *job, parts []*part) result {
				if hung(j) {
					parts[0].slowBy(worker.TimedOut)
					return result{parts: parts}
				}
				healthy++
				return succeed(parts)
			}
			p.run(8 * time.Minute) // each ill one fails for the first time
			healthy = 0
			p.run(4 * time.Minute)
			return healthy
		}
		alone, beside := handled(0), handled(25)
		if beside < alone*85/100 {
			t.Errorf("%d slots: %d batches beside hung ones, %d without", size, beside, alone)
		}
	}
}

// While something is away, a process tries one partition at a time. When it is back, all are tried at
// once.
func TestOutageIsTriedOneByOne(t *testing.T) {
	p := newPlant(t, 50, 10)
	p.room.rows = 1
	p.due()
	away, calls := true, 0
	p.began = func(*job) { calls++ }
	p.ends = func(_ *job, parts []*part) result {
		if !away {
			return succeed(parts)
		}
		d := &parts[0].rows
		d.away++
		d.notBefore = p.now.Add(worker.PauseAfter(d.away, worker.Backoff(100*time.Millisecond, time.Second)))
		return result{parts: parts}
	}
	p.run(10 * time.Second) // the pauses grow
	calls = 0
	p.run(10 * time.Second)
	if most := int(10*time.Second/defaultTimings.outage) + 1; calls > most || calls < 10 {
		t.Errorf("%d calls in 10 s of the outage, at most %d are right", calls, most)
	}
	away, calls = false, 0
	p.run(2 * time.Second)
	if calls < 50 {
		t.Errorf("%d calls in 2 s after it", calls)
	}
}

// Crash suspects begin when nothing else is at work, one after the other, and nothing begins beside
// the first of them for 5 s.
func TestSuspectsBeginAlone(t *testing.T) {
	p := newPlant(t, 20, 4)
	p.room.rows = 1
	p.due()
	p.run(time.Second)
	for i, of := range p.q.partitions[:5] {
		of.blockedDue = []blockedRow{{id: int64(i), suspect: true}}
	}
	alone, suspects, others := start, 0, 0
	p.takes = func(j *job) time.Duration {
		if j.retry.suspect {
			return time.Minute
		}
		return 20 * time.Millisecond
	}
	p.began = func(j *job) {
		switch {
		case j.retry.suspect && suspects == 0:
			alone = p.now
			if len(p.under) > 0 {
				t.Errorf("it began beside %d other jobs", len(p.under))
			}
			suspects++
		case j.retry.suspect:
			suspects++
		case suspects > 0:
			others++
			if p.now.Sub(alone) < defaultTimings.suspectHold-time.Second {
				t.Errorf("another job began after %v", p.now.Sub(alone))
			}
		}
	}
	p.run(30 * time.Second)
	if suspects != 1 || others == 0 {
		t.Errorf("%d suspects and %d others began", suspects, others)
	}
}

// Blocked rows that are due take turns with other rows, and an operator's come first.
func TestBlockedRowsAndOthersTakeTurns(t *testing.T) {
	p := newPlant(t, 1, 1)
	p.due()
	of := p.q.partitions[0]
	var order []int64
	p.began = func(j *job) {
		order = append(order, j.retry.id) // 0: rows that are not blocked
		of.blockedDue = []blockedRow{{id: 2, asked: true}, {id: 1}}
	}
	of.blockedDue = []blockedRow{{id: 1}}
	p.run(100 * time.Millisecond)
	if want := []int64{1, 0, 2, 0, 2}; !slices.Equal(order, want) {
		t.Errorf("%v, want %v", order, want)
	}
}

// A job whose code hangs gives its slot to others, keeps its partition, and counts once at its end.
func TestOverdueJobKeepsItsPartition(t *testing.T) {
	p := newPlant(t, 2, 1)
	p.room.rows = 1
	p.due()
	hung, _ := p.q.next(p.now, p.room)
	if other, _ := p.q.next(p.now, p.room); other != nil {
		t.Error("two jobs have one slot")
	}
	p.q.giveSlotBack(hung, nil, p.now, 1)
	other, _ := p.q.next(p.now, p.room)
	if other == nil || other.of[0] == hung.of[0] {
		t.Fatal("no other job has its slot")
	}
	p.q.end(hung, result{parts: hung.parts()}, p.now, 1)
	p.q.giveSlotBack(hung, nil, p.now, 1)
	if p.q.slots.Busy() != 1 || p.q.overdue != 0 {
		t.Errorf("%d jobs under way and %d overdue, want 1 and 0", p.q.slots.Busy(), p.q.overdue)
	}
}

// Code of one job may hang twice. A partition that the job gave to others the first time is theirs.
func TestPartitionOfAnOverdueJobIsFreedOnce(t *testing.T) {
	p := newPlant(t, 2, 1)
	p.due()
	hung, _ := p.q.next(p.now, p.room)
	if len(hung.of) != 2 {
		t.Fatalf("it has %d partitions, want 2", len(hung.of))
	}
	freed := hung.of[0]
	p.q.giveSlotBack(hung, []int{freed.Number}, p.now, p.room.size)
	p.due()
	other, _ := p.q.next(p.now, p.room)
	if other == nil || len(other.of) != 1 || other.of[0] != freed {
		t.Fatal("no other job has the partition")
	}
	freed.gone = true
	p.q.giveSlotBack(hung, []int{freed.Number}, p.now, p.room.size)
	if !freed.busy {
		t.Error("the partition is free while another job has it")
	}
	select {
	case <-freed.idle:
		t.Error("its ownership ends while another job has it")
	default:
	}
}

// Blocked rows whose handlers hang do not keep all slots: a row that comes meanwhile begins at once.
func TestHungBlockedRowsLeaveSlots(t *testing.T) {
	for _, size := range []int{2, 4, 10} {
		p := newPlant(t, 20, size)
		for n, of := range p.q.partitions[:15] {
			of.blockedDue = []blockedRow{{id: int64(n)}}
		}
		p.takes = func(j *job) time.Duration {
			if j.isRetry {
				return time.Hour
			}
			return 20 * time.Millisecond
		}
		p.run(time.Minute)
		if n := len(p.under); n != size/2 {
			t.Errorf("%d slots: blocked rows have %d of them", size, n)
		}
		begun := false
		p.began = func(j *job) { begun = begun || j.of[0].Number == 17 }
		p.q.partitions[17].due, p.q.partitions[17].expect = true, 1
		p.run(time.Millisecond)
		if !begun {
			t.Errorf("%d slots: the row of another partition has not begun", size)
		}
	}
}

// In one slot, the rows that are not blocked come after one blocked row, however many of these are due.
func TestRowsComeAfterOneBlockedRow(t *testing.T) {
	p := newPlant(t, 8, 1)
	for n, of := range p.q.partitions[:7] {
		of.blockedDue = []blockedRow{{id: int64(n + 1)}}
	}
	var order []int
	p.began = func(j *job) {
		if len(order) == 0 {
			p.q.partitions[7].due, p.q.partitions[7].expect = true, 1
		}
		order = append(order, j.of[0].Number)
	}
	p.ends = func(_ *job, parts []*part) result {
		parts[0].due = false
		return result{parts: parts, handled: true}
	}
	p.run(time.Second)
	if len(order) != 8 || order[1] != 7 {
		t.Errorf("partitions began in the order %v, want 7 at the second place", order)
	}
}

// The row that an operator retries comes before blocked rows of other partitions.
func TestRetryOfAnOperatorComesFirst(t *testing.T) {
	for of := range 6 {
		p := newPlant(t, 6, 1)
		for n, other := range p.q.partitions {
			other.blockedDue = []blockedRow{{id: int64(n), asked: n == of}}
		}
		if j, _ := p.q.next(p.now, p.room); j.of[0].Number != of {
			t.Errorf("the row of partition %d comes before that of %d, which an operator retries", j.of[0].Number, of)
		}
	}
}

// The backlog of a partition keeps no rows of others from a single slot.
func TestBacklogKeepsNoOthersFromASlot(t *testing.T) {
	p := newPlant(t, 8, 1)
	backlog := p.q.partitions[0]
	backlog.due, backlog.expect = true, p.room.rows
	p.ends = func(_ *job, parts []*part) result {
		for _, of := range parts {
			of.answered, of.due, of.expect = true, of.Number == 0, p.room.rows
		}
		return result{parts: parts, handled: true}
	}
	p.run(time.Second)
	jobs, last := 0, make(map[int]int)
	p.began = func(j *job) {
		jobs++
		for _, of := range j.of {
			last[of.Number] = jobs
		}
	}
	for _, of := range p.q.partitions[1:] {
		of.due, of.expect = true, 1
	}
	p.run(time.Second)
	for n := 1; n < 8; n++ {
		if last[n] == 0 || last[n] > 9 {
			t.Errorf("partition %d came in job %d, want one of the next 9", n, last[n])
		}
	}
}

// A partition whose ownership is to end is forgotten. A batch that hangs in it beyond that does not
// count it as slow again.
func TestPartitionThatIsGoneIsNotSlow(t *testing.T) {
	for name, end := range map[string]func(p *plant, j *job){
		"its batch ended late": func(p *plant, j *job) {
			parts := j.parts()
			parts[0].slow, parts[0].why = true, worker.TimedOut
			p.q.end(j, result{parts: parts}, p.now, 1)
		},
		"its batch goes on": func(p *plant, j *job) { p.q.giveSlotBack(j, nil, p.now, 1) },
	} {
		p := newPlant(t, 1, 1)
		of := p.q.partitions[0]
		of.due = true
		j, _ := p.q.next(p.now, p.room)
		p.q.leave(of)
		p.q.removeGone()
		end(p, j)
		if n := p.q.slots.Waiting(worker.TimedOut); n > 0 {
			t.Errorf("%s: %d partitions are slow", name, n)
		}
	}
}

// An answer that was under way while a job ended says nothing about its blocked rows.
func TestOldAnswerBringsNoBlockedRowBack(t *testing.T) {
	p := newPlant(t, 1, 1)
	of := p.q.partitions[0]
	of.blockedDue = []blockedRow{{id: 7}}
	j, _ := p.q.next(p.now, p.room)
	old := &poll{ended: p.q.ended, of: p.q.partitions, blockedDue: map[int][]blockedRow{0: {{id: 7}}}}
	p.q.end(j, result{parts: j.parts()}, p.now, 1)
	p.q.answered(old, p.now)
	if len(of.blockedDue) > 0 {
		t.Error("an old answer brought it back")
	}
	old.ended = p.q.ended
	p.q.answered(old, p.now)
	if len(of.blockedDue) != 1 {
		t.Error("a new answer does not bring it")
	}
}

// Rows that a poll finds while a blocked row of their partition is handled begin at its end, without
// another poll.
func TestRowsFoundBesideABlockedRowBeginAtItsEnd(t *testing.T) {
	p := newPlant(t, 1, 2)
	of := p.q.partitions[0]
	of.blockedDue = []blockedRow{{id: 1}}
	retry, _ := p.q.next(p.now, p.room)
	if retry == nil || !retry.isRetry {
		t.Fatal("the blocked row does not begin")
	}
	p.q.answered(&poll{of: p.q.partitions, has: map[int]bool{0: true}, ended: p.q.ended}, p.now)
	p.q.end(retry, result{parts: retry.parts()}, p.now.Add(time.Second), p.room.size)
	rows, _ := p.q.next(p.now.Add(time.Second), p.room)
	if rows == nil || rows.isRetry {
		t.Errorf("%+v begins after it, want the rows", rows)
	}
}

// A row whose failed attempts the database refuses to record is handled again ever more seldom.
func TestFailureThatIsNotRecordedWaitsLongerEachTime(t *testing.T) {
	p := newPlant(t, 1, 1)
	p.due()
	calls := 0
	p.ends = func(_ *job, parts []*part) result {
		calls++
		parts[0].due = true
		parts[0].rows.lose(p.now)
		return result{parts: parts}
	}
	p.run(100 * time.Second)
	if calls < 5 || calls > 8 {
		t.Errorf("%d calls in 100 s", calls)
	}
	calls = 0
	p.run(10 * time.Minute)
	if calls < 9 || calls > 11 {
		t.Errorf("%d calls in the next 10 min, want one each minute", calls)
	}
}

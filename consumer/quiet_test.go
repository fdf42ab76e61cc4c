package consumer

import (
	"testing"
	"testing/synctest"
	"time"
)

// A quietProcess is a process that owns a partition, and whose polls are answered at once.
type quietProcess struct {
	*planner
	open     int64 // the oldest open transaction
	next     int64 // the next transaction
	has      bool  // the partition has a row that is not blocked
	blocked  bool
	duringIt func() // happens while a poll is under way
}

func newQuietProcess(t *testing.T) *quietProcess {
	p := &quietProcess{planner: simulated(t.Context()), open: 100, next: 100, duringIt: func() {}}
	p.queue = *queued(1)
	p.poller.rows, p.announces = rowsOfPoll, func() bool { return true }
	p.poller.notified()
	return p
}

// poll waits for the next poll, and answers it.
func (p *quietProcess) poll() {
	time.Sleep(time.Until(p.poller.at))
	of, idle := p.queue.asked()
	q, _ := p.poller.question(time.Now(), of, idle, p.queue.ended, 0)
	q.oldest, q.next, q.blocked, q.has = min(p.open, p.next), p.next, p.blocked, map[int]bool{}
	if p.has {
		q.has[0] = true
	}
	p.duringIt()
	p.answer(q, nil)
}

// polls returns how many polls the process sends in a minute, once the last one was a while ago.
func (p *quietProcess) polls() (n int) {
	for begin := time.Now(); time.Since(begin) < time.Minute; {
		p.poll()
	}
	for begin := time.Now(); time.Since(begin) < time.Minute; n++ {
		p.poll()
	}
	return n
}

// Numbers of polls in a minute.
const (
	rarePolls   = 12
	steadyPolls = 60
)

func (p *quietProcess) expect(t *testing.T, want int, when string) {
	t.Helper()
	if got := p.polls(); got < want || got > want+1 {
		t.Errorf("%s: %d polls in a minute, want %d", when, got, want)
	}
}

// An idle process polls rarely while notifications announce rows, and nothing is left to wait for.
func TestQuietProcessPollsRarely(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		begin func(*quietProcess)
		want  int
	}{
		"idle": {func(*quietProcess) {}, rarePolls},
		"no notifications": {func(p *quietProcess) {
			p.announces = func() bool { return false }
		}, steadyPolls},
		"a blocked row":              {func(p *quietProcess) { p.blocked = true }, steadyPolls},
		"a job at work":              {func(p *quietProcess) { p.queue.slots.Begin(0) }, steadyPolls},
		"a job whose code hangs":     {func(p *quietProcess) { p.queue.overdue++ }, steadyPolls},
		"a job that ended beside it": {func(p *quietProcess) { p.duringIt = func() { p.queue.ended++ } }, steadyPolls},
		"a transaction that is open": {func(p *quietProcess) { p.next = 101 }, steadyPolls},
		"one that began after quiet": {func(p *quietProcess) { p.polls(); p.next = 150; p.open = 120 }, rarePolls},
		"a row without notifications": {func(p *quietProcess) {
			p.polls()
			p.has = true
			p.poll()
			p.has = false
		}, steadyPolls},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := newQuietProcess(t)
				c.begin(p)
				p.expect(t, c.want, name)
			})
		})
	}
}

// The notification of an insert is suppressed shortly after another one. So a process polls often until
// all transactions have ended that may have inserted then, also if it was busy meanwhile.
func TestOpenTransactionEndsTheRarePolls(t *testing.T) {
	t.Parallel()
	for _, busy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := newQuietProcess(t)
			p.expect(t, rarePolls, "at first")
			p.next = 110 // 100 stays open
			p.poller.notified()
			p.queue.partitions[0].busy = busy
			time.Sleep(time.Minute)
			p.queue.partitions[0].busy = false
			p.expect(t, steadyPolls, "while a transaction is open that may have inserted")
			p.open = 110
			p.expect(t, rarePolls, "after it has ended")
		})
	}
}

// Ten minutes after a row came without a notification, a process relies on notifications again.
func TestDoubtOfNotificationsEnds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := newQuietProcess(t)
		p.expect(t, rarePolls, "at first")
		p.has = true
		p.poll()
		p.has = false
		p.expect(t, steadyPolls, "after the row")
		time.Sleep(doubtTime)
		p.expect(t, rarePolls, "after ten minutes")
	})
}

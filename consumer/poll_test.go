package consumer

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases/internal/listen"
)

// After a poll that took long, the next one comes within the usual time, whatever kept the first one.
func TestSlowPollDelaysNextByItsTimeAtMost(t *testing.T) {
	for _, took := range []time.Duration{time.Millisecond, 300 * time.Millisecond, 10 * time.Second, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			p := pace{every: time.Second, quiet: 10 * time.Second}
			p.at = time.Now().Add(p.every)
			time.Sleep(took)
			p.answered(took, p.every)
			p.soon()
			wait := time.Until(p.at)
			if wait > p.every {
				t.Errorf("after %v the next poll waits for %v", took, wait)
			}
			if wait < min(pollShare*took, p.every) {
				t.Errorf("after %v the next poll waits only for %v", took, wait)
			}
		})
	}
}

// However many partitions a process has, a poll looks at a limited number of rows. Polls take turns, one
// soon after the other, until all partitions have had theirs.
func TestPollsOfManyPartitionsTakeTurns(t *testing.T) {
	t.Parallel()
	const rows, atOnce = 400, 100
	for _, partitions := range []int{1, atOnce, atOnce + 1, 1311} {
		for _, untilEmpty := range []bool{false, true} {
			synctest.Test(t, func(t *testing.T) {
				p := poller{pace: pace{every: time.Second, quiet: time.Second}, rows: rows}
				p.conn = listen.New(nil, "pgleases", "consumer/turns")
				q, all := queued(partitions), 0
				if untilEmpty {
					all = partitions
				}
				turns := (partitions + atOnce - 1) / atOnce
				for round := range 3 {
					seen := make(map[int]int)
					for n := range turns {
						time.Sleep(time.Until(p.at))
						of, idle := q.asked()
						a, _ := p.question(time.Now(), of, idle, 0, all)
						expectFewRows(t, a, rows)
						for _, s := range a.searches {
							seen[s.Number]++
						}
						a.took = 50 * time.Millisecond
						p.polling = false
						p.succeeded(a, false, true)
						p.swept(a, time.Now(), time.Minute)
						q.answered(a, time.Now())
						want := time.Second
						if n < turns-1 {
							want = pollShare * a.took
						}
						if wait := time.Until(p.at); wait != want {
							t.Fatalf("%d partitions, round %d: after turn %d of %d the next poll waits for %v, want %v",
								partitions, round, n, turns, wait, want)
						}
					}
					for n := range partitions {
						if seen[n] != 1 {
							t.Fatalf("%d partitions, round %d: partition %d was searched %d times, want once",
								partitions, round, n, seen[n])
						}
					}
				}
			})
		}
	}
}

// expectFewRows checks how many rows a poll may look at.
func expectFewRows(t *testing.T, q *poll, most int) {
	t.Helper()
	rows := 0
	for _, n := range q.looks.most {
		rows += 2 * int(n)
	}
	if rows > most {
		t.Fatalf("a poll about %d partitions looks at %d rows", len(q.searches), rows)
	}
	if rows = len(q.sweeps) * q.sweeping.most; rows > most {
		t.Fatalf("a poll sweeps %d rows of %d partitions", rows, len(q.sweeps))
	}
	if len(q.owned) > most {
		t.Fatalf("a poll asks for blocked rows of %d partitions", len(q.owned))
	}
}

// A poll that failed says nothing about how long the next one takes.
func TestFailedPollIsRepeatedSoon(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simulated(t.Context())
		p.poller.at = time.Now().Add(-answerTime + p.options.poll)
		p.answer(&poll{took: answerTime}, errEmpty)
		p.poller.soon()
		if wait := time.Until(p.poller.at); wait > p.options.poll {
			t.Errorf("the next poll waits for %v", wait)
		}
	})
}

// The end of Run breaks a poll off, which is no error of the poll.
func TestEndOfRunIsNoPollError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simulated(t.Context())
		p.answer(&poll{}, errEmpty)
		if n := p.Stats().PollErrors; n != 1 {
			t.Errorf("%d errors of polls after one that failed", n)
		}
		life, end := context.WithCancel(t.Context())
		p.life = life
		end()
		p.answer(&poll{}, context.Canceled)
		if n := p.Stats().PollErrors; n != 1 {
			t.Errorf("%d errors of polls after the end of Run, want 1", n)
		}
	})
}

// The time since the last poll that succeeded goes on while polls fail, and is 0 while the process
// owns no partition.
func TestSinceLastPollGrowsWhilePollsFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simulated(t.Context())
		expectSince := func(want time.Duration) {
			t.Helper()
			if got := p.Stats().SinceLastPoll; got != want {
				t.Errorf("%v since the last poll, want %v", got, want)
			}
		}
		expectSince(0)
		time.Sleep(time.Minute)
		p.answer(&poll{took: time.Second}, nil)
		expectSince(time.Second)
		time.Sleep(time.Minute)
		p.answer(&poll{took: time.Second}, errEmpty)
		expectSince(61 * time.Second)
		p.poller.at = time.Now()
		p.poll() // it owns no partition
		expectSince(0)
	})
}

// The age of the oldest batch is that of the one that began first, of those that are under way.
func TestOldestBatchIsTheOneThatBeganFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := simulated(t.Context())
		p.queue = *queued(3)
		begin := func(n int) *job {
			p.queue.partitions[n].due, p.queue.partitions[n].expect = true, 1
			j, _ := p.queue.next(time.Now(), room{size: 4, rows: 1})
			time.Sleep(time.Minute)
			return j
		}
		first, second := begin(0), begin(1)
		for i, want := range []time.Duration{2 * time.Minute, time.Minute, 0} {
			if i > 0 {
				j := []*job{first, second}[i-1]
				p.queue.end(j, result{parts: j.parts()}, time.Now(), 4)
			}
			p.countOldest()
			if got := p.Stats().OldestBatch; got != want {
				t.Errorf("%v after %d ends, want %v", got, i, want)
			}
		}
	})
}

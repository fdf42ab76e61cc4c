package consumer

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/worker"
)

// A writtenLog is a log that goroutines of timers write too.
type writtenLog struct {
	mu   sync.Mutex
	text []byte
}

func (l *writtenLog) Write(line []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, line...)
	return len(line), nil
}

// take returns the lines that were written since the last call.
func (l *writtenLog) take() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	lines := strings.Split(string(l.text), "\n")
	l.text = nil
	return lines[:len(lines)-1]
}

// expect compares the lines since the last call with what they have.
func (l *writtenLog) expect(t *testing.T, want ...string) {
	t.Helper()
	got := l.take()
	if len(got) != len(want) {
		t.Fatalf("logged %q, want %q", got, want)
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("logged %q, want %q", got[i], want[i])
		}
	}
}

// The end of a pause is logged once for all partitions, with its length.
func TestEndOfPauseIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log writtenLog
		o := outage{log: slog.New(slog.NewTextHandler(&log, nil))}
		lines := func(want ...string) { t.Helper(); log.expect(t, want...) }
		of := func(number int) *part {
			return &part{ownership: &ownership{Partition: pgleases.Partition{Number: number}}}
		}
		pause := func(number int) {
			o.paused(of(number), errors.New("no broker"))
			time.Sleep(10 * time.Second)
		}
		pause(1)
		pause(1)
		lines(`level=WARN msg="consumer: partition paused, no attempt is counted" partition=1`)
		pause(2)
		o.succeeded(of(3), false) // it needs something else
		lines()
		o.succeeded(of(2), true)
		lines(`level=INFO msg="consumer: pause of partitions ended" partition=2 for=30s`)
		o.succeeded(of(1), true)
		lines()
		pause(1)
		time.Sleep(time.Second)
		o.left(1) // another process owns it
		pause(2)
		lines("partition paused", "partition paused")
		o.succeeded(of(2), true)
		lines("partition=2 for=10s")
		time.Sleep(time.Second)
		o.paused(of(1), errors.New("no broker"))
		o.succeeded(of(1), true)
		lines("partition=1", "partition=1 for=0s")
		for number := range 3 { // it comes and goes
			o.paused(of(number), errors.New("no broker"))
			time.Sleep(time.Second)
			o.succeeded(of(number), true)
		}
		lines()
		time.Sleep(8 * time.Second)
		synctest.Wait()
		const line = `partition paused, no attempt is counted" partitions=[0-2] count=3 lines=3 error="no broker"`
		lines(line, "partition=2 for=1s")
		o.paused(of(1), errors.New("no broker"))
		o.lines.Flush()
		lines("partitions=[1] count=1 lines=1")
	})
}

// In a queue without keys the partition is the key, so three partitions that fail are three keys.
func TestOutageIsSeenWithoutKeys(t *testing.T) {
	t.Parallel()
	var o outage
	for number, want := range []bool{false, false, true} {
		p := &part{ownership: &ownership{Partition: pgleases.Partition{Number: number}}}
		for range 2 { // again by another attempt at the same row
			if got := o.seems(row{partition: p}); got != want {
				t.Errorf("partition %d failed: seems away: %v, want %v", number, got, want)
			}
		}
	}
}

// A partition whose pause goes on stays in the log as paused: a read may have left out the keys
// that were tried, or its blocked rows pause. Only if it has no row left, the pause needs no end.
func TestPauseEndsInTheLogWithItsRows(t *testing.T) {
	t.Parallel()
	const ended = `level=INFO msg="consumer: pause of partitions ended" partition=0 for=1m0s`
	for name, c := range map[string]struct {
		blocked bool
		read    outcome // without rows
		want    []string
	}{
		"tried keys":   {read: outcome{more: true}, want: []string{ended}},
		"blocked rows": {blocked: true, want: []string{ended}},
		"no rows":      {},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				log := new(writtenLog)
				p := &part{ownership: &ownership{}}
				x := &executor{counts: new(counts), times: &defaultTimings}
				x.outage.log = slog.New(slog.NewTextHandler(log, nil))
				e := &execution{executor: x, job: &job{isRetry: c.blocked}}
				e.pause(p, errors.New("no broker"))
				log.expect(t, "partition paused")
				time.Sleep(time.Minute)
				e.advance([]*part{p}, c.read)
				e.succeeded(p)
				log.expect(t, c.want...)
			})
		})
	}
}

// A partition whose blocked rows are gone, which a sweep finds, is paused no longer, so the pause of
// another one is logged. One whose other rows pause stays paused.
func TestSweepEndsThePauseOfBlockedRows(t *testing.T) {
	t.Parallel()
	for _, rowsPause := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			p := simulated(t.Context())
			p.queue = *queued(2)
			p.exec.outage.log = slog.New(slog.NewTextHandler(&log, nil))
			first, second := p.queue.partitions[0], p.queue.partitions[1]
			pause := func(of *partition) {
				of.blocked.away++
				p.exec.outage.paused(&part{ownership: of.ownership}, errors.New("no broker"))
			}
			pause(first)
			if rowsPause {
				first.rows.away = 1
			}
			p.answer(&poll{sweeps: []*partition{first}}, nil) // all rows are still there
			pause(second)
			if n := strings.Count(log.String(), "partition paused"); n != 1 {
				t.Errorf("logged %d times, want once: %s", n, log.String())
			}
			p.exec.outage.left(second.Number)
			p.answer(&poll{sweeps: []*partition{first}, changed: map[int]bool{0: true}}, nil)
			time.Sleep(2 * logqueue.JoinedFor) // afterwards the line is not joined with the one before
			pause(second)
			want := 2
			if rowsPause {
				want = 1
			}
			if n := strings.Count(log.String(), "partition paused"); n != want {
				t.Errorf("rows pause: %v: logged %d times, want %d: %s", rowsPause, n, want, log.String())
			}
			if first.blocked.away != 0 {
				t.Error("the blocked rows of the first partition still pause")
			}
		})
	}
}

// A sweep ends the pauses of the partitions in which rows are gone or changed, and of no others, also
// while RunUntilEmpty sweeps all partitions of the table.
func TestSweepEndsNoPauseOfOtherPartitions(t *testing.T) {
	t.Parallel()
	for _, untilEmpty := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p := simulated(t.Context())
			p.queue, p.untilEmpty, p.source.Partitions = *queued(2), untilEmpty, 2
			p.poller.rows = rowsOfPoll
			for _, of := range p.queue.partitions {
				of.blocked = delay{away: 3, notBefore: time.Now().Add(time.Minute)}
			}
			of, idle := p.queue.asked()
			all := 0
			if untilEmpty {
				all = 2
			}
			q, _ := p.poller.question(time.Now(), of, idle, 0, all)
			if len(q.sweeps) != 2 {
				t.Fatalf("%d partitions are swept, want 2", len(q.sweeps))
			}
			q.changed = map[int]bool{1: true}
			p.answer(q, nil)
			for n, want := range []int{3, 0} {
				if got := p.queue.partitions[n].blocked.away; got != want {
					t.Errorf("until empty: %v: %d attempts in a row found something away in partition %d, want %d",
						untilEmpty, got, n, want)
				}
			}
		})
	}
}

// logging returns a planner with two partitions, and its log.
func logging(t *testing.T) (p *planner, log *writtenLog) {
	p, log = simulated(t.Context()), new(writtenLog)
	p.queue = *queued(2)
	p.log = slog.New(slog.NewTextHandler(log, nil))
	return p, log
}

// That partitions are slow is logged once a minute, and its end once, also if the last one was only
// doubted.
func TestEndOfSlowPartitionsIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := logging(t)
		of := p.queue.partitions[0]
		for _, c := range []struct {
			begin func()
			want  []string
		}{
			{func() {}, nil},
			{func() {
				p.queue.fail(of, worker.Locked, false, time.Now(), time.Now())
			}, []string{"partitions slowed down", "partitions slowed down"}},
			{func() {
				p.queue.slots.Heal(of.Number)
			}, []string{`level=INFO msg="consumer: partitions no longer slowed down" for=1m30s`}},
			{func() {}, nil},
		} {
			c.begin()
			for range 90 {
				p.countSlow()
				time.Sleep(time.Second)
			}
			log.expect(t, c.want...)
		}
	})
}

// What cannot be begun is logged once, and once that it has begun.
func TestEndOfDelayedBeginIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := logging(t)
		fresh := p.queue.partitions
		parts := (&job{of: fresh}).parts()
		for _, err := range []error{nil, errors.New("no database"), errors.New("no database"), nil, nil} {
			p.begun(fresh, parts, err)
			time.Sleep(10 * time.Second)
		}
		log.expect(t, `level=WARN msg="consumer: cannot begin with new partitions, retried each second" partitions=2`,
			`level=INFO msg="consumer: began with new partitions" partitions=2 for=20s`)
	})
}

// What polls find out ends with a line that says how long it lasted.
func TestEndsOfPausesAndFailedPollsAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := logging(t)
		expect := func(want ...string) { t.Helper(); log.expect(t, want...) }
		for range 200 {
			p.answer(&poll{}, errors.New("no database"))
			time.Sleep(time.Second)
		}
		p.answer(&poll{}, nil)
		p.answer(&poll{}, nil)
		expect("poll failed", `level=INFO msg="consumer: poll succeeded again" after=3m20s`)
		p.answer(&poll{paused: true}, nil)
		time.Sleep(time.Hour)
		p.answer(&poll{paused: true}, nil)
		p.answer(&poll{}, nil)
		expect("paused by an operator", `level=INFO msg="consumer: resumed by an operator" for=1h0m0s`)
	})
}

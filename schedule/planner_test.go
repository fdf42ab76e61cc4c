package schedule

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/worker"
)

// watched returns the planner of a Scheduler whose Stats have its numbers.
func watched() *planner {
	s := &Scheduler{log: slog.New(slog.DiscardHandler), times: defaultTimings}
	p := &planner{s: s, queue: newQueue(&s.times, func() int { return 4 }, func(string) int { return 0 })}
	s.planner.Store(p)
	return p
}

// numbered returns a job that is due.
func numbered(id int64) item { return jobOf(id, "mail", time.Now()) }

// jobOf returns a job with a key of its own.
func jobOf(id int64, kind string, due time.Time) item {
	return item{subject: subject{ID: id, Job: true}, Key: fmt.Sprint(id), Kind: kind, DueMicro: due.UnixMicro()}
}

// The age of the oldest run is that of the one that began first, of those that are under way.
func TestOldestRunIsTheOneThatBeganFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p := watched()
		for id := range int64(3) {
			p.queue.began(numbered(id), time.Now())
			time.Sleep(time.Minute)
		}
		for _, c := range []struct {
			ends int64
			want time.Duration
		}{{1, 3 * time.Minute}, {0, time.Minute}, {2, 0}} {
			p.queue.end(finish{numbered(c.ends), result{outcome: stepped}}, time.Now())
			p.countRunning()
			if got := p.s.Stats().OldestRun; got != c.want {
				t.Errorf("%v after the end of run %d, want %v", got, c.ends, c.want)
			}
		}
	})
}

// Stats say what ill runs wait for, until they succeed. An ill run that has ended for good, or that
// this process cannot do, waits for nothing that may end at any time.
func TestSlowRunsAreCountedByWhatTheyWaitFor(t *testing.T) {
	t.Parallel()
	p := watched()
	now := time.Now()
	begin := func(id int64) item {
		it := numbered(id)
		p.queue.bands[0] = slices.DeleteFunc(p.queue.bands[0], func(of item) bool { return of.subject == it.subject })
		p.queue.began(it, now)
		return it
	}
	end := func(id int64, r result) {
		it := begin(id)
		if r.outcome != gone {
			r.again = &it
		}
		p.queue.end(finish{it, r}, now)
	}
	expect := func(timeout, lock, connection int) {
		t.Helper()
		p.countSlow()
		s := p.s.Stats()
		slow := [3]int{s.SlowByTimeout, s.SlowByLock, s.SlowByConnection}
		if want := [3]int{timeout, lock, connection}; slow != want {
			t.Errorf("%v are slow, want %v", slow, want)
		}
	}
	expect(0, 0, 0)
	for id := range int64(3) {
		end(id, result{outcome: rowLocked, slow: true, why: worker.Locked})
	}
	end(3, result{outcome: stepped, slow: true, why: worker.TimedOut})
	end(4, result{outcome: gone, slow: true, why: worker.TimedOut})
	end(5, result{outcome: slowCommit, slow: true, why: worker.Hung})
	end(6, result{outcome: stepped, slow: true, why: worker.Blocked})
	expect(1, 3, 1)
	begin(3)
	expect(1, 3, 1)
	end(1, result{outcome: stepped})
	expect(1, 2, 1)
	p.queue.clear() // this process owns no partition
	expect(1, 0, 0)
}

// logging returns a planner and its log.
func logging() (p *planner, log *bytes.Buffer) {
	p, log = watched(), new(bytes.Buffer)
	p.s.log = slog.New(slog.NewTextHandler(log, nil))
	return p, log
}

// That runs are slow is logged once a minute, and its end once.
func TestEndOfSlowRunsIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := logging()
		end := func(r result) {
			it := numbered(1)
			p.queue.bands[0] = nil
			p.queue.began(it, time.Now())
			r.again = &it
			p.queue.end(finish{it, r}, time.Now())
			for range 90 {
				p.countSlow()
				time.Sleep(time.Second)
			}
		}
		expect := func(began, ended int, with string) {
			t.Helper()
			text := log.String()
			is := [2]int{strings.Count(text, "runs slowed down"), strings.Count(text, "runs no longer slowed down")}
			if want := [2]int{began, ended}; is != want || !strings.Contains(text, with) {
				t.Errorf("logged begins and ends: %v, not %v with %q: %s", is, want, with, text)
			}
			log.Reset()
		}
		end(result{outcome: stepped})
		expect(0, 0, "")
		end(result{outcome: rowLocked, slow: true, why: worker.Locked})
		expect(2, 0, "")
		end(result{outcome: stepped})
		expect(0, 1, `level=INFO msg="schedule: runs no longer slowed down" for=1m30s`)
		end(result{outcome: stepped})
		expect(0, 0, "")
	})
}

// The end of a pause of a kind is logged once, with its length.
func TestEndOfPauseOfKindIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := logging()
		end := func(id int64, away error) {
			p.queue.began(numbered(id), time.Now())
			time.Sleep(10 * time.Second)
			p.end(finish{numbered(id), result{outcome: stepped, called: true, away: away}})
		}
		end(1, errors.New("no mail server"))
		end(2, errors.New("no mail server"))
		p.queue.began(numbered(5), time.Now())
		time.Sleep(10 * time.Second)
		timedOut := result{outcome: failed, called: true, slow: true, why: worker.TimedOut}
		p.end(finish{numbered(5), timedOut}) // it does not show whether the mail server is back
		end(3, nil)
		end(4, nil)
		const ended = `level=INFO msg="schedule: pause of a kind ended" kind=mail for=30s`
		paused, ends := strings.Count(log.String(), "kind paused"), strings.Count(log.String(), "pause of a kind ended")
		if paused != 1 || ends != 1 || !strings.Contains(log.String(), ended) {
			t.Errorf("logged %s, want the pause once, and once %q", log.String(), ended)
		}
		log.Reset()
		for id := range int64(4) { // it comes and goes
			p.queue.began(numbered(id), time.Now())
			p.end(finish{numbered(id), result{outcome: stepped, called: true, away: errors.New("no mail server")}})
			p.queue.began(numbered(id), time.Now())
			p.end(finish{numbered(id), result{outcome: stepped, called: true}})
		}
		time.Sleep(2 * logqueue.JoinedFor)
		synctest.Wait()
		const joined = `msg="schedule: kind paused, no attempt is counted" kind=mail lines=3 error="no mail server"`
		begun, all := strings.Count(log.String(), "kind paused"), strings.Count(log.String(), "\n")
		if begun != 2 || all != 4 || !strings.Contains(log.String(), joined+"\n") {
			t.Errorf("logged %s, want four lines with %q", log.String(), joined)
		}
	})
}

// The end of failed polls, and of an unstable clock, is logged with its length.
func TestEndsOfFailedPollsAndOfDoubtAreLogged(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		p, log := logging()
		for range 90 {
			p.saidPoll(t.Context(), errors.New("no database"))
			time.Sleep(time.Second)
		}
		p.saidPoll(t.Context(), nil)
		p.saidPoll(t.Context(), nil)
		const again = `level=INFO msg="schedule: poll succeeded again" after=1m30s`
		if n := strings.Count(log.String(), "msg="); n != 2 || !strings.Contains(log.String(), again) {
			t.Errorf("logged %s, want %s", log.String(), again)
		}
		log.Reset()
		now := time.Now()
		p.trusts(now, now, now)
		for range 3 {
			shows := time.Now().Add(time.Hour)
			p.trusts(shows, time.Now(), time.Now())
			time.Sleep(p.s.times.ClockDoubt / 2)
		}
		trusted := `level=INFO msg="schedule: clock trusted again"`
		if n := strings.Count(log.String(), "msg="); n != 2 || !strings.Contains(log.String(), trusted) ||
			!strings.Contains(log.String(), " for="+p.s.times.ClockDoubt.String()) {
			t.Errorf("logged %s, want %s", log.String(), trusted)
		}
	})
}

// A kind of which no run comes any more, because its job was canceled or its partition has moved, is
// paused no longer, so the next outage is logged. One whose runs wait stays paused.
func TestPauseOfKindIsForgottenWithItsRuns(t *testing.T) {
	t.Parallel()
	for _, waits := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			p, log := logging()
			away := func(id int64) {
				p.queue.began(numbered(id), time.Now())
				p.end(finish{numbered(id), result{outcome: stepped, called: true, away: errors.New("no mail server")}})
			}
			away(1)
			if waits {
				again := numbered(1)
				p.queue.insert(finish{again, result{again: &again}})
			}
			time.Sleep(5 * time.Minute)
			p.queue.forget(func(int) bool { return true }, time.Now())
			away(2)
			want := 2
			if waits {
				want = 1
			}
			if n := strings.Count(log.String(), "kind paused"); n != want {
				t.Errorf("runs wait: %v: the pause is logged %d times, want %d: %s", waits, n, want, log.String())
			}
		})
	}
}

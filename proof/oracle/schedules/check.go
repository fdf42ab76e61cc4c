//go:build unix

package schedules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/schedule"
)

// Check returns the violations, in one line each. The promise is that there are none.
func (l *Ledger) Check() []string {
	l.problems, l.zombies = nil, 0
	l.checkTicks()
	l.checkEffects()
	l.checkJobs()
	l.checkCalls()
	l.atOnce = l.checkTogether()
	slices.Sort(l.problems)
	return l.problems
}

// Checked returns how many things were looked at, by kind.
func (l *Ledger) Checked() map[string]int {
	ticks := 0
	for _, entries := range l.history {
		for _, e := range entries {
			ticks += int(e.Ticks)
		}
	}
	return map[string]int{
		"ticks":                         ticks,
		"jobs":                          len(l.jobs),
		"effects of runs":               len(l.effects),
		"calls outside of the database": len(l.calls),
	}
}

// Schedules returns how many schedules there are.
func (l *Ledger) Schedules() int { return len(l.schedules) }

// Effects returns how many runs wrote in their transaction.
func (l *Ledger) Effects() int { return len(l.effects) }

// String describes what was checked. Call it after Check.
func (l *Ledger) String() string {
	outcomes, failures := make(map[schedule.Outcome]int64), make(map[string]int)
	for _, entries := range l.history {
		for _, e := range entries {
			outcomes[e.Outcome] += e.Ticks
			if e.Outcome == schedule.OutcomeFailed {
				failures[e.Error]++
			}
		}
	}
	ofJobs := make(map[schedule.Outcome]int)
	for _, entries := range l.jobs {
		for _, e := range entries {
			ofJobs[e.Outcome]++
		}
	}
	again := 0
	for _, of := range l.callsOf(func(c faults.Call) string { return c.Idempotency }) {
		again += len(of) - 1
	}
	return strings.Join([]string{
		fmt.Sprintf("%d schedules, %d effects, outcomes of ticks: %v, failures: %v",
			len(l.schedules), len(l.effects), outcomes, failures),
		fmt.Sprintf("%d orders, outcomes of jobs: %v", len(l.names), ofJobs),
		fmt.Sprintf("%d calls outside, %d of them again, %d late", len(l.calls), again, l.zombies),
		fmt.Sprintf("at once, at most: %v", l.atOnce),
	}, "; ")
}

func (l *Ledger) wrong(format string, args ...any) {
	l.problems = append(l.problems, fmt.Sprintf(format, args...))
}

// checkTicks compares the history with the ticks that the rules have.
func (l *Ledger) checkTicks() {
	for name, s := range l.schedules {
		reached := s.Anchor
		for _, e := range l.history[name] {
			if !e.Since.Equal(reached) {
				l.wrong("outcomes: %s: an entry begins at %v, and the one before ends at %v: %+v",
					name, e.Since, reached, e)
			}
			reached = e.Until
			l.checkEntry(s, e)
		}
		if !reached.Equal(s.Cursor) {
			l.wrong("outcomes: %s: the last entry ends at %v, and the cursor is %v", name, reached, s.Cursor)
		}
	}
}

// checkEntry compares an entry of the history with the ticks that its schedule has in that time.
func (l *Ledger) checkEntry(s Scheduled, e entry) {
	ticks := s.Ticks(e.Since, e.Until)
	if int64(len(ticks)) != e.Ticks {
		l.wrong("outcomes: %s: an entry has %d ticks, and there were %d: %+v", e.Name, e.Ticks, len(ticks), e)
	}
	surplus := e.is(schedule.OutcomeMissed) && e.Ended.Sub(e.Until) >= 100*s.Every // at most 100 missed ticks run
	owned := e.Epoch != nil && e.Started != nil
	oneTick := e.Ticks == 1 && len(ticks) == 1 && ticks[0].Equal(e.Until)
	needsError := e.is(schedule.OutcomeFailed, schedule.OutcomeUnknown)
	fails := (s.Kind == "fails" || s.Kind == "paid") && faults.FailsAt(e.Until)
	switch {
	case slices.Contains(s.Never, e.Outcome) && !surplus:
		l.wrong("outcomes: %s: %s is an outcome that it must not have: %+v", e.Name, e.Outcome, e)
	case e.ran() != owned, e.ran() && !oneTick:
		l.wrong("outcomes: %s: no run of one tick: %+v", e.Name, e)
	case e.ran() && e.Started.Before(e.Until):
		l.wrong("early: %s: it began at %v: %+v", e.Name, e.Started, e)
	case needsError != (e.Error != ""), e.is(schedule.OutcomeSucceeded) && fails:
		l.wrong("outcomes: %s: %s with the error %q: %+v", e.Name, e.Outcome, e.Error, e)
	}
}

// outside reports whether runs of a schedule have their effects outside of the database.
func (l *Ledger) outside(name string) bool {
	outside, _ := faults.Outside(l.schedules[name].Kind)
	return outside
}

// A tick is a tick of a schedule.
type tick struct {
	name string
	at   int64
}

func tickOf(name string, at time.Time) tick { return tick{name, at.UnixMicro()} }

// checkEffects compares the writes in transactions with the ticks that succeeded. For ticks and
// jobs: no owner writes after the next owner has begun, and runs under one key do not overlap.
func (l *Ledger) checkEffects() {
	done := make(map[tick]int)
	for name, entries := range l.history {
		for _, e := range entries {
			if e.is(schedule.OutcomeSucceeded) && !l.outside(name) {
				done[tickOf(name, e.Until)]++
			}
		}
	}
	// By partition: the last committed effect of the newest epoch so far.
	owners := make(map[int]effect)
	latest := make(map[string]effect) // by key
	for _, e := range l.effects {
		if e.Job == 0 {
			of := tickOf(e.Name, e.At)
			done[of]--
			if done[of] < 0 {
				l.wrong("effects: an effect of a tick that did not succeed, or a second one: %+v", e)
			}
		}
		if !e.Whole {
			l.wrong("effects: one is incomplete: %+v", e)
		}
		if l.Stepped {
			continue
		}
		if e.Began.Before(e.At) {
			l.wrong("early: %+v", e)
		}
		before, ok := owners[e.Partition]
		if ok && (e.Epoch < before.Epoch || e.Epoch > before.Epoch && e.Began.Before(before.Committed)) {
			l.wrong("frozen: an owner wrote after the next had begun: %+v and %+v", before, e)
		}
		if !ok || e.Epoch > before.Epoch || e.Epoch == before.Epoch && e.Committed.After(before.Committed) {
			owners[e.Partition] = e
		}
		before, ok = latest[e.Key]
		if ok && before.Committed.After(e.Began) {
			l.wrong("overlap: under key %q: %+v and %+v", e.Key, before, e)
		}
		latest[e.Key] = e
	}
	for k, n := range done {
		if n > 0 {
			l.wrong("effects: none of %s at %v, which succeeded", k.name, time.UnixMicro(k.at).UTC())
		}
	}
}

// A span is a time when something ran, on one clock.
type span struct{ from, to int64 }

// most returns the maximum number of spans at one time.
func most(spans []span) (n int) {
	type turn struct {
		at   int64
		more int
	}
	var turns []turn
	for _, s := range spans {
		if s.from < s.to {
			turns = append(turns, turn{s.from, 1}, turn{s.to, -1})
		}
	}
	slices.SortFunc(turns, func(a, b turn) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.more, b.more)) })
	now := 0
	for _, turn := range turns {
		now += turn.more
		n = max(n, now)
	}
	return n
}

// checkTogether checks that runs of a kind with a limit never exceed the limit at one time. A run
// counts until its commit; a call outside counts while its process could trust itself. It returns
// the maximum of each kind.
func (l *Ledger) checkTogether() map[string]int {
	kinds := make(map[string][]span)
	if !l.Stepped {
		for _, e := range l.effects {
			kind := l.schedules[e.Name].Kind
			kinds[kind] = append(kinds[kind], span{e.Began.UnixMicro(), e.Committed.UnixMicro()})
		}
	}
	if !l.Promoted { // a promoted standby does not know the slots that it missed
		for _, c := range l.calls {
			kinds[c.Kind] = append(kinds[c.Kind], span{int64(c.Began), int64(c.Trusted - together)})
		}
	}
	atOnce := make(map[string]int)
	for kind, limit := range faults.Limits {
		n := most(kinds[kind])
		if n > 1 {
			atOnce[kind] = n
		}
		if n > limit {
			l.wrong("together: %d runs of %s at once, not %d at most", n, kind, limit)
		}
	}
	return atOnce
}

// checkJobs compares the outcomes of jobs with their orders and with their writes.
func (l *Ledger) checkJobs() {
	effects := make(map[int64][]effect)
	for _, e := range l.effects {
		if e.Job != 0 {
			effects[e.Job] = append(effects[e.Job], e)
		}
	}
	all := maps.Clone(l.living)
	for id := range l.orders {
		all[id] = true
	}
	for id := range l.jobs {
		all[id] = true
	}
	for id := range effects {
		all[id] = true
	}
	for id := range all {
		l.checkJob(id, l.orders[id], l.jobs[id], effects[id])
	}
}

// checkJob checks one job. A replaced job has more than one order and entry.
func (l *Ledger) checkJob(id int64, orders []order, entries []entry, effects []effect) {
	wrong := func(what string) { l.wrong("jobs: %d: %s: %+v, %+v, %+v", id, what, orders, entries, effects) }
	done := 0
	for _, e := range entries {
		if e.is(schedule.OutcomeSucceeded) {
			done++
		}
	}
	ended := !l.living[id]
	kind := l.jobKind(orders, entries)
	outside, _ := faults.Outside(kind)
	replaced := len(orders) > 1
	more := !replaced && (len(entries) > 1 || len(entries) == 1 && !ended)
	switch {
	case ended && len(entries) == 0:
		wrong("it was enqueued and has no outcome, or it ran and was never enqueued")
		return
	case !outside && len(effects) != done || outside && len(effects) > 0:
		wrong("its effects do not match its successes")
	case more, len(orders) > 0 && len(entries) > len(orders):
		wrong("it has more outcomes than one")
	}
	for _, e := range entries {
		problem := problemOf(e, kind, orders)
		if problem != "" {
			wrong(problem)
		}
	}
	if len(orders) == 0 { // a job of a schedule, by Trigger or Backfill
		return
	}
	of := make(map[string]int)
	for _, e := range effects {
		of[e.Order]++
		its := slices.ContainsFunc(orders, func(o order) bool { return o.Name == e.Order })
		if of[e.Order] > 1 || !its {
			wrong("it ran twice for an order, or for none: " + e.Order)
		}
		if faults.What(e.Order) == faults.Snoozed && e.Began.Before(e.At.Add(faults.SnoozedFor)) {
			wrong("it did not snooze")
		}
	}
	last := orders[len(orders)-1].Name
	writes := ended && !outside && entries[len(entries)-1].is(schedule.OutcomeSucceeded)
	if writes && of[last] != 1 {
		wrong("the last order did not run: " + last)
	}
}

// problemOf returns what is wrong with the outcome of a job; it is empty if the job may have it. Its
// order counts only if no other one has replaced it.
func problemOf(e entry, kind string, orders []order) string {
	_, atMostOnce := faults.Outside(kind)
	what := ""
	if len(orders) == 1 {
		what = faults.What(orders[0].Name)
	}
	retried := len(orders) == 1 && kind == "ordered" && what != faults.Wrong
	exhausted := e.Attempts >= faults.MaxAttempts || strings.Contains(e.Error, crashed)
	switch e.Outcome {
	case schedule.OutcomeCanceled:
	case schedule.OutcomeFailed:
		if e.Error == "" || retried && !exhausted {
			return "it failed without a reason"
		}
	case schedule.OutcomeSucceeded:
		if what == faults.Wrong {
			return "it succeeded, and should have been discarded"
		}
		if what == faults.Flaky && e.Attempts < 2 {
			return "its first attempt should have failed"
		}
	case schedule.OutcomeUnknown:
		if !atMostOnce {
			return "it has an outcome that it must not have"
		}
	default:
		return "it has an outcome that it must not have"
	}
	return ""
}

// jobKind returns the kind of a job, by its order or its schedule.
func (l *Ledger) jobKind(orders []order, entries []entry) string {
	switch {
	case len(orders) > 0:
		return orders[0].Kind
	case len(entries) > 0:
		return l.schedules[entries[0].Name].Kind
	}
	return ""
}

// together is how long two calls may overlap: the time in which a process may notice late that it
// has lost its trust.
const together = oracle.Instant(100 * time.Millisecond)

func (l *Ledger) callsOf(by func(faults.Call) string) map[string][]faults.Call {
	all := make(map[string][]faults.Call)
	for _, c := range l.calls {
		all[by(c)] = append(all[by(c)], c)
	}
	return all
}

// checkCalls checks the calls outside the database.
func (l *Ledger) checkCalls() {
	for key, of := range l.callsOf(func(c faults.Call) string { return c.Idempotency }) {
		_, atMostOnce := faults.Outside(of[0].Kind)
		if atMostOnce && len(of) > 1 && !l.Promoted {
			l.wrong("calls: at most once, and %d times: %+v", len(of), of)
		}
		for i, c := range of[1:] {
			switch before := of[i]; {
			case key == "" || !sameThing(c, before):
				l.wrong("calls: two of different things have one key: %+v and %+v", before, c)
			case c.Epoch < before.Epoch || c.Epoch == before.Epoch && !before.Returned:
				l.wrong("calls: the epoch does not rise: %+v and %+v", before, c)
			}
		}
	}
	for _, of := range l.callsOf(func(c faults.Call) string { return c.Key }) {
		for i, c := range of {
			for _, before := range of[:i] {
				sameOwner := c.Epoch == before.Epoch && c.Worker == before.Worker
				switch end := max(before.Trusted, before.ReturnedAfter); {
				case c.Epoch < before.Epoch:
					l.zombies++
				case sameOwner && end > c.Began, before.Trusted > c.Began+together:
					l.wrong("calls: two overlap under one key: %+v and %+v", before, c)
				}
			}
		}
	}
	l.checkCalled()
}

// sameThing reports whether two calls are for the same tick or order.
func sameThing(a, b faults.Call) bool {
	return a.Name == b.Name && a.Job == b.Job && a.Order == b.Order && a.At.Equal(b.At)
}

// crashed is part of the error of a tick or job that reached its limit of crashes.
const crashed = "processes crashed"

// checkCalled compares calls with the outcomes of their ticks and jobs.
func (l *Ledger) checkCalled() {
	type thing struct {
		tick
		job int64
	}
	calls, entries := make(map[thing][]faults.Call), make(map[thing]entry)
	for _, c := range l.calls {
		k := thing{tickOf(c.Name, c.At), 0}
		if c.Job != 0 {
			k = thing{job: c.Job}
		}
		calls[k] = append(calls[k], c)
	}
	for name, of := range l.history {
		for _, e := range of {
			if l.outside(name) && e.ran() {
				entries[thing{tickOf(name, e.Until), 0}] = e
			}
		}
	}
	for id, of := range l.jobs {
		if outside, _ := faults.Outside(l.jobKind(l.orders[id], of)); outside {
			entries[thing{job: id}] = of[len(of)-1]
		}
	}
	for k, of := range calls {
		_, has := entries[k]
		pending := l.living[k.job] || k.job == 0 && of[0].At.After(l.schedules[k.name].Cursor)
		if !has && !l.Promoted && !pending {
			l.wrong("calls: called, without an outcome: %+v", of)
		}
	}
	for k, e := range entries {
		of := calls[k]
		well := slices.ContainsFunc(of, func(c faults.Call) bool { return c.Returned && c.Error == "" })
		// The outcome of a call may be lost, and the next process crash before it calls.
		failsAlone := e.is(schedule.OutcomeFailed) && len(of) == 1 && !strings.Contains(e.Error, crashed)
		if e.is(schedule.OutcomeSucceeded) && !well || failsAlone && well {
			l.wrong("calls: the outcome %s does not match the calls: %+v, %+v", e.Outcome, e, of)
		}
	}
}

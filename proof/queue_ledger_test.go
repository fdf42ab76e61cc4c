//go:build unix

package proof_test

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/proof/faults"
	"github.com/pgleases/pgleases/proof/tally"
)

// A queueLedger has the rows that were committed to a queue, what became of them, and what the
// handlers did.
type queueLedger struct {
	outside  bool      // the effects are outside the database: each row is handled at least once
	promoted bool      // a standby was promoted that may have missed commits
	killed   time.Time // the primary before; rows that were deleted in the commits that were missed come back, behind later ones
	attempts int       // of a row that does not fail, at most; 0: any number, because faults charge rows
	written  map[string]queueWritten
	left     map[string]bool      // rows in the queue
	dead     map[string]time.Time // dead letters
	handled  []queueHandled       // in order
}

// A queueWritten is a committed row.
type queueWritten struct {
	ID                   int64
	Customer, Name, Kind string
	Version              int
	Deleted              bool
}

// A queueHandled is what a handler wrote about a row.
type queueHandled struct {
	ID                           int64
	Customer, Name, Kind, Worker string
	Version, Partition           int
	Epoch                        int64
	Attempt                      int
	At                           time.Time
	Transaction                  int64
	Committed                    time.Time
}

func (h queueHandled) String() string {
	return fmt.Sprintf("row %d of key %s (%s), attempt %d, by %s in partition %d@%d, at %s in transaction %d", h.ID, h.Customer, h.Kind, h.Attempt, h.Worker,
		h.Partition, h.Epoch, h.At.UTC().Format("15:04:05.000000"), h.Transaction)
}

// The problems that a ledger may have.
const (
	twice     = "handled twice"
	lost      = "lost"
	remains   = "left in the queue"
	phantom   = "handled, but never committed"
	disorder  = "out of order"
	atOnce    = "two of one key at once"
	overtaken = "a blocked row was overtaken"
	outdated  = "handled in an old version only"
	deleted   = "handled after it was deleted"
	zombie    = "handled after a newer epoch"
	halfDone  = "a failed attempt left its effect"
	charged   = "charged for a failure that is not its own"
)

// readQueue reads the tables. receiver has the effects outside; nil: effects are in the database.
func readQueue(t testing.TB, pool, receiver *pgxpool.Pool) *queueLedger {
	t.Helper()
	l := &queueLedger{written: make(map[string]queueWritten), left: make(map[string]bool), dead: make(map[string]time.Time), outside: receiver != nil}
	err := pgx.BeginTxFunc(t.Context(), pool, pgx.TxOptions{IsoLevel: pgx.RepeatableRead}, func(tx pgx.Tx) error { // workers continue
		for _, w := range structs[queueWritten](t, tx, "SELECT id, customer, name, kind, version, deleted FROM app.written") {
			l.written[w.Name] = w
		}
		for _, name := range structs[struct{ Name string }](t, tx, "SELECT name FROM app.outbox") {
			l.left[name.Name] = true
		}
		for _, d := range structs[struct {
			Name string
			At   time.Time
		}](t, tx, "SELECT name, at FROM app.dead UNION ALL SELECT content ->> 'name', died_at FROM pgleases.consumer_dead_letters") {
			l.dead[d.Name] = d.At
		}
		const handled = "SELECT id, customer, name, kind, worker, version, partition, epoch, attempt, at, xmin::text::bigint, %s FROM handled ORDER BY n"
		if l.outside {
			l.handled = structs[queueHandled](t, receiver, fmt.Sprintf(handled, "at"))
		} else {
			l.handled = structs[queueHandled](t, tx, fmt.Sprintf(handled, "pg_xact_commit_timestamp(xmin)"))
		}
		return nil
	})
	testkit.OK(t, err)
	return l
}

// problems returns descriptions of all problems, by kind.
func (l *queueLedger) problems() map[string][]string {
	found := make(map[string][]string)
	add := func(kind, format string, args ...any) {
		found[kind] = append(found[kind], fmt.Sprintf(format, args...))
	}
	committed := map[int64]bool{} // transactions that a handler committed itself
	for _, h := range l.handled {
		committed[h.Transaction] = committed[h.Transaction] || h.Kind == faults.CommitsItself && !l.outside
	}
	spoiled := map[string]bool{} // by name, rows of these transactions: nobody can know what to do with them
	for _, h := range l.handled {
		spoiled[h.Name] = spoiled[h.Name] || committed[h.Transaction]
	}
	stays := map[string]int64{} // by key, the first row that may stay
	first := map[string]int64{} // by key, the first row that is left
	for name := range l.left {
		w := l.written[name]
		if id, ok := stays[w.Customer]; (poisoned(w) || spoiled[name]) && (!ok || w.ID < id) {
			stays[w.Customer] = w.ID
		}
		if id, ok := first[w.Customer]; !ok || w.ID < id {
			first[w.Customer] = w.ID
		}
	}
	dead := map[string][]queueWritten{}
	for name := range l.dead {
		dead[l.written[name].Customer] = append(dead[l.written[name].Customer], l.written[name])
	}
	newest, previous, last := map[int]int64{}, map[string]queueHandled{}, map[string]queueHandled{}
	for _, h := range l.handled {
		w, known := l.written[h.Name]
		switch again, seen := last[h.Name]; {
		case !known && l.outside && l.promoted, l.outside && h.Epoch < newest[h.Partition]: // the receiver drops it
			continue
		case !known:
			add(phantom, "%v", h)
			continue
		case seen && !l.outside && !spoiled[h.Name]:
			add(twice, "%v, and before: %v", h, again)
		case !seen:
			p, any := previous[h.Customer]
			if any && p.ID > h.ID && !(l.outside && p.At.Before(l.killed) && h.At.After(l.killed)) {
				add(disorder, "%v, but before: %v", h, p)
			}
			if any && !l.outside && p.Transaction != h.Transaction && h.At.Before(p.Committed) {
				add(atOnce, "%v, before the commit at %v of %v", h, p.Committed.UTC(), p)
			}
			previous[h.Customer] = h
		}
		last[h.Name] = h
		if h.Epoch < newest[h.Partition] {
			add(zombie, "%v, after epoch %d", h, newest[h.Partition])
		}
		newest[h.Partition] = max(newest[h.Partition], h.Epoch)
		if id, ok := first[h.Customer]; ok && h.ID > id && !spoiled[h.Name] {
			add(overtaken, "%v, but row %d is still in the queue", h, id)
		}
		for _, d := range dead[h.Customer] {
			if d.ID < h.ID && h.At.Before(l.dead[d.Name]) {
				add(overtaken, "%v, but row %d became a dead letter later, at %v", h, d.ID, l.dead[d.Name].UTC())
			}
		}
		if w.Deleted && !l.outside && !spoiled[h.Name] {
			add(deleted, "%v", h)
		}
		most := l.attempts
		if h.Kind == faults.FailsThrice {
			most = max(most, 4)
		}
		switch {
		case spoiled[h.Name]:
		case poisoned(w):
			add(halfDone, "%v", h)
		case l.attempts > 0 && h.Attempt > most:
			add(charged, "%v", h)
		}
	}
	for name, w := range l.written {
		h, handled := last[name]
		_, isDead := l.dead[name]
		stay, blocked := stays[w.Customer]
		switch {
		case l.left[name]:
			if !blocked || w.ID < stay {
				add(remains, "row %d of key %s (%s)", w.ID, w.Customer, w.Kind)
			}
		case isDead:
			if !poisoned(w) {
				add(charged, "row %d of key %s (%s) became a dead letter", w.ID, w.Customer, w.Kind)
			}
		case w.Deleted:
		case !handled:
			add(lost, "row %d of key %s (%s)", w.ID, w.Customer, w.Kind)
		case h.Version != w.Version:
			add(outdated, "%v: version %d, but its last one is %d", h, h.Version, w.Version)
		}
	}
	return found
}

// poisoned reports whether a row must never be handled.
func poisoned(w queueWritten) bool {
	return w.Kind == faults.FailsAlways || w.Kind == faults.KillsProcess || w.Kind == faults.CommitsItself
}

// report fails the test if the ledger has problems.
func (l *queueLedger) report(t testing.TB) {
	t.Helper()
	found := l.problems()
	tally.Checked(t, "rows", len(l.written))
	tally.Violations(t, "queues", 0)
	for _, kind := range slices.Sorted(maps.Keys(found)) {
		tally.Violations(t, "queues", len(found[kind]))
		t.Errorf("%s: %d\n%s", kind, len(found[kind]), found[kind][:min(5, len(found[kind]))])
	}
	again := 0
	for _, h := range l.handled {
		again += min(1, h.Attempt-1)
	}
	t.Logf("%d rows, handled %d times, %d of these in a later attempt; %d left, %d dead letters", len(l.written), len(l.handled), again, len(l.left), len(l.dead))
}

// Each problem is found in a history that has only this one.
func TestQueueLedgerDetector(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		spoil func(*queueLedger)
		finds string
	}{
		"a clean history": {func(*queueLedger) {}, ""},
		twice:             {func(l *queueLedger) { l.handled = append(l.handled, l.handled[4]) }, twice},
		"twice, outside": {func(l *queueLedger) {
			l.outside, l.handled = true, append(l.handled, l.handled[4])
		}, ""},
		lost:    {func(l *queueLedger) { l.handled = l.handled[:4] }, lost},
		remains: {func(l *queueLedger) { l.handled, l.left["5"] = l.handled[:4], true }, remains},
		"left behind a row that may stay": {func(l *queueLedger) {
			w := l.written["4"]
			w.Kind = faults.FailsAlways
			l.written["4"], l.left["4"], l.left["5"], l.handled = w, true, true, l.handled[:3]
		}, ""},
		phantom:  {func(l *queueLedger) { delete(l.written, "5") }, phantom},
		disorder: {func(l *queueLedger) { l.handled[3], l.handled[4] = l.handled[4], l.handled[3]; l.times() }, disorder},
		"a lower epoch, outside": {func(l *queueLedger) {
			late := l.handled[3]
			late.Epoch--
			l.outside, l.handled = true, append(l.handled, late)
		}, ""},
		atOnce:    {func(l *queueLedger) { l.handled[3].Committed = l.handled[4].At.Add(time.Microsecond) }, atOnce},
		overtaken: {func(l *queueLedger) { l.handled = slices.Delete(l.handled, 3, 4); l.left["4"] = true; l.poison("4") }, overtaken},
		"a dead letter was overtaken": {func(l *queueLedger) {
			l.poison("4")
			l.dead["4"], l.handled = l.handled[4].At.Add(time.Microsecond), slices.Delete(l.handled, 3, 4)
		}, overtaken},
		outdated:                     {func(l *queueLedger) { l.handled[4].Version = 0 }, outdated},
		deleted:                      {func(l *queueLedger) { w := l.written["5"]; w.Deleted = true; l.written["5"] = w }, deleted},
		zombie:                       {func(l *queueLedger) { l.handled[4].Epoch-- }, zombie},
		halfDone:                     {func(l *queueLedger) { l.poison("5") }, halfDone},
		charged:                      {func(l *queueLedger) { l.handled[4].Attempt = 2 }, charged},
		"a dead letter did not fail": {func(l *queueLedger) { l.handled, l.dead["5"] = l.handled[:4], l.handled[4].At }, charged},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := &queueLedger{attempts: 1, written: map[string]queueWritten{}, left: map[string]bool{}, dead: map[string]time.Time{}}
			for i := int64(1); i <= 5; i++ {
				w := queueWritten{ID: i, Customer: fmt.Sprint(i / 3), Name: fmt.Sprint(i), Kind: faults.Good, Version: 1}
				l.written[w.Name] = w
				l.handled = append(l.handled, queueHandled{ID: w.ID, Customer: w.Customer, Name: w.Name, Kind: w.Kind, Version: 1, Epoch: 7, Attempt: 1, Transaction: i})
			}
			l.times()
			test.spoil(l)
			found := slices.Collect(maps.Keys(l.problems()))
			if test.finds == "" && len(found) > 0 || test.finds != "" && !slices.Equal(found, []string{test.finds}) {
				t.Errorf("found %v", l.problems())
			}
		})
	}
}

// times gives each effect its time, and a commit before the next.
func (l *queueLedger) times() {
	for i := range l.handled {
		l.handled[i].At = time.Unix(int64(i), 0)
		l.handled[i].Committed = l.handled[i].At.Add(time.Millisecond)
	}
}

func (l *queueLedger) poison(name string) {
	w := l.written[name]
	w.Kind = faults.FailsAlways
	l.written[name] = w
}

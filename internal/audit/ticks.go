package audit

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/schedule"
)

// A group is a group of schedules.
type group struct {
	from  time.Time // the history has all entries from here on; zero: that is not known
	epoch *int64    // the highest of its lease
}

func (a *auditor) groups(ctx context.Context) (map[string]group, error) {
	all := make(map[string]group)
	err := a.each(ctx, "groups", func(rows pgx.Rows) error {
		var name string
		var written *time.Time
		g := group{}
		if err := rows.Scan(&name, &written, &g.epoch); err != nil {
			return err
		}
		if written != nil {
			g.from = when.Later(a.period.from, written.UTC()).Add(tolerance)
		}
		all[name] = g
		return nil
	})
	return all, err
}

// An entry is a row of the history for ticks of a schedule. All are nil for a schedule without
// entries in the period.
type entry struct {
	id, ticks    *int64
	since, until *time.Time
	outcome      *string
	epoch        *int64
	started      *time.Time
}

func (e *entry) String() string {
	text := fmt.Sprintf("history %d: %s, %d ticks after %s until %s",
		*e.id, *e.outcome, *e.ticks, stamp(*e.since), stamp(*e.until))
	if e.epoch != nil {
		text += fmt.Sprintf(", epoch %d", *e.epoch)
	}
	return text
}

// A ticking replays the entries of one schedule.
type ticking struct {
	id             int64
	group, name    string
	rule           *string // nil: the schedule was deleted, or cannot be read
	anchor, cursor *time.Time
	revision       *int64

	parsed schedule.Rule
	known  bool // the rule is known, from since on
	since  time.Time
	after  schedule.Tick // all ticks up to here have their outcome, as far as the records cover that
	last   *entry
	epoch  *entry // with the highest epoch

	ticks, uncounted int64
}

func (t *ticking) subject() string { return fmt.Sprintf("schedule %q of group %q", t.name, t.group) }

// begin begins with the first entry. The rule is known since the anchor, which moves when the rule
// is edited. If the clock was set back before that, the ticks of the rule before are counted a little
// later than the anchor.
func (t *ticking) begin(from time.Time) {
	if t.rule == nil || from.IsZero() {
		return
	}
	rule, err := schedule.Parse(*t.rule)
	if err != nil {
		return
	}
	t.parsed, t.known = rule, true
	t.since = when.Later(from, t.anchor.Add(tolerance))
	t.after = t.reach(t.since)
}

// reach returns the last tick up to an instant, if it is less than three hours before: its local
// time says which ticks of an hour that the clocks repeat have passed.
func (t *ticking) reach(at time.Time) schedule.Tick {
	after := schedule.Tick{At: at}
	begin := schedule.Tick{At: when.Later(at.Add(-3*time.Hour), *t.anchor)}
	for tick := range t.between(begin, at) {
		after.Local = tick.Local
	}
	return after
}

// between yields the ticks after a tick, up to an instant.
func (t *ticking) between(after schedule.Tick, until time.Time) iter.Seq[schedule.Tick] {
	return func(yield func(schedule.Tick) bool) {
		for {
			next, ok := t.parsed.Next(*t.anchor, after)
			if !ok || next.At.After(until) || !yield(next) {
				return
			}
			after = next
		}
	}
}

func (t *ticking) replay(e *entry, highest *int64) error {
	wrong := func(text string, records ...string) error {
		return violated(t.subject(), text, append(records, e.String())...)
	}
	t.ticks += *e.ticks
	ran := ranOutcome(*e.outcome)
	switch {
	case !e.until.After(*e.since):
		return wrong("an entry ends before it begins")
	case t.last != nil && e.since.Before(*t.last.until):
		return wrong("two entries cover the same ticks, so a tick has two outcomes", t.last.String())
	case !ran && *e.outcome != "missed" && *e.outcome != "skipped" && *e.outcome != "canceled":
		return wrong("that is no outcome")
	case ran && (*e.ticks != 1 || e.epoch == nil || e.started == nil):
		return wrong("a run is of one tick, and has an epoch and a begin")
	case ran && e.started.Add(time.Second).Before(*e.until):
		return wrong(fmt.Sprintf("it ran at %s, before its tick", stamp(*e.started)))
	case e.epoch != nil && highest != nil && *e.epoch > *highest:
		return wrong(fmt.Sprintf("its epoch is above all epochs of the lease, of which the highest is %d", *highest))
	// The schedule may be in another partition now, so only the server generation rises for certain.
	case e.epoch != nil && t.epoch != nil && *e.epoch>>32 < *t.epoch.epoch>>32:
		return wrong("the server generation of its epoch fell", t.epoch.String())
	}
	if e.epoch != nil {
		t.epoch = e
	}
	err := t.recount(e, wrong)
	t.last = e
	return err
}

// recount compares an entry with the ticks of the rule: those that it covers, and those between the
// entry before and it.
func (t *ticking) recount(e *entry, wrong func(string, ...string) error) error {
	if !t.known || e.since.Before(t.since) {
		t.uncounted += *e.ticks
		if t.known && e.until.After(t.after.At) {
			t.after = t.reach(*e.until)
		}
		return nil
	}
	if e.since.After(t.after.At) {
		if lost := t.next(*e.since); lost != nil {
			return wrong(fmt.Sprintf("its tick of %s has no outcome", stamp(*lost)), t.recorded()...)
		}
	}
	after := t.after
	if !after.At.Equal(*e.since) {
		after = t.reach(*e.since)
	}
	n := int64(0)
	for tick := range t.between(after, *e.until) {
		n++
		after = tick
	}
	switch {
	case n != *e.ticks:
		return wrong(fmt.Sprintf("the rule %s has %d ticks there", *t.rule, n))
	case !after.At.Equal(*e.until):
		return wrong(fmt.Sprintf("it ends at no tick of the rule %s", *t.rule))
	case after.At.After(t.after.At):
		t.after = after
	}
	return nil
}

// recorded returns the last entry, if there is one.
func (t *ticking) recorded() []string {
	if t.last == nil {
		return nil
	}
	return []string{t.last.String()}
}

// end checks that no tick is lost between the last entry and the cursor.
func (t *ticking) end() error {
	if !t.known || !t.cursor.After(t.after.At) {
		return nil
	}
	if lost := t.next(*t.cursor); lost != nil {
		return violated(t.subject(), fmt.Sprintf("its tick of %s has no outcome", stamp(*lost)),
			append(t.recorded(), "table schedules: cursor "+stamp(*t.cursor))...)
	}
	return nil
}

// next returns the first tick that has no outcome yet, up to an instant; nil: there is no such tick.
func (t *ticking) next(until time.Time) *time.Time {
	next, ok := t.parsed.Next(*t.anchor, t.after)
	if !ok || next.At.After(until) {
		return nil
	}
	return &next.At
}

func ranOutcome(outcome string) bool {
	return outcome == "succeeded" || outcome == "failed" || outcome == "unknown"
}

func (a *auditor) checkTicks(ctx context.Context, part *Part) error {
	groups, err := a.groups(ctx)
	if err != nil {
		return err
	}
	var present *ticking
	var schedules, ticks, uncounted int64
	finish := func() error {
		if present == nil {
			return nil
		}
		schedules++
		ticks += present.ticks
		uncounted += present.uncounted
		return present.end()
	}
	err = a.each(ctx, "ticks", func(rows pgx.Rows) error {
		t, e := &ticking{}, &entry{}
		err := rows.Scan(&t.id, &t.group, &t.name, &t.rule, &t.anchor, &t.cursor, &t.revision,
			&e.id, &e.since, &e.until, &e.ticks, &e.outcome, &e.epoch, &e.started)
		if err != nil {
			return err
		}
		if present == nil || present.id != t.id {
			if err := finish(); err != nil {
				return err
			}
			present = t
			present.begin(groups[t.group].from)
		}
		if e.id == nil {
			return nil
		}
		return present.replay(e, groups[present.group].epoch)
	}, a.period.from)
	if err == nil {
		err = finish()
	}
	if err != nil {
		return err
	}
	part.count(schedules, "schedules")
	part.count(ticks, "ticks with one outcome each")
	a.uncovered(part, groups)
	if uncounted > 0 {
		const text = "whether a rule had %d of these ticks: it was edited or deleted, or the history begins later"
		part.unchecked(text, uncounted)
	}
	return a.checkOwners(ctx)
}

// uncovered says of which groups the history begins later than the period.
func (a *auditor) uncovered(part *Part, groups map[string]group) {
	for name, g := range groups {
		switch {
		case g.from.IsZero():
			const text = "lost ticks of group %q: its history has only failures, so it is not known where it begins"
			part.unchecked(text, name)
		case g.from.After(a.period.from.Add(tolerance)):
			part.unchecked("lost ticks of group %q before %s: its history begins there", name, stamp(g.from))
		}
	}
}

// checkOwners compares the epochs that runs have recorded with those of the partitions.
func (a *auditor) checkOwners(ctx context.Context) error {
	return a.each(ctx, "owners", func(rows pgx.Rows) error {
		var lease, what string
		var number int32
		var epoch, highest int64
		if err := rows.Scan(&lease, &number, &epoch, &what, &highest); err != nil {
			return err
		}
		return notAbove(lease, number, what, epoch, highest)
	})
}

// notAbove returns a violation if a recorded epoch is above that of its partition.
func notAbove(lease string, number int32, what string, epoch, highest int64) error {
	if epoch <= highest {
		return nil
	}
	text := fmt.Sprintf("its epoch fell: %s had epoch %d", what, epoch)
	subject := fmt.Sprintf("partition %d of lease %q", number, lease)
	return violated(subject, text, fmt.Sprintf("table partitions: epoch %d", highest))
}

package audit

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/when"
)

// An event is a row of the table events.
type event struct {
	id             int64
	at             time.Time
	lease, cause   string
	from           string
	to             *string // nil: no client
	firsts, beyond []int32 // of the ranges of partitions
	generation     *int64
}

func (e *event) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s event %d: %s", stamp(e.at), e.id, e.cause)
	if e.lease != "" {
		fmt.Fprintf(&b, ", lease %q", e.lease)
	}
	for i, first := range e.firsts {
		fmt.Fprintf(&b, ", partitions %d to %d", first, e.beyond[i]-1)
	}
	if e.from != "" {
		fmt.Fprintf(&b, ", from %q", e.from)
	}
	if e.to != nil {
		fmt.Fprintf(&b, ", to %q", *e.to)
	}
	return b.String()
}

// An ownership is what the events say of a partition so far.
type ownership struct {
	client  string // the owner, or the last one
	owns    bool
	last    *event // which says so
	changes int64
}

// An eviction is when a client was last evicted, by the clock and by the order of events.
type eviction struct {
	at time.Time
	id int64
}

// leases replays the events.
type leases struct {
	from       time.Time // of the period
	partitions map[string]map[int32]*ownership
	evicted    map[string]*eviction // by client: its last one
	generation map[string]*event    // by lease: the last event whose generation has an order
	accepted   *event               // the last server that was accepted
	epochs     int64                // its server generation

	events, moves, evictions int64
}

// resets are the causes after which a lease has no partitions, or others.
var resets = []string{"dropped", "replaced"}

// ordered are the causes whose statements have the lease's row locked, so that its generation
// cannot rise meanwhile.
var ordered = []string{"joined", "left", "given", "dropped"}

func (l *leases) replay(e *event) error {
	l.events++
	switch {
	case e.cause == "evicted":
		l.evictions++
		last := eviction{e.at, e.id}
		if before := l.evicted[e.from]; before != nil {
			last.at = when.Later(e.at, before.at)
		}
		l.evicted[e.from] = &last
	case e.cause == "accepted" || e.cause == "new generation":
		l.accepted = e
		if e.generation != nil {
			l.epochs = *e.generation
		}
	case e.cause == "handed over" || e.cause == "given":
		for i, first := range e.firsts {
			for n := first; n < e.beyond[i]; n++ {
				if err := l.move(e, n); err != nil {
					return err
				}
			}
		}
	}
	if slices.Contains(ordered, e.cause) && e.generation != nil {
		before := l.generation[e.lease]
		if before != nil && *before.generation > *e.generation {
			text := fmt.Sprintf("its generation fell from %d to %d", *before.generation, *e.generation)
			return violated(fmt.Sprintf("lease %q", e.lease), text, before.String(), e.String())
		}
		l.generation[e.lease] = e
	}
	if slices.Contains(resets, e.cause) {
		delete(l.partitions, e.lease)
	}
	return nil
}

// move replays the change of one partition. The first one in the period shows who owned it before.
func (l *leases) move(e *event, n int32) error {
	l.moves++
	all := l.partitions[e.lease]
	if all == nil {
		all = make(map[int32]*ownership)
		l.partitions[e.lease] = all
	}
	subject := fmt.Sprintf("partition %d of lease %q", n, e.lease)
	o, known := all[n]
	switch {
	case e.cause == "handed over" && e.from == "":
		return violated(subject, "no client handed it over", e.String())
	case !known:
		o = &ownership{}
		all[n] = o
	case e.from != o.client:
		text := fmt.Sprintf("it changed from %q, but %q was its owner: it had two, or lacks an event", e.from, o.client)
		return violated(subject, text, o.last.String(), e.String())
	case e.cause == "handed over" && !o.owns:
		text := fmt.Sprintf("%q handed it over, but did not own it any more", e.from)
		return violated(subject, text, o.last.String(), e.String())
	case e.cause == "given" && o.owns && l.outlived(o):
		text := fmt.Sprintf("it was given away while %q owned it, which was not evicted: it had two owners", e.from)
		return violated(subject, text, o.last.String(), e.String())
	}
	o.changes++
	o.last = e
	o.owns = e.to != nil
	o.client = e.from
	if e.to != nil {
		o.client = *e.to
	}
	return nil
}

// outlived reports whether the owner has certainly not been evicted since it became the owner,
// neither by the clock nor by the order of events.
func (l *leases) outlived(o *ownership) bool {
	begun := o.last.at.Add(-tolerance)
	if begun.Before(l.from) {
		return false
	}
	last := l.evicted[o.client]
	return last == nil || last.at.Before(begun) && last.id < o.last.id
}

// A partition is a row of the table partitions.
type partition struct {
	lease         string
	number        int32
	owned         bool
	client        string // the owner, or the last one
	epoch, floor  int64
	sessionClient string // which has the owner's session; empty: it has ended
}

func (p *partition) String() string {
	state := "not owned, last by"
	if p.owned {
		state = "owned by"
	}
	return fmt.Sprintf("table partitions: %s %q, epoch %d", state, p.client, p.epoch)
}

// compare compares a partition with what the events say of it. server is the present server
// generation.
func (l *leases) compare(p *partition, server int64) error {
	subject := fmt.Sprintf("partition %d of lease %q", p.number, p.lease)
	o := l.partitions[p.lease][p.number]
	delete(l.partitions[p.lease], p.number)
	switch {
	case p.epoch < p.floor:
		text := fmt.Sprintf("its epoch fell below %d, which an earlier lease of this name has reached", p.floor)
		return violated(subject, text, p.String())
	case p.epoch>>32 > server:
		text := fmt.Sprintf("its epoch is of server generation %d, and the server has %d", p.epoch>>32, server)
		return violated(subject, text, p.String())
	case p.sessionClient != "" && p.sessionClient != p.client:
		return violated(subject, fmt.Sprintf("its owner's session is that of client %q", p.sessionClient), p.String())
	case o == nil:
		return nil
	case p.client != o.client || p.owned != o.owns:
		text := "its owner is not the one that the events have, so a change has no event"
		return violated(subject, text, o.last.String(), p.String())
	case p.epoch < o.changes:
		text := fmt.Sprintf("its epoch fell: its owner changed %d times", o.changes)
		return violated(subject, text, o.last.String(), p.String())
	case l.changedSince(o) && p.epoch>>32 < l.epochs:
		text := fmt.Sprintf("its epoch is of server generation %d, but its owner changed after generation %d had begun",
			p.epoch>>32, l.epochs)
		return violated(subject, text, l.accepted.String(), o.last.String(), p.String())
	}
	return nil
}

// changedSince reports whether a partition has certainly changed its owner since the server was
// accepted, by the clock and by the order of events.
func (l *leases) changedSince(o *ownership) bool {
	return l.accepted != nil && o.last.id > l.accepted.id && o.last.at.After(l.accepted.at.Add(tolerance))
}

// rest returns a violation if the events know of partitions that the table lacks.
func (l *leases) rest() error {
	for _, lease := range slices.Sorted(maps.Keys(l.partitions)) {
		for _, n := range slices.Sorted(maps.Keys(l.partitions[lease])) {
			o := l.partitions[lease][n]
			subject := fmt.Sprintf("partition %d of lease %q", n, lease)
			return violated(subject, "it is gone, and no event dropped its lease", o.last.String())
		}
	}
	return nil
}

// eventsFrom returns from when on all events are left.
func (p *period) eventsFrom() time.Time {
	from := p.from
	if p.kept != nil && *p.kept < p.now.Sub(from).Seconds() {
		from = p.now.Add(-time.Duration(*p.kept * float64(time.Second))).Add(tolerance)
	}
	if p.firstID != nil && *p.firstID > 1 {
		from = when.Later(from, p.firstAt.Add(tolerance))
	}
	return from.UTC()
}

func (a *auditor) checkLeases(ctx context.Context, part *Part) error {
	part.From = a.period.eventsFrom()
	l := &leases{
		from: part.From, partitions: make(map[string]map[int32]*ownership), evicted: make(map[string]*eviction),
		generation: make(map[string]*event),
	}
	err := a.each(ctx, "events", func(rows pgx.Rows) error {
		e := &event{}
		err := rows.Scan(&e.id, &e.at, &e.lease, &e.cause, &e.from, &e.to,
			&e.firsts, &e.beyond, &e.generation)
		if err != nil {
			return err
		}
		return l.replay(e)
	}, part.From)
	if err != nil {
		return err
	}
	partitions := int64(0)
	err = a.each(ctx, "partitions", func(rows pgx.Rows) error {
		p := &partition{}
		partitions++
		err := rows.Scan(&p.lease, &p.number, &p.owned, &p.client, &p.epoch, &p.floor, &p.sessionClient)
		if err != nil {
			return err
		}
		return l.compare(p, a.period.generation)
	})
	if err != nil {
		return err
	}
	part.count(l.events, "events")
	part.count(l.moves, "changes of owners")
	part.count(partitions, "partitions")
	part.count(l.evictions, "evictions")
	part.unchecked("the epoch of each change: events have no epochs, so only the epochs that are left are compared")
	return l.rest()
}

func (a *auditor) checkLocks(ctx context.Context, part *Part) error {
	part.From = a.period.now.UTC()
	locks := int64(0)
	err := a.each(ctx, "locks", func(rows pgx.Rows) error {
		var name string
		var holders, first, last int64
		var shared bool
		locks++
		if err := rows.Scan(&name, &holders, &shared, &first, &last); err != nil {
			return err
		}
		if holders > 1 && !shared {
			text := fmt.Sprintf("%d sessions hold it, and not all of them share it", holders)
			record := fmt.Sprintf("table locks: tokens %d to %d", first, last)
			return violated(fmt.Sprintf("lock %q", name), text, record)
		}
		return nil
	})
	part.count(locks, "locks that are held now")
	part.unchecked("earlier holders: locks leave no records")
	return err
}

package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/store"
)

const (
	// old is the age from which an override without an end is reported.
	old = 24 * time.Hour

	// stays is the time after which orphans are reported: a plan in progress assigns them in much
	// less.
	stays = 3 * time.Second
)

// partitionFor finds the number of partitions in the expression of a generated column.
var partitionFor = regexp.MustCompile(`partition_for\(.*, (\d+)\)$`)

// columns checks whether a column is generated for a number of partitions that no lease has, or the
// column of a consumer for another than its lease has.
func (d *doctor) columns(context.Context) {
	numbers := make(map[string]bool)
	for _, l := range d.snapshot.Leases {
		if !strings.HasPrefix(l.Name, "schedule/") {
			numbers[strconv.Itoa(l.Partitions)] = true
		}
	}
	var wrong, others []string
	for _, c := range d.Columns {
		m := partitionFor.FindStringSubmatch(c.Expression)
		if m == nil {
			continue
		}
		consumer := d.columnsOf[c.Name]
		lease := d.snapshot.Lease("consumer/" + consumer)
		switch {
		case consumer != "" && lease != nil:
			n := strconv.Itoa(lease.Partitions)
			if n != m[1] {
				others = append(others, fmt.Sprintf("%s for %s, and consumer %q has %s", c.Name, m[1], consumer, n))
			}
		case !numbers[m[1]] && len(numbers) > 0:
			wrong = append(wrong, fmt.Sprintf("%s for %s", c.Name, m[1]))
		}
	}
	switch {
	case len(others) > 0:
		d.found(LevelFault, "rows of a partition that the lease does not have are not handled: "+
			"end the consumer's processes, pgleases drop LEASE --partitions N --reason '...', and start them",
			"generated for another number of partitions than the lease has: %s", listed(others))
	case len(wrong) > 0:
		d.found(LevelWarning, "start the consumer that reads it; if none does, drop the column, "+
			"or generate it for the number of its lease: otherwise some rows have no owner",
			"generated for a number of partitions that no lease has: %s; leases have %s",
			listed(wrong), listed(slices.Collect(maps.Keys(numbers))))
	}
	d.fine("none is generated for a number of partitions that no lease has")
}

// cutOff says which eviction cut off an owner of a lease, as far as the events show it.
func (d *doctor) cutOff(l *Lease) string {
	for _, h := range l.Holdings {
		evicted := d.lastEviction(h.LastOwner)
		if evicted >= 0 {
			e := d.events[evicted]
			since := when("since", e.At, d.snapshot.At)
			return fmt.Sprintf("%s, when its last owner %q, %s, was evicted", since, e.From, e.Reason)
		}
	}
	return ""
}

// A desertion is what keeps leases from having a member that works.
type desertion struct {
	except bool     // a lease is paused, or no process runs it
	leases []string // which no client works on
	drains []string // which cause that
	left   []string // leases that all clients have left, for example those of pgleases run --once from cron
}

func (d *doctor) deserted() (all desertion) {
	for i := range d.snapshot.Leases {
		l := &d.snapshot.Leases[i]
		switch {
		case d.snapshot.Pause(l) != nil:
			all.except = true
		case l.Left:
			all.except = true
			if !strings.HasPrefix(l.Name, "consumer/") { // the check consumers says so, unless it was deleted
				all.left = append(all.left, fmt.Sprintf("%q", l.Name))
			}
		case len(l.Members) == 0:
			all.leases = append(all.leases, fmt.Sprintf("%q%s", l.Name, d.cutOff(l)))
		case d.snapshot.working(l) == 0:
			all.leases = append(all.leases, idle(l))
			for _, w := range d.snapshot.drains(l) {
				all.drains = append(all.drains, w.summary())
			}
		}
	}
	return all
}

// idle names a lease without members that work, with those of weight 0.
func idle(l *Lease) string {
	var weightless []string
	for _, m := range l.Members {
		if m.Weight == 0 {
			weightless = append(weightless, fmt.Sprintf("%q", m.Client))
		}
	}
	if len(weightless) == 0 {
		return fmt.Sprintf("%q", l.Name)
	}
	return fmt.Sprintf("%q (of weight 0, for example because the client ends: %s)", l.Name, listed(weightless))
}

// orphans reports partitions without a live owner, or if there are none, leases that no client
// works on, with the drains that cause that, or if there are none, leases that all clients have
// left.
func (d *doctor) orphans(ctx context.Context) {
	orphans, deserted := d.lastingOrphans(ctx), d.deserted()
	drop := "; if the lease is not needed any more, pgleases drop LEASE --reason '...' deletes it"
	switch {
	case len(orphans) > 0:
		d.withoutOwner(orphans)
	case len(deserted.drains) > 0:
		d.found(LevelFault, "pgleases undrain CLIENT --reason '...' for each of them, or start another process"+drop,
			"no client works on %s; %s", listed(deserted.leases), listed(deserted.drains))
	case len(deserted.leases) > 0:
		d.found(LevelFault, "start a process"+drop, "no client works on %s", listed(deserted.leases))
	case len(deserted.left) > 0:
		d.found(LevelNote, "start a process if one should run now"+drop,
			"no process runs, as after pgleases run --once: %s", listed(deserted.left))
	}
	if deserted.except {
		d.fine("each partition has an owner, except of leases that are paused or that no process runs")
	}
	d.fine("each partition has an owner")
}

// withoutOwner reports orphans, by lease.
func (d *doctor) withoutOwner(orphans map[string]Ranges) {
	names := slices.Sorted(maps.Keys(orphans))
	var all []string
	for _, name := range names {
		all = append(all, fmt.Sprintf("%q %v%s", name, orphans[name], d.orphanedSince(d.snapshot.Lease(name))))
	}
	text := "partitions that no live client owns: " + listed(all)
	if d.rowsLocked() {
		d.found(LevelFault, "end what row-locks names", "%s", text)
		return
	}
	if d.snapshot.live("") {
		one := fmt.Sprintf("%s/%d", names[0], orphans[names[0]][0][0])
		d.found(LevelFault, findOutWhy(one), "%s", text)
		return
	}
	var last []string
	for _, c := range d.snapshot.Clients {
		last = append(last, fmt.Sprintf("%q (host %s, pid %d)", c.ID, shell.Word(c.Host), c.PID))
	}
	d.found(LevelFault, "continue or restart them; kill -9 what is frozen",
		"%s; no client is live, the last were %s", text, listed(last))
}

// orphanedSince says since when the first partition of a lease has no live owner, as far as that is
// known: since the session of its owner expired, or since its last owner was evicted.
func (d *doctor) orphanedSince(l *Lease) string {
	var first time.Time
	for _, h := range l.Holdings {
		var at time.Time
		c := d.snapshot.Client(h.OwnerSession)
		switch i := d.lastEviction(h.LastOwner); {
		case c != nil && c.Expired:
			at = d.snapshot.At.Add(c.TTL - c.HeartbeatAge)
		case c == nil && i >= 0:
			at = d.events[i].At
		}
		if first.IsZero() || !at.IsZero() && at.Before(first) {
			first = at
		}
	}
	return when("since", first, d.snapshot.At)
}

// lastEviction returns the place of the last eviction of a client among the events, or -1.
func (d *doctor) lastEviction(client string) int {
	return slices.IndexFunc(d.events, func(e Event) bool { return e.Cause == causeEvicted && e.From == client })
}

// findOutWhy returns how to find out why a partition has no owner.
func findOutWhy(partition string) string {
	return fmt.Sprintf("pgleases explain %s says what that one waits for, such as the TTL of a client that crashed\n"+
		"if that is a transaction: "+
		"pgleases doctor --long 1s: if it warns of one of the last owner's process, end that\n"+
		"if that is a plan or an eviction, for more than a minute: "+
		"search the logs of the clients for plan failed and evict, and restart one", shell.Word(partition))
}

// lastingOrphans returns the partitions, by lease, that have no live owner for the time stays.
func (d *doctor) lastingOrphans(ctx context.Context) map[string]Ranges {
	orphans := orphansOf(d.snapshot)
	for late := time.Now().Add(stays); len(orphans) > 0 && time.Now().Before(late) && ctx.Err() == nil; {
		store.Pause(ctx, 200*time.Millisecond)
		again, err := d.readSnapshot(ctx, d.conn.Conn(), begin+settings)
		if err != nil {
			break
		}
		now := orphansOf(again)
		maps.DeleteFunc(orphans, func(name string, lost Ranges) bool {
			orphans[name] = lost.common(now[name])
			return len(orphans[name]) == 0
		})
	}
	return orphans
}

// orphansOf returns, by lease, the orphans of leases with a working member.
func orphansOf(s *Snapshot) map[string]Ranges {
	orphans := make(map[string]Ranges)
	for i := range s.Leases {
		l := &s.Leases[i]
		lost := s.Orphans(l)
		byCeilings := lost.Count() <= l.Unowned // the check ceilings says so
		if len(lost) > 0 && s.working(l) > 0 && !byCeilings {
			orphans[l.Name] = lost
		}
	}
	return orphans
}

// ceilings reports leases whose members are at their ceilings while partitions have no owner.
func (d *doctor) ceilings(context.Context) {
	var low []string
	for i := range d.snapshot.Leases {
		l := &d.snapshot.Leases[i]
		if l.Unowned > 0 && d.snapshot.Pause(l) == nil && d.snapshot.working(l) > 0 {
			text := cmp.Or(d.snapshot.ceilings(l), "members have changed since")
			low = append(low, fmt.Sprintf("%q has %d (%s)", l.Name, l.Unowned, text))
		}
	}
	if len(low) > 0 {
		d.found(LevelFault, "start more processes, or raise WithMaxPartitions",
			"partitions have no owner, because all members are at their ceilings: %s", listed(low))
	}
	d.fine("no partition is without an owner because of ceilings")
}

// shares reports leases with members that own nothing.
func (d *doctor) shares(context.Context) {
	var crowded []string
	for i := range d.snapshot.Leases {
		l := &d.snapshot.Leases[i]
		live := 0
		for _, m := range l.Members {
			if !d.snapshot.Client(m.Session).Expired {
				live++
			}
		}
		single := l.Partitions == 1 // it has a leader, and others stand by
		if live > l.Partitions && !single && d.snapshot.Pause(l) == nil {
			crowded = append(crowded, fmt.Sprintf("%q has %d for %d members", l.Name, l.Partitions, live))
		}
	}
	if len(crowded) > 0 {
		d.found(LevelNote, "run fewer processes, or drop the lease and create it with more partitions",
			"some members own nothing: %s", listed(crowded))
	}
	d.fine("no lease has fewer partitions than members")
}

// plans reports leases whose plan is overdue, although members could make it.
func (d *doctor) plans(context.Context) {
	var overdue []string
	for i := range d.snapshot.Leases {
		l := &d.snapshot.Leases[i]
		late := d.snapshot.At.Sub(l.Due)
		if !l.Due.IsZero() && late > d.Long && d.snapshot.Pause(l) == nil && d.snapshot.working(l) > 0 {
			overdue = append(overdue, fmt.Sprintf("%q%s", l.Name, when("since", l.Due, d.snapshot.At)))
		}
	}
	if len(overdue) > 0 {
		d.found(LevelWarning, "search the logs of the members for plan failed", "overdue: %s", listed(overdue))
	}
	d.fine("no plan is overdue")
}

// overrides reports those without an end that stop all work on a lease, or are old.
func (d *doctor) overrides(context.Context) {
	texts, takeBack := make(map[Level][]string), make(map[Level][]string)
	for _, w := range d.snapshot.Overrides {
		age := d.snapshot.At.Sub(w.Since)
		switch {
		case !w.Until.IsZero():
		case d.snapshot.stops(w):
			level := LevelNote
			if age > time.Hour {
				level = LevelWarning
			}
			texts[level] = append(texts[level], w.effect(d.snapshot.At))
			takeBack[level] = append(takeBack[level], "when it may go on: "+w.back())
		case age > old:
			texts[LevelNote] = append(texts[LevelNote], "older than a day, without an end: "+w.summary())
			takeBack[LevelNote] = append(takeBack[LevelNote], "if it is no longer needed: "+w.back())
		}
	}
	for _, level := range []Level{LevelWarning, LevelNote} {
		if len(texts[level]) > 0 {
			d.found(level, remedies(nil, takeBack[level]), "%s", listed(texts[level]))
		}
	}
	d.fine("%d, all of them recent or with an end", len(d.snapshot.Overrides))
}

// handoffs reports those that take too long.
func (d *doctor) handoffs(context.Context) {
	var all, unblocked []string
	for i := range d.snapshot.Leases {
		l := &d.snapshot.Leases[i]
		for _, h := range l.Holdings {
			waits := d.snapshot.At.Sub(h.Asked)
			if !h.Moves() || waits <= d.Long {
				continue
			}
			since := when("since", h.Asked, d.snapshot.At)
			all = append(all, fmt.Sprintf("%q %v of client %q%s", l.Name, h.Partitions, h.Owner, since))
			unblocked = append(unblocked, unblock(d.snapshot.Client(h.OwnerSession)))
		}
	}
	if len(all) > 0 {
		d.found(LevelWarning, remedies(nil, unblocked), "asked for and not handed over: %s", listed(all))
	}
	d.fine("no handoff takes more than %v", d.Long)
}

// unblock returns what helps if a client does not hand over.
func unblock(c *Client) string {
	return fmt.Sprintf("if the work on it may take that long, wait\n"+
		"pgleases doctor --long 1s: if it warns of a transaction of that process, end that first\n"+
		"if the work hangs: kill -9 %d on host %s (%s); SIGTERM would wait for the work\n"+
		"if you cannot reach it: pgleases evict %[3]s --reason '...'; after a TTL, pgleases list shows MOVING 0",
		c.PID, shell.Word(c.Host), shell.Word(c.ID))
}

package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/admin"
)

// The past of a partition, which explain --at shows.

// A Past is who owned a partition at a time.
type Past struct {
	Lease     string    `json:"lease"`
	Partition int       `json:"partition"`
	At        time.Time `json:"at"`
	// Since is the start of what was read. A spell that began before has this time and no cause.
	Since  time.Time    `json:"since"`
	Spell  *admin.Spell `json:"spell"`  // nil: no event says who owned it
	Before *admin.Spell `json:"before"` // the spell before it; nil: not known
	After  *admin.Spell `json:"after"`  // the spell after it; nil: it has not ended
	// Those of the 5 minutes until the spell began, and until it ended. The oldest is first.
	Events []admin.Event `json:"events"`
}

const day = 24 * time.Hour

// pastOf returns who owned a partition at a time.
func pastOf(ctx context.Context, a *admin.Admin, lease string, partition int, text string) (*Past, error) {
	kept, now, err := a.Kept(ctx)
	if err != nil {
		return nil, err
	}
	at, err := timeOf(text, now)
	switch {
	case err != nil:
		return nil, err
	case at.Before(kept):
		return nil, fmt.Errorf("--at %s: it was before %s UTC, and older events are not kept", text, utc(kept))
	}
	past := &Past{Lease: lease, Partition: partition, At: at}
	all := at.Sub(kept)
	for _, back := range []time.Duration{min(day, all), min(7*day, all), all} {
		life, err := a.Life(ctx, admin.Period{From: at.Add(-back)}, lease, partition)
		switch {
		case err != nil && past.Spell != nil: // a longer past takes longer
			return past, nil
		case err != nil:
			return nil, err
		case life.Since.After(at):
			return nil, fmt.Errorf("--at %s: it was before %s UTC, and more events came after that than are read",
				text, utc(life.Since))
		}
		past.set(life)
		if past.Before != nil || back == all {
			break
		}
	}
	return past, nil
}

// timeOf reads a time, which must not be in the future. A time without a date is of today.
func timeOf(text string, now time.Time) (time.Time, error) {
	today := now.Format(time.DateOnly) + " "
	const minute = "2006-01-02 15:04"
	for _, form := range []struct{ layout, date string }{
		{time.RFC3339, ""}, {time.DateTime, ""}, {minute, ""}, {time.DateTime, today}, {minute, today},
	} {
		at, err := time.Parse(form.layout, form.date+text)
		switch {
		case err != nil:
		case !at.After(now):
			return at.UTC(), nil
		case form.date != "":
			return at, fmt.Errorf("--at %s: it is in the future, because it is %s UTC now: for yesterday give '%s %s'",
				text, now.Format(time.TimeOnly), now.Add(-day).Format(time.DateOnly), text)
		default:
			return at, fmt.Errorf("--at %s: it is in the future, because it is %s UTC now", text, utc(now))
		}
	}
	return now, fmt.Errorf("--at %q: give a time such as 03:12 for today, '2026-03-02 03:12' "+
		"or 2026-03-02T03:12:00Z; without an offset it is UTC", text)
}

// set fills in the spells and events of a life.
func (p *Past) set(life *admin.Life) {
	*p = Past{Lease: p.Lease, Partition: p.Partition, At: p.At, Since: life.Since, Events: []admin.Event{}}
	for i := range life.Spells { // the latest first
		s := &life.Spells[i]
		switch {
		case s.Since.After(p.At):
			p.After = s
		case p.Spell == nil && (s.Until.After(p.At) || i == 0 && !life.Until.After(p.At)):
			p.Spell = s
		case p.Before == nil && (p.Spell == nil || s.Until.Equal(p.Spell.Since)):
			p.Before = s
		}
	}
	if p.Spell == nil {
		p.Before = nil
	}
	for _, e := range slices.Backward(life.Events) {
		if p.Spell != nil && (leadsTo(e, p.Spell.Since) || p.After != nil && leadsTo(e, p.Spell.Until)) {
			p.Events = append(p.Events, e)
		}
	}
}

// sentence returns a clause as a sentence, unless it begins with the name of an owner.
func sentence(clause, owner string) string {
	if owner != "" {
		return clause
	}
	return strings.ToUpper(clause[:1]) + clause[1:]
}

// leadsTo reports whether an event was at a time, or some minutes before.
func leadsTo(e admin.Event, at time.Time) bool {
	return !e.At.After(at) && e.At.After(at.Add(-5*time.Minute))
}

// text returns the past for people.
func (p *Past) text() string {
	text := fmt.Sprintf("%s/%d at %s UTC\n\n", shown(p.Lease), p.Partition, utc(p.At))
	switch {
	case p.Spell == nil && p.After == nil:
		return text + "No event says that it has had an owner.\n"
	case p.Spell == nil:
		return text + fmt.Sprintf("No event says that it had an owner then. %s owned it from %s UTC.\n",
			shown(p.After.Owner), utc(p.After.Since))
	}
	text += sentence(p.owned(p.Spell, p.After == nil), p.Spell.Owner)
	if p.Spell.Cause != "" {
		text += "It began when " + p.why(p.Spell, p.Before) + ".\n"
	}
	if p.After != nil {
		text += "It ended when " + p.why(p.After, p.Spell) + ".\n"
	}
	if p.Before != nil {
		text += "\nBefore that, " + p.owned(p.Before, false)
	}
	if len(p.Events) > 0 {
		text += "\n" + eventsTable(together(p.Events))
	}
	return text
}

// owned returns a clause on a spell.
func (p *Past) owned(s *admin.Spell, lasts bool) string {
	owner := either(s.Cause == "silent", "it had no live owner", "it had no owner")
	since, until := utc(s.Since), utc(s.Until)+" UTC"
	if s.Owner != "" {
		owner = shown(s.Owner) + " owned it"
	}
	if s.Cause == "" {
		since += " or before"
	}
	if lasts {
		until = "now"
	}
	return fmt.Sprintf("%s from %s until %s, for %s.\n", owner, since, until, period(s.Until.Sub(s.Since)))
}

// why returns why a spell began, after the one before it.
func (p *Past) why(s, before *admin.Spell) string {
	i := slices.IndexFunc(p.Events, func(e admin.Event) bool {
		return e.At.Equal(s.Since) && e.Cause == s.Cause
	})
	reason := ""
	if i >= 0 && p.Events[i].Reason != "" {
		reason = " (" + printable(p.Events[i].Reason) + ")"
	}
	last, next := "its owner", "no client"
	if before != nil && before.Owner != "" {
		last = shown(before.Owner)
	} else if i >= 0 && p.Events[i].From != "" {
		last = shown(p.Events[i].From)
	}
	if s.Owner != "" {
		next = shown(s.Owner)
	}
	switch {
	case s.Cause == "silent":
		return last + " sent its last heartbeat"
	case s.Cause == "evicted":
		return last + " was evicted" + reason
	case s.Cause == "given" && i >= 0 && p.Events[i].From == "":
		return "a plan gave it to " + next + "; it had no owner before"
	case s.Cause == "given":
		return "a plan gave it to " + next + ", because " + last + " was gone" + reason
	case last == next:
		return last + " took it again: it had lost its trust, or a newer process with its ID took over"
	}
	return last + " handed it over to " + next + reason
}

package admin

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/shell"
)

// Override is a change by an operator that holds until it ends or is taken back.
type Override struct {
	Verb      Verb   `json:"verb"`                // Drain, Cordon, Pause, Freeze or Pin
	Lease     string `json:"lease"`               // the lease that it concerns; empty: all
	Partition *int   `json:"partition,omitempty"` // of Pin: the partition that it concerns; nil: all

	// The client that it concerns, and of Pin the owner of the partition; empty: all.
	Client string `json:"client"`

	Actor  string    `json:"actor"` // the operator
	Reason string    `json:"reason"`
	Since  time.Time `json:"since"`          // when it was last written
	Until  time.Time `json:"until,omitzero"` // when it ends; zero: it has no end
}

// Of returns the object of an override: a client, a lease, or a partition as LEASE/PARTITION.
func (w Override) Of() string {
	if w.Partition != nil {
		return fmt.Sprintf("%s/%d", w.Lease, *w.Partition)
	}
	return cmp.Or(w.Lease, w.Client)
}

// OverridesOf returns the overrides that concern a client or a lease as a whole: all except pins.
// The other name may be empty.
func (s *Snapshot) OverridesOf(lease, client string) (overrides []Override) {
	return slices.DeleteFunc(slices.Clone(s.Overrides), func(w Override) bool {
		return w.Partition != nil || w.Lease != "" && w.Lease != lease || w.Client != "" && w.Client != client
	})
}

// Pause returns the pause of a lease, or nil.
func (s *Snapshot) Pause(l *Lease) *Override {
	return find(s.OverridesOf(l.Name, ""), func(w Override) bool { return w.Verb == VerbPause })
}

// drains returns the drains of members of a lease that would work on it otherwise.
func (s *Snapshot) drains(l *Lease) []Override {
	return slices.DeleteFunc(slices.Clone(s.Overrides), func(w Override) bool {
		works := func(m Member) bool { return m.Client == w.Client && m.Weight > 0 }
		return w.Verb != VerbDrain || !slices.ContainsFunc(l.Members, works)
	})
}

// stops reports whether an override stops all work on a lease.
func (s *Snapshot) stops(w Override) bool {
	return w.Verb == VerbPause || w.Verb == VerbDrain && slices.ContainsFunc(s.Leases, func(l Lease) bool {
		return s.Pause(&l) == nil && s.working(&l) == 0 && slices.Contains(s.drains(&l), w)
	})
}

// back returns the command that takes it back.
func (w Override) back() string {
	verb := takenBack[slices.Index(overrides, w.Verb)]
	return fmt.Sprintf("pgleases %s %s --reason '...'", verb, shell.Word(w.Of()))
}

func (w Override) summary() string {
	until := ""
	if !w.Until.IsZero() {
		until = ", until " + w.Until.UTC().Format(time.DateTime) + " UTC"
	}
	return fmt.Sprintf("%s of %q by %s since %s%s: %q",
		w.Verb, w.Of(), w.Actor, w.Since.UTC().Format(time.DateOnly), until, w.Reason)
}

// effect says what a pause or a drain that stops all work on a lease means.
func (w Override) effect(now time.Time) string {
	is, means := "paused", "no work is done"
	if w.Verb == VerbDrain {
		is, means = "drained", "a lease of it has no member that works"
	}
	return fmt.Sprintf("%q is %s by %s%s, without an end: %q: %s",
		w.Of(), is, w.Actor, when("since", w.Since, now), w.Reason, means)
}

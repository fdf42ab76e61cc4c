package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/ranges"
)

// The verb that shows events.

// mostEvents is the maximum number of events that one call reads.
const mostEvents = 1000

// An eventQuery says which events the verb shows.
type eventQuery struct {
	admin.EventFilter
	most  int
	since span // 0: the latest events, or those of dayOfEvents
}

// dayOfEvents is the period in which the verb looks for the events of a client or a cause.
const dayOfEvents = span(24 * time.Hour)

func newEvents() *cobra.Command {
	cmd := &cobra.Command{Use: "events [LEASE]", Short: "Show events of members and partitions", Args: asUsed}
	output := outputFlag(cmd)
	var q eventQuery
	flags := cmd.Flags()
	flags.IntVarP(&q.most, "number", "n", 50, "number of latest lines, 1 to 1000; in JSON, of events")
	follow := flags.BoolP("follow", "f", false, "print new events as they arrive; in JSON, one line for each")
	flags.Var(&q.since, "since", "only events of this long until now, such as 1h or 7d")
	flags.StringVar(&q.Lease, "lease", "", "only events of this lease, as the argument LEASE")
	flags.StringVar(&q.Client, "client", "", "only events of this client")
	flags.StringVar(&q.Cause, "cause", "", "only events with this cause, such as evicted")
	cmd.MarkFlagsMutuallyExclusive("since", "follow")
	causes := cobra.FixedCompletions(admin.Causes, cobra.ShellCompDirectiveNoFileComp)
	_ = cmd.RegisterFlagCompletionFunc("cause", causes)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		lease := strings.Join(args, "")
		switch {
		case lease != "" && q.Lease != "" && q.Lease != lease:
			return fmt.Errorf("the leases %q and %q are given: leave one out", lease, q.Lease)
		case q.most < 1 || q.most > mostEvents:
			return fmt.Errorf("-n %d: give 1 to %d", q.most, mostEvents)
		case q.Cause != "" && !slices.Contains(admin.Causes, q.Cause):
			return fmt.Errorf("there is no cause %q: %sthere are %s", q.Cause, similar(q.Cause, admin.Causes),
				strings.Join(admin.Causes, ", "))
		}
		q.Lease = cmp.Or(q.Lease, lease)
		if q.since == 0 && (q.Client != "" || q.Cause != "") {
			q.since = dayOfEvents
		}
		if q.since > 0 && !flags.Changed("number") {
			q.most = mostEvents
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if *follow {
				inJSON := cmd.Flag("output").Value.String() == "json"
				return followEvents(ctx, cmd.ErrOrStderr(), a, q, func(events []admin.Event) error {
					text, err := eventLines(events, inJSON)
					if err != nil {
						return err
					}
					_, err = io.WriteString(cmd.OutOrStdout(), text)
					return err
				})
			}
			events, note, err := q.read(ctx, a)
			if err != nil {
				return err
			}
			text := eventsTable(latest(q.most, together(events)))
			err = output(latest(q.most, events), text)
			cmd.PrintErr(note)
			return err
		})
	}
	return cmd
}

// eventsTable returns events as a table.
func eventsTable(events []admin.Event) string {
	const heading = "AT,CAUSE,LEASE,FROM,TO,PARTITIONS,BY,REASON"
	return table(heading, events, eventCells)
}

// read returns the events that were asked for, the oldest first, and a note for stderr.
func (q *eventQuery) read(ctx context.Context, a *admin.Admin) (events []admin.Event, note string, err error) {
	if q.since == 0 {
		events, err = a.Events(ctx, q.Lease, mostEvents)
		if err == nil && len(events) == 0 && q.Lease != "" {
			err = noEventsOf(ctx, a, q.Lease)
		}
		return events, "", err
	}
	h, err := a.Happened(ctx, admin.Period{Last: time.Duration(q.since)}, q.EventFilter)
	if err == nil && len(h.Events) == 0 {
		err = q.unknown(ctx, a)
	}
	switch {
	case err != nil:
		return nil, "", err
	case h.More:
		note = "there are more than 1,000 such events, so older ones are missing: choose a shorter period"
	case len(h.Events) == 0:
		note = fmt.Sprintf("there was no such event from %s to %s UTC", utc(h.Since), utc(h.Until))
	}
	if note != "" {
		note = "pgleases: " + note + "\n"
	}
	slices.Reverse(h.Events)
	return h.Events, note, nil
}

// unknown returns an error if no lease or client has the name that was asked for, and no event of
// the period names it.
func (q *eventQuery) unknown(ctx context.Context, a *admin.Admin) error {
	if q.Lease != "" {
		of, err := a.Events(ctx, q.Lease, 1)
		if err == nil && len(of) == 0 {
			err = noEventsOf(ctx, a, q.Lease)
		}
		if err != nil {
			return err
		}
	}
	if q.Client == "" {
		return nil
	}
	s, err := a.Snapshot(ctx)
	if err != nil || slices.Contains(clientIDs(s), q.Client) {
		return err
	}
	h, err := a.Happened(ctx, admin.Period{Last: time.Duration(q.since)}, admin.EventFilter{})
	if err != nil {
		return err
	}
	known := clientIDs(s)
	for _, e := range h.Events {
		known = append(known, e.From, e.To)
	}
	known = slices.DeleteFunc(known, func(id string) bool { return id == "" })
	if slices.Contains(known, q.Client) {
		return nil
	}
	return fmt.Errorf("there is no client %q, and no event of one in the last %v: %spgleases clients shows all",
		q.Client, &q.since, similar(q.Client, known))
}

// selects reports whether an event of a follower's lease was asked for.
func (q *eventQuery) selects(e admin.Event) bool {
	return (q.Client == "" || q.Client == e.From || q.Client == e.To) && (q.Cause == "" || q.Cause == e.Cause)
}

// eventLines returns a line for each event, or in text for those that belong together.
func eventLines(events []admin.Event, inJSON bool) (string, error) {
	var lines strings.Builder
	if !inJSON {
		for _, e := range together(events) {
			lines.WriteString(strings.Join(mapped(eventCells(e), toText), "  ") + "\n")
		}
		return lines.String(), nil
	}
	for _, e := range events {
		line, err := asJSON(e, "")
		if err != nil {
			return "", err
		}
		lines.WriteString(line)
	}
	return lines.String(), nil
}

// noEventsOf returns an error if there is no lease of a name that no event has either.
func noEventsOf(ctx context.Context, a *admin.Admin, name string) error {
	s, err := a.Snapshot(ctx)
	if err != nil || s.Lease(name) != nil || len(s.OverridesOf(name, "")) > 0 {
		return err
	}
	return fmt.Errorf("there is no lease %q, and no event of one: %spgleases list shows all",
		name, similarLease(s, name))
}

// latest returns the last n events, or all if there are fewer.
func latest(n int, events []admin.Event) []admin.Event { return events[max(0, len(events)-n):] }

// together makes one event of those that differ only in their partitions and are less than 2 s
// apart: a handoff ends partition by partition.
func together(events []admin.Event) (all []admin.Event) {
	key := func(e admin.Event) [6]string { return [6]string{e.Cause, e.Lease, e.From, e.To, e.Actor, e.Reason} }
next:
	for _, e := range events {
		for i := len(all) - 1; i >= 0 && e.At.Sub(all[i].At) < 2*time.Second; i-- {
			both := admin.Ranges(ranges.Merged(slices.Concat(all[i].Partitions, e.Partitions)))
			n := both.Count()
			disjoint := n > 0 && n == all[i].Partitions.Count()+e.Partitions.Count()
			if key(e) == key(all[i]) && disjoint {
				all[i].Partitions = both
				continue next
			}
		}
		all = append(all, e)
	}
	return all
}

// followEvents shows the latest events, and new ones, until ctx ends: those that the poll before
// did not return. So it also shows an event that commits later than one with a higher number.
func followEvents(
	ctx context.Context, notes io.Writer, a *admin.Admin, q eventQuery, show func([]admin.Event) error,
) error {
	var seen map[string]bool // those of the poll before; nil: there was no poll yet
	last, away := "", false
	for limited := range eachSecond(ctx) {
		events, err := a.Events(limited, q.Lease, mostEvents)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && seen == nil:
			return err
		case err != nil:
			if !away {
				fmt.Fprintf(notes, "pgleases: %s\nThe command tries again each second.\n", lines(safeText(err)))
			}
			away = true
			continue
		}
		now, before := make(map[string]bool), last
		news := slices.DeleteFunc(slices.Clone(events), func(e admin.Event) bool {
			last = e.ID + " " + e.At.String() // another server may use the same number again
			now[last] = true
			return seen[last] || !q.selects(e)
		})
		if away || before != "" && !now[before] {
			fmt.Fprintln(notes, "pgleases: the events start again; some may be missing, "+
				"if there were more than 1,000 meanwhile, or if this server lacks some")
		}
		if seen == nil {
			news = latest(q.most, news)
		}
		if err := show(news); err != nil {
			return err
		}
		seen, away = now, false
	}
	return nil
}

func eventCells(e admin.Event) []any {
	if e.Cause == "handed over" && e.From != "" && e.From == e.To {
		e.Reason = "it had lost its trust, or a newer process with its ID took over"
	}
	of := subjectOf(e)
	if of != "" {
		e.Reason = of + ": " + e.Reason
	}
	return []any{
		utc(e.At), shown(e.Cause), orDash(e.Lease), orDash(e.From), orDash(e.To), short(e.Partitions),
		orDash(e.Actor), orDash(e.Reason),
	}
}

// subjectOf returns what a verb on a consumer, schedule or job concerns besides its lease.
func subjectOf(e admin.Event) string {
	var parts []string
	if e.Name != "" {
		parts = append(parts, e.Name)
	}
	noun := either(strings.HasPrefix(e.Lease, "schedule/"), "job", "row")
	switch {
	case e.Row != nil:
		parts = append(parts, fmt.Sprintf("%s %d", noun, *e.Row))
	case e.Rows > 0:
		parts = append(parts, ranges.Many(e.Rows, noun))
	}
	for _, of := range slices.Sorted(maps.Keys(e.Args)) {
		parts = append(parts, of+" "+e.Args[of])
	}
	return strings.Join(parts, ", ")
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/store"
)

// The verbs of operators, and those that show overrides and events.

func newOperations() []*cobra.Command {
	return []*cobra.Command{
		newOperation(admin.VerbDrain, "CLIENT", "Drain a client: make it own no partitions"),
		newOperation(admin.VerbUndrain, "CLIENT", "Undrain a client: give it its share again"),
		newOperation(admin.VerbCordon, "CLIENT", "Cordon a client: assign it no new partitions"),
		newOperation(admin.VerbUncordon, "CLIENT", "Uncordon a client: assign it partitions again"),
		newOperation(admin.VerbPause, "LEASE", "Pause a lease: leave its partitions unowned"),
		newOperation(admin.VerbResume, "LEASE", "Resume a lease: assign its partitions again"),
		newOperation(admin.VerbFreeze, "LEASE", "Freeze a lease: keep its partitions in place"),
		newOperation(admin.VerbUnfreeze, "LEASE", "Unfreeze a lease: make its shares even again"),
		newOperation(admin.VerbPin, "LEASE/PARTITION CLIENT", "Pin a partition to a client"),
		newOperation(admin.VerbUnpin, "LEASE/PARTITION", "Unpin a partition"),
		newOperation(admin.VerbEvict, "CLIENT", "Evict a client: revoke its sessions"),
		newOperation(admin.VerbDrop, "LEASE", "Drop a lease that has no members"),
		newOperation(admin.VerbReplace, "LEASE", "Replace a lease without members by another"),
	}
}

func newOperation(verb admin.Verb, subject, short string) *cobra.Command {
	override := slices.Contains([]admin.Verb{admin.VerbDrain, admin.VerbCordon, admin.VerbPause, admin.VerbFreeze, admin.VerbPin}, verb)
	cmd := &cobra.Command{Use: string(verb) + " " + subject, Short: short, Args: asUsed, Annotations: map[string]string{shared: "change"}}
	change, wait, dryRun := admin.Change{Verb: verb}, false, false
	flags := cmd.Flags()
	reasonFlags(cmd, &change.Reason, &change.Actor)
	flags.BoolVar(&dryRun, "dry-run", false, "change no rows, print which partitions would move")
	if override {
		flags.DurationVar(&change.Lasts, "for", 0, "duration of the override, by the clock of the database, such as 2h (default: until it is taken back)")
	}
	if verb == admin.VerbDrop {
		flags.IntVar(&change.Next, "partitions", 0, "number of partitions of the lease when it is created again (default: the same number)")
	}
	if verb == admin.VerbReplace {
		flags.StringVar(&change.By, "by", "", "name of the new lease")
		flags.IntVar(&change.Next, "partitions", 0, "number of partitions of the new lease")
		_, _ = cmd.MarkFlagRequired("by"), cmd.MarkFlagRequired("partitions")
	}
	if verb == admin.VerbDrain {
		flags.BoolVar(&change.Force, "force", false, "drain even the last member that works on a lease")
	}
	if verb == admin.VerbDrain || verb == admin.VerbPause {
		flags.BoolVar(&wait, "wait", false, "return when no partition is owned")
		cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch err := of(&change, subject, args); {
		case err != nil:
			return err
		case change.Reason == "" && !dryRun:
			return errNoReason
		case flags.Changed("for") && change.Lasts <= 0:
			return fmt.Errorf("--for %v: give a time above 0, such as 2h", change.Lasts)
		case flags.Changed("partitions") && change.Next < 1:
			return fmt.Errorf("--partitions %d: give 1 to 65536", change.Next)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			note := ""
			if verb == admin.VerbPause || verb == admin.VerbResume {
				if s, err := a.Snapshot(ctx); err == nil { // otherwise the verb returns its error
					if err := meansOther(ctx, a, s, string(verb), change.Subject); err != nil {
						return err
					}
					if verb == admin.VerbPause && s.Lease(change.Subject) == nil {
						note = fmt.Sprintf("pgleases: lease %q does not exist yet: its pause begins when it is created; %spgleases list shows all\n", change.Subject, similarLease(s, change.Subject))
					}
				}
			}
			if dryRun {
				p, err := a.DryRun(ctx, change)
				if err != nil {
					return remedied(ctx, a, change, subject, err)
				}
				cmd.PrintErr(note + warnsOfLast(ctx, a, change))
				return output(p, movesOf(change, p))
			}
			state, err := operate(ctx, cmd.ErrOrStderr(), a, change, note, override && subject == "CLIENT", wait)
			if err != nil {
				return remedied(ctx, a, change, subject, err)
			}
			return output(change, done(cmd, args, state))
		})
	}
	return cmd
}

// meansOther returns an error for a pause, resume or describe of a name that no lease has, but a
// consumer or a group of schedules; or for a resume of a lease whose consumer is paused instead.
func meansOther(ctx context.Context, a *admin.Admin, s *admin.Snapshot, verb, name string) error {
	if of, is := strings.CutPrefix(name, "consumer/"); is && verb == "resume" && s.Pause(&admin.Lease{Name: name}) == nil {
		if c, _ := a.Consumer(ctx, of); c != nil && !c.PausedAt.IsZero() { // otherwise the verb returns its error
			return fmt.Errorf("lease %q is not paused, but its consumer: pgleases consumers resume %s --reason '...'", name, shell.Word(of))
		}
	}
	if s.Lease(name) != nil || len(s.OverridesOf(name, "")) > 0 {
		return nil
	}
	consumer, group := "consumer/"+name, "schedule/"+name
	ofConsumer, ofGroup := fmt.Sprintf("consumers %s %s --reason '...'", verb, shell.Word(name)), fmt.Sprintf("%s %s --reason '...'", verb, shell.Word(group))
	switch {
	case verb == "describe":
		ofConsumer, ofGroup = "consumers show "+shell.Word(name), "schedules list "+shell.Word(name)
	case verb == "resume" && s.Pause(&admin.Lease{Name: consumer}) != nil:
		ofConsumer = fmt.Sprintf("resume %s --reason '...'", shell.Word(consumer))
	}
	if one, err := a.Consumer(ctx, name); one != nil || store.Denied(err) && s.Lease(consumer) != nil {
		return fmt.Errorf("there is no lease %q, but a consumer: pgleases %s", name, ofConsumer)
	}
	groups, _ := a.ScheduleGroups(ctx) // an error is that there are none, or that the role may not read them
	if s.Lease(group) != nil || slices.ContainsFunc(groups, func(g admin.ScheduleGroup) bool { return g.Name == name }) {
		return fmt.Errorf("there is no lease %q, but a group of schedules: pgleases %s", name, ofGroup)
	}
	return nil
}

// operate executes a change, writes a note of it, and returns what it has done. It warns of an
// override of an unknown client, and refuses to wait for one.
func operate(ctx context.Context, notes io.Writer, a *admin.Admin, change admin.Change, note string, overridesClient, wait bool) (state string, err error) {
	state = "recorded; the clients act within a heartbeat"
	if overridesClient {
		if s, err := a.Snapshot(ctx); err == nil && !slices.Contains(clientIDs(s), change.Subject) {
			host, none := onHost(s, change), fmt.Sprintf("no client %q is running: ", change.Subject)
			if wait {
				return "", fmt.Errorf("%s\n%spgleases clients shows all", cmp.Or(host, none+"nothing was done"), similar(change.Subject, clientIDs(s)))
			}
			state = "recorded; " + cmp.Or(host, none+"it holds when one starts")
		}
	}
	if err = a.Apply(ctx, change); err == nil {
		fmt.Fprint(notes, note)
		if wait {
			err = awaitDone(ctx, notes, a, change)
		}
	}
	if wait || slices.Contains([]admin.Verb{admin.VerbEvict, admin.VerbDrop, admin.VerbReplace}, change.Verb) {
		state = "done"
	}
	return state, err
}

// of sets the subject of a change from the arguments, which subject names.
func of(change *admin.Change, subject string, args []string) (err error) {
	change.Subject, change.Client = args[0], strings.Join(args[1:], "")
	if strings.HasPrefix(subject, "LEASE/PARTITION") {
		change.Subject, change.Partition, err = partitionOf(args[0])
	}
	return err
}

// remedied adds to the error of a change the flag that it needs, or for an unknown name what the
// user may have meant.
func remedied(ctx context.Context, a *admin.Admin, c admin.Change, subject string, err error) error {
	switch {
	case errors.Is(err, admin.ErrLast):
		return fmt.Errorf("%w\nStart another client of its leases first. With --force their partitions have no owner until undrain", err)
	case store.Code(err) != "42704":
		return err
	}
	s, other := a.Snapshot(ctx)
	if other != nil {
		return err
	}
	name, known, list := c.Subject, leaseNames(s), "list"
	if subject == "CLIENT" || c.Client != "" && s.Lease(name) != nil {
		name, known, list = cmp.Or(c.Client, name), clientIDs(s), "clients"
	}
	if slices.Contains(known, name) {
		return err
	}
	text, hint, _ := strings.Cut(safeText(err), "\n")
	if host := onHost(s, c); subject == "CLIENT" && host != "" {
		text = host
	}
	return errors.New(strings.TrimSpace(fmt.Sprintf("%s\n%spgleases %s shows all\n%s", text, similar(name, known), list, hint)))
}

// similarLease is similar for the name of a lease. A misspelled name may be that of a consumer or
// of a group.
func similarLease(s *admin.Snapshot, name string) string {
	known := leaseNames(s)
	for _, of := range known {
		known = append(known, strings.TrimPrefix(strings.TrimPrefix(of, "consumer/"), "schedule/"))
	}
	return similar(name, known)
}

func clientIDs(s *admin.Snapshot) []string {
	return mapped(s.Clients, func(c admin.Client) string { return c.ID })
}

// onHost names the live clients on the host that the subject of a change is; "" if it is none.
func onHost(s *admin.Snapshot, c admin.Change) string {
	there := slices.DeleteFunc(slices.Clone(s.Clients), func(one admin.Client) bool { return one.Host != c.Subject || one.Expired })
	ids := mapped(there, func(one admin.Client) string { return shell.Word(one.ID) })
	if len(ids) == 0 {
		return ""
	}
	return fmt.Sprintf("%q is a host, not a client: its clients are %s: %s each", c.Subject, strings.Join(ids, ", "), c.Verb)
}

var errNoReason = errors.New("--reason is missing: give the reason for the change")

// reasonFlags adds the flags of each verb that changes something.
func reasonFlags(cmd *cobra.Command, reason, actor *string) {
	cmd.Flags().StringVar(reason, "reason", "", "the reason, required for each change")
	cmd.Flags().StringVar(actor, "actor", "", "name of the person who makes the change, besides the role that connects")
}

// done returns the line that a verb prints when it has changed something.
func done(cmd *cobra.Command, args []string, state string) string {
	return fmt.Sprintf("%s %s: %s\n", cmd.Name(), strings.Join(mapped(args, shown), " "), state)
}

func movesOf(change admin.Change, p *admin.DryRun) string {
	switch {
	case change.Verb == admin.VerbReplace:
		return fmt.Sprintf("%s would be closed: it has no members. Its %s would be forgotten, and %s would have %s.\n",
			shown(change.Subject), ranges.Many(p.Forgets, "partition"), shown(change.By), ranges.Many(change.Next, "partition"))
	case p.Forgets > 0:
		return ranges.Many(p.Forgets, "partition") + " would be forgotten: the lease has no members.\n"
	case len(p.Moves) == 0:
		return "No partition would move.\n"
	}
	n := 0
	moves := table("LEASE,PARTITIONS,FROM,TO,KIND", p.Moves, func(m admin.Move) []any {
		if m.Kind != admin.MoveKept {
			n += m.Partitions.Count()
		}
		return []any{shown(m.Lease), m.Partitions, orDash(m.From), orDash(m.To), m.Kind}
	})
	if n == 0 {
		return moves + "\nNo partition would move.\n"
	}
	return fmt.Sprintf("%s\n%s would move.\n", moves, ranges.Many(n, "partition"))
}

// warnsOfLast returns a line that warns of a forced drain of the last client that works on a lease,
// which is refused without force; "" otherwise. The moves alone do not show it while expired
// members, which may get the partitions in a plan, are not evicted yet.
func warnsOfLast(ctx context.Context, a *admin.Admin, change admin.Change) string {
	if !change.Force {
		return ""
	}
	change.Force = false
	if _, err := a.DryRun(ctx, change); errors.Is(err, admin.ErrLast) {
		return fmt.Sprintf("pgleases: warning: without --force this is refused: %s\n", safeText(err))
	}
	return ""
}

// awaitDone returns when no partition is owned that a drain or a pause concerns. After some seconds
// it notes what it waits for.
func awaitDone(ctx context.Context, notes io.Writer, a *admin.Admin, c admin.Change) error {
	polls, back := 0, map[admin.Verb]admin.Verb{admin.VerbDrain: admin.VerbUndrain, admin.VerbPause: admin.VerbResume}[c.Verb]
	for limited := range eachSecond(ctx) {
		s, err := a.Snapshot(limited)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("%w\nThe override remains", err)
		}
		i := slices.IndexFunc(s.Overrides, func(w admin.Override) bool { return w.Verb == c.Verb && w.Of() == c.Subject })
		if i < 0 {
			return errors.New("the override ended, or was taken back, before all partitions were handed over")
		}
		n, first := owned(s, s.Overrides[i])
		if n == 0 {
			return nil
		}
		if polls++; polls == 3 {
			fmt.Fprintf(notes, "pgleases: %s still owned: waits for %s\n", ranges.Many(n, "partition"), first)
		}
	}
	return fmt.Errorf("interrupted: the override remains; take it back with pgleases %s %s --reason '...'", back, shell.Word(c.Subject))
}

func newOverrides() *cobra.Command {
	return looking(&cobra.Command{Use: "overrides", Short: "List overrides: drains, cordons, pauses, freezes, pins"}, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, string, error) {
		return s.Overrides, table("OVERRIDE,OF,OWNED,SINCE,UNTIL,BY,REASON", s.Overrides, func(w admin.Override) []any {
			of := shown(w.Of())
			if w.Partition != nil {
				of += " to " + shown(w.Client)
			}
			n, _ := owned(s, w)
			return []any{w.Verb, of, n, relative(s.At, w.Since), relative(s.At, w.Until), shown(w.Actor), shown(w.Reason)}
		}), nil
	})
}

// owned returns the number of owned partitions among those of an override, and the first owner.
func owned(s *admin.Snapshot, w admin.Override) (n int, first string) {
	for _, l := range s.Leases {
		for _, h := range l.Holdings {
			switch {
			case h.OwnerSession == 0 || w.Lease != "" && w.Lease != l.Name || w.Client != "" && w.Client != h.LastOwner:
			case w.Partition == nil:
				n += h.Partitions.Count()
			case h.Partitions.Contains(*w.Partition):
				n++
			}
			if c := s.Client(h.OwnerSession); first == "" && n > 0 && c != nil {
				first = fmt.Sprintf("%s %s, which %s (host %s, pid %d) owns; pgleases explain %s says why", shown(l.Name), short(h.Partitions), shown(c.ID), shown(c.Host), c.PID, shell.Word(fmt.Sprintf("%s/%d", l.Name, h.Partitions[0][0])))
			}
		}
	}
	return n, first
}

// mostEvents is the maximum number of events that one call reads.
const mostEvents = 1000

func newEvents() *cobra.Command {
	cmd := &cobra.Command{Use: "events [LEASE]", Short: "Show events of members and partitions", Args: asUsed}
	output := outputFlag(cmd)
	most := cmd.Flags().IntP("number", "n", 50, "number of latest lines, 1 to 1000; in JSON, of events")
	follow := cmd.Flags().BoolP("follow", "f", false, "print new events as they arrive; in JSON, one line for each")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		lease := strings.Join(args, "")
		if *most < 1 || *most > mostEvents {
			return fmt.Errorf("-n %d: give 1 to %d", *most, mostEvents)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if *follow {
				return followEvents(ctx, cmd.ErrOrStderr(), a, lease, *most, func(events []admin.Event) (err error) {
					text := strings.Join(mapped(together(events), func(e admin.Event) string { return strings.Join(mapped(eventCells(e), toText), "  ") + "\n" }), "")
					if cmd.Flag("output").Value.String() == "json" {
						text = strings.Join(mapped(events, func(e admin.Event) (line string) { line, err = asJSON(e, ""); return line }), "")
					}
					if err == nil {
						_, err = io.WriteString(cmd.OutOrStdout(), text)
					}
					return err
				})
			}
			events, err := a.Events(ctx, lease, mostEvents)
			if err == nil && len(events) == 0 && lease != "" {
				err = noEventsOf(ctx, a, lease)
			}
			if err != nil {
				return err
			}
			return output(latest(*most, events), table("AT,CAUSE,LEASE,FROM,TO,PARTITIONS,BY,REASON", latest(*most, together(events)), eventCells))
		})
	}
	return cmd
}

// noEventsOf returns an error if there is no lease of a name that no event has either.
func noEventsOf(ctx context.Context, a *admin.Admin, name string) error {
	s, err := a.Snapshot(ctx)
	if err != nil || s.Lease(name) != nil || len(s.OverridesOf(name, "")) > 0 {
		return err
	}
	return fmt.Errorf("there is no lease %q, and no event of one: %spgleases list shows all", name, similarLease(s, name))
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
			if n := both.Count(); key(e) == key(all[i]) && n > 0 && n == all[i].Partitions.Count()+e.Partitions.Count() {
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
func followEvents(ctx context.Context, notes io.Writer, a *admin.Admin, lease string, most int, show func([]admin.Event) error) error {
	var seen map[string]bool // those of the poll before; nil: there was no poll yet
	last, away := "", false
	for limited := range eachSecond(ctx) {
		events, err := a.Events(limited, lease, mostEvents)
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
			return seen[last]
		})
		if away || before != "" && !now[before] {
			fmt.Fprintln(notes, "pgleases: the events start again; some may be missing, if there were more than 1,000 meanwhile, or if this server lacks some")
		}
		if seen == nil {
			news = latest(most, news)
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
	switch {
	case e.Row != nil:
		e.Reason = fmt.Sprintf("row %d: %s", *e.Row, e.Reason)
	case e.Rows > 0:
		e.Reason = fmt.Sprintf("%s: %s", ranges.Many(e.Rows, "row"), e.Reason)
	}
	return []any{e.At.UTC().Format(time.DateTime), shown(e.Cause), orDash(e.Lease), orDash(e.From), orDash(e.To), short(e.Partitions), orDash(e.Actor), orDash(e.Reason)}
}

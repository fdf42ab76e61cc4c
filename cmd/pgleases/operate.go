package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/store"
)

// The verbs of operators, and the one that shows overrides.

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

// overrideVerbs set an override. The other verbs take one back, or change something once.
var overrideVerbs = []admin.Verb{
	admin.VerbDrain, admin.VerbCordon, admin.VerbPause, admin.VerbFreeze, admin.VerbPin,
}

func newOperation(verb admin.Verb, subject, short string) *cobra.Command {
	override := slices.Contains(overrideVerbs, verb)
	cmd := &cobra.Command{
		Use:         string(verb) + " " + subject,
		Short:       short,
		Args:        asUsed,
		Annotations: map[string]string{shared: "change"},
	}
	change := admin.Change{Verb: verb}
	var wait, dryRun bool
	flags := cmd.Flags()
	reasonFlags(cmd, &change.Reason, &change.Actor)
	flags.BoolVar(&dryRun, "dry-run", false, "change no rows, print which partitions would move")
	if override {
		flags.DurationVar(&change.Lasts, "for", 0, "duration of the override, by the clock of the database, "+
			"such as 2h (default: until it is taken back)")
	}
	if verb == admin.VerbDrop {
		flags.IntVar(&change.Next, "partitions", 0, "number of partitions of the lease "+
			"when it is created again (default: the same number)")
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
			note, err := noteOf(ctx, a, change)
			if err != nil {
				return err
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

// noteOf returns a note for a pause of a lease that does not exist yet, and for a resume of a lease
// whose consumer is paused, too. It returns an error for a pause or a resume that means something
// else.
func noteOf(ctx context.Context, a *admin.Admin, c admin.Change) (note string, err error) {
	if c.Verb != admin.VerbPause && c.Verb != admin.VerbResume {
		return "", nil
	}
	s, err := a.Snapshot(ctx)
	if err != nil {
		return "", nil // the verb returns its error
	}
	if err := meansOther(ctx, a, s, string(c.Verb), c.Subject); err != nil {
		return "", err
	}
	of, is := strings.CutPrefix(c.Subject, "consumer/")
	switch {
	case c.Verb == admin.VerbResume && is && consumerPaused(ctx, a, of):
		return fmt.Sprintf("pgleases: the consumer %q is paused, too: pgleases consumers resume %s --reason '...'\n",
			of, shell.Word(of)), nil
	case c.Verb == admin.VerbResume || s.Lease(c.Subject) != nil:
		return "", nil
	}
	return fmt.Sprintf("pgleases: lease %q does not exist yet: its pause begins when it is created; "+
		"%spgleases list shows all\n", c.Subject, similarLease(s, c.Subject)), nil
}

// meansOther returns an error for a pause, resume or describe of a name that no lease has, but a
// consumer or a group of schedules; or for a resume of a lease whose consumer is paused instead.
func meansOther(ctx context.Context, a *admin.Admin, s *admin.Snapshot, verb, name string) error {
	paused := func(lease string) bool { return s.Pause(&admin.Lease{Name: lease}) != nil }
	of, its := strings.TrimPrefix(name, "consumer/"), "its consumer"
	if of == name {
		its = fmt.Sprintf("the consumer %q", name)
	}
	known := of != name || s.Lease(name) != nil
	if known && verb == "resume" && !paused(name) && consumerPaused(ctx, a, of) {
		return fmt.Errorf("lease %q is not paused, but %s: pgleases consumers resume %s --reason '...'",
			name, its, shell.Word(of))
	}
	if s.Lease(name) != nil || len(s.OverridesOf(name, "")) > 0 {
		return nil
	}
	consumer, group := "consumer/"+name, "schedule/"+name
	ofConsumer := fmt.Sprintf("consumers %s %s --reason '...'", verb, shell.Word(name))
	ofGroup := fmt.Sprintf("%s %s --reason '...'", verb, shell.Word(group))
	switch {
	case verb == "describe":
		ofConsumer, ofGroup = "consumers show "+shell.Word(name), "schedules list "+shell.Word(name)
	case verb == "resume" && paused(consumer):
		ofConsumer = fmt.Sprintf("resume %s --reason '...'", shell.Word(consumer))
	}
	one, err := a.Consumer(ctx, name)
	if one != nil || store.Denied(err) && s.Lease(consumer) != nil {
		return fmt.Errorf("there is no lease %q, but a consumer: pgleases %s", name, ofConsumer)
	}
	groups, _ := a.ScheduleGroups(ctx) // an error is that there are none, or that the role may not read them
	named := func(g admin.ScheduleGroup) bool { return g.Name == name }
	if s.Lease(group) != nil || slices.ContainsFunc(groups, named) {
		return fmt.Errorf("there is no lease %q, but a group of schedules: pgleases %s", name, ofGroup)
	}
	return nil
}

// consumerPaused reports whether there is a consumer of a name that is paused. It also returns false
// if that cannot be read.
func consumerPaused(ctx context.Context, a *admin.Admin, name string) bool {
	c, _ := a.Consumer(ctx, name)
	return c != nil && !c.PausedAt.IsZero()
}

// operate executes a change, writes a note of it, and returns what it has done. It warns of an
// override of an unknown client, and refuses to wait for one.
func operate(
	ctx context.Context, notes io.Writer, a *admin.Admin, change admin.Change, note string, overridesClient, wait bool,
) (state string, err error) {
	state = "recorded; the clients act within a heartbeat"
	if overridesClient {
		s, err := a.Snapshot(ctx)
		if err == nil && !slices.Contains(clientIDs(s), change.Subject) {
			host, none := onHost(s, change), fmt.Sprintf("no client %q is running: ", change.Subject)
			if wait {
				why, known := cmp.Or(host, none+"nothing was done"), clientIDs(s)
				return "", fmt.Errorf("%s\n%spgleases clients shows all", why, similar(change.Subject, known))
			}
			state = "recorded; " + cmp.Or(host, none+"it holds when one starts")
		}
	}
	err = a.Apply(ctx, change)
	if err == nil {
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
		return fmt.Errorf("%w\nStart another client of its leases first. "+
			"With --force their partitions have no owner until undrain", err)
	case store.Code(err) != "42704":
		return err
	}
	s, other := a.Snapshot(ctx)
	if other != nil {
		return err
	}
	name, known := c.Subject, leaseNames(s)
	list := "list"
	if subject == "CLIENT" || c.Client != "" && s.Lease(name) != nil {
		name, known = cmp.Or(c.Client, name), clientIDs(s)
		list = "clients"
	}
	if slices.Contains(known, name) {
		return err
	}
	text, hint, _ := strings.Cut(safeText(err), "\n")
	host := onHost(s, c)
	if subject == "CLIENT" && host != "" {
		text = host
	}
	all := fmt.Sprintf("%s\n%spgleases %s shows all\n%s", text, similar(name, known), list, hint)
	return errors.New(strings.TrimSpace(all))
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
	var ids []string
	for _, one := range s.Clients {
		if one.Host == c.Subject && !one.Expired {
			ids = append(ids, shell.Word(one.ID))
		}
	}
	if len(ids) == 0 {
		return ""
	}
	return fmt.Sprintf("%q is a host, not a client: its clients are %s: %s each",
		c.Subject, strings.Join(ids, ", "), c.Verb)
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
		forgets, next := ranges.Many(p.Forgets, "partition"), ranges.Many(change.Next, "partition")
		return fmt.Sprintf("%s would be closed: it has no members. Its %s would be forgotten, and %s would have %s.\n",
			shown(change.Subject), forgets, shown(change.By), next)
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
	back := map[admin.Verb]admin.Verb{admin.VerbDrain: admin.VerbUndrain, admin.VerbPause: admin.VerbResume}[c.Verb]
	made := func(w admin.Override) bool { return w.Verb == c.Verb && w.Of() == c.Subject }
	polls := 0
	for limited := range eachSecond(ctx) {
		s, err := a.Snapshot(limited)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("%w\nThe override remains", err)
		}
		i := slices.IndexFunc(s.Overrides, made)
		if i < 0 {
			return errors.New("the override ended, or was taken back, before all partitions were handed over")
		}
		n, first := owned(s, s.Overrides[i])
		if n == 0 {
			return nil
		}
		polls++
		if polls == 3 {
			fmt.Fprintf(notes, "pgleases: %s still owned: waits for %s\n", ranges.Many(n, "partition"), first)
		}
	}
	return fmt.Errorf("interrupted: the override remains; take it back with pgleases %s %s --reason '...'",
		back, shell.Word(c.Subject))
}

func newOverrides() *cobra.Command {
	cmd := &cobra.Command{Use: "overrides", Short: "List overrides: drains, cordons, pauses, freezes, pins"}
	return looking(cmd, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, string, error) {
		return s.Overrides, table("OVERRIDE,OF,OWNED,SINCE,UNTIL,BY,REASON", s.Overrides, func(w admin.Override) []any {
			of := shown(w.Of())
			if w.Partition != nil {
				of += " to " + shown(w.Client)
			}
			n, _ := owned(s, w)
			since, until := relative(s.At, w.Since), relative(s.At, w.Until)
			return []any{w.Verb, of, n, since, until, shown(w.Actor), shown(w.Reason)}
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
			c := s.Client(h.OwnerSession)
			if first == "" && n > 0 && c != nil {
				partition := shell.Word(fmt.Sprintf("%s/%d", l.Name, h.Partitions[0][0]))
				first = fmt.Sprintf("%s %s, which %s (host %s, pid %d) owns; pgleases explain %s says why",
					shown(l.Name), short(h.Partitions), shown(c.ID), shown(c.Host), c.PID, partition)
			}
		}
	}
	return n, first
}

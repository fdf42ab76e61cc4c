package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
)

// The verbs of operators, and those that show what is overridden and what happened.

const planHelp = `

The clients plan again within a heartbeat, and partitions move as always: the work on them ends first.`

const overrideHelp = ` This writes an override, which names
a client ID or a lease. It outlives restarts and failovers, until it is taken back or the time of --for is over. pgleases overrides shows it.`

const operateHelp = `

The change is recorded with the reason, the role that connects, and --actor: pgleases events shows it. It needs the rights that
pgleases grants ROLE --for=operator prints.

With --dry-run it changes nothing, and prints which partitions the clients would move at once, besides handoffs that are under way, or how many
would be forgotten, and a fingerprint. With that as --if-unchanged it does what the dry run showed, or does nothing if the state has changed since.`

func newOperations() []*cobra.Command {
	return []*cobra.Command{
		newOperation(admin.Drain, "CLIENT", "Drain a client: make it own nothing", `Its work ends, and others get its partitions. It stays a
member, and gets its own back with undrain. If it is the last that works on a lease, --force is needed.`),
		newOperation(admin.Undrain, "CLIENT", "Undrain a client: give it its share again", ""),
		newOperation(admin.Cordon, "CLIENT", "Cordon a client: assign it no new partitions", `It keeps what it has, until it restarts. If all members
are cordoned, they get the partitions that have no owner.`),
		newOperation(admin.Uncordon, "CLIENT", "Uncordon a client: assign it partitions again", ""),
		newOperation(admin.Pause, "LEASE", "Pause a lease: leave its partitions unowned", `The work on its partitions ends, and then they have no
owner, until resume. The lease need not exist yet.`),
		newOperation(admin.Resume, "LEASE", "Resume a lease: assign its partitions again", ""),
		newOperation(admin.Freeze, "LEASE", "Freeze a lease: keep its partitions in place", `Partitions move only if their owner crashed, leaves or is
drained. Partitions that have not been handed over yet stay. A member that joins gets nothing else.`),
		newOperation(admin.Unfreeze, "LEASE", "Unfreeze a lease: make its shares even again", ""),
		newOperation(admin.Pin, "LEASE/PARTITION CLIENT", "Pin a partition to a client", `The client owns the partition while it works on the lease;
otherwise another member owns it. The other partitions are shared as if there were no pins. A pin to another client is replaced.`),
		newOperation(admin.Unpin, "LEASE/PARTITION", "Unpin a partition", "The partition counts in the shares again."),
		newOperation(admin.Evict, "CLIENT", "Evict a client: revoke its sessions", `This also works if the client hangs: no heartbeat renews the sessions,
guards refuse them at once, and others take over when they expire, within a TTL. The process ends with ErrEvicted; one that starts later
is let in. This cannot be undone.`),
		newOperation(admin.Drop, "LEASE", "Drop a lease that has no members", `The lease can then be created again: for 24 hours with as many partitions as
it has, or as --partitions says, so that an old process that starts late creates no other one. Its next epochs are higher than all
before. If the lease has members, close them first. A member that crashed goes when another client, of any lease, has run for its TTL. If
none runs any more, run one for longer than that TTL: pgleases run tidy --once -- sleep 60. The overrides of the lease stay, and hold for
the lease that is created again. This cannot be undone.`),
	}
}

// longHelp adds to the help of a verb what is the same for several.
func longHelp(verb admin.Verb, override bool, long string) string {
	long = strings.TrimSuffix(long, " ")
	if verb != admin.Evict && verb != admin.Drop {
		long += planHelp
	}
	if override {
		long += overrideHelp
	}
	return long + operateHelp
}

func newOperation(verb admin.Verb, subject, short, long string) *cobra.Command {
	override := slices.Contains([]admin.Verb{admin.Drain, admin.Cordon, admin.Pause, admin.Freeze, admin.Pin}, verb)
	cmd := &cobra.Command{Use: string(verb) + " " + subject, Short: short, Long: longHelp(verb, override, short+". "+long), Args: asUsed}
	change := admin.Change{Verb: verb}
	var wait, dryRun bool
	flags := cmd.Flags()
	reasonFlags(cmd, &change.Reason, &change.Actor, "why: required, except for a dry run")
	flags.BoolVar(&dryRun, "dry-run", false, "change nothing, print what would move")
	flags.StringVar(&change.IfUnchanged, "if-unchanged", "", "a fingerprint that a dry run printed: do nothing if the state has changed since")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "if-unchanged")
	if override {
		flags.DurationVar(&change.Lasts, "for", 0, "how long the override holds, by the database's clock, such as 2h (default: until it is taken back)")
	}
	if verb == admin.Drop {
		flags.IntVar(&change.Next, "partitions", 0, "number of partitions with which the lease can be created again (default: as many as it has)")
	}
	if verb == admin.Drain {
		flags.BoolVar(&change.Force, "force", false, "drain even the last member that works on a lease")
	}
	if verb == admin.Drain || verb == admin.Pause {
		flags.BoolVar(&wait, "wait", false, "return when nothing is owned any more")
		cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := of(&change, subject, args); err != nil {
			return err
		}
		if change.Reason == "" && !dryRun {
			return errNoReason
		}
		if flags.Changed("for") && change.Lasts <= 0 {
			return fmt.Errorf("--for %v: give a time above 0, as 2h", change.Lasts)
		}
		if flags.Changed("partitions") && change.Next < 1 {
			return fmt.Errorf("--partitions %d: give 1 to 65536", change.Next)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if dryRun {
				p, err := a.DryRun(ctx, change)
				if err != nil {
					return unforced(err)
				}
				return output(p, movesOf(p))
			}
			if err := a.Apply(ctx, change); err != nil || !wait {
				return unforced(err)
			}
			return awaitDone(ctx, a, change)
		})
	}
	return cmd
}

// of sets what a change is of, from the arguments that subject describes.
func of(change *admin.Change, subject string, args []string) (err error) {
	change.Subject = args[0]
	if strings.HasPrefix(subject, "LEASE/PARTITION") {
		change.Subject, change.Partition, err = partitionOf(args[0])
	}
	if len(args) > 1 {
		change.Client = args[1]
	}
	return err
}

// unforced names the flag that an error asks for.
func unforced(err error) error {
	if errors.Is(err, admin.ErrLast) {
		return fmt.Errorf("%w\nWith --force it is done all the same", err)
	}
	return err
}

var errNoReason = errors.New("--reason is missing: say why, for whoever wonders later")

// reasonFlags adds what each verb takes that changes something: why, and who.
func reasonFlags(cmd *cobra.Command, reason, actor *string, help string) {
	cmd.Flags().StringVar(reason, "reason", "", help)
	cmd.Flags().StringVar(actor, "actor", "", "who makes the change, besides the role that connects")
}

func movesOf(p *admin.DryRun) string {
	n, text := 0, "No partition would move.\n"
	for _, m := range p.Moves {
		n += m.Partitions.Count()
	}
	switch {
	case p.Forgets > 0:
		text = fmt.Sprintf("The lease has %d partitions, and nobody works on it: they would be forgotten.\n", p.Forgets)
	case n > 0:
		text = table("LEASE,PARTITIONS,FROM,TO,KIND", p.Moves, func(m admin.Move) []any {
			return []any{shown(m.Lease), m.Partitions, orNothing(m.From), orNothing(m.To), m.Kind}
		}) + fmt.Sprintf("\n%d partitions would move.\n", n)
	}
	return text + fmt.Sprintf("To have this done, and nothing else: --if-unchanged %s\n", p.Fingerprint)
}

// awaitDone returns when nothing is owned any more of what was drained or paused.
func awaitDone(ctx context.Context, a *admin.Admin, c admin.Change) error {
	for limited := range eachSecond(ctx) {
		s, err := a.Snapshot(limited)
		if ctx.Err() != nil {
			break
		}
		if err != nil {
			return fmt.Errorf("%w\nThe override stands", err)
		}
		i := slices.IndexFunc(s.Overrides, func(w admin.Override) bool { return w.Verb == c.Verb && w.Of() == c.Subject })
		if i < 0 {
			return errors.New("the override has ended, or was taken back, before it was done")
		}
		if owned(s, s.Overrides[i]) == 0 {
			return nil
		}
	}
	return errors.New("interrupted: the override stands")
}

func newOverrides() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "overrides",
		Short: "List overrides: drains, cordons, pauses, freezes, pins",
		Long: `List the overrides of operators that hold now, the oldest first. OWNED is how many partitions the client, or
all of the lease, have now; of a pin 1 where the partition is with its client, else 0.`,
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, string, error) {
		return s.Overrides, table("OVERRIDE,OF,OWNED,SINCE,UNTIL,BY,REASON", s.Overrides, func(w admin.Override) []any {
			of := shown(w.Of())
			if w.Partition != nil {
				of += " to " + shown(w.Client)
			}
			return []any{w.Verb, of, owned(s, w), ago(s.At, w.Since) + " ago", instant(w.Until), shown(w.Actor), shown(w.Reason)}
		}), nil
	})
}

// owned is how many partitions are owned of those that an override is about.
func owned(s *admin.Snapshot, w admin.Override) (n int) {
	for _, l := range s.Leases {
		for _, h := range l.Holdings {
			switch {
			case h.OwnerSession == 0 || w.Lease != "" && w.Lease != l.Name || w.Client != "" && w.Client != h.LastOwner:
			case w.Partition == nil:
				n += h.Partitions.Count()
			case h.Partitions.Contains(*w.Partition):
				n++
			}
		}
	}
	return n
}

func newEvents() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events [LEASE]",
		Short: "Show events of members and partitions",
		Long: `Show what happened to members and partitions, and why, the newest last: who joined, left and was evicted, who handed over what to whom, and what operators did.
docs/operations.md explains each cause. An event without an actor is the clients' own doing.

With --follow it polls each second for those that come, among the latest 1,000. If the database goes away, for example in a restart, stderr says so once, and says when it starts
again. It says that too on a server that lacks the events before, such as a promoted standby.`,
		Args: asUsed,
	}
	output := outputFlag(cmd)
	most := cmd.Flags().IntP("number", "n", 50, "number of events, the latest ones, 1 to 1000")
	follow := cmd.Flags().BoolP("follow", "f", false, "follow: print new events as they arrive; in JSON, one line for each")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		lease := strings.Join(args, "")
		if *most < 1 || *most > 1000 {
			return fmt.Errorf("-n %d: give 1 to 1000", *most)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if *follow {
				return followEvents(ctx, cmd.ErrOrStderr(), a, lease, *most, func(e admin.Event) (err error) {
					text := eventsOf("", e)
					if cmd.Flag("output").Value.String() == "json" {
						text, err = asJSON(e, "")
					}
					if err == nil {
						_, err = io.WriteString(cmd.OutOrStdout(), text)
					}
					return err
				})
			}
			events, err := a.Events(ctx, lease, *most)
			if err != nil {
				return err
			}
			return output(events, eventsOf("AT,CAUSE,LEASE,FROM,TO,PARTITIONS,BY,REASON", events...))
		})
	}
	return cmd
}

// followEvents shows the last events, and those that come, until ctx ends: what the look before has
// not found. So it shows one that is committed later than another with a higher number.
func followEvents(ctx context.Context, notes io.Writer, a *admin.Admin, lease string, most int, show func(admin.Event) error) error {
	const latest = 1000
	var seen map[string]bool // those of the look before; nil: there was none yet
	last, away := "", false
	for limited := range eachSecond(ctx) {
		events, err := a.Events(limited, lease, latest)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && seen == nil:
			return err
		case err != nil:
			if !away {
				fmt.Fprintf(notes, "pgleases: %s\nIt is tried again each second.\n", lines(told(err)))
			}
			away = true
			continue
		}
		now, before := make(map[string]bool), last
		news := slices.DeleteFunc(slices.Clone(events), func(e admin.Event) bool {
			last = e.ID + " " + e.At.String() // a server that takes the place of another may give its number again
			now[last] = true
			return seen[last]
		})
		if away || before != "" && !now[before] {
			fmt.Fprintln(notes, "pgleases: the events start again. Some may be missing, if more than 1,000 came meanwhile, or if this server lacks some.")
		}
		if seen == nil {
			news = news[max(0, len(news)-most):]
		}
		for _, e := range news {
			if err := show(e); err != nil {
				return err
			}
		}
		seen, away = now, false
	}
	return nil
}

func eventsOf(heading string, events ...admin.Event) string {
	return table(heading, events, func(e admin.Event) []any {
		return []any{e.At.Local().Format("2006-01-02 15:04:05.000"), shown(e.Cause), orNothing(e.Lease), orNothing(e.From), orNothing(e.To),
			short(e.Partitions), orNothing(e.Actor), orNothing(e.Reason)}
	})
}

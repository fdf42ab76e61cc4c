package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
)

// The verbs of operators, and those that show what is overridden and what happened.

const planHelp = `

The clients plan anew within a heartbeat, and partitions move as they always do: the work on them ends first.`

const overrideHelp = ` This writes an override, which names
a client ID or a lease. It outlives restarts and failovers, until it is taken back or the time of --for is over. pgleases overrides shows it.`

const operateHelp = `

It is written down with the reason, with the role that connects, and with --actor: pgleases events shows it. It needs the rights that pgleases grants ROLE --for=operator prints.

With --dry-run it changes nothing, and prints `

const fingerprintHelp = `, and a fingerprint. With that as --if-unchanged it does what the dry run showed, or
fails and says what has changed since.`

func newOperations() []*cobra.Command {
	return []*cobra.Command{
		newOperation(
			admin.Drain, "CLIENT", "Have a client own nothing",
			"Have a client own nothing: its work ends, and others get its partitions. It stays a member, and gets its own back with undrain. It is\nrefused for the last that works on a lease, unless with --force.",
		),
		newOperation(admin.Undrain, "CLIENT", "Take a drain back", "Take a drain back: the client gets its share again."),
		newOperation(
			admin.Cordon, "CLIENT", "Have a client get nothing new",
			"Have a client get nothing new. It keeps what it has, as long as it does not restart. Where all members are cordoned, they get what has no owner.",
		),
		newOperation(admin.Uncordon, "CLIENT", "Take a cordon back", "Take a cordon back."),
		newOperation(
			admin.Pause, "LEASE", "Have nobody own a lease",
			"Have nobody own a lease: the work on its partitions ends, and then they have no owner, until resume. The lease\nneed not exist yet.",
		),
		newOperation(admin.Resume, "LEASE", "Take a pause back", "Take a pause back: the partitions get owners again."),
		newOperation(admin.Freeze, "LEASE", "Have partitions stay where they are", "Have the partitions of a lease stay where they are. Those move whose owner died, leaves or is drained; what else is\non its way, and not handed over yet, stays. A member that joins gets nothing else."),
		newOperation(admin.Unfreeze, "LEASE", "Take a freeze back", "Take a freeze back: the shares become even again."),
		newOperation(
			admin.Pin, "LEASE/PARTITION CLIENT", "Have a partition be with a client",
			"Have a partition be with a client whenever that works on the lease, and with another where it does not. The others are shared evenly as if there\nwere no pinned ones. A pin of the partition to another client is replaced.",
		),
		newOperation(admin.Unpin, "LEASE/PARTITION", "Take a pin back", "Take a pin back: the partition counts in the shares again."),
		newOperation(admin.Evict, "CLIENT", "Revoke the sessions of a client", "Revoke the sessions of a client, whatever it does, also where it hangs: no heartbeat renews them, guards refuse them at once, and others take over when they\nexpire, within a TTL. Its process ends with ErrEvicted; one that starts later is let in. It cannot be taken back."),
		newOperation(
			admin.Drop, "LEASE", "Forget a lease on which nobody works",
			"Forget a lease, so that it can be made again. For 24 hours that is possible with as many partitions as it has, or\nas --partitions says: an old process that starts late makes no other. Its next epochs are higher than all before. It is refused while it has members:\nclose them first. One that crashed goes when another client, of whatever lease, has run for its TTL: clients take out the dead, and nobody else. Where\nnone runs any more, run one for longer than that TTL: pgleases run tidy --once -- sleep 60. What operators want of the lease stays, and holds for the one that is made again.\nIt cannot be taken back.",
		),
	}
}

func newOperation(verb admin.Verb, subject, short, long string) *cobra.Command {
	override := slices.Contains([]admin.Verb{admin.Drain, admin.Cordon, admin.Pause, admin.Freeze, admin.Pin}, verb)
	if verb != admin.Evict && verb != admin.Drop {
		long += planHelp
	}
	if override {
		long += overrideHelp
	}
	long += operateHelp
	if verb == admin.Drop {
		long += "how many partitions would be forgotten" + fingerprintHelp
	} else {
		long += "which partitions the clients would move at once" + fingerprintHelp + " Handoffs that are under way are not in a dry run."
	}
	cmd := &cobra.Command{Use: string(verb) + " " + subject, Short: short, Long: long, Args: asUsed, ValidArgsFunction: complete}
	change := admin.Change{Verb: verb}
	var wait, dryRun bool
	flags := cmd.Flags()
	reasonFlags(cmd, &change.Reason, &change.Actor, "why; it has to be given, but for a dry run")
	flags.BoolVar(&dryRun, "dry-run", false, "change nothing, print what would move")
	flags.StringVar(&change.IfUnchanged, "if-unchanged", "", "a fingerprint that a dry run printed: do nothing if the state has changed since")
	cmd.MarkFlagsMutuallyExclusive("dry-run", "if-unchanged")
	if override {
		flags.DurationVar(&change.Lasts, "for", 0, "how long it stands, by the database's clock, as 2h (default: until it is taken back)")
	}
	if verb == admin.Drop {
		flags.IntVar(&change.Next, "partitions", 0, "with how many it can be made again (default: as many as it has)")
	}
	if verb == admin.Drain {
		flags.BoolVar(&change.Force, "force", false, "also where it is the last that works on a lease")
	}
	if verb == admin.Drain || verb == admin.Pause {
		flags.BoolVar(&wait, "wait", false, "return when it is done: when nothing is owned any more")
		cmd.MarkFlagsMutuallyExclusive("dry-run", "wait")
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		change.Subject = args[0]
		if strings.HasPrefix(subject, "LEASE/PARTITION") {
			if change.Subject, change.Partition, err = partitionOf(args[0]); err != nil {
				return err
			}
		}
		if len(args) > 1 {
			change.Client = args[1]
		}
		if change.Reason == "" && !dryRun {
			return errNoReason
		}
		if override && flags.Changed("for") && change.Lasts <= 0 {
			return fmt.Errorf("--for %v: give a time above 0, as 2h", change.Lasts)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			var p *admin.DryRun
			var err error
			if dryRun {
				p, err = a.DryRun(ctx, change)
			} else {
				err = a.Apply(ctx, change)
			}
			switch {
			case errors.Is(err, admin.ErrLast):
				return fmt.Errorf("%w\nWith --force it is done all the same", err)
			case err != nil:
				return err
			case dryRun:
				return output(p, func(w io.Writer) { writeDryRun(w, p) })
			case wait:
				return awaitDone(ctx, a, change)
			}
			return nil
		})
	}
	return cmd
}

var errNoReason = errors.New("--reason is missing: say why, for whoever wonders later")

// reasonFlags adds what each verb takes that changes something: why, and who.
func reasonFlags(cmd *cobra.Command, reason, actor *string, help string) {
	cmd.Flags().StringVar(reason, "reason", "", help)
	cmd.Flags().StringVar(actor, "actor", "", "who wants it, besides the role that connects")
}

func writeDryRun(w io.Writer, p *admin.DryRun) {
	switch {
	case p.Forgets > 0:
		fmt.Fprintf(w, "The lease has %d partitions, and nobody works on it: they would be forgotten.\n", p.Forgets)
	case len(p.Moves) == 0:
		fmt.Fprintln(w, "No partition would move.")
	default:
		t := table{{"LEASE", "PARTITIONS", "FROM", "TO", "KIND"}}
		n := 0
		for _, m := range p.Moves {
			n += m.Partitions.Count()
			t.add(shown(m.Lease), m.Partitions.String(), orNothing(m.From), orNothing(m.To), string(m.Kind))
		}
		t.write(w)
		fmt.Fprintf(w, "\n%d partitions would move.\n", n)
	}
	fmt.Fprintf(w, "To have this done, and nothing else: --if-unchanged %s\n", p.Fingerprint)
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
		left := 0
		for _, l := range s.Leases {
			for _, h := range l.Holdings {
				if h.OwnerSession != 0 && (c.Verb == admin.Drain && h.LastOwner == c.Subject || c.Verb == admin.Pause && l.Name == c.Subject) {
					left += h.Partitions.Count()
				}
			}
		}
		switch {
		case !slices.ContainsFunc(s.Overrides, func(w admin.Override) bool { return w.Verb == c.Verb && w.Of() == c.Subject }):
			return errors.New("the override has ended, or was taken back, before it was done")
		case left == 0:
			return nil
		}
	}
	return errors.New("interrupted: the override stands")
}

func newOverrides() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "overrides",
		Short: "List what operators want: drains, cordons, pauses, freezes, pins",
		Long: `List what operators want, until they take it back, the oldest first. OWNED is how many partitions the client, or
all of the lease, have now; of a pin 1 where the partition is with its client, else 0.`,
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, func(io.Writer), error) {
		return s.Overrides, func(w io.Writer) { writeOverrides(w, s) }, nil
	})
}

func writeOverrides(w io.Writer, s *admin.Snapshot) {
	t := table{{"OVERRIDE", "OF", "OWNED", "SINCE", "UNTIL", "BY", "REASON"}}
	for _, override := range s.Overrides {
		owned, of := 0, shown(override.Of())
		for _, l := range s.Leases {
			for _, h := range l.Holdings {
				switch {
				case h.OwnerSession == 0 || override.Lease != "" && override.Lease != l.Name || override.Client != "" && override.Client != h.LastOwner:
				case override.Partition == nil:
					owned += h.Partitions.Count()
				case h.Partitions.Contains(*override.Partition):
					owned++
				}
			}
		}
		if override.Partition != nil {
			of += " to " + shown(override.Client)
		}
		t.add(
			string(override.Verb), of, strconv.Itoa(owned), ago(s.At, override.Since)+" ago", instant(override.Until),
			shown(override.Actor), shown(override.Reason),
		)
	}
	t.write(w)
}

func newEvents() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "events [LEASE]",
		Short: "Show what happened to members and partitions, and why",
		Long: `Show what happened to members and partitions, and why, the newest last: who joined, left and was evicted, who handed over what to whom, and what operators did.
docs/operations.md explains each cause. An event without an actor is the clients' own doing.

With --follow it polls each second for those that come, among the latest 1,000. If the database goes away, for example in a restart, stderr says so once, and says when it starts
again. It says that too on a server that lacks the events before, such as a promoted standby. A password that is refused, or a database that does not exist any more, ends it.`,
		Args:              asUsed,
		ValidArgsFunction: complete,
	}
	output := outputFlag(cmd)
	most := cmd.Flags().IntP("number", "n", 50, "how many of the last, 1 to 1000")
	follow := cmd.Flags().BoolP("follow", "f", false, "go on with those that come; as JSON a line for each")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		lease := strings.Join(args, "")
		if *most < 1 || *most > 1000 {
			return fmt.Errorf("-n %d: give 1 to 1000", *most)
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			if *follow {
				return followEvents(ctx, cmd.ErrOrStderr(), a, lease, *most, func(e admin.Event) error {
					if cmd.Flag("output").Value.String() == "table" {
						writeEvents(cmd.OutOrStdout(), []admin.Event{e}, false)
						return nil
					}
					text, err := asJSON(e, "")
					if err == nil {
						_, err = cmd.OutOrStdout().Write(text)
					}
					return err
				})
			}
			events, err := a.Events(ctx, lease, *most)
			if err != nil {
				return err
			}
			return output(events, func(w io.Writer) { writeEvents(w, events, true) })
		})
	}
	return cmd
}

// followEvents shows the last events, and those that come, until ctx ends. It remembers which it has
// shown: so it finds one that is committed later than another with a higher number.
func followEvents(ctx context.Context, notes io.Writer, a *admin.Admin, lease string, most int, show func(admin.Event) error) error {
	const latest, known = 1000, 10_000
	var seen map[string]bool // nil: there was no look yet
	last, away := "", false
	for limited := range eachSecond(ctx) {
		events, err := a.Events(limited, lease, latest)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (seen == nil || refused(err)):
			return err
		case err != nil:
			if !away {
				fmt.Fprintf(notes, "pgleases: %s\nIt is tried again each second.\n", lines(told(err)))
			}
			away = true
			continue
		}
		begin := 0
		if seen == nil {
			seen, begin = make(map[string]bool), max(0, len(events)-most)
		}
		now := make(map[string]bool)
		for _, e := range events {
			now[keyOf(e)] = true
		}
		if away || last != "" && !now[last] {
			fmt.Fprintln(notes, "pgleases: the events start again. Some may be missing, if more than 1,000 came meanwhile, or if this server lacks some.")
		}
		away, last = false, ""
		for i, e := range events {
			last = keyOf(e)
			if i < begin || seen[last] {
				continue
			}
			if err := show(e); err != nil {
				return err
			}
		}
		maps.Copy(seen, now)
		if len(seen) > known {
			seen = now
		}
	}
	return nil
}

// keyOf names an event. A server that takes the place of another may give its number again.
func keyOf(e admin.Event) string { return e.ID + " " + e.At.String() }

// refused reports whether an error is that of a login that is not permitted, or of a database that does not exist: somebody has to fix that.
func refused(err error) bool {
	var told *pgconn.PgError
	return errors.As(err, &told) && (strings.HasPrefix(told.Code, "28") || told.Code == "3D000")
}

func writeEvents(w io.Writer, events []admin.Event, heading bool) {
	var t table
	if heading {
		t.add("AT", "CAUSE", "LEASE", "FROM", "TO", "PARTITIONS", "BY", "REASON")
	}
	for _, e := range events {
		t.add(
			e.At.Local().Format("2006-01-02 15:04:05.000"), shown(e.Cause), orNothing(e.Lease), orNothing(e.From), orNothing(e.To),
			short(e.Partitions), orNothing(e.Actor), orNothing(e.Reason),
		)
	}
	t.write(w)
}

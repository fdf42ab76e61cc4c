package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
)

// The verbs that look, and change nothing.

const poll = 11 * time.Second // limit of a look that is made again and again: the server ends one after 10 s

func newList() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "list",
		Short: "List the leases",
		Long: `List the leases, each with how many of its partitions have an owner, how many of these are on their way to another one, how many nobody
who lives owns, and its members. With -o json each lease comes with its members and partitions, as of describe.`,
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, func(io.Writer), error) {
		return s.Leases, func(w io.Writer) { writeLeases(w, s) }, nil
	})
}

func writeLeases(w io.Writer, s *admin.Snapshot) {
	t := table{{"LEASE", "PARTITIONS", "OWNED", "MOVING", "ORPHANS", "MEMBERS", "PLANNED"}}
	for i := range s.Leases {
		l := &s.Leases[i]
		moving, orphans := 0, s.Orphans(l).Count()
		for _, h := range l.Holdings {
			if h.Moves() {
				moving += h.Partitions.Count()
			}
		}
		t.add(shown(l.Name), strconv.Itoa(l.Partitions), strconv.Itoa(l.Partitions-orphans), strconv.Itoa(moving), strconv.Itoa(orphans),
			strconv.Itoa(len(l.Members)), ago(s.At, l.Planned)+" ago")
	}
	t.write(w)
}

func newDescribe() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "describe LEASE",
		Short: "Show the members and partitions of a lease",
		Long: `Show a lease: its members with their weights and shares, and its partitions, as ranges of those that have the same owner.

A share is what a member is due by its weight, in partitions. INCOMING are those on their way to it; OUTGOING those that it was asked to hand over, which it
does when its work on them has ended.`,
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, args []string) (any, func(io.Writer), error) {
		l, err := leaseOf(s, args[0])
		return l, func(w io.Writer) { writeLease(w, s, l) }, err
	})
}

func writeLease(w io.Writer, s *admin.Snapshot, l *admin.Lease) {
	due := "none is due"
	if !l.Due.IsZero() {
		due = "one is due"
	}
	fmt.Fprintf(w, "%s: %d partitions, generation %d, last plan %s ago, %s\n\n", shown(l.Name), l.Partitions, l.Generation, ago(s.At, l.Planned), due)
	members := table{{"CLIENT", "WEIGHT", "SHARE", "OWNED", "INCOMING", "OUTGOING", "HEARTBEAT", "STATE"}}
	for _, m := range l.Members {
		c := s.Client(m.Session)
		members.add(append(share(m), period(c.HeartbeatAge), state(c))...)
	}
	members.write(w)
	fmt.Fprintln(w)
	holdings := table{{"PARTITIONS", "COUNT", "OWNER", "SINCE", "MOVING TO", "ASKED"}}
	for _, h := range l.Holdings {
		to := ""
		if h.OwnerSession != h.TargetSession {
			to = h.Target
		}
		owner := orNothing(h.Owner)
		if h.Owner == "" && h.LastOwner != "" {
			owner = "- (last: " + shown(h.LastOwner) + ")"
		}
		holdings.add(short(h.Partitions), strconv.Itoa(h.Partitions.Count()), owner, ago(s.At, h.Since), orNothing(to), ago(s.At, h.Asked))
	}
	holdings.write(w)
}

// short is ranges as a table has room for; the count stands beside them, and all of them are in the
// JSON.
func short(ranges admin.Ranges) string {
	const most = 60
	text := ranges.String()
	if len(text) <= most {
		return text
	}
	return text[:strings.LastIndexByte(text[:most], ',')] + ",..."
}

// state is whether a client lives.
func state(c *admin.Client) string {
	switch {
	case c.Expired:
		return "expired"
	case c.Evicted:
		return "evicted"
	case c.Superseded:
		return "superseded"
	}
	return "lives"
}

func newClients() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "clients",
		Short: "List the clients",
		Long: `List the clients, each with the age of its last heartbeat, its TTL, and how many partitions it owns in how many leases.

One is expired when it was silent for longer than its TTL: another client takes it out. One is superseded when a newer process has its ID: it ends when its work
has ended. One is evicted when an operator has revoked it: its process ends, and others take over when its TTL is over. FAST tells whether it has fast failover.`,
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, func(io.Writer), error) {
		return s.Clients, func(w io.Writer) { writeClients(w, s) }, nil
	})
}

func writeClients(w io.Writer, s *admin.Snapshot) {
	leases, owned := make(map[int64]int), make(map[int64]int) // by session
	for _, l := range s.Leases {
		for _, m := range l.Members {
			leases[m.Session]++
			owned[m.Session] += m.Owned
		}
	}
	t := table{{"CLIENT", "STATE", "HEARTBEAT", "TTL", "LEASES", "OWNED", "HOST", "PID", "UP", "FAST"}}
	for i := range s.Clients {
		c := &s.Clients[i]
		fast := "no"
		if c.FastFailover {
			fast = "yes"
		}
		t.add(
			shown(c.ID), state(c), period(c.HeartbeatAge), c.TTL.String(), strconv.Itoa(leases[c.Session]), strconv.Itoa(owned[c.Session]),
			shown(c.Host), strconv.Itoa(c.PID), ago(s.At, c.Started), fast,
		)
	}
	t.write(w)
}

func newWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch [LEASE]",
		Short: "Watch leases and clients, refreshed each second",
		Long: `Show the leases and the clients, or one lease, again each second, until Ctrl-C. On a terminal each look takes the place of the one before.

When the database does not answer it says so, and what was seen last stays, with its time.`,
		Args:              asUsed,
		ValidArgsFunction: complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			flag, _ := cmd.Flags().GetString("database")
			return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
				return watch(ctx, cmd.OutOrStdout(), a, databaseURL(flag), args)
			})
		},
	}
}

func watch(ctx context.Context, out io.Writer, a *admin.Admin, url string, args []string) error {
	before := ""
	if isTerminal(os.Stdout) {
		before = "\x1b[H\x1b[2J"
	}
	seen := ""
	for limited := range eachSecond(ctx) {
		s, err := a.Snapshot(limited)
		var l *admin.Lease
		if err == nil && len(args) > 0 {
			l, err = leaseOf(s, args[0])
		}
		text := ""
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && seen == "":
			return err
		case err != nil:
			text = lines(told(unreachable(err, url))) + "\n\n"
		default:
			var b strings.Builder
			fmt.Fprintf(&b, "%s\n\n", s.At.Local().Format(time.DateTime))
			if l != nil {
				writeLease(&b, s, l)
			} else {
				writeLeases(&b, s)
				b.WriteByte('\n')
				writeClients(&b, s)
			}
			seen = b.String()
		}
		if _, err := fmt.Fprintln(out, before+text+seen); err != nil {
			return err
		}
	}
	return nil
}

// leaseOf is a lease of a snapshot.
func leaseOf(s *admin.Snapshot, name string) (*admin.Lease, error) {
	if l := s.Lease(name); l != nil {
		return l, nil
	}
	return nil, fmt.Errorf("there is no lease %q: pgleases list shows those that there are", name)
}

// eachSecond yields a context for what is done now, and again each second, until ctx ends.
func eachSecond(ctx context.Context) iter.Seq[context.Context] {
	return func(yield func(context.Context) bool) {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for ctx.Err() == nil {
			limited, cancel := context.WithTimeout(ctx, poll) // also if the server says nothing any more
			more := yield(limited)
			cancel()
			if !more {
				return
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	}
}

func newExplain() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "explain LEASE/PARTITION",
		Short: "Explain why a client owns a partition",
		Long: `Explain why a client owns a partition, or why none does: the share and the weight of its owner among those of the other members, where it would rather be, and what it
waits for.

The plan gives each member its share by weight, to within one partition; it moves as few as possible, and first those that can return to
their preferred owner, which owned them before it went away.`,
		Example: `  pgleases explain orders/17`,
	}, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, func(io.Writer), error) {
		lease, partition, err := partitionOf(args[0])
		if err != nil {
			return nil, nil, err
		}
		e, err := a.Explain(ctx, lease, partition)
		if errors.Is(err, admin.ErrNoSuchPartition) {
			err = fmt.Errorf("%w: pgleases list shows the leases", err)
		}
		return e, func(w io.Writer) { writeExplanation(w, e) }, err
	})
}

func writeExplanation(w io.Writer, e *admin.Explanation) {
	fmt.Fprintf(w, "%s/%d, epoch %d\n\n", shown(e.Lease), e.Partition, e.Epoch)
	for _, sentence := range e.Reasons {
		fmt.Fprintln(w, printable(sentence))
	}
	fmt.Fprintln(w)
	t := table{{"CLIENT", "WEIGHT", "SHARE", "OWNED", "INCOMING", "OUTGOING"}}
	for _, m := range e.Members {
		t.add(share(m)...)
	}
	t.write(w)
}

// share is what a table tells of a member.
func share(m admin.Member) []string {
	return []string{
		shown(m.Client), strconv.Itoa(m.Weight), strconv.FormatFloat(m.Share, 'f', 2, 64), strconv.Itoa(m.Owned),
		strconv.Itoa(m.Incoming), strconv.Itoa(m.Outgoing),
	}
}

func newLocks() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "locks [PREFIX]",
		Short: "List the named locks and their holders",
		Long: `List the named locks that somebody holds or awaits, whose names begin with PREFIX: a row for each that holds one. A lock that nobody holds is on its way to
the first that waits. EXPIRES is when its holder may be taken out, if it sends no heartbeat until then.

There is no verb that releases a lock. Its holder would go on with its work, and the next one would begin: two at once, where the lock is there for one. End
the holder's process, which HOST and PID name; the lock is free then, at the latest after its TTL. Where the process cannot be reached, revoke its sessions
with pgleases evict CLIENT. A holder that is - was taken out: an open transaction that is guarded by the lock keeps it.`,
		SuggestFor: []string{"unlock", "release"},
	}, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, func(io.Writer), error) {
		all, err := firstOf(a.Locks(ctx, strings.Join(args, "")), 0)
		return all, func(w io.Writer) { writeLocks(w, all) }, err
	})
}

func writeLocks(w io.Writer, all []admin.Lock) {
	t := table{{"LOCK", "MODE", "HELD BY", "FOR", "HEARTBEAT", "EXPIRES", "HOST", "PID", "TOKEN", "WAITING"}}
	for _, l := range all {
		mode, waiting := "exclusive", strconv.Itoa(l.Waiting)
		if l.Shared {
			mode = "shared"
		}
		if len(l.Holders) == 0 {
			t.add(shown(l.Name), nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, waiting)
		}
		for _, h := range l.Holders {
			// By this machine's clock: that of the database is not far from it, or the table says so.
			row := []string{
				shown(l.Name), mode, orNothing(h.Client), period(time.Since(h.Since)), period(h.HeartbeatAge),
				period(h.TimeLeft), orNothing(h.Host), strconv.Itoa(h.PID), strconv.FormatInt(h.Token, 10), waiting,
			}
			if h.Client == "" {
				copy(row[4:8], slices.Repeat([]string{nothing}, 4))
			}
			t.add(row...)
		}
	}
	t.write(w)
}

// partitionOf reads LEASE/PARTITION.
func partitionOf(text string) (lease string, partition int, err error) {
	slash := strings.LastIndexByte(text, '/')
	partition, err = strconv.Atoi(text[slash+1:])
	if slash < 0 || err != nil || partition < 0 {
		return "", 0, fmt.Errorf("%q names no partition: give the lease, a slash and the number, as orders/17", text)
	}
	return text[:slash], partition, nil
}

// arguments are the names of those that a verb takes, by its Use.
func arguments(cmd *cobra.Command) []string { return strings.Fields(cmd.Use)[1:] }

// asUsed has a verb take the arguments that its Use names. One in brackets may be missing.
func asUsed(cmd *cobra.Command, args []string) error {
	names := arguments(cmd)
	switch {
	case len(args) > len(names):
		return fmt.Errorf("%q is one argument too many: %s", args[len(names)], cmd.UseLine())
	case len(args) < len(names) && names[len(args)][0] != '[':
		return fmt.Errorf("%s is missing: %s", names[len(args)], cmd.UseLine())
	}
	return nil
}

// complete has a shell complete the names of leases and clients.
func complete(cmd *cobra.Command, args []string, begun string) (names []cobra.Completion, then cobra.ShellCompDirective) {
	then = cobra.ShellCompDirectiveNoFileComp
	wanted := append(arguments(cmd), "")[min(len(args), len(arguments(cmd)))]
	if !slices.Contains([]string{"LEASE", "[LEASE]", "LEASE/PARTITION", "CLIENT"}, wanted) {
		return nil, then
	}
	err := withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
		soon, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		s, err := a.Snapshot(soon)
		if err != nil {
			return err
		}
		switch wanted {
		case "CLIENT":
			for _, c := range s.Clients {
				names = append(names, c.ID)
			}
			for _, w := range s.Overrides { // to be taken back, also where the client is away
				names = append(names, w.Client)
			}
		case "LEASE/PARTITION":
			then |= cobra.ShellCompDirectiveNoSpace
			for _, l := range s.Leases {
				names = append(names, l.Name+"/")
			}
		default:
			for _, l := range s.Leases {
				names = append(names, l.Name)
			}
		}
		return nil
	})
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	slices.Sort(names)
	odd := func(name string) bool { return !strings.HasPrefix(name, begun) || shown(name) != name }
	return slices.DeleteFunc(slices.Compact(names), odd), then
}

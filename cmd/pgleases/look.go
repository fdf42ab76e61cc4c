package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
)

// The verbs that look, and change nothing.

const poll = 5 * time.Second // limit of a look that is made again and again

func newList() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "list",
		Short: "List the leases",
		Long: `List the leases, each with how many of its partitions have an owner, how many of these are on their way to another one, how many nobody
who lives owns, and its members. With -o json each lease comes with its members and partitions, as of describe.`,
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, string, error) {
		return s.Leases, leasesOf(s), nil
	})
}

func leasesOf(s *admin.Snapshot) string {
	return table("LEASE,PARTITIONS,OWNED,MOVING,ORPHANS,MEMBERS,PLANNED", s.Leases, func(l admin.Lease) []any {
		moving, orphans := 0, s.Orphans(&l).Count()
		for _, h := range l.Holdings {
			if h.Moves() {
				moving += h.Partitions.Count()
			}
		}
		return []any{shown(l.Name), l.Partitions, l.Partitions - orphans, moving, orphans, len(l.Members), ago(s.At, l.Planned) + " ago"}
	})
}

func newDescribe() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "describe LEASE",
		Short: "Show the members and partitions of a lease",
		Long: `Show a lease: its members with their weights and shares, and its partitions, as ranges of those that have the same owner.

A share is what a member is due by its weight, in partitions. INCOMING are those on their way to it; OUTGOING those that it was asked to hand over, which it
does when its work on them has ended.`,
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, args []string) (any, string, error) {
		return described(s, args[0])
	})
}

// described is a lease of a snapshot, and what a person sees of it.
func described(s *admin.Snapshot, name string) (*admin.Lease, string, error) {
	l := s.Lease(name)
	if l == nil {
		return nil, "", fmt.Errorf("there is no lease %q: pgleases list shows those that there are", name)
	}
	due := "none is due"
	if !l.Due.IsZero() {
		due = "one is due"
	}
	head := fmt.Sprintf("%s: %d partitions, generation %d, last plan %s ago, %s\n\n", shown(l.Name), l.Partitions, l.Generation, ago(s.At, l.Planned), due)
	members := table(shareHeading+",HEARTBEAT,STATE", l.Members, func(m admin.Member) []any {
		c := s.Client(m.Session)
		return append(share(m), period(c.HeartbeatAge), state(*c))
	})
	holdings := table("PARTITIONS,COUNT,OWNER,SINCE,MOVING TO,ASKED", l.Holdings, func(h admin.Holding) []any {
		to := ""
		if h.OwnerSession != h.TargetSession {
			to = h.Target
		}
		owner := orNothing(h.Owner)
		if h.Owner == "" && h.LastOwner != "" {
			owner = "- (last: " + shown(h.LastOwner) + ")"
		}
		return []any{short(h.Partitions), h.Partitions.Count(), owner, ago(s.At, h.Since), orNothing(to), ago(s.At, h.Asked)}
	})
	return l, head + members + "\n" + holdings, nil
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
func state(c admin.Client) string {
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
	}, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, string, error) {
		return s.Clients, clientsOf(s), nil
	})
}

func clientsOf(s *admin.Snapshot) string {
	leases, owned := make(map[int64]int), make(map[int64]int) // by session
	for _, l := range s.Leases {
		for _, m := range l.Members {
			leases[m.Session]++
			owned[m.Session] += m.Owned
		}
	}
	return table("CLIENT,STATE,HEARTBEAT,TTL,LEASES,OWNED,HOST,PID,UP,FAST", s.Clients, func(c admin.Client) []any {
		fast := "no"
		if c.FastFailover {
			fast = "yes"
		}
		return []any{shown(c.ID), state(c), period(c.HeartbeatAge), c.TTL, leases[c.Session], owned[c.Session],
			shown(c.Host), c.PID, ago(s.At, c.Started), fast}
	})
}

func newWatch() *cobra.Command {
	return &cobra.Command{
		Use:   "watch [LEASE]",
		Short: "Watch leases and clients, refreshed each second",
		Long: `Show the leases and the clients, or one lease, again each second, until Ctrl-C. On a terminal each look takes the place of the one before.

When the database does not answer it says so, and what was seen last stays, with its time.`,
		Args: asUsed,
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
		text, outage := "", ""
		switch {
		case err == nil && len(args) > 0:
			_, text, err = described(s, args[0])
		case err == nil:
			text = leasesOf(s) + "\n" + clientsOf(s)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && seen == "":
			return err
		case err != nil:
			outage = lines(told(unreachable(err, url))) + "\n\n"
		default:
			seen = s.At.Local().Format(time.DateTime) + "\n\n" + text
		}
		if _, err := fmt.Fprintln(out, before+outage+seen); err != nil {
			return err
		}
	}
	return nil
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
	}, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, string, error) {
		lease, partition, err := partitionOf(args[0])
		if err != nil {
			return nil, "", err
		}
		e, err := a.Explain(ctx, lease, partition)
		if errors.Is(err, admin.ErrNoSuchPartition) {
			err = fmt.Errorf("%w: pgleases list shows the leases", err)
		}
		if err != nil {
			return nil, "", err
		}
		text := fmt.Sprintf("%s/%d, epoch %d\n\n", shown(e.Lease), e.Partition, e.Epoch)
		for _, sentence := range e.Reasons {
			text += printable(sentence) + "\n"
		}
		return e, text + "\n" + table(shareHeading, e.Members, share), nil
	})
}

const shareHeading = "CLIENT,WEIGHT,SHARE,OWNED,INCOMING,OUTGOING"

// share is what a table tells of a member.
func share(m admin.Member) []any {
	return []any{shown(m.Client), m.Weight, strconv.FormatFloat(m.Share, 'f', 2, 64), m.Owned, m.Incoming, m.Outgoing}
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
	}, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, string, error) {
		all, err := firstOf(a.Locks(ctx, strings.Join(args, "")), math.MaxInt)
		return all, locksOf(all), err
	})
}

func locksOf(all []admin.Lock) string {
	var rows [][]any
	for _, l := range all {
		mode := "exclusive"
		if l.Shared {
			mode = "shared"
		}
		if len(l.Holders) == 0 {
			rows = append(rows, []any{shown(l.Name), nothing, nothing, nothing, nothing, nothing, nothing, nothing, nothing, l.Waiting})
		}
		for _, h := range l.Holders {
			// By this machine's clock: that of the database is not far from it, or the table says so.
			row := []any{shown(l.Name), mode, orNothing(h.Client), period(time.Since(h.Since)), period(h.HeartbeatAge), period(h.TimeLeft),
				orNothing(h.Host), h.PID, h.Token, l.Waiting}
			if h.Client == "" {
				copy(row[4:8], slices.Repeat([]any{nothing}, 4))
			}
			rows = append(rows, row)
		}
	}
	return table("LOCK,MODE,HELD BY,FOR,HEARTBEAT,EXPIRES,HOST,PID,TOKEN,WAITING", rows, func(row []any) []any { return row })
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

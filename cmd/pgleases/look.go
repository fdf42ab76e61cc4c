package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/store"
)

// The read-only verbs on leases and clients.

const poll = 5 * time.Second // limit of a poll

func newList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the leases"}
	return looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, _ []string) (any, string, error) {
		s, err := a.Snapshot(ctx)
		if err != nil {
			return nil, "", err
		}
		return s.Leases, leasesOf(ctx, a, s), nil
	})
}

func leasesOf(ctx context.Context, a *admin.Admin, s *admin.Snapshot) string {
	states := map[admin.Verb]string{admin.VerbPause: "paused", admin.VerbFreeze: "frozen"}
	idle := pausedConsumers(ctx, a, s)
	return table("LEASE,COUNT,OWNED,MOVING,ORPHANS,MEMBERS,PLANNED,STATE", s.Leases, func(l admin.Lease) []any {
		state := dash
		for _, w := range s.OverridesOf(l.Name, "") {
			state = max(state, states[w.Verb]) // a pause goes before a freeze
		}
		switch {
		case state != dash:
		case l.Left:
			state = "left"
		case len(l.Waiting()) > 0:
			state = "waiting"
		case !l.Settles.IsZero():
			state = "settling"
		}
		if slices.Contains(idle, l.Name) {
			state = strings.TrimPrefix(state+", consumer paused", dash+", ")
		}
		moving, orphans := 0, s.Orphans(&l).Count()
		for _, h := range l.Holdings {
			if h.Moves() {
				moving += h.Partitions.Count()
			}
		}
		owned := l.Partitions - orphans - l.Waiting().Count()
		return []any{
			shown(l.Name), l.Partitions, owned, moving, orphans, len(l.Members),
			relative(s.At, l.Planned), state,
		}
	})
}

// pausedConsumers returns the leases of the consumers that are paused. It returns none if the
// role may not read that, or a session locks the table. Admin.Consumers would read the queue
// tables, too.
func pausedConsumers(ctx context.Context, a *admin.Admin, s *admin.Snapshot) (names []string) {
	if !slices.ContainsFunc(s.Leases, func(l admin.Lease) bool { return strings.HasPrefix(l.Name, "consumer/") }) {
		return nil // there may be no table
	}
	limited, cancel := context.WithTimeout(ctx, poll)
	defer cancel()
	pool, schema := a.Database()
	paused := "SELECT name FROM " + pgx.Identifier{schema, "consumers"}.Sanitize() + " WHERE paused_at IS NOT NULL"
	_ = pgx.BeginTxFunc(limited, pool, pgx.TxOptions{AccessMode: pgx.ReadOnly}, func(tx pgx.Tx) error {
		_, err := tx.Exec(limited, "SET LOCAL lock_timeout = '50ms'")
		if err != nil {
			return err
		}
		rows, _ := tx.Query(limited, paused) // CollectRows returns its error
		names, err = pgx.CollectRows(rows, pgx.RowTo[string])
		return err
	})
	return mapped(names, func(name string) string { return "consumer/" + name })
}

func newDescribe() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "describe LEASE",
		Short:      "Show the members and partitions of a lease",
		SuggestFor: []string{"show", "get", "members", "partitions"},
	}
	return looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, string, error) {
		s, err := a.Snapshot(ctx)
		if err != nil {
			return nil, "", err
		}
		l, text, err := described(s, args[0])
		if err != nil && s.Lease("consumer/"+args[0]) == nil && s.Lease("schedule/"+args[0]) == nil {
			err = cmp.Or(meansOther(ctx, a, s, "describe", args[0]), err)
		}
		return l, text, err
	})
}

// described returns a lease of a snapshot, and its text.
func described(s *admin.Snapshot, name string) (*admin.Lease, string, error) {
	l := s.Lease(name)
	if l == nil {
		return nil, "", unknown("lease", name, leaseNames(s), "pgleases list")
	}
	due := map[bool]string{true: "no plan due", false: "a plan due"}[l.Due.IsZero()]
	partitions, planned := ranges.Many(l.Partitions, "partition"), relative(s.At, l.Planned)
	head := fmt.Sprintf("%s: %s, generation %d, last plan %s, %s\n",
		shown(l.Name), partitions, l.Generation, planned, due)
	if !l.Settles.IsZero() {
		head += fmt.Sprintf("settling: partitions with a live owner stay for %s\n", period(l.Settles.Sub(s.At)))
	}
	head += "\n"
	heading, metadata := metadataColumn(s)
	members := table(shareHeading+",HEARTBEAT"+heading+",STATE", l.Members, func(m admin.Member) []any {
		c := s.Client(m.Session)
		return append(append(append(share(m), period(c.HeartbeatAge)), metadata(c)...), state(s, c))
	})
	holdings := table("PARTITIONS,COUNT,OWNER,SINCE,MOVING TO,ASKED", l.Holdings, func(h admin.Holding) []any {
		to := ""
		if h.OwnerSession != h.TargetSession {
			to = h.Target
		}
		owner := orDash(h.Owner)
		if h.Owner == "" && h.LastOwner != "" {
			owner = "- (last: " + shown(h.LastOwner) + ")"
		}
		if a := l.Awaits(h); a != nil {
			owner = fmt.Sprintf("- (waits %s for %s)", period(a.Until.Sub(s.At)), shown(a.Client))
		}
		return []any{
			short(h.Partitions), h.Partitions.Count(), owner, relative(s.At, h.Since),
			orDash(to), relative(s.At, h.Asked),
		}
	})
	return l, head + members + "\n" + holdings, nil
}

func leaseNames(s *admin.Snapshot) []string {
	return mapped(s.Leases, func(l admin.Lease) string { return l.Name })
}

// unknown returns the error for a name that does not exist. It suggests similar ones.
func unknown(kind, name string, known []string, list string) error {
	return fmt.Errorf("there is no %s %q: %s%s shows all", kind, name, similar(name, known), list)
}

// similar asks whether the user meant a known name that resembles a name. It returns "" if there is
// no such name. The rule is cobra's rule for verbs. The name of a lease also resembles that of its
// consumer or group.
func similar(name string, known []string) string {
	for _, k := range known {
		if k == "consumer/"+name || k == "schedule/"+name || name == "consumer/"+k || name == "schedule/"+k {
			return fmt.Sprintf("did you mean %s? ", shown(k))
		}
	}
	const noBreak = "\u00a0" // cobra cuts names at a space
	names := &cobra.Command{SuggestionsMinimumDistance: 2}
	of := make(map[string]string)
	for _, k := range known {
		use := strings.ReplaceAll(k, " ", noBreak)
		of[use] = k
		names.AddCommand(&cobra.Command{Use: use, Run: func(*cobra.Command, []string) {}})
	}
	for _, s := range names.SuggestionsFor(strings.ReplaceAll(name, " ", noBreak)) {
		if of[s] != "" {
			return fmt.Sprintf("did you mean %s? ", shown(of[s]))
		}
	}
	return ""
}

// short returns ranges as text for a table, without the last ones if there are many. Their count is
// beside them, and the JSON has all of them.
func short(partitions admin.Ranges) string {
	const most = 60
	text := partitions.String()
	if len(text) <= most {
		return text
	}
	return text[:strings.LastIndexByte(text[:most], ',')] + ",..."
}

// state returns the state of a client, with its overrides.
func state(s *admin.Snapshot, c *admin.Client) string {
	switch {
	case c.Expired:
		return "expired"
	case c.Evicted:
		return "evicted"
	case c.Superseded:
		return "superseded"
	}
	all := []string{"live"}
	for _, w := range s.OverridesOf("", c.ID) {
		all = append(all, string(w.Verb)+"ed") // drained, cordoned
	}
	return strings.Join(all, ", ")
}

func newClients() *cobra.Command {
	cmd := &cobra.Command{Use: "clients", Short: "List the clients"}
	return looking(cmd, withSnapshot, func(_ context.Context, s *admin.Snapshot, _ []string) (any, string, error) {
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
	optional, metadata := metadataColumn(s)
	heading := "CLIENT,STATE,HEARTBEAT,TTL,LEASES,OWNED,HOST,PID,UP" + optional + ",FAST"
	return table(heading, s.Clients, func(c admin.Client) []any {
		row := []any{
			shown(c.ID), state(s, &c), period(c.HeartbeatAge), c.TTL, leases[c.Session], owned[c.Session],
			shown(c.Host), c.PID, period(s.At.Sub(c.Started)),
		}
		row = append(row, metadata(&c)...)
		return append(row, either(c.FastFailover, "yes", "no"))
	})
}

// metadataColumn returns the heading of a column with the clients' metadata, and its cell. It
// returns no column if no client has metadata.
func metadataColumn(s *admin.Snapshot) (heading string, cell func(c *admin.Client) []any) {
	text := func(c *admin.Client) string {
		const most = 60 // the JSON has all of it
		var all []string
		for _, key := range slices.Sorted(maps.Keys(c.Metadata)) {
			all = append(all, shown(key)+"="+shown(c.Metadata[key]))
		}
		return cmp.Or(cut(strings.Join(all, " "), most), dash)
	}
	if !slices.ContainsFunc(s.Clients, func(c admin.Client) bool { return text(&c) != dash }) {
		return "", func(*admin.Client) []any { return nil }
	}
	return ",METADATA", func(c *admin.Client) []any { return []any{text(c)} }
}

func newWatch() *cobra.Command {
	cmd := &cobra.Command{Use: "watch [LEASE]", Short: "Watch leases and clients, refreshed each second", Args: asUsed}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			return watch(ctx, cmd.OutOrStdout(), a, args)
		})
	}
	return cmd
}

func watch(ctx context.Context, out io.Writer, a *admin.Admin, args []string) error {
	before := ""
	if terminalWidth() > 0 {
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
			text = leasesOf(limited, a, s) + "\n" + clientsOf(s)
		}
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && seen == "":
			return err
		case err != nil:
			outage = lines(safeText(unreachable(err))) + "\n\n"
		default:
			seen = utc(s.At) + " UTC\n\n" + text
		}
		if _, err := fmt.Fprintln(out, before+outage+seen); err != nil {
			return err
		}
	}
	return nil
}

// eachSecond yields a context with the limit of a poll, now and each second, until ctx ends.
func eachSecond(ctx context.Context) iter.Seq[context.Context] {
	return func(yield func(context.Context) bool) {
		for tick := time.Tick(time.Second); ctx.Err() == nil; {
			limited, cancel := context.WithTimeout(ctx, poll) // the server may not answer
			more := yield(limited)
			cancel()
			if !more {
				return
			}
			select {
			case <-tick:
			case <-ctx.Done():
			}
		}
	}
}

func newExplain() *cobra.Command {
	cmd := &cobra.Command{Use: "explain LEASE[/PARTITION]", Short: "Explain why a client owns a partition"}
	key := cmd.Flags().String("key", "", "explain the partition of this key, such as a customer, in the lease")
	at := cmd.Flags().String("at", "", "explain who owned it at this time of UTC, such as 03:12 for today, "+
		"'2026-03-02 03:12', or a time of RFC 3339")
	return looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, string, error) {
		lease, partition, err := partitionOf(args[0])
		keyed := cmd.Flags().Changed("key")
		if keyed || err != nil {
			lease, partition, err = leaseOf(ctx, a, args[0], *key, keyed)
		}
		if err != nil {
			return nil, "", err
		}
		if cmd.Flags().Changed("at") {
			past, err := pastOf(ctx, a, lease, partition, *at)
			if err != nil {
				return nil, "", noSuchPartition(ctx, a, lease, err)
			}
			return past, past.text(), nil
		}
		e, err := a.Explain(ctx, lease, partition)
		if err != nil {
			return nil, "", noSuchPartition(ctx, a, lease, err)
		}
		text := fmt.Sprintf("%s/%d, epoch %d\n\n", shown(e.Lease), e.Partition, e.Epoch)
		for _, sentence := range e.Reasons {
			text += printable(sentence) + "\n"
		}
		return e, text + "\n" + table(shareHeading, e.Members, share), nil
	})
}

// noSuchPartition returns what is wrong if err is that there is no such partition or lease.
func noSuchPartition(ctx context.Context, a *admin.Admin, lease string, err error) error {
	if !errors.Is(err, admin.ErrNoSuchPartition) && !errors.Is(err, admin.ErrNoLease) {
		return err
	}
	s, other := a.Snapshot(ctx)
	if other != nil {
		return other
	}
	if l := s.Lease(lease); l != nil {
		return fmt.Errorf("lease %q has partitions 0 to %d", lease, l.Partitions-1)
	}
	return unknown("lease", lease, leaseNames(s), "pgleases list")
}

// leaseOf returns the partition of a key in a lease, or the only partition of a lease.
func leaseOf(ctx context.Context, a *admin.Admin, lease, key string, keyed bool) (string, int, error) {
	s, err := a.Snapshot(ctx)
	if err != nil {
		return "", 0, err
	}
	switch l := s.Lease(lease); {
	case l == nil:
	case keyed || l.Partitions == 1:
		return lease, store.PartitionFor(key, l.Partitions), nil
	default:
		return "", 0, fmt.Errorf("lease %q has partitions 0 to %d: "+
			"give one, such as pgleases explain %s/0, or a key with --key", lease, l.Partitions-1, shown(lease))
	}
	alone, _, err := partitionOf(lease)
	if err == nil && s.Lease(alone) != nil {
		return "", 0, fmt.Errorf("%q names a partition, and --key another one: "+
			"give pgleases explain %s --key KEY, or leave --key out", lease, shown(alone))
	}
	return "", 0, unknown("lease", lease, leaseNames(s), "pgleases list")
}

const shareHeading = "CLIENT,WEIGHT,SHARE,OWNED,INCOMING,OUTGOING"

// share returns the cells of a member.
func share(m admin.Member) []any {
	return []any{shown(m.Client), m.Weight, strconv.FormatFloat(m.Share, 'f', 2, 64), m.Owned, m.Incoming, m.Outgoing}
}

func newLocks() *cobra.Command {
	cmd := &cobra.Command{
		Use:        "locks [PREFIX]",
		Short:      "List the named locks and their holders",
		SuggestFor: []string{"unlock", "release"},
	}
	return looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, string, error) {
		all, err := firstOf(a.Locks(ctx, strings.Join(args, "")), math.MaxInt)
		return all, locksOf(all), err
	})
}

func locksOf(all []admin.Lock) string {
	var rows [][]any
	for _, l := range all {
		mode := map[bool]string{true: "shared", false: "exclusive"}[l.Shared]
		if len(l.Holders) == 0 {
			rows = append(rows, []any{shown(l.Name), dash, dash, dash, dash, dash, dash, dash, l.Waiting})
		}
		for _, h := range l.Holders {
			// By this machine's clock, which may differ from the database's.
			row := []any{shown(l.Name), mode, orDash(h.Client), period(time.Since(h.Since)), period(h.TimeLeft),
				orDash(h.Host), h.PID, h.Token, l.Waiting}
			if h.Lost {
				row[1] = mode + ", lost"
			}
			if h.Client == "" {
				copy(row[4:7], slices.Repeat([]any{dash}, 3))
			}
			rows = append(rows, row)
		}
	}
	return table("LOCK,MODE,HELD BY,FOR,EXPIRES,HOST,PID,TOKEN,WAITING", rows, func(row []any) []any { return row })
}

// partitionOf reads LEASE/PARTITION.
func partitionOf(text string) (lease string, partition int, err error) {
	slash := strings.LastIndexByte(text, '/')
	partition, err = strconv.Atoi(text[slash+1:])
	if slash < 0 || err != nil || partition < 0 {
		return "", 0, fmt.Errorf("%q names no partition: give the lease, a slash and the number, such as orders/17",
			text)
	}
	return text[:slash], partition, nil
}

// arguments returns the names of a verb's arguments, as its Use has them.
func arguments(cmd *cobra.Command) []string { return strings.Fields(cmd.Use)[1:] }

// asUsed checks that a verb has the arguments that its Use names. Those in brackets are optional.
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

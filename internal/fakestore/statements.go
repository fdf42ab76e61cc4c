package fakestore

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// The statements, in the order of a client's life. The SQL file of the same name describes what
// each does, and why.

// Microseconds.
const (
	millisecond = int64(1000)
	second      = 1000 * millisecond
	minute      = 60 * second
	day         = 24 * 60 * minute
)

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// notDue is the time until something is due if it is not due at all.
const notDue = -time.Microsecond

// Register is register.sql.
func (c *Conn) Register(ctx context.Context, r store.Registration) (int64, *store.Process, error) {
	type answer struct {
		incarnation int64
		newer       *store.Process
	}
	a, err := execute(ctx, c, "register", true, func(db *Database, t *Tables, clock int64) (answer, bool) {
		c.session = r.Session
		expires := clock + r.TTL.Microseconds()
		i, known := t.Identities[r.ID]
		other := t.livelyOther(r, clock)
		lately := i.TakenAt > clock-5*minute
		if known && i.Process != r.Process && i.Process != 0 && i.Takeovers >= 3 && lately && other != nil {
			newest := *t.newest(r.ID, r.Session)
			newest.Contended = true
			return answer{0, &newest}, false
		}
		older := i.Process>>store.ProcessBits == r.Process>>store.ProcessBits && i.Process > r.Process
		switch {
		case !known:
			i.TakenAt = Never
			i.Incarnation = cmp.Or(r.Incarnation, (clock+second/2)/second)
		case i.Process == r.Process:
		case r.Incarnation == 0 && !older:
			i.Incarnation++
		case i.Incarnation < r.Incarnation:
			i.Incarnation = r.Incarnation
		case i.Process == 0:
			return answer{0, &store.Process{Evicted: true}}, true
		default:
			return answer{0, t.newest(r.ID, r.Session)}, true
		}
		if known && i.Process != r.Process && other != nil {
			if !lately {
				i.Takeovers = 0
			}
			i.Takeovers++
			i.TakenAt = clock
			i.TakenFrom = fmt.Sprintf("host %s, pid %d", other.Process.Host, other.Process.PID)
		}
		t.Server.NextCheckAt = min(t.Server.NextCheckAt, expires)
		if t.Server.AcceptedTimeline == 0 { // the first client of new tables
			t.Server.AcceptedTimeline = db.run.Timeline
		}
		i.Process, i.UsedAt = r.Process, clock
		t.Identities[r.ID] = i
		row, known := t.Clients[r.Session]
		if !known {
			row = Client{
				Session:     r.Session,
				ID:          r.ID,
				Incarnation: i.Incarnation,
				TTL:         r.TTL,
				Process:     store.Process{Host: r.Host, PID: r.PID, StartedAt: r.StartedAt},
				Metadata:    cmp.Or(r.Metadata, "{}"),
			}
		}
		row.ExpiresAt, row.Incarnation = expires, max(row.Incarnation, i.Incarnation)
		t.Clients[r.Session] = row
		db.Renewed(r.Session)
		return answer{row.Incarnation, nil}, true
	})
	return a.incarnation, a.newer, err
}

// livelyOther returns the newest client under the ID of a first registration whose last heartbeat
// is less than half a TTL old; nil: there is none.
func (t *Tables) livelyOther(r store.Registration, clock int64) *Client {
	if r.Incarnation != 0 {
		return nil
	}
	var best *Client
	for _, row := range t.Clients {
		isOther := row.ID == r.ID && row.Session != r.Session && row.Incarnation >= 0
		isLively := row.ExpiresAt > clock+row.TTL.Microseconds()/2
		if isOther && isLively && (best == nil || row.Incarnation > best.Incarnation) {
			best = &row
		}
	}
	return best
}

// newest returns the process with the highest incarnation under an ID, without one session.
func (t *Tables) newest(id string, but int64) *store.Process {
	var best *Client
	for _, row := range t.Clients {
		if row.ID == id && row.Session != but && (best == nil || row.Incarnation > best.Incarnation) {
			best = &row
		}
	}
	if best == nil {
		return nil
	}
	return &best.Process
}

// Superseder is superseder.sql.
func (c *Conn) Superseder(ctx context.Context, id string) (*store.Process, error) {
	return execute(ctx, c, "superseder", false, func(_ *Database, t *Tables, _ int64) (*store.Process, bool) {
		return t.newest(id, 0), false
	})
}

// Heartbeat is heartbeat.sql. A crash may lose it.
func (c *Conn) Heartbeat(
	ctx context.Context, session int64, watched time.Duration, last store.Renewal,
) (store.Beat, error) {
	return execute(ctx, c, "heartbeat", false, func(db *Database, t *Tables, clock int64) (store.Beat, bool) {
		c.session = session
		row, exists := t.Clients[session]
		beat := store.Beat{
			Clock:            clock,
			Server:           db.run,
			Tables:           db.number,
			AcceptedTimeline: t.Server.AcceptedTimeline,
			ServerGeneration: t.Server.Generation,
		}
		ttl := row.TTL.Microseconds()
		sameRun := db.run.Marker != 0 && db.run.Marker == last.Marker
		isRevoked := row.Incarnation < 0
		beat.Copied = exists && !isRevoked && sameRun && row.ExpiresAt > last.Clock+ttl
		if !exists || isRevoked || beat.Copied {
			return beat, false
		}
		row.ExpiresAt = clock + ttl
		t.Clients[session] = row
		db.Renewed(session)
		beat.Alive = true
		beat.Incarnation = t.Identities[row.ID].Incarnation
		beat.Sessions = t.Server.Sessions
		if t.Server.NextCheckAt <= clock+ttl+second {
			beat.CheckDueIn = micros(max(t.Server.NextCheckAt-clock, 0))
		}
		if t.Server.Unwatched > 0 {
			beat.CheckDueIn = min(beat.CheckDueIn, max(t.Server.Unwatched-watched, 0))
		}
		for _, name := range slices.Sorted(maps.Keys(t.Leases)) {
			member, is := t.Members[Member{name, session}]
			if !is {
				continue
			}
			l := t.Leases[name]
			b := store.LeaseBeat{Name: name, Generation: l.Generation - l.Joins, Weight: member.Weight}
			switch {
			case l.NextCheckAt == Ever:
				b.DueIn = notDue
			case l.NextCheckAt <= l.latest(clock): // otherwise the clock stepped back
				b.DueIn = micros(max(l.NextCheckAt-clock, 0))
			}
			beat.Leases = append(beat.Leases, b)
		}
		db.beat()
		return beat, false // its write is kept already
	})
}

// Report is report.sql.
func (c *Conn) Report(ctx context.Context, session int64, r store.Report) error {
	_, err := execute(ctx, c, "report", false, func(_ *Database, t *Tables, _ int64) (struct{}, bool) {
		client, exists := t.Clients[session]
		if exists {
			client.Report, client.LostLocks = r.String(), strings.Join(r.LostLocks, "\x00")
			t.Clients[session] = client
		}
		return struct{}{}, exists
	})
	return err
}

// SetMarker is marker.sql. A crash loses the marker.
func (c *Conn) SetMarker(ctx context.Context, marker int64) error {
	_, err := execute(ctx, c, "marker", true, func(db *Database, _ *Tables, _ int64) (struct{}, bool) {
		if db.run.Marker == 0 {
			db.run.Marker = marker
		}
		return struct{}{}, false
	})
	return err
}

// on reports whether this is the server incarnation that was watched.
func (db *Database) on(run store.Incarnation) bool { return run == db.run && run.Marker != 0 }

// AcceptServer is accept.sql.
func (c *Conn) AcceptServer(
	ctx context.Context, watched time.Duration, run store.Incarnation, generation int64,
) (int64, error) {
	return execute(ctx, c, "accept", true, func(db *Database, t *Tables, clock int64) (int64, bool) {
		if t.Server.AcceptedTimeline == run.Timeline || !db.on(run) {
			return 0, false
		}
		for _, row := range t.Clients {
			if row.TTL > watched {
				return 0, false
			}
		}
		t.Server.AcceptedTimeline, t.Server.NextCheckAt = run.Timeline, clock
		t.Server.Generation = max(t.Server.Generation+1, generation+1, min(store.GenerationAt(clock), 2000000000))
		db.changes = append(db.changes, change{whole: true})
		return t.Server.Generation, true
	})
}

// RejectServer is reject.sql.
func (c *Conn) RejectServer(ctx context.Context, timeline, generation int64) error {
	_, err := execute(ctx, c, "reject", true, func(_ *Database, t *Tables, _ int64) (struct{}, bool) {
		behind := t.Server.AcceptedTimeline == timeline && t.Server.Generation < generation
		if behind {
			t.Server.AcceptedTimeline = -2
		}
		return struct{}{}, behind
	})
	return err
}

// nextEpoch returns the epoch of a partition's next owner.
func (db *Database) nextEpoch(row Partition) int64 {
	first := db.tables.Server.Generation << 32
	if first > 0 {
		first += db.run.Started & (1<<31 - 1)
	}
	return max(row.Epoch+1, first)
}

// guarded reports whether an open transaction guards the partition.
func (db *Database) guarded(lease string, partition int) bool {
	return len(db.guards[place{lease, partition}]) > 0
}

// End is close.sql.
func (c *Conn) End(ctx context.Context, session int64) (bool, error) {
	return execute(ctx, c, "end", true, func(_ *Database, t *Tables, clock int64) (bool, bool) {
		row, alive := t.Clients[session]
		for m := range t.Members {
			if m.Session == session {
				return !alive, false
			}
		}
		if t.holdsLocks(session) {
			return !alive, false
		}
		if alive {
			delete(t.Clients, session)
			t.used(row.ID, clock)
		}
		return true, alive
	})
}

// used notes that a session under an ID ended.
func (t *Tables) used(id string, clock int64) {
	if i, known := t.Identities[id]; known {
		i.UsedAt = clock
		t.Identities[id] = i
	}
}

// Join is join.sql.
func (c *Conn) Join(
	ctx context.Context, session int64, lease string, partitions int, terms store.Terms, number int64,
) (store.Join, error) {
	return execute(ctx, c, "join", true, func(_ *Database, t *Tables, clock int64) (store.Join, bool) {
		l, known := t.Leases[lease]
		join := store.Join{Partitions: int(l.Partitions), Successor: l.Successor}
		only := int(l.Partitions)
		if l.Partitions == 0 {
			join.DroppedWith = int(l.NextPartitions)
			only = join.DroppedWith
		}
		_, join.Alive = t.Clients[session]
		if !join.Alive {
			return join, false
		}
		calm := l.PlannedAt + 250*millisecond + 10*l.Partitions
		underWay := l.NextCheckAt > clock && l.NextCheckAt <= l.latest(clock)
		switch {
		case !known:
			l = Lease{Generation: 1, CreatedGeneration: 1, NextUntil: Never}
			join.Claimed = true
		case l.Successor != "", only != partitions && (l.Partitions > 0 || l.NextUntil > clock):
			return join, false
		default:
			l.Generation++
			if l.Partitions == 0 {
				l.CreatedGeneration = l.Generation
			} else if l.Unowned == 0 {
				l.Joins++
			}
			g, is := t.Graces[GraceKey{lease, t.Clients[session].ID}]
			awaited := is && g.Until > clock
			join.Claimed = (calm <= clock || awaited) && !underWay || l.PlannedAt > clock // the clock stepped back
			if l.NextCheckAt > clock {
				l.NextCheckAt = min(max(calm, clock+100*millisecond), l.PlannedAt+second+10*l.Partitions)
			}
		}
		if known {
			t.settle(&l, Member{lease, session}, terms, clock)
		}
		l.Partitions = int64(partitions)
		if join.Claimed {
			// The server compares the times of plans, so it does not tell of a claim within one microsecond
			// of the last plan. Then the lease is planned when the claim is over.
			join.Claimed = !known || l.PlannedAt != clock
			l.claim(clock)
		}
		t.Leases[lease] = l
		if l.CreatedGeneration == l.Generation {
			t.create(lease, l)
		}
		m := Member{lease, session}
		before, again := t.Members[m]
		if !again || before.Weight == 0 && terms.Weight > 0 {
			before.JoinedAt, before.JoinedGeneration = clock, l.Generation
		}
		t.Members[m] = Membership{
			Weight: terms.Weight, RebalanceDelay: terms.RebalanceDelay, MaxPartitions: terms.MaxPartitions,
			RestartGrace: terms.RestartGrace,
			JoinedAt:     before.JoinedAt, JoinedGeneration: before.JoinedGeneration,
			JoinNumber: max(before.JoinNumber, number),
		}
		join.Joined = true
		if !again && l.Unowned == 0 && len(t.Overrides) == 0 {
			join.Generation = l.Generation - l.Joins
		}
		if !join.Claimed && l.NextCheckAt < Ever {
			join.DueIn = micros(max(l.NextCheckAt-clock, 0))
		}
		if l.SettlesAt != 0 {
			join.SettlesIn = micros(max(l.SettlesAt-clock, 0))
		}
		if l.SettlesAt != 0 && before.Weight != terms.Weight {
			t.Server.NextCheckAt = min(t.Server.NextCheckAt, l.SettlesAt)
		}
		return join, true
	})
}

// await begins the restart grace of a session in a lease, and reports whether it has one. Gone are
// the sessions that end with it.
func (t *Tables) await(m Member, gone map[int64]bool, clock int64) bool {
	member, is := t.Members[m]
	client := t.Clients[m.Session]
	key := GraceKey{m.Lease, client.ID}
	before, again := t.Graces[key]
	again = again && before.Generation >= member.JoinedGeneration
	if !is || member.RestartGrace == 0 || client.Incarnation < 0 || member.Weight == 0 && !again {
		return false
	}
	if t.overridden("drain", "", client.ID) || t.isBack(m, gone) {
		return false
	}
	g := Grace{
		Weight: member.Weight, MaxPartitions: member.MaxPartitions, Generation: t.Leases[m.Lease].Generation,
		Since: clock, Until: clock + member.RestartGrace.Microseconds(),
	}
	if g.Weight == 0 {
		g.Weight = before.Weight
	}
	t.Graces[key] = g
	return true
}

// isBack reports whether another session of the client is a member of the lease. A session that is
// evicted has no other that stays; one that leaves has a newer one.
func (t *Tables) isBack(m Member, gone map[int64]bool) bool {
	client := t.Clients[m.Session]
	for other := range t.Members {
		c, alive := t.Clients[other.Session]
		if !alive || other.Lease != m.Lease || c.ID != client.ID || other.Session == m.Session || gone[other.Session] {
			continue
		}
		if gone == nil && c.Incarnation >= client.Incarnation || gone != nil && c.Incarnation >= 0 {
			return true
		}
	}
	return false
}

// others reports whether the client of a member has another session that is a member of the lease,
// and is not gone.
func (t *Tables) others(m Member, gone map[int64]bool) bool {
	id := t.Clients[m.Session].ID
	for other := range t.Members {
		same := other.Lease == m.Lease && t.live(m.Lease, other.Session) && t.Clients[other.Session].ID == id
		if same && other.Session != m.Session && !gone[other.Session] {
			return true
		}
	}
	return false
}

// olderFirst compares members by their clients' incarnations.
func (t *Tables) olderFirst(a, b Member) int {
	return cmp.Or(cmp.Compare(t.Clients[a.Session].Incarnation, t.Clients[b.Session].Incarnation),
		cmp.Compare(a.Session, b.Session))
}

// lasts reports whether a client is still awaited. A grace of the future began under another clock.
func (g *Grace) lasts(clock int64) bool { return g.Until > clock && g.Since <= clock+second }

// awaited returns the clients that a plan of a lease waits for.
func (t *Tables) awaited(lease string, clock int64) (all []store.Awaited) {
	for key, g := range t.Graces {
		if key.Lease == lease && g.lasts(clock) && !t.overridden("drain", "", key.Client) {
			all = append(all, store.Awaited{
				ID: key.Client, Weight: g.Weight, MaxPartitions: g.MaxPartitions, Generation: g.Generation,
			})
		}
	}
	slices.SortFunc(all, func(a, b store.Awaited) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// settle begins the rebalance delay of a lease, if a join changes a weight.
func (t *Tables) settle(l *Lease, m Member, terms store.Terms, clock int64) {
	delay := terms.RebalanceDelay
	for other, member := range t.Members {
		if other.Lease == m.Lease && t.live(m.Lease, other.Session) {
			delay = max(delay, member.RebalanceDelay)
		}
	}
	over := l.SettlesAt != 0 && l.SettlesAt <= clock // a check is about to end it, and a plan follows
	if delay == 0 || over || t.Members[m].Weight == terms.Weight {
		return
	}
	if !l.settles(clock) {
		l.SettlingSince, l.SettlesAt = clock, 0
	}
	l.SettlesAt = max(l.SettlesAt, min(clock+delay.Microseconds(), l.SettlingSince+5*delay.Microseconds()))
}

// settles reports whether a rebalance delay is under way. If it began in the future, the clock
// stepped back.
func (l *Lease) settles(clock int64) bool {
	return l.SettlesAt > clock && l.SettlingSince <= clock+second
}

// endDelays ends the rebalance delays and restart graces whose time is over, and returns the leases.
func (t *Tables) endDelays(clock int64) (toPlan []string) {
	over := make(map[string]bool)
	for key, g := range t.Graces {
		if !g.lasts(clock) {
			over[key.Lease] = true
			delete(t.Graces, key)
		}
	}
	for name, l := range t.Leases {
		settled := l.SettlesAt != 0 && !l.settles(clock)
		if !settled && !over[name] {
			continue
		}
		if settled {
			l.SettlingSince, l.SettlesAt = 0, 0
		}
		l.Generation++
		if l.Partitions > 0 {
			l.NextCheckAt = min(l.NextCheckAt, clock)
		}
		t.Leases[name] = l
		toPlan = append(toPlan, name)
	}
	return toPlan
}

// Read is read.sql.
func (c *Conn) Read(ctx context.Context, session int64, leases []string) ([]store.LeaseRead, error) {
	return execute(ctx, c, "read", false, func(db *Database, t *Tables, _ int64) ([]store.LeaseRead, bool) {
		var reads []store.LeaseRead
		for _, name := range distinct(leases) {
			l, known := t.Leases[name]
			if !known {
				continue
			}
			read := store.LeaseRead{
				Name:             name,
				Generation:       l.Generation - l.Joins,
				AcceptedTimeline: t.Server.AcceptedTimeline,
				ServerGeneration: t.Server.Generation,
				Server:           store.Incarnation{Timeline: db.run.Timeline, Started: db.run.Started},
			}
			read.Unowned = l.Unowned
			read.Speaks = l.Unowned > 0 && session == t.firstOf(name)
			if t.overridden("pause", name, "") {
				read.Paused = []string{"operator", "reason"}
			}
			if t.overridden("drain", "", t.Clients[session].ID) {
				read.Drained = []string{"operator", "reason"}
			}
			for p, row := range t.Partitions[name] {
				if row.Owner == session {
					owned := store.Owned{Partition: p, Epoch: row.Epoch, Moving: row.Target != row.Owner}
					read.Owned = append(read.Owned, owned)
				}
			}
			reads = append(reads, read)
		}
		return reads, false
	})
}

// firstOf returns the lowest session of the live members of a lease.
func (t *Tables) firstOf(lease string) (first int64) {
	for m := range t.Members {
		if m.Lease == lease && t.live(lease, m.Session) && (first == 0 || m.Session < first) {
			first = m.Session
		}
	}
	return first
}

// Owners is owners.sql.
func (c *Conn) Owners(ctx context.Context, spans []store.Span) (map[store.Span]store.Owners, error) {
	type answer = map[store.Span]store.Owners
	return execute(ctx, c, "owners", false, func(db *Database, t *Tables, clock int64) (answer, bool) {
		at := store.Point{Seen: strconv.Itoa(len(db.changes))}
		if db.run.Marker != 0 {
			at.Run = fmt.Sprint(db.run.Started, db.run.Marker)
		}
		found := make(answer, len(spans))
		for _, s := range spans {
			read := []int{}
			whole := s.Since.Run != at.Run || at.Run == ""
			if !whole {
				read, whole = db.changedSince(s)
			}
			if whole {
				read = partitionsOf(s)
			}
			of := t.owners(s.Lease, read, clock)
			of.At = at
			found[s] = of
		}
		return found, false
	})
}

// changedSince returns the partitions of a span that have changed since its point, or that all are to
// be read.
func (db *Database) changedSince(s store.Span) (changed []int, whole bool) {
	seen, _ := strconv.Atoi(s.Since.Seen) // it is an answer's
	for _, c := range db.changes[seen:] {
		of := c.lease == s.Lease || c.lease == ""
		whole = whole || of && c.whole
		if of && c.partition >= s.First && c.partition <= s.Last {
			changed = append(changed, c.partition)
		}
	}
	slices.Sort(changed)
	return slices.Compact(changed), whole
}

func partitionsOf(s store.Span) (all []int) {
	for p := s.First; p <= s.Last; p++ {
		all = append(all, p)
	}
	return all
}

// owners returns the live owners of partitions, in the order of their sessions.
func (t *Tables) owners(lease string, partitions []int, clock int64) store.Owners {
	l := t.Leases[lease]
	owners := store.Owners{Partitions: int(l.Partitions), Generation: l.Generation - l.Joins}
	bySession := make(map[int64]*store.Owner)
	for _, p := range partitions {
		last := len(owners.Lasts) - 1
		if last >= 0 && int(owners.Lasts[last]) == p-1 {
			owners.Lasts[last]++
		} else {
			owners.Firsts, owners.Lasts = append(owners.Firsts, int64(p)), append(owners.Lasts, int64(p))
		}
		row := t.row(lease, p)
		if row == nil {
			continue
		}
		owner := t.Clients[row.Owner]
		if owner.Session == 0 || owner.Incarnation < 0 || owner.ExpiresAt <= clock {
			continue
		}
		o := bySession[row.Owner]
		if o == nil {
			o = &store.Owner{ID: owner.ID, Metadata: owner.Metadata}
			bySession[row.Owner] = o
		}
		o.Partitions = append(o.Partitions, int64(p))
		o.Epochs = append(o.Epochs, row.Epoch)
	}
	for _, session := range slices.Sorted(maps.Keys(bySession)) {
		owners.Owners = append(owners.Owners, *bySession[session])
	}
	return owners
}

// distinct returns names in order, each once.
func distinct(names []string) []string { return slices.Compact(slices.Sorted(slices.Values(names))) }

// Release is release.sql.
func (c *Conn) Release(
	ctx context.Context, session int64, releases []store.Release, leaving []store.Leave, lastJoin int64,
) (store.Released, error) {
	return execute(ctx, c, "release", true, func(db *Database, t *Tables, clock int64) (store.Released, bool) {
		var answer store.Released
		client, alive := t.Clients[session]
		valid := t.Server.AcceptedTimeline == db.run.Timeline
		// By lease to leave: it has not changed since the plan of the successors read it.
		planned := make(map[string]bool)
		successors := make(map[string]map[int]int64)
		awaited := make(map[string]bool)
		for _, l := range leaving {
			member, is := t.Members[Member{l.Lease, session}]
			if l.Returns && alive && is && member.RestartGrace > 0 {
				t.Server.NextCheckAt = min(t.Server.NextCheckAt, clock+member.RestartGrace.Microseconds())
			}
			if l.Returns && alive {
				awaited[l.Lease] = t.await(Member{l.Lease, session}, nil, clock)
			}
			planned[l.Lease], successors[l.Lease] = l.Planned == t.Leases[l.Lease].Generation, l.Successors
		}
		due := make(map[string]bool) // by lease that changed: whether a plan is due
		for _, r := range releases {
			row := t.row(r.Lease, r.Partition)
			switch {
			case !alive || row == nil || row.Owner != session || row.Epoch != r.Epoch:
				continue
			case !valid || db.guarded(r.Lease, r.Partition):
				answer.Busy = append(answer.Busy, store.Release{Lease: r.Lease, Partition: r.Partition})
				continue
			}
			asPlanned, leaves := planned[r.Lease]
			from := *row
			renewed := store.ServerGenerationOf(r.Epoch) < t.Server.Generation && !leaves
			next := row.Target
			switch planned := successors[r.Lease][r.Partition]; {
			case renewed:
				next = session
			case asPlanned && planned != 0:
				next = planned
			}
			var successor Client
			if t.live(r.Lease, next) && !(next == session && leaves) {
				successor = t.Clients[next]
			}
			member, is := t.Members[Member{r.Lease, session}]
			if successor.ID != "" {
				isAway := leaves || t.overridden("drain", "", client.ID) || is && member.Weight == 0
				row.own(successor.ID, isAway)
			}
			row.Owner, row.Epoch = successor.Session, db.nextEpoch(from)
			if !renewed {
				row.Target = successor.Session
				db.changes = append(db.changes, change{lease: r.Lease, partition: r.Partition})
			}
			db.Moved("release", r.Lease, r.Partition, from, *row)
			handed := store.Handed{Lease: r.Lease, Partition: r.Partition, Owner: row.Owner, Epoch: row.Epoch}
			answer.Released = append(answer.Released, handed)
			if row.Owner == 0 && !awaited[r.Lease] {
				due[r.Lease] = true
			}
		}
		for _, l := range leaving {
			name, m := l.Lease, Member{l.Lease, session}
			member, is := t.Members[m]
			_, known := t.Leases[name]
			if !l.Now || !is || !known || member.JoinNumber > lastJoin {
				continue
			}
			switch {
			case !slices.ContainsFunc(t.Partitions[name], func(row Partition) bool { return row.Owner == session }):
				if !awaited[name] && !t.others(m, nil) {
					delete(t.Graces, GraceKey{name, client.ID})
				}
				delete(t.Members, m)
				answer.Left = append(answer.Left, name)
				due[name] = due[name] || !planned[name]
			case member.Weight != 0:
				member.Weight = 0
				t.Members[m] = member
				if !due[name] {
					due[name] = false // it has changed
				}
			}
		}
		for _, name := range slices.Sorted(maps.Keys(due)) {
			l := t.Leases[name]
			l.Generation++
			if due[name] && t.wanted(name) {
				l.NextCheckAt = min(l.NextCheckAt, clock)
			}
			t.Leases[name] = l
			if l.NextCheckAt <= clock {
				answer.ToPlan = append(answer.ToPlan, name)
			}
		}
		slices.Sort(answer.Left)
		owners := make(map[int64]bool)
		for _, h := range answer.Released {
			if slices.Contains(answer.Left, h.Lease) {
				owners[h.Owner] = true
			}
		}
		db.notify(owners)
		slices.SortFunc(answer.Released, func(a, b store.Handed) int {
			return cmp.Or(strings.Compare(a.Lease, b.Lease), a.Partition-b.Partition)
		})
		slices.SortFunc(answer.Busy, func(a, b store.Release) int {
			return cmp.Or(strings.Compare(a.Lease, b.Lease), a.Partition-b.Partition)
		})
		return answer, len(answer.Released)+len(due)+len(awaited) > 0
	})
}

// own changes the ID of the owner. A previous owner that is away gets the partition back when it
// returns.
func (p *Partition) own(id string, isAway bool) {
	switch {
	case id == p.PreferredID:
		p.PreferredID = ""
	case p.OwnerID != "" && id != p.OwnerID && isAway:
		p.PreferredID = p.OwnerID
	}
	p.OwnerID = id
}

// wanted reports whether a member of the lease may own partitions.
func (t *Tables) wanted(lease string) bool {
	if t.overridden("pause", lease, "") {
		return false
	}
	for m, member := range t.Members {
		if m.Lease == lease && member.Weight > 0 {
			return true
		}
	}
	return false
}

// Announce is announce.sql.
func (c *Conn) Announce(ctx context.Context, leases []string, sessions []int64) error {
	_, err := execute(ctx, c, "announce", false, func(db *Database, t *Tables, _ int64) (struct{}, bool) {
		for _, name := range distinct(leases) {
			if l, known := t.Leases[name]; known {
				l.Generation++
				t.Leases[name] = l
			}
		}
		concerned := make(map[int64]bool)
		for _, session := range sessions {
			concerned[session] = true
		}
		db.notify(concerned)
		return struct{}{}, true
	})
	return err
}

// Fence is fence.sql.
func (c *Conn) Fence(ctx context.Context, session int64, busy []store.Release) error {
	_, err := execute(ctx, c, "fence", true, func(db *Database, t *Tables, _ int64) (struct{}, bool) {
		raised := false
		for _, r := range busy {
			row := t.row(r.Lease, r.Partition)
			owns := row != nil && row.Owner == session && row.Epoch == r.Epoch
			if !owns || t.Server.AcceptedTimeline != db.run.Timeline {
				continue
			}
			row.Epoch = db.nextEpoch(*row)
			raised = true
		}
		return struct{}{}, raised
	})
	return err
}

// Evict is evict.sql.
func (c *Conn) Evict(
	ctx context.Context, cutoff int64, watched, ttl time.Duration, run store.Incarnation,
) (store.Evicted, error) {
	return execute(ctx, c, "evict", true, func(db *Database, t *Tables, clock int64) (store.Evicted, bool) {
		var answer store.Evicted
		due := t.Server.NextCheckAt <= clock || t.Server.Unwatched > 0 && t.Server.Unwatched <= watched ||
			t.Server.NextCheckAt > clock+second+ttl.Microseconds() // the clock stepped back
		if !due || clock < cutoff || t.Server.AcceptedTimeline != run.Timeline || !db.on(run) {
			return answer, false
		}
		expired, stays := make(map[int64]bool), make(map[int64]bool)
		unwatched := time.Duration(0)
		for session, row := range t.Clients {
			switch {
			case row.ExpiresAt >= cutoff:
			case row.TTL <= watched:
				expired[session] = true
			default:
				stays[session] = true
				if unwatched == 0 || row.TTL < unwatched {
					unwatched = row.TTL
				}
			}
		}
		affected := make(map[string]bool)
		for _, m := range slices.SortedFunc(maps.Keys(t.Members), t.olderFirst) {
			if expired[m.Session] {
				affected[m.Lease] = true
				waits := t.await(m, expired, clock)
				key := GraceKey{m.Lease, t.Clients[m.Session].ID}
				before, is := t.Graces[key]
				if is && !waits && before.Generation < t.Members[m].JoinedGeneration && !t.others(m, expired) {
					delete(t.Graces, key)
				}
			}
		}
		maps.DeleteFunc(t.Members, func(m Member, _ Membership) bool { return expired[m.Session] })
		byID := func(a, b int64) int {
			return cmp.Or(cmp.Compare(t.Clients[a].ID, t.Clients[b].ID), cmp.Compare(a, b))
		}
		for _, session := range slices.SortedFunc(maps.Keys(expired), byID) {
			row := t.Clients[session]
			delete(t.Clients, session)
			t.used(row.ID, clock)
			answer.IDs = append(answer.IDs, row.ID)
			answer.Hosts, answer.PIDs = append(answer.Hosts, row.Process.Host), append(answer.PIDs, row.Process.PID)
			db.changes = append(db.changes, change{whole: true})
			db.Evicted(row)
		}
		for _, name := range slices.Sorted(maps.Keys(affected)) {
			if l, known := t.Leases[name]; known {
				l.Generation++
				l.NextCheckAt = clock
				if l.PlannedAt <= clock { // otherwise the clock stepped back
					l.NextCheckAt = max(clock, l.PlannedAt+50*millisecond+5*l.Partitions)
				}
				t.Leases[name] = l
				answer.ToPlan = append(answer.ToPlan, name)
				answer.PlanDueIn = max(answer.PlanDueIn, micros(l.NextCheckAt-clock))
			}
		}
		next := int64(Ever)
		for session, row := range t.Clients {
			latest := clock + row.TTL.Microseconds()
			if !stays[session] {
				next = min(next, row.ExpiresAt, latest)
			}
			if row.ExpiresAt > latest+second { // the clock stepped back
				row.ExpiresAt = latest
				t.Clients[session] = row
			}
		}
		for _, w := range t.Overrides {
			if w.Until <= clock {
				w.Until = clock + 100*millisecond
			}
			next = min(next, w.Until)
		}
		ends := func(at int64) {
			if at <= clock {
				at = clock + 100*millisecond
			}
			next = min(next, at)
		}
		for _, l := range t.Leases {
			if l.SettlesAt != 0 {
				ends(l.SettlesAt)
			}
		}
		for _, g := range t.Graces {
			ends(g.Until)
		}
		t.Server.NextCheckAt, t.Server.Unwatched = max(clock+50*millisecond, next), unwatched
		t.Server.Sessions = int64(len(t.Clients))
		answer.Made = true
		answer.CheckDueIn = micros(min(t.Server.NextCheckAt, clock+11*minute) - clock)
		if unwatched > 0 {
			answer.CheckDueIn = min(answer.CheckDueIn, unwatched-watched)
		}
		return answer, true
	})
}

// Sample is sample.sql, without the samples, because no client reads them.
func (c *Conn) Sample(ctx context.Context, _ time.Duration) (store.Sampled, error) {
	return execute(ctx, c, "sample", false, func(db *Database, _ *Tables, clock int64) (store.Sampled, bool) {
		wrote := db.sampled != clock/minute
		db.sampled = clock / minute
		return store.Sampled{Wrote: wrote}, false
	})
}

// Tidy is tidy.sql, for the whole tables.
func (c *Conn) Tidy(ctx context.Context) ([]string, error) {
	return execute(ctx, c, "tidy", true, func(_ *Database, t *Tables, clock int64) ([]string, bool) {
		lost, inhabited := make(map[string]bool), make(map[string]bool)
		for m := range t.Members {
			if t.live(m.Lease, m.Session) {
				inhabited[m.Lease] = true
			} else {
				lost[m.Lease] = true
			}
		}
		maps.DeleteFunc(t.Members, func(m Member, _ Membership) bool { return !t.live(m.Lease, m.Session) })
		maps.DeleteFunc(t.Identities, func(id string, i Identity) bool {
			return i.UsedAt < clock-day && t.newest(id, 0) == nil
		})
		var toPlan []string
		for name, l := range t.Leases {
			orphaned := func(row Partition) bool {
				return row.Owner != 0 && !t.live(name, row.Owner) || row.Target != 0 && !t.live(name, row.Target)
			}
			unplanned := inhabited[name] && l.NextCheckAt > l.latest(clock)
			if lost[name] || unplanned && slices.ContainsFunc(t.Partitions[name], orphaned) {
				l.Generation++
				l.NextCheckAt = clock
				t.Leases[name] = l
				toPlan = append(toPlan, name)
			}
		}
		toPlan = append(toPlan, t.endOverrides(clock)...)
		return distinct(append(toPlan, t.endDelays(clock)...)), true
	})
}

// Claim is claim.sql.
func (c *Conn) Claim(ctx context.Context, leases []string) ([]string, error) {
	return execute(ctx, c, "claim", true, func(_ *Database, t *Tables, clock int64) ([]string, bool) {
		var claimed []string
		for _, name := range distinct(leases) {
			l, known := t.Leases[name]
			if known && (l.NextCheckAt <= clock || l.NextCheckAt > l.latest(clock) && l.NextCheckAt < Ever) {
				l.claim(clock)
				t.Leases[name] = l
				claimed = append(claimed, name)
			}
		}
		return claimed, len(claimed) > 0
	})
}

// claim keeps others from a plan of the lease for a while.
func (l *Lease) claim(clock int64) {
	l.NextCheckAt, l.PlannedAt = clock+100*millisecond+10*l.Partitions, clock
}

// latest returns the last time when a plan can be due; if it is due later, the clock stepped back.
func (l *Lease) latest(clock int64) int64 { return clock + second + 50*l.Partitions }

// Snapshot is snapshot.sql.
func (c *Conn) Snapshot(ctx context.Context, leases []string, alone bool) ([]store.LeaseSnapshot, error) {
	return execute(ctx, c, "snapshot", false, func(_ *Database, t *Tables, clock int64) ([]store.LeaseSnapshot, bool) {
		sessions, members := make(map[int64]bool), make(map[string]int)
		for m := range t.Members {
			members[m.Lease]++
		}
		related := make(map[string][]store.Member)
		for _, name := range leases {
			related[name] = nil
		}
		for m := range t.Members {
			_, named := related[m.Lease]
			if named && !alone && members[m.Lease] > 1 {
				sessions[m.Session] = true
			}
		}
		for m := range t.Members {
			if sessions[m.Session] {
				related[m.Lease] = nil
			}
		}
		for m, member := range t.Members {
			members, ok := related[m.Lease]
			row, alive := t.Clients[m.Session]
			if ok && alive {
				related[m.Lease] = append(members, store.Member{
					Session: m.Session, ID: row.ID, Incarnation: row.Incarnation, Revoked: row.Incarnation < 0,
					Weight: member.Weight, MaxPartitions: member.MaxPartitions, Joined: member.JoinedGeneration,
					Drained: t.overridden("drain", "", row.ID), Cordoned: t.overridden("cordon", "", row.ID),
				})
			}
		}
		var snapshots []store.LeaseSnapshot
		for _, name := range slices.Sorted(maps.Keys(related)) {
			rows, members := t.Partitions[name], related[name]
			if len(rows) == 0 {
				continue
			}
			slices.SortFunc(members, func(a, b store.Member) int {
				return cmp.Or(
					strings.Compare(a.ID, b.ID),
					cmp.Compare(a.Incarnation, b.Incarnation),
					cmp.Compare(a.Session, b.Session),
				)
			})
			p := store.LeaseSnapshot{
				Name:       name,
				Generation: t.Leases[name].Generation,
				Members:    members,
				Paused:     t.overridden("pause", name, ""),
				Frozen:     t.overridden("freeze", name, ""),
				Pins:       t.pins(name),
			}
			l := t.Leases[name]
			p.Settling, p.WasUnowned = l.settles(clock), l.Unowned
			p.Awaited = t.awaited(name, clock)
			for _, row := range rows {
				if t.live(name, row.Owner) {
					row.OwnerID = ""
				}
				p.Owners, p.Targets = append(p.Owners, row.Owner), append(p.Targets, row.Target)
				p.OwnerIDs, p.PreferredIDs = append(p.OwnerIDs, row.OwnerID), append(p.PreferredIDs, row.PreferredID)
			}
			snapshots = append(snapshots, p)
		}
		return snapshots, false
	})
}

// Apply is apply.sql.
func (c *Conn) Apply(
	ctx context.Context, read []store.LeaseSnapshot, moves []store.Move, next store.NextPlan,
) (store.Applied, error) {
	return execute(ctx, c, "apply", true, func(db *Database, t *Tables, clock int64) (store.Applied, bool) {
		var answer store.Applied
		planned := make(map[string]bool)
		for i, p := range read {
			l, known := t.Leases[p.Name]
			planned[p.Name] = known && l.Generation == p.Generation
			read[i].Overtaken = !planned[p.Name]
			answer.Applied = answer.Applied || planned[p.Name]
		}
		answer.Unaccepted = t.Server.AcceptedTimeline != db.run.Timeline
		answer.Applied = (answer.Applied || len(read) == 0) && !answer.Unaccepted
		if !answer.Applied {
			return answer, false
		}
		live := func(lease string, session int64) bool { return planned[lease] && t.live(lease, session) }
		concerned := make(map[int64]bool)
		changed, leftOver := make(map[string]bool), make(map[string]bool)
		for _, m := range moves {
			row := t.row(m.Lease, m.Partition)
			var target Client
			if live(m.Lease, m.Target) {
				target = t.Clients[m.Target]
			}
			switch {
			case !planned[m.Lease] || row == nil:
			case target.Session != m.Target: // no partition moves to a session that is not a member
			case live(m.Lease, row.Owner):
				row.Target = target.Session
				answer.Asked++
				changed[m.Lease] = true
				concerned[row.Owner] = true
			case db.guarded(m.Lease, m.Partition):
				answer.LeftOver++
				leftOver[m.Lease] = true
			default:
				from := *row
				if target.ID != "" {
					isAway := row.Owner != 0 || !t.works(m.Lease, row.OwnerID)
					row.own(target.ID, isAway)
					concerned[target.Session] = true
				}
				row.Owner, row.Target = target.Session, target.Session
				row.Epoch = db.nextEpoch(from)
				answer.Given++
				changed[m.Lease] = true
				db.changes = append(db.changes, change{lease: m.Lease, partition: m.Partition})
				db.Moved("apply", m.Lease, m.Partition, from, *row)
			}
		}
		for i := range read {
			name := read[i].Name
			l := t.Leases[name]
			if planned[name] && len(read[i].Unowned) != read[i].WasUnowned {
				changed[name] = changed[name] || l.Unowned != len(read[i].Unowned)
				l.Unowned = len(read[i].Unowned)
			}
			if planned[name] {
				read[i].WasUnowned = len(read[i].Unowned)
			}
			if changed[name] {
				l.Generation++
				read[i].Generation++
			}
			if !planned[name] || l.NextCheckAt == Ever && !changed[name] && !leftOver[name] {
				continue
			}
			l.PlannedAt, l.NextCheckAt = clock, Ever
			switch {
			case slices.ContainsFunc(read, func(p store.LeaseSnapshot) bool { return p.Overtaken }):
				l.NextCheckAt = clock + second
			case !next.OnlyLeftOver || leftOver[name]:
				l.NextCheckAt = clock + next.After.Microseconds()
			}
			t.Leases[name] = l
		}
		db.notify(concerned)
		return answer, true
	})
}

// works reports whether a live member of a lease, with a weight, has the client ID.
func (t *Tables) works(lease, id string) bool {
	for m, member := range t.Members {
		isIt := m.Lease == lease && t.Clients[m.Session].ID == id && t.live(lease, m.Session)
		if isIt && member.Weight > 0 && !t.overridden("drain", "", id) {
			return true
		}
	}
	return false
}

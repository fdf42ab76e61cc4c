package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/worker"
)

// A Snapshot is the content of the tables at one time.
type Snapshot struct {
	At        time.Time  `json:"at"`             // by the database's clock
	Version   int        `json:"schema_version"` // of the schema
	MinCode   int        `json:"min_code"`       // the version of the oldest code that can run on it
	Server    Server     `json:"server"`
	Clients   []Client   `json:"clients"`   // by ID, then incarnation
	Leases    []Lease    `json:"leases"`    // in byte order of their names; without dropped ones
	Overrides []Override `json:"overrides"` // the oldest first
}

// Server identifies the server. In JSON its numbers are strings, because they have up to 63 bits.
type Server struct {
	// The result of the SQL function timeline, for the server, its timeline and the tables; 0:
	// unknown.
	Timeline int64 `json:"timeline,string"`
	// The part of Timeline that is for the tables.
	Tables int64 `json:"tables,string"`
	// If it differs from Timeline, no partition moves; 0: no client has used the tables yet.
	AcceptedTimeline int64 `json:"accepted_timeline,string"`
	Generation       int64 `json:"generation"` // the high part of new epochs
	Marked           bool  `json:"marked"`     // false: it crashed or was promoted, and no client has connected since
}

// unaccepted reports whether no partition moves until a client has watched the server.
func (s *Server) unaccepted() bool {
	return s.AcceptedTimeline != s.Timeline && s.AcceptedTimeline != 0
}

// Client is a session that has neither left nor been removed after its expiry.
type Client struct {
	Session     int64  `json:"session,string"`
	ID          string `json:"id"`
	Incarnation int64  `json:"incarnation"`
	Superseded  bool   `json:"superseded"` // a newer process has its ID, so it ends
	// An operator revoked it, so it ends; it stays here until its TTL is over.
	Evicted      bool          `json:"evicted"`
	HeartbeatAge time.Duration `json:"heartbeat_age_ns"`
	TTL          time.Duration `json:"ttl_ns"`
	// No heartbeat for longer than its TTL: another client may evict it.
	Expired      bool      `json:"expired"`
	FastFailover bool      `json:"fast_failover"` // it has WithFastFailover
	Host         string    `json:"host"`
	PID          int       `json:"pid"`
	Started      time.Time `json:"started"` // by its own clock

	// Refused are the leases that it had joined and cannot join again, because they have another
	// number of partitions now, with the number that it was started with.
	Refused map[string]int `json:"refused_leases"`

	Metadata map[string]string `json:"metadata"` // what the application says of it
}

// Lease is a lease with its members and partitions.
type Lease struct {
	Name       string    `json:"name"`
	Partitions int       `json:"partitions"`
	Generation int64     `json:"generation"`   // rises with every change of its members, owners or targets
	Planned    time.Time `json:"planned"`      // when a plan was last claimed or written
	Due        time.Time `json:"due,omitzero"` // when the next plan is due; zero: no plan is due
	// When the rebalance delay ends, until which partitions with a live owner stay; zero: no delay.
	Settles time.Time `json:"settles,omitzero"`
	// Its last member has left in order, for example as pgleases run --once does, so an owner is
	// not missed.
	Left bool `json:"left"`
	// By the last plan, how many partitions have no owner, because all members are at their ceilings.
	Unowned  int       `json:"unowned"`
	Awaited  []Awaited `json:"awaited"`  // clients for whose return partitions wait, by ID
	Members  []Member  `json:"members"`  // by client ID
	Holdings []Holding `json:"holdings"` // by their first partition
}

// Member is a client's membership of a lease.
type Member struct {
	Session int64  `json:"session,string"`
	Client  string `json:"client"`
	Weight  int    `json:"weight"`
	// number of partitions that it is due, by weight and ceilings, among the members that are not
	// superseded, evicted or drained; 0 while the lease is paused. Cordons, freezes and pins can
	// keep it from its share
	Share    float64   `json:"share"`
	Owned    int       `json:"owned"`
	Incoming int       `json:"incoming"` // moving to it
	Outgoing int       `json:"outgoing"` // owned, and asked to hand over
	Joined   time.Time `json:"joined"`

	RebalanceDelay time.Duration `json:"rebalance_delay_ns"` // of its WithRebalanceDelay
	RestartGrace   time.Duration `json:"restart_grace_ns"`   // of its WithRestartGrace
	MaxPartitions  int           `json:"max_partitions"`     // its ceiling; 0: it has no ceiling
}

// Awaited is a client that has closed or crashed. Its partitions wait for its return.
type Awaited struct {
	Client string    `json:"client"`
	Since  time.Time `json:"since"`
	Until  time.Time `json:"until"` // then they go to others
}

// Awaits returns the client for whose return the partitions of a holding wait, or nil.
func (l *Lease) Awaits(h Holding) *Awaited {
	if h.Owner != "" {
		return nil
	}
	return find(l.Awaited, func(a Awaited) bool { return a.Client == h.LastOwner })
}

// Waiting returns the partitions that wait for the return of a client.
func (l *Lease) Waiting() (waiting Ranges) {
	for _, h := range l.Holdings {
		if l.Awaits(h) != nil {
			waiting = append(waiting, h.Partitions...)
		}
	}
	return waiting.merged()
}

// Holding is a set of partitions of a lease with the same owner and the same target.
type Holding struct {
	OwnerSession  int64  `json:"owner_session,string"`  // 0: no client
	TargetSession int64  `json:"target_session,string"` // 0: no client
	Owner         string `json:"owner"`                 // its client ID; empty: no owner, or an evicted session
	Target        string `json:"target"`                // the next owner; empty: no client
	// The ID of the current or last owner; empty: they never had an owner.
	LastOwner string `json:"last_owner"`
	// The ID of the client that gets them back when it can; empty: no client.
	PreferredOwner string    `json:"preferred_owner"`
	Since          time.Time `json:"since,omitzero"` // start of the oldest of these ownerships; zero: no owner
	// When the owner was first asked to hand over one of them; zero: not asked.
	Asked      time.Time `json:"asked,omitzero"`
	Partitions Ranges    `json:"partitions"`
}

// Moves reports whether a live owner is asked to hand over.
func (h Holding) Moves() bool { return h.Owner != "" && h.OwnerSession != h.TargetSession }

// Snapshot reads all leases, with their partitions as ranges, and all clients, in one round trip.
// Partitions that are scattered among the clients are as many ranges. ctx bounds the call; the
// server may take 10 s for it. It returns an error of the pool or of the database, whose text names
// the remedy.
func (a *Admin) Snapshot(ctx context.Context) (*Snapshot, error) {
	var s *Snapshot
	err := worker.Read(ctx, nil, a.pool, func(ctx context.Context, conn *pgxpool.Conn) (err error) {
		s, err = a.readSnapshot(ctx, conn.Conn(), begin+settings)
		return err
	})
	return s, a.failure("read a snapshot", err)
}

// readSnapshot sends first, which has the settings, and the statement in one message.
func (a *Admin) readSnapshot(ctx context.Context, conn *pgx.Conn, first string) (*Snapshot, error) {
	results, err := conn.PgConn().Exec(ctx, first+a.statement("snapshot")).ReadAll()
	if err != nil {
		return nil, err
	}
	rows := results[len(results)-1].Rows
	if len(rows) != 1 {
		return nil, fmt.Errorf("schema %q has no row for its version or its server", a.schema)
	}
	s := new(Snapshot)
	if err := json.Unmarshal(rows[0][0], s); err != nil {
		return nil, err
	}
	s.count()
	return s, nil
}

// count sets the shares of members and their numbers of partitions.
func (s *Snapshot) count() {
	clients := make(map[int64]*Client, len(s.Clients)) // by session
	for i := range s.Clients {
		clients[s.Clients[i].Session] = &s.Clients[i]
	}
	for i := range s.Leases {
		l := &s.Leases[i]
		members := make(map[int64]*Member, len(l.Members)) // by session
		var working []*Member
		for j := range l.Members {
			m := &l.Members[j]
			members[m.Session] = m
			if m.Weight > 0 && s.works(l.Name, clients[m.Session]) {
				working = append(working, m)
			}
		}
		share(float64(l.Partitions), working)
		// Partitions without a member count for a discarded one.
		of := func(session int64) *Member { return cmp.Or(members[session], new(Member)) }
		for _, h := range l.Holdings {
			n := h.Partitions.Count()
			of(h.OwnerSession).Owned += n
			if h.OwnerSession != h.TargetSession {
				of(h.OwnerSession).Outgoing += n
				of(h.TargetSession).Incoming += n
			}
		}
	}
}

// share sets the shares of members by weight, up to their ceilings. A member whose share reaches
// its ceiling raises the shares of the others.
func share(partitions float64, working []*Member) {
	weights := 0
	for _, m := range working {
		weights += m.Weight
	}
	var rest []*Member
	left := partitions
	for _, m := range working {
		m.Share = partitions * float64(m.Weight) / float64(weights)
		if m.MaxPartitions > 0 && m.Share >= float64(m.MaxPartitions) {
			m.Share = float64(m.MaxPartitions)
			left -= m.Share
		} else {
			rest = append(rest, m)
		}
	}
	if len(rest) < len(working) {
		share(left, rest)
	}
}

// ceilings says how the working members of a lease are at their ceilings, if they may not own all
// partitions; "" if they may.
func (s *Snapshot) ceilings(l *Lease) string {
	working, sum := 0, 0
	first, same := 0, true
	for _, m := range l.Members {
		if m.Weight == 0 || !s.works(l.Name, s.Client(m.Session)) {
			continue
		}
		if m.MaxPartitions == 0 {
			return ""
		}
		working++
		sum += m.MaxPartitions
		first = cmp.Or(first, m.MaxPartitions)
		same = same && m.MaxPartitions == first
	}
	members := ranges.Many(working, "member")
	switch {
	case working == 0 || sum >= l.Partitions:
		return ""
	case same:
		return fmt.Sprintf("%s, %d each, %d partitions", members, first, l.Partitions)
	}
	return fmt.Sprintf("%s, %d together, %d partitions", members, sum, l.Partitions)
}

// Lease returns the lease with a name, or nil.
func (s *Snapshot) Lease(name string) *Lease {
	return find(s.Leases, func(l Lease) bool { return l.Name == name })
}

// Client returns the client with a session, or nil.
func (s *Snapshot) Client(session int64) *Client {
	return find(s.Clients, func(c Client) bool { return c.Session == session })
}

// find returns the first element that satisfies the function, or nil.
func find[T any](all []T, is func(T) bool) *T {
	i := slices.IndexFunc(all, is)
	if i < 0 {
		return nil
	}
	return &all[i]
}

// live reports whether a client with an ID is live; for the ID "", whether any client is.
func (s *Snapshot) live(id string) bool {
	return slices.ContainsFunc(s.Clients, func(c Client) bool { return !c.Expired && (id == "" || c.ID == id) })
}

// working returns the number of members of a lease that may own partitions.
func (s *Snapshot) working(l *Lease) (n int) {
	for _, m := range l.Members {
		if m.Weight > 0 && s.works(l.Name, s.Client(m.Session)) {
			n++
		}
	}
	return n
}

// works reports whether a member may own partitions of a lease, if its weight is not 0.
func (s *Snapshot) works(lease string, c *Client) bool {
	stops := func(w Override) bool { return w.Verb == VerbDrain || w.Verb == VerbPause }
	return !c.Superseded && !c.Evicted && !slices.ContainsFunc(s.OverridesOf(lease, c.ID), stops)
}

// Unowned returns how many partitions of a lease somebody should give an owner. It is 0 if the lease
// is paused, or if its last member has left in order.
func (s *Snapshot) Unowned(l *Lease) int {
	if l.Left || s.Pause(l) != nil {
		return 0
	}
	return s.Orphans(l).Count()
}

// Orphans returns the partitions of a lease without a live owner, except those that wait for the
// return of a client.
func (s *Snapshot) Orphans(l *Lease) (orphans Ranges) {
	for _, h := range l.Holdings {
		c := s.Client(h.OwnerSession)
		if (c == nil || c.Expired) && l.Awaits(h) == nil {
			orphans = append(orphans, h.Partitions...)
		}
	}
	return orphans.merged()
}

// ErrNoSuchPartition is returned by Explain for an unknown lease, and for a number that is not a
// partition of the lease.
var ErrNoSuchPartition = errors.New("pgleases: there is no such partition")

// An Explanation says why a client owns a partition.
type Explanation struct {
	Lease          string    `json:"lease"`
	Partition      int       `json:"partition"`
	Epoch          int64     `json:"epoch,string"`   // fencing token; a string in JSON, because it has up to 63 bits
	Owner          string    `json:"owner"`          // its client ID; empty: no owner
	Since          time.Time `json:"since,omitzero"` // since when it has this owner, or no owner; zero: unknown
	Target         string    `json:"target"`         // the next owner; empty: no client
	LastOwner      string    `json:"last_owner"`
	PreferredOwner string    `json:"preferred_owner"` // the client that gets it back when it can; empty: no client
	Asked          time.Time `json:"asked,omitzero"`  // when the owner was asked to hand over; zero: not asked
	Member         *Member   `json:"member"`          // the owner's membership of the lease; nil: no member
	Members        []Member  `json:"members"`         // of the lease
	// Sentences: first on the owner, then on what the partition waits for.
	Reasons []string `json:"reasons"`
}

// Explain returns why a client owns a partition: the share and weight of the owner, and what the
// partition waits for. It returns the errors of Snapshot, and ErrNoSuchPartition.
func (a *Admin) Explain(ctx context.Context, lease string, partition int) (*Explanation, error) {
	if partition < 0 || partition > math.MaxUint16 {
		return nil, fmt.Errorf("%w: %d of lease %q", ErrNoSuchPartition, partition, lease)
	}
	var s *Snapshot
	var e *Explanation
	var owner, target int64
	options := pgx.TxOptions{IsoLevel: pgx.RepeatableRead, AccessMode: pgx.ReadOnly}
	err := pgx.BeginTxFunc(ctx, a.pool, options, func(tx pgx.Tx) (err error) {
		s, err = a.readSnapshot(ctx, tx.Conn(), settings)
		if err != nil {
			return err
		}
		return tx.QueryRow(ctx, a.statement("partition"), lease, partition).Scan(&e, &owner, &target)
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return nil, fmt.Errorf("%w: %d of lease %q", ErrNoSuchPartition, partition, lease)
	}
	if err != nil {
		return nil, a.failure(fmt.Sprintf("explain partition %d of lease %q", partition, lease), err)
	}
	l := s.Lease(lease)
	if l == nil {
		return nil, fmt.Errorf("%w: lease %q was dropped", ErrNoSuchPartition, lease)
	}
	e.Members = l.Members
	e.reason(s, l, s.Client(owner), s.Client(target), owner != 0)
	return e, nil
}

// reason writes the sentences. owner and target are nil if their sessions are gone. had is whether
// the partition has an owner in the table.
func (e *Explanation) reason(s *Snapshot, l *Lease, owner, target *Client, had bool) {
	working := s.working(l)
	e.Member = find(l.Members, func(m Member) bool { return owner != nil && m.Session == owner.Session })
	switch {
	case replaced(owner, target):
		e.say("It is owned by an older process of %q (pid %d), silent for %v.",
			owner.ID, owner.PID, round(owner.HeartbeatAge))
	case owner != nil:
		e.sayOwner(s, l, owner, working)
	default:
		e.sayNoOwner(s, had)
	}
	e.sayOverrides(s, l, owner != nil && target != nil && owner != target && e.Target != e.PreferredOwner)
	e.sayMove(s, l, owner, target, working)
	e.sayDelay(s, l)
	if s.Server.unaccepted() {
		e.say("The server was promoted, or is a copy, and is not accepted: " +
			"no partition moves until a client has watched it for the longest TTL.")
	}
	if !l.Due.IsZero() {
		who := "Any client makes it"
		if !s.live("") {
			who = "No client is live that could make it: continue or restart one"
		}
		e.say("A plan of the lease is due, %v after its last one. %s.", round(max(0, s.At.Sub(l.Planned))), who)
	}
}

// replaced reports whether a partition moves from a process that seems to be dead to a newer one
// with the same client ID, as after the restart of a killed container. A third of the TTL is the
// default time between heartbeats.
func replaced(owner, target *Client) bool {
	if owner == nil || target == nil || owner.ID != target.ID {
		return false
	}
	isNewer := owner.Superseded && !target.Superseded
	return isNewer && !owner.Expired && owner.HeartbeatAge > owner.TTL/3
}

func (e *Explanation) say(format string, args ...any) {
	e.Reasons = append(e.Reasons, fmt.Sprintf(format, args...))
}

// when returns a time after a word; "" if it is unknown.
func when(word string, at, now time.Time) string {
	if at.IsZero() {
		return ""
	}
	return fmt.Sprintf(" %s %s UTC (%v ago)", word, at.UTC().Format(time.DateTime), round(now.Sub(at)))
}

func (e *Explanation) sayNoOwner(s *Snapshot, had bool) {
	switch {
	case had:
		e.say("Its owner %q was evicted%s. It waits for a plan, "+
			"or for the end of a guarded transaction of that owner, which pgleases doctor --long 1s names.",
			e.LastOwner, when("at", e.Since, s.At))
	case e.LastOwner == "":
		e.say("It has had no owner yet.")
	default:
		e.say("It has had no owner%s. The last one was %q.", when("since", e.Since, s.At), e.LastOwner)
	}
}

func (e *Explanation) sayOwner(s *Snapshot, l *Lease, owner *Client, working int) {
	takenOver := ""
	if !owner.Expired && owner.HeartbeatAge > owner.TTL/2 {
		takenOver = fmt.Sprintf("; taken over at %v", owner.TTL)
	}
	e.say("It is owned by %q%s, on %s, pid %d, last heartbeat %v ago%s.",
		owner.ID, when("since", e.Since, s.At), owner.Host, owner.PID, round(owner.HeartbeatAge), takenOver)
	if m := e.Member; m == nil {
		e.say("The owner is no longer a member of the lease.")
	} else {
		partitions, members := ranges.Many(l.Partitions, "partition"), ranges.Many(working, "working member")
		e.say("Its owner has weight %d, so its share is %.2f of %s among %s; it owns %d.",
			m.Weight, m.Share, partitions, members, m.Owned)
		if m.MaxPartitions > 0 {
			e.say("It may own %d at most.", m.MaxPartitions)
		}
	}
	switch {
	case owner.Expired:
		who := "A client that has watched the clock for that TTL evicts it"
		if !s.live("") {
			who = "No client is live that could evict it: continue or restart one"
		}
		e.say("%q has sent no heartbeat for %v, longer than its TTL of %v. %s.",
			owner.ID, round(owner.HeartbeatAge), owner.TTL, who)
	case owner.Superseded:
		e.say("A newer process has the ID %q. The older process ends when its work has ended.", owner.ID)
	case owner.Evicted:
		e.say("An operator has evicted %q. "+
			"Another client gets the partition when the TTL of %v after the last heartbeat is over.",
			owner.ID, owner.TTL)
	}
}

func (e *Explanation) sayOverrides(s *Snapshot, l *Lease, movesElsewhere bool) {
	set := func(w Override) {
		e.say("An operator set a %s of %q at %v, by %q: %q.",
			w.Verb, cmp.Or(w.Lease, w.Client), w.Since.UTC().Format(time.DateTime), w.Actor, w.Reason)
	}
	for _, w := range s.OverridesOf(l.Name, e.Owner) {
		set(w)
	}
	for _, w := range s.Overrides {
		if w.Partition != nil && w.Lease == l.Name && *w.Partition == e.Partition {
			e.say("An operator pinned it to %q at %v, by %q: %q.",
				w.Client, w.Since.UTC().Format(time.DateTime), w.Actor, w.Reason)
			if w.Client != e.Owner && w.Client != e.Target {
				e.say("It is elsewhere while %q does not work on the lease, or while the lease is frozen.", w.Client)
			}
		}
	}
	if e.PreferredOwner != "" && e.PreferredOwner != e.Owner && !movesElsewhere && l.Partitions > 1 { // a leader stays
		e.say("Its preferred owner is %q%s: if that client is to get more partitions, it gets this one first. "+
			"Nothing waits for that.", e.PreferredOwner, s.absence(l, e.PreferredOwner))
		for _, w := range s.OverridesOf(l.Name, e.PreferredOwner) {
			if w.Client != "" {
				set(w)
			}
		}
	}
}

// sayDelay says until when partitions with a live owner stay, and why.
func (e *Explanation) sayDelay(s *Snapshot, l *Lease) {
	if l.Settles.IsZero() {
		return
	}
	e.say("A member joined or changed its weight, so partitions with a live owner stay until %s UTC (%v from now), "+
		"unless an operator orders otherwise.",
		l.Settles.UTC().Format(time.DateTime), round(l.Settles.Sub(s.At)))
	longest, same := Member{}, true
	for _, m := range l.Members {
		same = same && m.RebalanceDelay == l.Members[0].RebalanceDelay
		if m.RebalanceDelay > longest.RebalanceDelay {
			longest = m
		}
	}
	switch {
	case longest.RebalanceDelay == 0:
		e.say("The member with a rebalance delay has left.")
	case same:
		e.say("The rebalance delay of all members is %v.", longest.RebalanceDelay)
	default:
		e.say("The members have different rebalance delays, and the longest counts, which is the %v of %q.",
			longest.RebalanceDelay, longest.Client)
	}
}

// absence says why a client gets no partitions of a lease; empty: it works on it.
func (s *Snapshot) absence(l *Lease, id string) string {
	switch {
	case !slices.ContainsFunc(s.Clients, func(c Client) bool { return c.ID == id }):
		return ", which is not a live client"
	case !s.live(id):
		return ", which sends no heartbeats"
	case !slices.ContainsFunc(l.Members, func(m Member) bool { return m.Client == id }):
		return ", which is not a member of the lease"
	}
	return ""
}

func (e *Explanation) sayMove(s *Snapshot, l *Lease, owner, target *Client, working int) {
	awaited := find(l.Awaited, func(a Awaited) bool { return owner == nil && a.Client == e.LastOwner })
	switch {
	case awaited != nil:
		e.say("It waits for the return of %q, which went away %v ago, until %s UTC (%v from now), "+
			"because of its restart grace. To give it to another client now: pgleases drain %s --reason '...'.",
			awaited.Client, round(s.At.Sub(awaited.Since)), awaited.Until.UTC().Format(time.DateTime),
			round(awaited.Until.Sub(s.At)), shell.Word(awaited.Client))
	case replaced(owner, target):
		e.say("The newer process with this ID (pid %d) gets it when the older one hands it over, "+
			"or at %v if it is dead.", target.PID, owner.TTL)
	case owner != nil && target != nil && owner != target:
		e.say("It is moving to %q. The owner was asked to hand it over %v ago.", target.ID, round(s.At.Sub(e.Asked)))
		e.sayHandoff(owner)
	case owner != nil && target == nil && !e.Asked.IsZero():
		e.say("The owner was asked to hand it over %v ago, and no other client can own it.", round(s.At.Sub(e.Asked)))
		e.sayHandoff(owner)
	case owner == nil && s.Pause(l) != nil:
		e.say("No member may own it, because the lease is paused. When it may go on: %s.", s.Pause(l).back())
	case owner == nil && target == nil && l.Unowned > 0 && s.ceilings(l) != "":
		e.say("No member may own it, because all are at their ceilings: %s. "+
			"Start more processes, or raise WithMaxPartitions.", s.ceilings(l))
	case owner == nil && len(l.Members) == 0:
		e.say("The lease has no members: start a process that joins it.")
	case owner == nil && working == 0 && len(s.drains(l)) > 0:
		e.say("No member may own it, because an operator has drained them: %s, or start another member.",
			s.drains(l)[0].back())
	case owner == nil && working == 0:
		e.say("No member may own it: their weights are 0, or they are about to end. " +
			"Set a weight, or start another member.")
	}
}

// sayHandoff says what an owner that is asked to hand over may wait for.
func (e *Explanation) sayHandoff(owner *Client) {
	e.say("It does so when its Run callback or Hold has ended, and no guarded transaction is open. "+
		"If a callback hangs, its log says \"handoff waits for work\" after 30 s: "+
		"kill -QUIT %d on its host logs where, and ends it; if it does not, or under pgleases run, kill -9 %[1]d. "+
		"Open transactions: pgleases doctor --long 1s.", owner.PID)
}

func round(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(100 * time.Millisecond)
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// Times between these have years that JSON can hold, in any zone. PostgreSQL has years up to
// 294276.
var (
	earliest = time.Date(1, 1, 2, 0, 0, 0, 0, time.UTC).UnixMicro()
	latest   = time.Date(9999, 12, 30, 0, 0, 0, 0, time.UTC).UnixMicro()
)

func instant(micro int64) time.Time { return time.UnixMicro(min(max(micro, earliest), latest)) }

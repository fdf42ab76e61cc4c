// Package fakestore is the database of the protocol in memory, for tests. Its connections have the
// methods of store's, and each method does what its SQL file does, atomically and one after the
// other. Of events, it has only what clients read. The cases of package store's tests run
// on both.
//
// It works inside and outside of a bubble of package testing/synctest.
package fakestore

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// A Database is the tables, and their server. All methods are safe for concurrent use.
type Database struct {
	// The fields below are set before use.

	// Clock is the source of the server's clock. New sets it to time.Now.
	Clock func() time.Time
	// Keep is how many states of the tables are kept, for crashes and promotions to return to. New
	// sets it to 0.
	Keep int
	// Moved is called for every change of an owner or epoch, with the statement that made it. New sets
	// it, Evicted and Renewed to functions without an effect. None of them may use the database.
	Moved func(statement, lease string, partition int, from, to Partition)
	// Evicted is called for every session that is evicted.
	Evicted func(Client)
	// Renewed is called for every session that is registered or renewed.
	Renewed func(session int64)

	mu      sync.Mutex // guards the rest
	tables  Tables
	run     store.Incarnation // the boot marker is unlogged: 0 after a crash
	number  int64             // of the tables: Replace changes it
	offset  time.Duration     // of the server's clock
	down    bool
	conns   map[*Conn]struct{}
	guards  map[place]map[*guard]struct{} // open
	history []state                       // the newest is the present state
	tokens  int64                         // the number of tokens drawn for locks
	sampled int64                         // the last minute that has samples
	changes []change                      // the latest is last
}

// A change is a row of table events, as look-ups of owners read it.
type change struct {
	lease     string // empty: all leases
	partition int
	whole     bool // all partitions are to be read
}

// Tables are the data that survives a restart. Times are microseconds since 1970 of the server's
// clock.
type Tables struct {
	Clients    map[int64]Client // by session
	Identities map[string]Identity
	Leases     map[string]Lease
	Members    map[Member]Membership
	Partitions map[string][]Partition
	Locks      map[string][]Lock // nil: no lock was requested yet
	Overrides  map[Override]OverrideValue
	Graces     map[GraceKey]Grace
	Server     Server
}

type (
	// A Client is a row of table clients, less the columns that operators read.
	Client struct {
		Session, Incarnation, ExpiresAt int64
		ID                              string
		TTL                             time.Duration
		Process                         store.Process
		Metadata                        string
		Report                          string // as text
		LostLocks                       string // the names, separated by NUL
	}
	// An Identity is a row of table identities.
	Identity struct {
		Incarnation, Process, UsedAt int64
		Takeovers, TakenAt           int64
		TakenFrom                    string
	}
	// A Lease is a row of table leases.
	Lease struct {
		Partitions, Generation, Joins, CreatedGeneration, EpochFloor int64
		NextCheckAt, PlannedAt, NextPartitions, NextUntil            int64
		Successor                                                    string

		SettlingSince, SettlesAt int64 // 0 stands for null
		Unowned                  int
	}
	// A Membership is a row of table members without its key.
	Membership struct {
		Weight                                 int
		JoinedAt, JoinNumber, JoinedGeneration int64
		RebalanceDelay                         time.Duration
		MaxPartitions                          int
		RestartGrace                           time.Duration
	}
	// A Member is the key of table members.
	Member struct {
		Lease   string
		Session int64
	}
	// A GraceKey is the key of table graces.
	GraceKey struct{ Lease, Client string }
	// A Grace is a row of table graces without its key.
	Grace struct {
		Weight, MaxPartitions    int
		Generation, Since, Until int64
	}
	// A Partition is a row of table partitions; 0 and "" stand for null.
	Partition struct {
		Owner, Target, Epoch int64
		OwnerID, PreferredID string
	}
	// A Server is the row of table server.
	Server struct {
		AcceptedTimeline, Generation, NextCheckAt, Sessions int64
		Unwatched                                           time.Duration
	}
)

// Ever and Never are the instants 'infinity' and '-infinity'.
const (
	Ever  = math.MaxInt64
	Never = math.MinInt64
)

// A state is the tables after a write.
type state struct {
	tables  Tables
	durable bool // the write waited for the disk
}

// A place is a partition.
type place struct {
	lease     string
	partition int
}

// A guard is a transaction that passed the SQL function guard. It has a size, so that no two guards
// have the same address.
type guard struct{ _ byte }

// New returns a database with the schema in it, on a server that has just started.
func New() *Database {
	return &Database{
		Clock:   time.Now,
		Moved:   func(string, string, int, Partition, Partition) {},
		Evicted: func(Client) {},
		Renewed: func(int64) {},
		tables: Tables{
			Clients:    make(map[int64]Client),
			Identities: make(map[string]Identity),
			Leases:     make(map[string]Lease),
			Members:    make(map[Member]Membership),
			Partitions: make(map[string][]Partition),
			Overrides:  make(map[Override]OverrideValue),
			Graces:     make(map[GraceKey]Grace),
			Server:     Server{NextCheckAt: Ever, Sessions: 1},
		},
		run:    store.Incarnation{Timeline: 1, Started: time.Now().UnixMicro()},
		number: 1,
		conns:  make(map[*Conn]struct{}),
		guards: make(map[place]map[*guard]struct{}),
	}
}

// Clone returns a copy of the tables.
func (t Tables) Clone() Tables {
	t.Clients = maps.Clone(t.Clients)
	t.Identities = maps.Clone(t.Identities)
	t.Leases = maps.Clone(t.Leases)
	t.Members = maps.Clone(t.Members)
	t.Partitions = maps.Clone(t.Partitions)
	for name, rows := range t.Partitions {
		t.Partitions[name] = slices.Clone(rows)
	}
	t.Overrides = maps.Clone(t.Overrides)
	t.Graces = maps.Clone(t.Graces)
	t.Locks = maps.Clone(t.Locks)
	for name, rows := range t.Locks {
		t.Locks[name] = slices.Clone(rows)
	}
	return t
}

// live reports whether a session is a live member of a lease.
func (t *Tables) live(lease string, session int64) bool {
	_, member := t.Members[Member{lease, session}]
	_, alive := t.Clients[session]
	return member && alive
}

// clock returns the server's clock, in microseconds.
func (db *Database) clock() int64 { return db.Clock().Add(db.offset).UnixMicro() }

// wrote keeps a copy of the tables after a write.
func (db *Database) wrote(durable bool) {
	if db.Keep > 0 {
		db.keep(state{db.tables.Clone(), durable})
	}
}

// beat is wrote for a heartbeat. It changes clients only, and most writes are heartbeats. So its
// state shares the other tables with the state before, and no kept state ever changes.
func (db *Database) beat() {
	last := len(db.history) - 1
	if last < 0 {
		db.wrote(false)
		return
	}
	tables := db.history[last].tables
	tables.Clients = maps.Clone(db.tables.Clients)
	db.keep(state{tables, false})
}

func (db *Database) keep(s state) {
	if len(db.history) >= db.Keep {
		db.history = append(db.history[:0], db.history[1:]...)
	}
	db.history = append(db.history, s)
}

// fallBack returns to the state before the given number of last writes, or to the oldest that is
// kept.
func (db *Database) fallBack(writes int) (lost int) {
	lost = min(writes, len(db.history)-1)
	if lost <= 0 {
		return 0
	}
	db.history = db.history[:len(db.history)-lost]
	db.tables = db.history[len(db.history)-1].tables.Clone()
	return lost
}

// Look shows the tables, and the server's clock.
func (db *Database) Look(look func(t *Tables, clock int64)) {
	db.mu.Lock()
	defer db.mu.Unlock()
	look(&db.tables, db.clock())
}

// Edit changes the tables by hand, durably.
func (db *Database) Edit(edit func(t *Tables, clock int64)) {
	db.mu.Lock()
	defer db.mu.Unlock()
	edit(&db.tables, db.clock())
	db.wrote(true)
}

// KeepNone forgets all states except the present one: neither a crash nor a promotion loses earlier
// writes.
func (db *Database) KeepNone() {
	db.mu.Lock()
	defer db.mu.Unlock()
	last := len(db.history) - 1
	db.history = db.history[max(last, 0):]
}

// Run returns the server incarnation.
func (db *Database) Run() store.Incarnation {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.run
}

// SetRun changes the server incarnation. The connections stay.
func (db *Database) SetRun(run store.Incarnation) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.run = run
}

// SetTables changes the number of the tables.
func (db *Database) SetTables(number int64) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.number = number
}

// Step moves the clock.
func (db *Database) Step(by time.Duration) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.offset += by
}

// Stop shuts the server down: no connection is made until Boot or Promote.
func (db *Database) Stop() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.down = true
	db.endAll()
}

// Boot starts the server after Stop.
func (db *Database) Boot() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.down = false
	db.run.Started = time.Now().UnixMicro()
}

// Crash kills a process of the server, and loses up to the given number of heartbeats since the
// last write that waited for the disk. It returns how many were lost. The server is back at once.
func (db *Database) Crash(lose int) int {
	db.mu.Lock()
	defer db.mu.Unlock()
	last := len(db.history) - 1
	pending := 0
	for pending < last && pending < lose && !db.history[last-pending].durable {
		pending++
	}
	db.run.Marker = 0
	db.endAll()
	return db.fallBack(pending)
}

// Promote replaces the server by a standby that has missed up to the given number of last writes.
// It returns how many were missed. Behind a pooler the connections survive.
func (db *Database) Promote(missing int, pooler bool) int {
	db.mu.Lock()
	defer db.mu.Unlock()
	lost := db.fallBack(missing)
	db.run = store.Incarnation{Timeline: db.run.Timeline + 1, Started: time.Now().UnixMicro()}
	db.down = false
	clear(db.guards)
	if !pooler {
		db.endAll()
	}
	return lost
}

// Replace puts other tables in the place of the present ones, as a restored dump or a new install
// does: they have another number, and no boot marker. The connections stay, as behind a pooler.
func (db *Database) Replace(tables Tables) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.number++
	db.tables = tables.Clone()
	db.run.Timeline, db.run.Marker = db.run.Timeline+1000, 0 // the number is a part of the timeline
	clear(db.guards)
	db.history = nil
	db.wrote(true)
}

// Installed returns the tables of a new install.
func Installed() Tables { return New().tables }

// endAll ends all connections and transactions.
func (db *Database) endAll() {
	for c := range db.conns {
		c.end()
	}
	clear(db.guards)
}

// Guard begins a transaction that passes the SQL function guard, and returns a function that ends
// it. If ok is false, it was refused.
func (db *Database) Guard(lease string, partition int, epoch int64) (end func(), ok bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	row := db.tables.row(lease, partition)
	if row == nil || row.Epoch != epoch || store.ServerGenerationOf(epoch) < db.tables.Server.Generation {
		return nil, false
	}
	owner, alive := db.tables.Clients[row.Owner]
	if !alive || owner.Incarnation < 0 {
		return nil, false
	}
	p, g := place{lease, partition}, new(guard)
	if db.guards[p] == nil {
		db.guards[p] = make(map[*guard]struct{})
	}
	db.guards[p][g] = struct{}{}
	return func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		delete(db.guards[p], g)
	}, true
}

// row returns a partition; nil if there is no such partition.
func (t *Tables) row(lease string, partition int) *Partition {
	rows := t.Partitions[lease]
	if partition < 0 || partition >= len(rows) {
		return nil
	}
	return &rows[partition]
}

// Errors of Drop and ReplaceLease.
var (
	ErrNoLease = errors.New("no such lease")
	ErrInUse   = errors.New("lease in use")
	// ErrReplaced is the error of ReplaceLease if the lease was replaced, or its successor has
	// another number.
	ErrReplaced = errors.New("lease cannot be replaced so")
)

// Drop is the SQL function drop_lease; next 0: the number of partitions stays the same.
func (db *Database) Drop(lease string, next int64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	l, known := db.tables.Leases[lease]
	if !known || l.Partitions == 0 && next == 0 {
		return fmt.Errorf("%w: %q", ErrNoLease, lease)
	}
	live := db.tables.membersOf(lease)
	if live != "" {
		return fmt.Errorf("%w: %q has live members: %s", ErrInUse, lease, live)
	}
	l.NextPartitions, l.NextUntil = cmp.Or(next, l.Partitions), db.clock()+day
	l.Successor = ""
	db.tables.empty(lease, l)
	db.changes = append(db.changes, change{lease: lease, whole: true})
	db.wrote(true)
	return nil
}

// ReplaceLease is the SQL function replace_lease.
func (db *Database) ReplaceLease(lease, successor string, partitions int64) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	t := &db.tables
	l, known := t.Leases[lease]
	next, exists := t.Leases[successor]
	switch {
	case !known:
		return fmt.Errorf("%w: %q", ErrNoLease, lease)
	case l.Successor != "":
		return fmt.Errorf("%w: %q was replaced by %q already", ErrReplaced, lease, l.Successor)
	case next.Partitions != 0 && next.Partitions != partitions:
		return fmt.Errorf("%w: %q has %d partitions, not %d", ErrReplaced, successor, next.Partitions, partitions)
	}
	members := t.membersOf(lease)
	if members != "" {
		return fmt.Errorf("%w: %q has members: %s", ErrInUse, lease, members)
	}
	l.Successor = successor
	t.empty(lease, l)
	if !exists {
		next = Lease{NextCheckAt: Ever, PlannedAt: db.clock(), NextUntil: Never}
	}
	next.Generation, next.Successor = next.Generation+1, ""
	if next.Partitions == 0 {
		next.Partitions, next.CreatedGeneration = partitions, next.Generation
		next.EpochFloor = max(next.EpochFloor, t.Leases[lease].EpochFloor)
		t.create(successor, next)
	}
	t.Leases[successor] = next
	db.changes = append(db.changes, change{lease: lease, whole: true}, change{lease: successor, whole: true})
	db.wrote(true)
	return nil
}

// membersOf returns the client IDs of the members of a lease; "" if it has none.
func (t *Tables) membersOf(lease string) string {
	var ids []string
	for m := range t.Members {
		if m.Lease == lease && t.live(lease, m.Session) {
			ids = append(ids, t.Clients[m.Session].ID)
		}
	}
	slices.Sort(ids)
	return strings.Join(ids, ", ")
}

// empty stores a lease without partitions and members.
func (t *Tables) empty(name string, l Lease) {
	for _, row := range t.Partitions[name] {
		l.EpochFloor = max(l.EpochFloor, row.Epoch)
	}
	l.Partitions = 0
	l.Generation++
	l.NextCheckAt = Ever
	l.SettlingSince, l.SettlesAt = 0, 0
	l.Unowned = 0
	t.Leases[name] = l
	delete(t.Partitions, name)
	maps.DeleteFunc(t.Members, func(m Member, _ Membership) bool { return m.Lease == name })
	maps.DeleteFunc(t.Graces, func(g GraceKey, _ Grace) bool { return g.Lease == name })
}

// create creates the partitions of a lease.
func (t *Tables) create(name string, l Lease) {
	rows := make([]Partition, l.Partitions)
	for p := range rows {
		rows[p].Epoch = l.EpochFloor
	}
	t.Partitions[name] = rows
	// of a lease that was deleted by hand
	maps.DeleteFunc(t.Graces, func(key GraceKey, _ Grace) bool { return key.Lease == name })
}

// Sampled is the last minute that has samples, counted from 1970.
func (db *Database) Sampled() int64 {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.sampled
}

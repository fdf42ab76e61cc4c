package pgleases

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/store"
)

// A fakeDB is the database in memory: each statement does what its SQL file does, whole and one after the other. Its clock
// is the bubble's plus an offset. What happens to a statement on its way there and back is decided by faults.
type fakeDB struct {
	// faults says what happens to a statement of a connection; nil: nothing. Set before use.
	faults func(c *fakeConn, op string) fault
	// after is called after every statement that was executed, without the mutex.
	after func(c *fakeConn, op string)
	// moved is told of every change of owner or epoch, under the mutex.
	moved func(by, lease string, partition int, from, to partitionRow)
	// gone is told of every session that was evicted, and how long after a heartbeat of it, under the mutex.
	gone  func(row clientRow, silent time.Duration)
	trace func(format string, args ...any)

	mu sync.Mutex // guards the rest
	tables
	offset   time.Duration // of its clock
	timeline int64
	started  int64
	mark     int64 // unlogged
	down     bool
	mute     bool // notifications do not arrive
	conns    map[*fakeConn]struct{}
	locked   map[partitionKey]int // by guarded transactions
	calls    map[string]int       // executed statements
	beats    map[int64]time.Time  // by session: when the last heartbeat was executed, by the bubble's clock
	keep     int                  // how many states to keep
	history  []state              // the newest is the present
}

// tables are what survives a restart.
type tables struct {
	clients    map[int64]clientRow
	identities map[string]identityRow
	leases     map[string]leaseRow
	members    map[memberKey]int // weight
	partitions map[string][]partitionRow
	server     serverRow
}

// Instants are microseconds of the database's clock.
type (
	clientRow struct {
		session, incarnation, expiresAt int64
		id                              string
		ttl                             time.Duration
		process                         store.Process
	}
	identityRow  struct{ incarnation, process, usedAt int64 }
	leaseRow     struct{ partitions, generation, created, floor, nextCheckAt, plannedAt int64 }
	partitionRow struct {
		owner, target, epoch int64
		ownerID, homeID      string
	}
	serverRow struct{ timeline, era, nextCheckAt, sessions int64 }
	memberKey struct {
		lease   string
		session int64
	}
	partitionKey struct {
		lease     string
		partition int
	}
	// A state is what the tables were after a write.
	state struct {
		tables
		durable bool
	}
)

const infinity = math.MaxInt64

// A fault is what happens to a statement.
type fault struct {
	before, after time.Duration // on the way there and back
	err           error         // in place of an answer
	applied       bool          // it was executed all the same
	broken        bool          // the connection is gone with it
	late          bool          // it is executed also when its context ends on the way there
	survives      bool          // the connection survives the end of a statement's context
}

var (
	errBroken = errors.New("connection broken")
	errLocked = &pgconn.PgError{Code: "55P03", Message: "canceling statement due to lock timeout"}
)

func newFakeDB() *fakeDB {
	db := &fakeDB{
		conns: make(map[*fakeConn]struct{}), locked: make(map[partitionKey]int), calls: make(map[string]int),
		beats:    make(map[int64]time.Time),
		timeline: 1, started: 1, trace: func(string, ...any) {},
		tables: tables{
			clients: make(map[int64]clientRow), identities: make(map[string]identityRow),
			leases: make(map[string]leaseRow), members: make(map[memberKey]int),
			partitions: make(map[string][]partitionRow), server: serverRow{timeline: 1, nextCheckAt: infinity},
		},
	}
	return db
}

func (t *tables) clone() tables {
	c := *t
	c.clients, c.identities, c.leases = maps.Clone(t.clients), maps.Clone(t.identities), maps.Clone(t.leases)
	c.members, c.partitions = maps.Clone(t.members), maps.Clone(t.partitions)
	for name, rows := range c.partitions {
		c.partitions[name] = slices.Clone(rows)
	}
	return c
}

// clock is the database's, in microseconds.
func (db *fakeDB) clock() int64 { return time.Now().Add(db.offset).UnixMicro() }

// wrote keeps a copy of the tables after a write.
func (db *fakeDB) wrote(durable bool) {
	if db.keep == 0 {
		return
	}
	if len(db.history) >= db.keep {
		db.history = append(db.history[:0], db.history[1:]...)
	}
	db.history = append(db.history, state{db.tables.clone(), durable})
}

// --- what happens to servers

// step moves the clock.
func (db *fakeDB) step(by time.Duration) {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.offset += by
	db.trace("database: clock steps by %v", by)
}

// stop breaks all connections; nothing works until boot.
func (db *fakeDB) stop() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.down = true
	db.breakAll()
}

func (db *fakeDB) breakAll() {
	for c := range db.conns {
		c.break_()
	}
}

// boot starts the server after a clean stop.
func (db *fakeDB) boot() {
	db.mu.Lock()
	defer db.mu.Unlock()
	db.down = false
	db.started = time.Now().UnixMicro()
	db.trace("database: restarted")
}

// crash loses up to so many of the heartbeats since the last durable write, and breaks all connections.
func (db *fakeDB) crash(lose int) {
	db.mu.Lock()
	defer db.mu.Unlock()
	last := len(db.history) - 1
	lost := 0
	for last > 0 && lost < lose && !db.history[last].durable {
		last--
		lost++
	}
	if lost > 0 {
		db.history = db.history[:last+1]
		db.tables = db.history[last].tables.clone()
	}
	db.mark = 0
	db.breakAll()
	db.trace("database: crashed, %d heartbeats lost", lost)
}

// promote puts a standby in the server's place that has missed the last writes. Behind a pooler connections survive that.
func (db *fakeDB) promote(missing int, pooler bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	missing = min(missing, len(db.history)-1)
	if missing > 0 {
		last := len(db.history) - 1 - missing
		db.history = db.history[:last+1]
		db.tables = db.history[last].tables.clone()
	}
	db.timeline++
	db.started = time.Now().UnixMicro()
	db.mark = 0
	clear(db.locked)
	if !pooler {
		db.breakAll()
	}
	db.trace("database: promoted a standby that missed %d writes, timeline %d", missing, db.timeline)
}

// guard locks a partition as a guarded transaction does.
func (db *fakeDB) guard(k partitionKey, epoch int64) (unlock func(), ok bool) {
	db.mu.Lock()
	defer db.mu.Unlock()
	rows := db.partitions[k.lease]
	if k.partition >= len(rows) || rows[k.partition].epoch != epoch || rows[k.partition].owner == 0 {
		return nil, false
	}
	db.locked[k]++
	timeline := db.timeline
	return func() {
		db.mu.Lock()
		defer db.mu.Unlock()
		if db.timeline == timeline {
			db.locked[k]--
		}
	}, true
}

// edit changes the tables by hand.
func (db *fakeDB) edit(f func()) {
	db.mu.Lock()
	defer db.mu.Unlock()
	f()
	db.wrote(true)
}

// sessionOf returns the newest session under a client ID.
func (db *fakeDB) sessionOf(id string) int64 {
	var session, incarnation int64
	for _, row := range db.clients {
		if row.id == id && row.incarnation >= incarnation {
			session, incarnation = row.session, row.incarnation
		}
	}
	return session
}

// count returns how often statements were executed, heartbeats apart.
func (db *fakeDB) count(ops ...string) int {
	db.mu.Lock()
	defer db.mu.Unlock()
	n := 0
	for _, op := range ops {
		n += db.calls[op]
	}
	return n
}

// --- connections

// A fakeConn is a connection to a fakeDB.
type fakeConn struct {
	db     *fakeDB
	client string // ID
	notes  chan string
	dead   chan struct{} // closed when the connection is
	once   sync.Once
	listen bool // guarded by db.mu
}

// connectTimeout is what a Connector gives one host, with the default heartbeat.
const connectTimeout = 2 * time.Second

// connect opens a connection for a client.
func (db *fakeDB) connect(client string) func(context.Context) (conn, error) {
	return func(ctx context.Context) (conn, error) {
		c := &fakeConn{db: db, client: client, notes: make(chan string, 1000), dead: make(chan struct{})}
		var f fault
		if db.faults != nil {
			f = db.faults(c, "connect")
		}
		ctx, cancel := context.WithTimeout(ctx, connectTimeout)
		defer cancel()
		if !c.sleep(ctx, f.before+f.after) {
			return nil, context.Cause(ctx)
		}
		db.mu.Lock()
		defer db.mu.Unlock()
		if f.err != nil || db.down {
			return nil, cmpError(f.err, errBroken)
		}
		db.conns[c] = struct{}{}
		return c, nil
	}
}

func cmpError(err, other error) error {
	if err != nil {
		return err
	}
	return other
}

// break_ ends the connection.
func (c *fakeConn) break_() { c.once.Do(func() { close(c.dead) }) }

func (c *fakeConn) Close() {
	c.break_()
	c.db.mu.Lock()
	defer c.db.mu.Unlock()
	delete(c.db.conns, c)
}

func (c *fakeConn) Closed() bool {
	select {
	case <-c.dead:
		return true
	default:
		return false
	}
}

// sleep waits; false: the context or the connection ended first.
func (c *fakeConn) sleep(ctx context.Context, d time.Duration) bool {
	if d <= 0 {
		return ctx.Err() == nil && !c.Closed()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	case <-c.dead:
		return false
	}
}

// call executes a statement: f under the mutex, unless a fault is in the way.
func call[T any](ctx context.Context, c *fakeConn, op string, durable bool, f func(clock int64) (T, bool)) (T, error) {
	var none T
	if c.Closed() {
		return none, errBroken
	}
	var ft fault
	if c.db.faults != nil {
		ft = c.db.faults(c, op)
	}
	timeline := c.db.run().Timeline
	execute := func() T {
		c.db.mu.Lock()
		result, written := f(c.db.clock())
		c.db.calls[op]++
		if written {
			c.db.wrote(durable)
		}
		after := c.db.after
		c.db.mu.Unlock()
		if after != nil {
			after(c, op)
		}
		return result
	}
	sent := time.Now()
	if !c.sleep(ctx, ft.before) {
		if rest := ft.before - time.Since(sent); ft.late && !ft.survives {
			go func() {
				time.Sleep(rest)
				if run := c.db.run(); run.Timeline == timeline && !c.db.isDown() {
					execute()
					c.db.trace("%s: %s arrived late", c.client, op)
				}
			}()
		}
		return none, c.ended(ctx, ft)
	}
	if ft.err != nil && !ft.applied {
		if ft.broken {
			c.break_()
		}
		return none, ft.err
	}
	result := execute()
	if !c.sleep(ctx, ft.after) {
		return none, c.ended(ctx, ft)
	}
	if ft.broken {
		c.break_()
	}
	return result, ft.err
}

// ended is what a statement returns whose context or connection ended.
func (c *fakeConn) ended(ctx context.Context, ft fault) error {
	if c.Closed() {
		return errBroken
	}
	if !ft.survives {
		c.break_()
	}
	return fmt.Errorf("statement cancelled: %w", context.Cause(ctx))
}

func (db *fakeDB) isDown() bool {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.down
}

func (db *fakeDB) run() store.Run {
	db.mu.Lock()
	defer db.mu.Unlock()
	return db.runLocked()
}

func (db *fakeDB) runLocked() store.Run {
	return store.Run{Timeline: db.timeline, Started: db.started, Mark: db.mark}
}

func (c *fakeConn) Listen(ctx context.Context, _ int64) (bool, error) {
	return call(ctx, c, "listen", false, func(int64) (bool, bool) {
		c.listen = !c.db.mute
		return c.listen, false
	})
}

func (c *fakeConn) Wait(ctx context.Context, session int64) (bool, error) {
	select {
	case note := <-c.notes:
		return note == "all" || slices.Contains(strings.Split(note, ","), strconv.FormatInt(session, 10)), nil
	case <-ctx.Done():
		return false, ctx.Err()
	case <-c.dead:
		return false, errBroken
	}
}

// notify tells sessions, as pg_notify at the commit.
func (db *fakeDB) notify(sessions map[int64]bool) {
	if len(sessions) == 0 {
		return
	}
	payload := "all"
	if len(sessions) <= 100 {
		var parts []string
		for s := range sessions {
			parts = append(parts, strconv.FormatInt(s, 10))
		}
		payload = strings.Join(parts, ",")
	}
	for c := range db.conns {
		if c.listen {
			select {
			case c.notes <- payload:
			default:
			}
		}
	}
}

// --- statements

func (c *fakeConn) Register(ctx context.Context, r store.Registration) (int64, *store.Process, error) {
	type answer struct {
		incarnation int64
		newer       *store.Process
	}
	db := c.db
	a, err := call(ctx, c, "register", true, func(clock int64) (answer, bool) {
		until := clock + r.TTL.Microseconds()
		db.server.nextCheckAt = min(db.server.nextCheckAt, until)
		i, known := db.identities[r.ID]
		switch {
		case !known:
			if i.incarnation = r.Incarnation; i.incarnation == 0 {
				i.incarnation = clock / 1e6
			}
		case i.process == r.Process:
		case r.Incarnation == 0 && i.process>>store.ProcessBits == r.Process>>store.ProcessBits && i.process > r.Process:
			return answer{0, db.newest(r.ID, r.Session)}, true
		case r.Incarnation == 0:
			i.incarnation++
		case i.incarnation < r.Incarnation:
			i.incarnation = r.Incarnation
		default:
			return answer{0, db.newest(r.ID, r.Session)}, true
		}
		i.process, i.usedAt = r.Process, clock
		db.identities[r.ID] = i
		row, known := db.clients[r.Session]
		if !known {
			row = clientRow{session: r.Session, id: r.ID, incarnation: i.incarnation, ttl: r.TTL,
				process: store.Process{Host: r.Host, PID: r.PID, StartedAt: r.StartedAt}}
		}
		row.expiresAt = until
		db.beats[r.Session] = time.Now()
		db.clients[r.Session] = row
		db.trace("%s: registered session %d, incarnation %d", c.client, r.Session, row.incarnation)
		return answer{row.incarnation, nil}, true
	})
	return a.incarnation, a.newer, err
}

// newest returns the process of the highest incarnation under an ID, a session apart.
func (db *fakeDB) newest(id string, but int64) *store.Process {
	var best *clientRow
	for _, row := range db.clients {
		if row.id == id && row.session != but && (best == nil || row.incarnation > best.incarnation) {
			best = &row
		}
	}
	if best == nil {
		return nil
	}
	return &best.process
}

func (c *fakeConn) Superseder(ctx context.Context, id string) (*store.Process, error) {
	return call(ctx, c, "superseder", false, func(int64) (*store.Process, bool) { return c.db.newest(id, 0), false })
}

func (c *fakeConn) Heartbeat(ctx context.Context, session int64) (store.Beat, error) {
	db := c.db
	return call(ctx, c, "heartbeat", false, func(clock int64) (store.Beat, bool) {
		row, alive := db.clients[session]
		beat := store.Beat{Alive: alive, Clock: clock, Run: db.runLocked(), Settled: db.server.timeline, Sessions: db.server.sessions}
		if alive {
			row.expiresAt = clock + row.ttl.Microseconds()
			db.clients[session] = row
			db.beats[session] = time.Now()
			beat.Incarnation = db.identities[row.id].incarnation
		}
		if next := db.server.nextCheckAt; next <= clock+row.ttl.Microseconds()+1e6 {
			beat.CheckDueIn = micros(max(next-clock, 0))
		}
		for name, l := range db.leases {
			weight, member := db.members[memberKey{name, session}]
			if !member {
				continue
			}
			b := store.LeaseBeat{Name: name, Generation: l.generation, Weight: weight}
			switch {
			case l.nextCheckAt == infinity:
				b.DueIn = -time.Microsecond
			case l.nextCheckAt <= clock+1e6:
				b.DueIn = micros(max(l.nextCheckAt-clock, 0))
			}
			beat.Leases = append(beat.Leases, b)
		}
		return beat, alive
	})
}

func micros(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

func (c *fakeConn) Mark(ctx context.Context, mark int64) error {
	_, err := call(ctx, c, "mark", true, func(int64) (struct{}, bool) {
		if c.db.mark == 0 {
			c.db.mark = mark
		}
		return struct{}{}, false
	})
	return err
}

func (c *fakeConn) Settle(ctx context.Context, watched time.Duration, run store.Run) (settled, busy bool, err error) {
	db := c.db
	type answer struct{ settled, busy bool }
	a, err := call(ctx, c, "settle", true, func(clock int64) (answer, bool) {
		if db.server.timeline == run.Timeline || run != db.runLocked() {
			return answer{}, false
		}
		for _, row := range db.clients {
			if row.ttl > watched {
				return answer{}, false
			}
		}
		for _, n := range db.locked {
			if n > 0 {
				return answer{busy: true}, false
			}
		}
		db.server.era = max(db.server.era+1, run.Timeline)
		for name, rows := range db.partitions {
			for p := range rows {
				from := rows[p]
				rows[p].epoch = max(from.epoch+1, db.server.era<<32)
				db.tellMoved("settle", name, p, from)
			}
		}
		for name, l := range db.leases {
			l.generation++
			l.nextCheckAt = clock
			db.leases[name] = l
		}
		db.server.timeline, db.server.nextCheckAt = run.Timeline, clock
		db.trace("%s: settled timeline %d after watching it for %v", c.client, run.Timeline, watched)
		return answer{settled: true}, true
	})
	return a.settled, a.busy, err
}

func (db *fakeDB) tellMoved(by, lease string, partition int, from partitionRow) {
	if db.moved != nil {
		db.moved(by, lease, partition, from, db.partitions[lease][partition])
	}
}

func (c *fakeConn) End(ctx context.Context, session int64) (bool, error) {
	db := c.db
	return call(ctx, c, "end", true, func(clock int64) (bool, bool) {
		row, alive := db.clients[session]
		for k := range db.members {
			alive = alive && k.session != session
		}
		if alive {
			delete(db.clients, session)
			db.used(row.id, clock)
			db.trace("%s: ended session %d", c.client, session)
		}
		_, left := db.clients[session]
		return !left, alive
	})
}

func (db *fakeDB) used(id string, clock int64) {
	if i, known := db.identities[id]; known {
		i.usedAt = clock
		db.identities[id] = i
	}
}

func (c *fakeConn) Join(ctx context.Context, session int64, lease string, partitions, weight int) (store.Join, error) {
	db := c.db
	return call(ctx, c, "join", true, func(clock int64) (store.Join, bool) {
		before := db.leases[lease]
		join := store.Join{Partitions: int(before.partitions)}
		if _, join.Alive = db.clients[session]; !join.Alive {
			return join, false
		}
		l, known := before, true
		if _, known = db.leases[lease]; !known {
			l = leaseRow{int64(partitions), 1, 1, 0, clock, math.MinInt64}
		} else {
			if l.partitions != 0 && l.partitions != int64(partitions) {
				return join, false
			}
			l.generation++
			if l.partitions == 0 {
				l.created = l.generation
			}
			l.partitions = int64(partitions)
			due := clock
			if l.plannedAt >= clock-1e6 && l.plannedAt <= clock {
				due = l.plannedAt + 250_000 + 50*l.partitions
			}
			l.nextCheckAt = min(l.nextCheckAt, due)
		}
		db.leases[lease] = l
		if l.created == l.generation {
			rows := make([]partitionRow, partitions)
			for p := range rows {
				rows[p].epoch = l.floor
			}
			db.partitions[lease] = rows
		}
		db.members[memberKey{lease, session}] = weight
		join.Joined = true
		if l.nextCheckAt < infinity {
			join.DueIn = micros(max(l.nextCheckAt-clock, 0))
		}
		db.trace("%s: joined %s with session %d", c.client, lease, session)
		return join, true
	})
}

func (c *fakeConn) SetWeight(ctx context.Context, session int64, lease string, weight int) (bool, error) {
	db := c.db
	return call(ctx, c, "weight", true, func(clock int64) (bool, bool) {
		k := memberKey{lease, session}
		if _, member := db.members[k]; !member {
			return false, false
		}
		db.members[k] = weight
		l := db.leases[lease]
		l.generation++
		l.nextCheckAt = min(l.nextCheckAt, clock)
		db.leases[lease] = l
		return true, true
	})
}

func (c *fakeConn) Read(ctx context.Context, session int64, leases []string) ([]store.LeaseRead, error) {
	db := c.db
	return call(ctx, c, "read", false, func(int64) ([]store.LeaseRead, bool) {
		var reads []store.LeaseRead
		for _, name := range leases {
			l, known := db.leases[name]
			if !known {
				continue
			}
			read := store.LeaseRead{Name: name, Generation: l.generation, Timeline: db.timeline, Settled: db.server.timeline}
			for p, row := range db.partitions[name] {
				if row.owner == session {
					read.Owned = append(read.Owned, store.Owned{Partition: p, Epoch: row.epoch, Moving: row.target != row.owner})
				}
			}
			reads = append(reads, read)
		}
		return reads, false
	})
}

// living reports whether a session is a living member of a lease.
func (db *fakeDB) living(lease string, session int64) bool {
	_, member := db.members[memberKey{lease, session}]
	_, alive := db.clients[session]
	return member && alive
}

func (c *fakeConn) Release(ctx context.Context, session int64, releases []store.Release, leaving []string) (store.Released, error) {
	db := c.db
	return call(ctx, c, "release", true, func(clock int64) (store.Released, bool) {
		var answer store.Released
		var done []string
		valid := db.server.timeline == db.timeline
		concerned := make(map[int64]bool)
		changed := make(map[string]bool) // and whether it asks for a plan
		draining := make(map[string]bool)
		for k, weight := range db.members {
			draining[k.lease] = draining[k.lease] || k.session == session && weight == 0
		}
		for _, r := range releases {
			rows := db.partitions[r.Lease]
			if r.Partition >= len(rows) || rows[r.Partition].owner != session || rows[r.Partition].epoch != r.Epoch {
				continue
			}
			if !valid || db.locked[partitionKey{r.Lease, r.Partition}] > 0 {
				answer.Busy = append(answer.Busy, store.Release{Lease: r.Lease, Partition: r.Partition})
				continue
			}
			row := &rows[r.Partition]
			from := *row
			heir := clientRow{}
			leaves := slices.Contains(leaving, r.Lease)
			if db.living(r.Lease, row.target) && !(row.target == session && leaves) {
				heir = db.clients[row.target]
			}
			switch {
			case heir.id != "" && heir.id == row.homeID:
				row.homeID = ""
			case heir.id != "" && heir.id != row.ownerID && (leaves || draining[r.Lease]):
				row.homeID = row.ownerID
			}
			row.owner, row.target = heir.session, heir.session
			row.epoch = max(row.epoch+1, db.server.era<<32)
			if heir.id != "" {
				row.ownerID = heir.id
			}
			db.tellMoved("release", r.Lease, r.Partition, from)
			done = append(done, fmt.Sprintf("%s/%d@%d to %q", r.Lease, r.Partition, r.Epoch, heir.id))
			answer.Released = append(answer.Released, store.Handed{Lease: r.Lease, Partition: r.Partition, Owner: row.owner, Epoch: row.epoch})
			changed[r.Lease] = changed[r.Lease] || row.owner == 0
			if row.owner != 0 && row.owner != session {
				concerned[row.owner] = true
			}
		}
		for _, name := range leaving {
			k := memberKey{name, session}
			weight, member := db.members[k]
			if !member {
				continue
			}
			rest := slices.ContainsFunc(db.partitions[name], func(row partitionRow) bool { return row.owner == session })
			switch {
			case !rest:
				delete(db.members, k)
				answer.Left = append(answer.Left, name)
				changed[name] = true
				done = append(done, "left "+name)
			case weight != 0:
				db.members[k] = 0
				changed[name] = true
			}
		}
		slices.Sort(answer.Left)
		for name, ask := range changed {
			l := db.leases[name]
			l.generation++
			if ask {
				l.nextCheckAt = min(l.nextCheckAt, clock)
			}
			db.leases[name] = l
			if l.nextCheckAt <= clock {
				answer.Asking = append(answer.Asking, name)
			}
		}
		slices.Sort(answer.Asking)
		db.notify(concerned)
		db.trace("%s: released %v", c.client, done)
		return answer, len(changed) > 0
	})
}

func (c *fakeConn) Evict(ctx context.Context, cutoff int64, watched time.Duration, run store.Run) (store.Evicted, error) {
	db := c.db
	return call(ctx, c, "evict", true, func(clock int64) (store.Evicted, bool) {
		none := store.Evicted{CheckDueIn: -time.Microsecond}
		const elevenMinutes = int64(11 * time.Minute / time.Microsecond)
		if next := db.server.nextCheckAt; next > clock && next <= clock+db.leastTTL()+1e6 {
			return none, false
		}
		if clock < cutoff || db.server.timeline != run.Timeline || run != db.runLocked() {
			return none, false
		}
		db.calls["check"]++
		var answer store.Evicted
		dead := make(map[int64]bool)
		for session, row := range db.clients {
			if row.expiresAt < cutoff {
				if row.ttl <= watched {
					dead[session] = true
				} else if answer.Unwatched == 0 || row.ttl < answer.Unwatched {
					answer.Unwatched = row.ttl
				}
			}
		}
		living := func(lease string, session int64) bool { return db.living(lease, session) && !dead[session] }
		affected := make(map[string]bool)
		hasLiving := make(map[string]bool)
		for k := range db.members {
			if living(k.lease, k.session) {
				hasLiving[k.lease] = true
			} else {
				affected[k.lease] = true
			}
		}
		for name, rows := range db.partitions {
			for _, row := range rows {
				if hasLiving[name] && (row.owner != 0 && !living(name, row.owner) || row.target != 0 && !living(name, row.target)) {
					affected[name] = true
				}
			}
		}
		for k := range db.members {
			if !living(k.lease, k.session) {
				delete(db.members, k)
			}
		}
		for session := range dead {
			row := db.clients[session]
			delete(db.clients, session)
			db.used(row.id, clock)
			answer.IDs = append(answer.IDs, row.id)
			if db.gone != nil {
				db.gone(row, time.Since(db.beats[session]))
			}
		}
		slices.Sort(answer.IDs)
		for id, i := range db.identities {
			if i.usedAt < clock-int64(24*time.Hour/time.Microsecond) && db.newest(id, 0) == nil {
				delete(db.identities, id)
			}
		}
		for name := range affected {
			l := db.leases[name]
			l.generation++
			l.nextCheckAt = clock
			db.leases[name] = l
			answer.Asked = append(answer.Asked, name)
		}
		slices.Sort(answer.Asked)
		next := int64(infinity)
		for session, row := range db.clients {
			next = min(next, row.expiresAt, clock+row.ttl.Microseconds())
			if row.expiresAt > clock+row.ttl.Microseconds()+1e6 {
				row.expiresAt = clock + row.ttl.Microseconds()
				db.clients[session] = row
			}
		}
		answer.CheckDueIn = -time.Microsecond
		if answer.Unwatched == 0 {
			db.server.nextCheckAt = max(clock+50_000, next)
			db.server.sessions = int64(len(db.clients))
			answer.CheckDueIn = micros(min(db.server.nextCheckAt, clock+elevenMinutes) - clock)
		}
		if len(affected)+len(dead) > 0 {
			db.trace("%s: evicted %v, asked %v, next check in %v", c.client, answer.IDs, answer.Asked, answer.CheckDueIn)
		}
		return answer, true
	})
}

func (db *fakeDB) leastTTL() int64 {
	least := int64(infinity / 2)
	for _, row := range db.clients {
		least = min(least, row.ttl.Microseconds())
	}
	return least
}

func (c *fakeConn) Claim(ctx context.Context, leases []string) ([]string, error) {
	db := c.db
	return call(ctx, c, "claim", true, func(clock int64) ([]string, bool) {
		var claimed []string
		for _, name := range slices.Sorted(slices.Values(leases)) {
			l, known := db.leases[name]
			if known && (l.nextCheckAt <= clock || l.nextCheckAt > clock+1e6 && l.nextCheckAt < infinity) {
				l.nextCheckAt, l.plannedAt = clock+100_000+50*l.partitions, clock
				db.leases[name] = l
				claimed = append(claimed, name)
			}
		}
		return claimed, len(claimed) > 0
	})
}

func (c *fakeConn) Plan(ctx context.Context, leases []string) ([]store.LeasePlan, error) {
	db := c.db
	return call(ctx, c, "plan", false, func(int64) ([]store.LeasePlan, bool) {
		sessions := make(map[int64]bool)
		for k := range db.members {
			if slices.Contains(leases, k.lease) {
				sessions[k.session] = true
			}
		}
		related := make(map[string][]store.Member)
		for _, name := range leases {
			related[name] = nil
		}
		for k := range db.members {
			if sessions[k.session] {
				related[k.lease] = nil
			}
		}
		for k, weight := range db.members {
			members, ok := related[k.lease]
			if row, alive := db.clients[k.session]; ok && alive {
				related[k.lease] = append(members, store.Member{Session: k.session, ID: row.id, Incarnation: row.incarnation, Weight: weight})
			}
		}
		var plans []store.LeasePlan
		for _, name := range slices.Sorted(maps.Keys(related)) {
			rows := db.partitions[name]
			if len(rows) == 0 {
				continue
			}
			members := related[name]
			slices.SortFunc(members, func(a, b store.Member) int {
				return cmpOr(strings.Compare(a.ID, b.ID), int(a.Incarnation-b.Incarnation), cmpInt(a.Session, b.Session))
			})
			p := store.LeasePlan{Name: name, Generation: db.leases[name].generation, Members: members}
			for _, row := range rows {
				p.Owners, p.Targets = append(p.Owners, row.owner), append(p.Targets, row.target)
				p.OwnerIDs, p.HomeIDs = append(p.OwnerIDs, row.ownerID), append(p.HomeIDs, row.homeID)
			}
			plans = append(plans, p)
		}
		return plans, false
	})
}

func (c *fakeConn) Apply(ctx context.Context, plan []store.LeasePlan, moves []store.Move) (store.Applied, error) {
	db := c.db
	return call(ctx, c, "apply", true, func(clock int64) (store.Applied, bool) {
		var answer store.Applied
		if db.server.timeline != db.timeline {
			return answer, false
		}
		for _, p := range plan {
			if l, known := db.leases[p.Name]; !known || l.generation != p.Generation {
				return answer, false
			}
		}
		answer.Applied = true
		concerned := make(map[int64]bool)
		changed, leftOver := make(map[string]bool), make(map[string]bool)
		planned := func(name string) bool {
			return slices.ContainsFunc(plan, func(p store.LeasePlan) bool { return p.Name == name })
		}
		var done []string
		for _, m := range moves {
			rows := db.partitions[m.Lease]
			target := clientRow{}
			if planned(m.Lease) && db.living(m.Lease, m.Target) {
				target = db.clients[m.Target]
			}
			if m.Partition >= len(rows) || target.session == 0 && m.Target != 0 {
				continue
			}
			row := &rows[m.Partition]
			from := *row
			switch {
			case planned(m.Lease) && db.living(m.Lease, row.owner):
				row.target = target.session
				answer.Asked++
				changed[m.Lease] = true
				concerned[row.owner] = true
				done = append(done, fmt.Sprintf("%s/%d asked for %q", m.Lease, m.Partition, target.id))
			case db.locked[partitionKey{m.Lease, m.Partition}] > 0:
				answer.LeftOver++
				leftOver[m.Lease] = true
			default:
				switch {
				case target.id != "" && target.id == row.homeID:
					row.homeID = ""
				case target.id != "" && row.ownerID != "" && target.id != row.ownerID &&
					(row.owner != 0 || !db.works(m.Lease, row.ownerID)):
					row.homeID = row.ownerID
				}
				row.owner, row.target = target.session, target.session
				row.epoch = max(row.epoch+1, db.server.era<<32)
				if target.id != "" {
					row.ownerID = target.id
					concerned[target.session] = true
				}
				answer.Given++
				changed[m.Lease] = true
				db.tellMoved("apply", m.Lease, m.Partition, from)
				done = append(done, fmt.Sprintf("%s/%d@%d given to %q", m.Lease, m.Partition, row.epoch, target.id))
			}
		}
		for _, p := range plan {
			l := db.leases[p.Name]
			if changed[p.Name] {
				l.generation++
			}
			l.plannedAt, l.nextCheckAt = clock, infinity
			if leftOver[p.Name] {
				l.nextCheckAt = clock + 50_000
			}
			db.leases[p.Name] = l
		}
		db.notify(concerned)
		db.trace("%s: applied %v", c.client, done)
		return answer, true
	})
}

// works reports whether a living member of a lease with a weight has the client ID.
func (db *fakeDB) works(lease, id string) bool {
	for k, weight := range db.members {
		if row, alive := db.clients[k.session]; alive && k.lease == lease && weight > 0 && row.id == id {
			return true
		}
	}
	return false
}

func cmpInt(a, b int64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

func cmpOr(values ...int) int {
	for _, v := range values {
		if v != 0 {
			return v
		}
	}
	return 0
}

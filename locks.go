package pgleases

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// What the client's session does for package lock: it knows every acquisition by its nonce, ends those that are held when they are lost,
// looks after those that wait, gives back what nobody holds, and has the dead swept away. Locks are taken and released
// on the application's pool, by package lock itself.

// locks is what the client's session holds and awaits.
type locks struct {
	// mu guards the next three. A lock that is free is taken, and released, without a turn of the
	// client's goroutine, which would take a tenth of the time. No statement is sent under it.
	mu       sync.Mutex
	of       map[int64]*lockState                   // by nonce: all that the database may have
	at       [lockReleases + 1]map[int64]*lockState // the same by stage: of a thousand that are held, few wait
	standing standing

	used atomic.Bool // an acquisition was begun under this session

	// The rest is the engine's alone.
	beat      chan struct{} // closed at the next heartbeat that is answered; nil: nobody waits for one
	listened  int64         // the session to whose channel this connection listens; 0: to none
	lookAt    time.Time     // when to look at what waits, and at what is to be confirmed; never: at the next heartbeat
	toConfirm bool          // another run of the server: it has to confirm what is held, before trust goes on, and may have more
	// when to sweep after the dead: within a heartbeat of the client's start, which may be in a hurry to join, as sessions may have ended with rows; and after evictions; else never
	sweepAt time.Time
	batch   int // the most locks that one statement releases: one, where the last met somebody's mutex
}

// A standing is what acquisitions go by, as of the engine's last turn. Between two turns it is out of
// date by what the engine has not acted on yet. What ends all that is held ends the standing in the
// same moment: so nothing is held under one that has ended.
type standing struct {
	ending    error           // why the client ends; nil: it does not
	validity  *owned.Validity // nil: there is no trust
	session   int64
	run       store.Run // of the server, at the last heartbeat
	confirmed store.Run // all that is held is, by that one, without the mark; none, where that has to be done
	clock     int64     // of the database, when the last heartbeat was carried out, microseconds since 1970
	sent      time.Time // that heartbeat
}

// A lockState is an acquisition's, from its beginning until the database has nothing of it.
type lockState struct {
	*seam.Acquisition
	stage lockStage
	token int64 // of what is held

	end     func(cause error, lost bool) // of what is held
	granted chan<- lockGrant             // answers who waits
	noticed bool                         // a notification named it since the last heartbeat

	released []chan<- bool // answer whose release waits
	tryAt    time.Time     // the release
}

// A lockGrant is what becomes of a place in the queue: a token, or an error; neither: the place is lost, with the session that had it.
type lockGrant struct {
	token int64
	err   error
}

type lockStage int

const (
	lockSent  lockStage = iota // package lock awaits the answer, or decides about it
	lockWaits                  // it has a place in the queue
	lockHeld
	lockLost     // it was held, and does not count any more; its row stays until it is released, or the session is gone
	lockReleases // it is to be given back
)

const maxLockBatch = 500

func init() {
	seam.LocksOf = func(client any) seam.Locks { return (*lockSession)(client.(*Client)) }
}

// lockSession is a Client as package lock sees it.
type lockSession Client

func (s *lockSession) client() *Client { return (*Client)(s) }

func (s *lockSession) Table(pool *pgxpool.Pool) seam.LockTable {
	switch double := s.options.database; {
	case double != nil:
		return double.Locks
	case pool == nil:
		return nil
	}
	return &store.Locks{
		Statements: store.StatementsFor(s.options.schema), LockWait: int(s.options.heartbeat.Milliseconds()),
		OnConn: func(ctx context.Context, use func(*pgx.Conn) error) error {
			return pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { return use(conn.Conn()) })
		},
	}
}

// Reaches is for all that take a client and a pool. Behind poolers addresses say nothing, so it asks the database.
func (s *lockSession) Reaches(ctx context.Context, pool *pgxpool.Pool, schema string) error {
	if s.options.database != nil {
		return nil
	}
	schema = cmp.Or(schema, s.options.schema)
	const refused = "the pool leads to another server, database or schema than the client's connection"
	for tries := 1; ; tries++ {
		s.locks.mu.Lock()
		session := s.locks.standing.session
		s.locks.mu.Unlock()
		var database string
		var reached bool
		err := pool.QueryRow(ctx, store.StatementsFor(schema).Reaches, session).Scan(&database, &reached)
		switch {
		case store.Undefined(err):
			return fmt.Errorf(refused+": %w", err)
		case err != nil || reached:
			return err
		case tries > 2:
			return fmt.Errorf(refused+": schema %q of database %q has no session of client %q", schema, database, s.options.clientID)
		}
		if err := s.Beat(ctx, true); err != nil { // it may have been evicted
			return err
		}
	}
}

func (s *lockSession) Begin(ctx context.Context, name string) (*seam.Acquisition, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	ls, a := s.locks, &lockState{Acquisition: &seam.Acquisition{Name: name, Nonce: randomID()}}
	ls.mu.Lock()
	defer ls.mu.Unlock()
	switch now := &ls.standing; {
	case now.ending != nil:
		return nil, now.ending
	case now.validity == nil || !now.validity.Holds():
		return nil, ErrTrustLost
	}
	ls.renew(a)
	ls.put(a, lockSent)
	ls.used.Store(true)
	return a.Acquisition, nil
}

func (s *lockSession) Beat(ctx context.Context, atOnce bool) error {
	next := make(chan (<-chan struct{}), 1)
	if err := s.client().request(ctx, func(e *engine) {
		if e.locks.beat == nil {
			e.locks.beat = make(chan struct{})
		}
		next <- e.locks.beat // one for all: where no heartbeat is answered for long, many come and give up
		if atOnce {
			e.session.beatNow()
		}
	}); err != nil {
		return err
	}
	_, err := await(ctx, s.client(), <-next)
	return err
}

func (s *lockSession) Await(ctx context.Context, a *seam.Acquisition) (int64, error) {
	g, err := requestAnswer(ctx, s.client(), func(e *engine, granted chan<- lockGrant) { e.awaitLock(a, granted) })
	return g.token, cmp.Or(err, g.err)
}

func (s *lockSession) Hold(a *seam.Acquisition, token int64, end func(error, bool)) error {
	err := s.locks.hold(a, token, end)
	if err != nil {
		s.Abandon(a)
	}
	return err
}

func (s *lockSession) Forget(a *seam.Acquisition) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	if state := s.locks.of[a.Nonce]; state != nil {
		s.locks.givenBack(state, true)
	}
	if s.locks.standing.ending != nil { // the client's end may wait for that
		s.client().wakeUp()
	}
}

func (s *lockSession) Abandon(a *seam.Acquisition) { s.release(a, nil) }

func (s *lockSession) Release(ctx context.Context, a *seam.Acquisition) (bool, error) {
	released := make(chan bool, 1)
	s.release(a, released)
	return await(ctx, s.client(), released)
}

func (s *lockSession) release(a *seam.Acquisition, released chan<- bool) {
	s.locks.mu.Lock()
	defer s.locks.mu.Unlock()
	s.locks.release(a, released)
	s.client().wakeUp()
}

func newLocks(now time.Time, heartbeat time.Duration) *locks {
	ls := &locks{of: make(map[int64]*lockState), lookAt: never, sweepAt: now.Add(rand.N(heartbeat)), batch: maxLockBatch}
	for stage := range ls.at {
		ls.at[stage] = make(map[int64]*lockState)
	}
	return ls
}

// put notes an acquisition in its stage. The caller has mu.
func (ls *locks) put(s *lockState, stage lockStage) {
	delete(ls.at[s.stage], s.Nonce)
	s.stage = stage
	ls.of[s.Nonce], ls.at[stage][s.Nonce] = s, s
}

// remove forgets an acquisition. The caller has mu.
func (ls *locks) remove(s *lockState) {
	delete(ls.of, s.Nonce)
	delete(ls.at[s.stage], s.Nonce)
}

// any reports whether there is an acquisition in one of the stages.
func (ls *locks) any(stages ...lockStage) bool {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	return slices.ContainsFunc(stages, func(stage lockStage) bool { return len(ls.at[stage]) > 0 })
}

// renew notes under which session, run and validity an acquisition goes on. The last instant is the end of the trust by the database's
// clock: what arrives later finds that this client does not count on it any more. The caller has mu, and there is a validity.
func (ls *locks) renew(s *lockState) {
	now := &ls.standing
	s.Session, s.Run, s.Validity = now.session, now.run, now.validity
	s.Latest = now.clock + (time.Since(now.sent) + now.validity.Remaining()).Microseconds()
}

// hold counts a grant. What was granted under another session, before a break of the trust, or by another run of the server may be
// another's by now: that is an error, and to be given back.
func (ls *locks) hold(a *seam.Acquisition, token int64, end func(error, bool)) error {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	s := ls.of[a.Nonce]
	switch now := &ls.standing; {
	case now.ending != nil:
		return now.ending
	case s == nil || s.Session != now.session:
		return fmt.Errorf("%w: the session was evicted", ErrTrustLost)
	case s.Validity != now.validity || !s.Validity.Holds():
		return ErrTrustLost
	case unmarked(s.Run) != now.confirmed:
		return fmt.Errorf("%w: the server was restarted or promoted meanwhile", ErrTrustLost)
	}
	s.token, s.end = token, end
	ls.put(s, lockHeld)
	return nil
}

// publishStanding tells acquisitions how the engine stands.
func (e *engine) publishStanding() {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	e.stand()
}

// stand is publishStanding for a caller that has mu.
func (e *engine) stand() {
	now := standing{ending: e.ending.reason, validity: e.session.validity, session: e.session.number, run: e.check.watch.run,
		clock: e.session.renewal.Clock, sent: e.session.sent}
	if run := unmarked(now.run); e.session.confirmed == run {
		now.confirmed = run
	}
	e.locks.standing = now
}

// awaitLock has the client look after an acquisition that has a place in the queue.
func (e *engine) awaitLock(a *seam.Acquisition, granted chan<- lockGrant) {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	switch s := e.locks.of[a.Nonce]; {
	case e.ending.reason != nil:
		granted <- lockGrant{err: e.ending.reason}
	case s == nil: // the session is gone
		granted <- lockGrant{}
	default:
		s.granted = granted
		e.locks.put(s, lockWaits)
		e.locks.lookAt = atOnce // it may have been granted since the answer
	}
}

// release has a lock given up. The caller has mu.
func (ls *locks) release(a *seam.Acquisition, released chan<- bool) {
	s := ls.of[a.Nonce]
	if s == nil { // it was given up, or the session is gone
		if released != nil {
			released <- false
		}
		return
	}
	if !s.Twice && s.stage != lockSent && s.stage != lockReleases {
		s.Latest = 0 // its answer came
	}
	s.tryAt = atOnce
	ls.put(s, lockReleases)
	if released != nil {
		s.released = append(s.released, released)
	}
}

// struck strikes out an acquisition of which the database has nothing any more. The caller has mu.
func (ls *locks) struck(s *lockState, found bool) {
	ls.remove(s)
	for _, released := range s.released {
		released <- found
	}
	s.released = nil
}

// givenBack is struck for one that may still arrive, if it was sent twice: until that cannot be any more, it is given back again. Once the client
// ends, it finds the session gone.
func (ls *locks) givenBack(s *lockState, found bool) {
	ls.struck(s, found)
	if s.Twice && ls.standing.ending == nil {
		ls.put(s, lockReleases)
	}
}

// loseLocks ends what is held. Nothing else is done: whoever holds it may be at work still, and the row keeps others from it until it is
// released, or the session is evicted.
func (e *engine) loseLocks(cause error) {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	e.stand()
	e.endHeld(cause, func(*lockState) bool { return true })
}

// endHeld ends some of what is held. The caller has mu.
func (e *engine) endHeld(cause error, which func(*lockState) bool) {
	var names []string
	for _, s := range e.locks.at[lockHeld] {
		if which(s) {
			e.locks.put(s, lockLost)
			s.end(cause, true)
			names = append(names, s.Name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		e.client.log.Warn("pgleases: locks lost", slog.Int("locks", len(names)), slog.String("first", names[0]), slog.Any("cause", cause))
	}
}

// loseLockSession takes the news that the session is gone, and all that the database had of it.
func (e *engine) loseLockSession() {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	for _, s := range e.locks.of {
		if s.stage == lockWaits {
			s.granted <- lockGrant{}
		}
		e.locks.struck(s, false)
	}
	e.locks.used.Store(false)
	e.locks.toConfirm = false
	e.stand()
}

// askForLocks asks for the end of the work under locks, as the client ends. They stay until they are released.
func (e *engine) askForLocks(reason error) {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	e.stand()
	for _, s := range e.locks.of {
		switch {
		case s.stage == lockHeld:
			s.end(reason, false)
		case s.stage == lockWaits:
			s.granted <- lockGrant{err: reason}
			e.locks.release(s.Acquisition, nil)
		}
	}
}

// finishLocks ends what is held still, and returns the names.
func (e *engine) finishLocks(reason error) []string {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	var names []string
	for _, s := range e.locks.at[lockLost] {
		names = append(names, s.Name)
	}
	for _, s := range e.locks.at[lockHeld] {
		names = append(names, s.Name)
		s.end(reason, true)
	}
	slices.Sort(names)
	return names
}

// remain reports whether the session holds or awaits locks in the database, as far as is known.
// What was sent and not answered finds the session gone, or is a row of a dead session.
func (ls *locks) remain() bool { return ls.any(lockWaits, lockHeld, lockLost, lockReleases) }

// heardLocks takes a heartbeat that was answered.
func (e *engine) heardLocks() {
	e.locks.lookAt = atOnce
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	e.stand()                                               // before the answer, after which they go by it
	if e.locks.beat != nil && e.check.watch.run.Mark != 0 { // else the next heartbeat tells another run
		close(e.locks.beat)
		e.locks.beat = nil
	}
	for _, s := range e.locks.at[lockWaits] {
		s.noticed = false
	}
}

// heardGrants takes the notifications of locks that have come, and reports whether any has. They are hints: anybody can send one. So
// each makes the client look at most once between two heartbeats.
func (e *engine) heardGrants(c conn) bool {
	nonces := c.GrantedLocks()
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	for _, nonce := range nonces {
		if s := e.locks.at[lockWaits][nonce]; s != nil && !s.noticed {
			s.noticed = true
			e.locks.lookAt = atOnce
		}
	}
	return len(nonces) > 0
}

func (e *engine) listenToLocksDue(time.Time) time.Time {
	return atOnceIf(e.connection.listening && e.locks.listened != e.session.number && e.locks.any(lockWaits))
}

func (e *engine) beginListenToLocks(time.Time) *operation {
	session := e.session.number
	return tell(e.limit(), func(ctx context.Context, c conn) error { return c.ListenToLocks(ctx, session) }, func(err error) {
		if err == nil {
			e.locks.listened = session
			e.locks.lookAt = atOnce // what was granted before it listened
		}
	})
}

func (e *engine) lookAtLocksDue(time.Time) time.Time {
	if e.session.validity == nil || !e.locks.toConfirm && !e.locks.any(lockWaits) {
		return never
	}
	return e.locks.lookAt
}

// beginLookAtLocks looks whether what waits was granted, and whether another run of the server confirms what is held.
func (e *engine) beginLookAtLocks(time.Time) *operation {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	asked, confirm := maps.Clone(e.locks.at[lockWaits]), e.locks.toConfirm
	var held map[int64]*lockState
	if confirm { // it is told all of the session's
		held = maps.Clone(e.locks.at[lockHeld])
	}
	nonces := slices.Collect(maps.Keys(asked))
	e.locks.lookAt = never
	session, run := e.session.number, unmarked(e.check.watch.run)
	var answered store.Run
	return ask(e.limit(), func(ctx context.Context, c conn) (found []store.FoundLock, err error) {
		found, answered, err = c.LookAtLocks(ctx, session, nonces, confirm)
		return found, err
	}, func(found []store.FoundLock, err error) {
		e.checkTrust(time.Now())
		switch {
		case err != nil:
			e.locks.lookAt = atOnce // after a pause
			return
		case answered != run || run != unmarked(e.check.watch.run):
			e.session.beatNow() // after which it looks again
			return
		case session != e.session.number || e.session.validity == nil:
			return
		}
		tokens := make(map[int64]int64, len(found))
		for _, f := range found {
			tokens[f.Nonce] = f.Token
		}
		if confirm { // first: what another run of the server has granted counts once that has confirmed what is held
			e.foundHeld(found, tokens, held)
			e.confirmLocks()
		}
		e.foundWaiting(tokens, asked)
	})
}

// foundHeld takes what another run of the server has of the session: what it does not have is lost, and what nobody here knows of was
// released where it was not kept.
func (e *engine) foundHeld(found []store.FoundLock, tokens map[int64]int64, held map[int64]*lockState) {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	for _, f := range found {
		if e.locks.of[f.Nonce] == nil {
			a := &seam.Acquisition{Name: f.Name, Nonce: f.Nonce, Session: e.session.number}
			e.locks.put(&lockState{Acquisition: a}, lockReleases)
		}
	}
	e.endHeld(fmt.Errorf("%w: the server does not confirm it", ErrTrustLost), func(s *lockState) bool {
		return held[s.Nonce] == s && tokens[s.Nonce] != s.token
	})
}

// foundWaiting takes what the database has of the acquisitions that wait. While another run of the server has something to confirm, they wait on:
// they are looked at again then.
func (e *engine) foundWaiting(tokens map[int64]int64, asked map[int64]*lockState) {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	e.stand()
	if now := &e.locks.standing; now.validity == nil || now.confirmed != unmarked(now.run) {
		return
	}
	for nonce, s := range asked {
		if token, exists := tokens[nonce]; e.locks.at[lockWaits][nonce] == s && (!exists || token > 0) {
			e.locks.grant(s, token)
		}
	}
}

// grant answers who waits. From there on it is as if the answer to an acquisition had come at once. The caller has mu.
func (ls *locks) grant(s *lockState, token int64) {
	if token == 0 { // somebody has deleted the row
		ls.remove(s)
	} else {
		ls.renew(s)
		if !s.Twice {
			s.Latest = 0
		}
		ls.put(s, lockSent)
	}
	s.granted <- lockGrant{token: token}
}

// confirmLocks has trust go on, where nothing else is to be confirmed by another run of the server.
func (e *engine) confirmLocks() {
	e.locks.toConfirm = false
	if e.find((*membership).readDue) != nil {
		return
	}
	if run := unmarked(e.check.watch.run); e.session.confirmed != run {
		e.session.confirmed = run
		e.trust(e.session.sent)
	}
}

func (e *engine) releaseLocksDue(time.Time) time.Time {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	_, at := soonest(maps.Values(e.locks.at[lockReleases]), func(s *lockState) time.Time { return s.tryAt })
	return at
}

// beginReleaseLocks gives back what nobody holds, those first that have waited longest.
func (e *engine) beginReleaseLocks(now time.Time) *operation {
	e.locks.mu.Lock()
	defer e.locks.mu.Unlock()
	var due []*lockState
	for _, s := range e.locks.at[lockReleases] {
		if !s.tryAt.After(now) {
			due = append(due, s)
		}
	}
	slices.SortFunc(due, func(a, b *lockState) int { return cmp.Or(a.tryAt.Compare(b.tryAt), cmp.Compare(a.Nonce, b.Nonce)) })
	due = due[:min(len(due), e.locks.batch)]
	releases := make([]store.LockRelease, len(due))
	for i, s := range due {
		releases[i] = store.LockRelease{Name: s.Name, Nonce: s.Nonce, Latest: s.Latest}
		if e.ending.reason != nil || len(s.released) > 0 {
			releases[i].Latest = 0 // the session ends, and what arrives late finds it gone; or whoever held the lock waits for this
		}
	}
	session, run := e.session.number, e.check.watch.run
	return ask(e.limit(), func(ctx context.Context, c conn) (store.LocksReleased, error) {
		return c.ReleaseLocks(ctx, session, releases, run)
	}, func(answer store.LocksReleased, err error) {
		e.locks.mu.Lock()
		defer e.locks.mu.Unlock()
		now := time.Now()
		for _, s := range due {
			s.tryAt = now.Add(busyRetry)
			if s.Latest > 0 {
				s.tryAt = now.Add(max(busyRetry, e.options.heartbeat/4))
			}
		}
		if err != nil {
			if store.LockTimeout(err) {
				e.locks.batch = 1
			}
			return
		}
		e.locks.batch = maxLockBatch
		if !answer.SameRun {
			e.session.beatNow()
			return
		}
		for i, s := range due {
			found, absent := slices.Contains(answer.Released, s.Nonce), slices.Contains(answer.Absent, s.Nonce)
			switch {
			case e.locks.of[s.Nonce] != s:
			case found, absent && releases[i].Latest == 0:
				e.locks.givenBack(s, found)
			case absent:
				e.locks.struck(s, false)
			}
		}
	})
}

func (e *engine) sweepLocksDue(time.Time) time.Time { return e.locks.sweepAt }

// beginSweepLocks removes what evicted sessions held and awaited.
func (e *engine) beginSweepLocks(time.Time) *operation {
	return ask(e.limit(), func(ctx context.Context, c conn) (bool, error) { return c.SweepLocks(ctx) }, func(done bool, err error) {
		switch {
		case err != nil:
		case done:
			e.locks.sweepAt = never
		default: // a guarded transaction is open, or somebody has the mutex
			e.locks.sweepAt = time.Now().Add(max(busyRetry, e.options.heartbeat/4))
		}
	})
}

package locks

import (
	"cmp"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/logqueue"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// Stand publishes the client's standing.
func (s *Session) Stand(now Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standing = now
}

// Heard handles a heartbeat that was answered.
func (s *Session) Heard(now Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookAt = when.AtOnce
	s.standing = now                          // before the answer, because callers depend on it afterwards
	if s.beat != nil && now.Run.Marker != 0 { // otherwise the next heartbeat returns another incarnation
		close(s.beat)
		s.beat = nil
	}
	for _, of := range s.at[waiting] {
		of.noticed = false
	}
}

// NextBeat returns a channel that is closed when the next heartbeat is answered. All callers share
// it, because many may arrive and give up while no heartbeat is answered.
func (s *Session) NextBeat() <-chan struct{} {
	if s.beat == nil {
		s.beat = make(chan struct{})
	}
	return s.beat
}

// Lose ends the held locks, and does no more: a holder may still work, and the row keeps other
// clients from the lock until it is released, or the session is evicted.
func (s *Session) Lose(cause error, now Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standing = now
	s.endHeld(cause, func(*acquired) bool { return true })
}

// endHeld ends some of the held locks. The caller has mu.
func (s *Session) endHeld(cause error, which func(*acquired) bool) {
	var names []string
	now := time.Now()
	for _, of := range s.at[held] {
		if which(of) {
			s.put(of, lost)
			s.lost++
			of.lostAt, of.warnAt = now, now.Add(WarnAfter)
			of.end(cause, true)
			names = append(names, of.Name)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		s.config.Log.Warn("pgleases: locks lost",
			slog.Int("locks", len(names)), slog.String("first", names[0]), slog.Any("cause", cause))
	}
}

// WarnAfter is how long a lost lock may stay without Release before that is logged. Later warnings
// follow at doubling intervals.
const WarnAfter = 30 * time.Second

// RemindDue returns when to log that a lost lock is not released.
func (s *Session) RemindDue() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, due := when.Soonest(maps.Values(s.at[lost]), func(of *acquired) time.Time { return of.warnAt })
	return due
}

// Remind logs the lost locks that keep everybody from the lock, because they are not released.
func (s *Session) Remind(now time.Time) {
	if now.Before(s.RemindDue()) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	var longest time.Duration
	for _, of := range s.at[lost] {
		if now.Before(of.warnAt) {
			continue
		}
		lasts := now.Sub(of.lostAt)
		of.warnAt = now.Add(lasts)
		s.warnedOf.add(of)
		names, longest = append(names, of.Name), max(longest, lasts)
	}
	slices.Sort(names)
	s.warnedOf.Begin(now.Add(-longest))
	s.config.Log.Warn("pgleases: lost locks are not released",
		slog.Int("locks", len(names)), slog.String("first", names[0]), slog.Duration("for", longest.Round(time.Second)))
}

// unreleased are the lost locks that Remind has logged, until all of them are released.
type unreleased struct {
	logqueue.Condition
	left  int
	names []string // of all
}

// add adds a lock, once.
func (u *unreleased) add(of *acquired) {
	if !of.warned {
		of.warned = true
		u.left++
		u.names = append(u.names, of.Name)
	}
}

// unlost notes that an acquisition is no lost lock any more, if it was one, because it is released or
// its session is gone. If it was the last one that Remind has logged, that is logged too. The caller
// has mu.
func (s *Session) unlost(of *acquired) {
	if !of.warned {
		return
	}
	of.warned = false
	u := &s.warnedOf
	u.left--
	if u.left > 0 {
		return
	}
	lasted, _ := u.End(time.Now())
	slices.Sort(u.names)
	s.config.Log.Info("pgleases: lost locks released",
		slog.Int("locks", len(u.names)), slog.String("first", u.names[0]), slog.Duration("for", lasted))
	u.names = nil
}

// reportedMost is how many lost locks a client reports: a few suffice to find the process.
const reportedMost = 100

// Unreleased returns the names of locks that were lost and are not released.
func (s *Session) Unreleased() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.at[lost] {
		names = append(names, of.Name)
	}
	slices.Sort(names)
	return names[:min(len(names), reportedMost)]
}

// LostSince returns when this client lost a lock that it has not released, and whether it has one.
func (s *Session) LostSince(name string) (at time.Time, is bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.at[lost] {
		if of.Name == name {
			return of.lostAt, true
		}
	}
	return time.Time{}, false
}

// LoseSession handles the news that the session is gone, with all its rows in the database.
func (s *Session) LoseSession(now Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.of {
		if of.stage == waiting {
			of.granted <- grant{}
		}
		s.remove(of, false)
	}
	s.used.Store(false)
	s.toConfirm = false
	s.standing = now
}

// AskToEnd asks for the end of the work under locks when the client ends. They stay until they are
// released.
func (s *Session) AskToEnd(reason error, now Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standing = now
	for _, of := range s.of {
		switch of.stage {
		case held:
			of.end(reason, false)
		case waiting:
			of.granted <- grant{err: reason}
			s.toRelease(of.Acquisition, nil)
		case sent: // its caller sees that the client ends
			s.toRelease(of.Acquisition, nil)
		}
	}
}

// Finish ends the locks that are held. It returns the names of all that are not released yet, and of
// those that were waited for.
func (s *Session) Finish(reason error) []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var names []string
	for _, of := range s.of {
		names = append(names, of.Name)
		if of.stage == held {
			s.put(of, lost)
			s.lost++
			of.end(reason, true)
		}
	}
	slices.Sort(names)
	return names
}

// any reports whether there is an acquisition in one of the stages.
func (s *Session) any(stages ...stage) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(stages, func(stage stage) bool { return len(s.at[stage]) > 0 })
}

// Counts are numbers of locks.
type Counts struct {
	Held, Waiting int
	Lost          int64 // since the client's start
}

// Counts returns the numbers of locks now.
func (s *Session) Counts() Counts {
	s.mu.Lock()
	defer s.mu.Unlock()
	return Counts{len(s.at[held]), len(s.at[waiting]) + int(s.Behind.Load()), s.lost}
}

// Holds reports whether a lock is held.
func (s *Session) Holds() bool { return s.any(held) }

// Releases reports whether a lock has to be released.
func (s *Session) Releases() bool { return s.any(releasing) }

// Names returns the locks that the session holds or awaits, by name.
func (s *Session) Names() (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range s.of {
		names = append(names, of.Name)
	}
	slices.Sort(names)
	return names
}

// Remain reports whether the session holds or awaits locks in the database, as far as is known.
func (s *Session) Remain() bool { return s.any(waiting, held, lost, releasing) }

// Notified handles the nonces in notifications. They are hints, because any role can send one. So
// each nonce causes at most one check between two heartbeats.
func (s *Session) Notified(nonces []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, nonce := range nonces {
		of := s.at[waiting][nonce]
		if of != nil && !of.noticed {
			of.noticed = true
			s.lookAt = when.AtOnce
		}
	}
}

// ToListen reports whether this connection is to listen to the session's channel.
func (s *Session) ToListen(session int64) bool { return s.listened != session && s.any(waiting) }

// Listened notes that the connection listens to a session's channel.
func (s *Session) Listened(session int64) {
	s.listened = session
	s.LookNow() // for grants before it listened
}

// Disconnected notes that the connection is gone.
func (s *Session) Disconnected() { s.listened = 0 }

// LookNow makes a check due.
func (s *Session) LookNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lookAt = when.AtOnce
}

// ToConfirm notes another server incarnation. It has to confirm the locks even if none is held,
// because a crash may have undone releases.
func (s *Session) ToConfirm() { s.toConfirm = s.used.Load() }

// NeedsConfirmation reports whether another server incarnation has to confirm the locks.
func (s *Session) NeedsConfirmation() bool { return s.toConfirm }

// LookDue returns when to check the acquisitions that wait or have to be confirmed.
func (s *Session) LookDue() time.Time {
	if !s.toConfirm && !s.any(waiting) {
		return when.Never
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lookAt
}

// A Look is a check: what the client asks the database about.
type Look struct {
	Nonces  []int64
	Confirm bool // all acquisitions of the session
	waiting map[int64]*acquired
	held    map[int64]*acquired
}

// BeginLook returns what to check.
func (s *Session) BeginLook() *Look {
	s.mu.Lock()
	defer s.mu.Unlock()
	look := &Look{Confirm: s.toConfirm, waiting: maps.Clone(s.at[waiting])}
	look.Nonces = slices.Collect(maps.Keys(look.waiting))
	if look.Confirm { // the answer has all acquisitions of the session
		look.held = maps.Clone(s.at[held])
	}
	s.lookAt = when.Never
	return look
}

// Confirm handles the rows that another server incarnation has of the session. A lock without a row
// is lost. A row that this client does not know is released: its release was lost.
func (s *Session) Confirm(look *Look, found []store.FoundLock, session int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	tokens := tokensOf(found)
	for _, f := range found {
		if s.of[f.Nonce] == nil {
			s.put(&acquired{Acquisition: &Acquisition{Name: f.Name, Nonce: f.Nonce, Session: session}}, releasing)
		}
	}
	s.endHeld(fmt.Errorf("%w: the server does not confirm it", s.config.TrustLost), func(of *acquired) bool {
		return look.held[of.Nonce] == of && tokens[of.Nonce] != of.token
	})
	s.toConfirm = false
}

// Grant handles the rows of the acquisitions that wait. While another server incarnation has to
// confirm the locks, they continue to wait: the client checks them again afterwards.
func (s *Session) Grant(look *Look, found []store.FoundLock, now Standing) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.standing = now
	if now.Validity == nil || now.Confirmed != now.Run.Unmarked() {
		return
	}
	tokens := tokensOf(found)
	for nonce, of := range look.waiting {
		token, exists := tokens[nonce]
		if s.at[waiting][nonce] == of && (!exists || token > 0) {
			s.grant(of, token)
		}
	}
}

func tokensOf(found []store.FoundLock) map[int64]int64 {
	tokens := make(map[int64]int64, len(found))
	for _, f := range found {
		tokens[f.Nonce] = f.Token
	}
	return tokens
}

// grant answers the caller that waits. From then on the acquisition is in the same state as if it
// had been granted at once. The caller has mu.
func (s *Session) grant(of *acquired, token int64) {
	if token == 0 { // its row was deleted
		s.remove(of, false)
	} else {
		s.renew(of)
		if !of.Twice {
			of.Latest = 0
		}
		s.put(of, sent)
	}
	of.granted <- grant{token: token}
}

// ReleaseDue returns when to release what has no holder.
func (s *Session) ReleaseDue() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, due := when.Soonest(maps.Values(s.at[releasing]), func(of *acquired) time.Time { return of.tryAt })
	return due
}

// A Release is the set of locks that one statement releases.
type Release struct {
	Rows []store.LockRelease
	of   []*acquired // by row
}

// BeginRelease returns what to release, longest wait first.
func (s *Session) BeginRelease(now time.Time, ending bool) Release {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r Release
	for _, of := range s.at[releasing] {
		if !of.tryAt.After(now) {
			r.of = append(r.of, of)
		}
	}
	slices.SortFunc(r.of, func(a, b *acquired) int {
		return cmp.Or(a.tryAt.Compare(b.tryAt), cmp.Compare(a.Nonce, b.Nonce))
	})
	r.of = r.of[:min(len(r.of), s.batch)]
	for _, of := range r.of {
		row := store.LockRelease{Name: of.Name, Nonce: of.Nonce, Latest: of.Latest}
		if ending || len(of.released) > 0 {
			row.Latest = 0 // the session ends, so a late message finds it gone; or the holder waits for this release
		}
		r.Rows = append(r.Rows, row)
	}
	return r
}

// retry is the pause before another attempt that another's mutex blocked.
const retry = 50 * time.Millisecond

// Released handles the result of a release. It reports whether the server is the one that the
// client knows.
func (s *Session) Released(r Release, answer store.LocksReleased, err error, now time.Time) (sameRun bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, of := range r.of {
		of.tryAt = now.Add(retry)
		if of.Latest > 0 {
			of.tryAt = now.Add(max(retry, s.config.Heartbeat/4))
		}
	}
	if err != nil {
		if store.LockTimeout(err) {
			s.batch = 1
		}
		return true
	}
	s.batch = maxBatch
	if !answer.SameRun {
		return false
	}
	for i, of := range r.of {
		found, absent := slices.Contains(answer.Released, of.Nonce), slices.Contains(answer.Absent, of.Nonce)
		switch {
		case s.of[of.Nonce] != of:
		case found, absent && r.Rows[i].Latest == 0:
			s.givenBack(of, found)
		case absent:
			s.remove(of, false)
		}
	}
	return true
}

// SweepDue returns when to remove the rows of expired sessions.
func (s *Session) SweepDue() time.Time { return s.sweepAt }

// SweepNow makes a sweep due.
func (s *Session) SweepNow() { s.sweepAt = when.AtOnce }

// Swept handles the result of a sweep. If it is not done, a guarded transaction is open, or another
// transaction has the mutex.
func (s *Session) Swept(done bool, now time.Time) {
	s.sweepAt = when.Never
	if !done {
		s.sweepAt = now.Add(max(retry, s.config.Heartbeat/4))
	}
}

package locks

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
)

// A Session knows the locks that a client's session holds and waits for.
type Session struct {
	config Config

	// mu guards the next four. A free lock is taken and released without a turn of the client's
	// goroutine, which would take a tenth of the time. No statement is sent while mu is held.
	mu       sync.Mutex
	of       map[int64]*acquired                // by nonce: all that the database may have
	at       [releasing + 1]map[int64]*acquired // the same by stage: of a thousand that are held, few wait
	standing Standing
	lookAt   time.Time // when to look at what waits, and at what is to be confirmed; never: at the next heartbeat

	used atomic.Bool // an acquisition was begun under this session

	// The rest is the client's goroutine's alone.
	beat      chan struct{} // closed at the next heartbeat that is answered; nil: no one waits for one
	listened  int64         // the session to whose channel this connection listens; 0: to none
	toConfirm bool          // another server incarnation has to confirm what is held, and may have more
	sweepAt   time.Time     // when to sweep after expired sessions; never: not before the next eviction
	batch     int           // the most locks that one statement releases: one, if the last met another's mutex
}

// A Config is what a Session needs of its client.
type Config struct {
	Heartbeat time.Duration
	Log       *slog.Logger
	Wake      func()          // wakes the client's goroutine
	Done      <-chan struct{} // closed when the client has ended
	Err       func() error    // why it has
	TrustLost error           // the root package's ErrTrustLost
}

// A Standing is what acquisitions go by, as of the client's last turn. Between two turns it is out
// of date by what the client has not acted on yet. What ends all that is held ends the standing in
// the same moment: so nothing is held under one that has ended.
type Standing struct {
	Ending    error           // why the client ends; nil: it does not
	Validity  *owned.Validity // nil: there is no trust
	Session   int64
	Run       store.Incarnation // of the server, at the last heartbeat
	Confirmed store.Incarnation // all that is held is, by that one, without the mark; zero, if that is still to be done
	Clock     int64             // of the database, when the last heartbeat was executed, microseconds since 1970
	Sent      time.Time         // that heartbeat
}

// An Acquisition is one attempt to take a lock, and what it has got.
type Acquisition struct {
	Name     string
	Nonce    int64
	Session  int64
	Run      store.Incarnation // of the server, at the last heartbeat
	Latest   int64             // by the database's clock, microseconds since 1970: it may be executed until then
	Validity *owned.Validity   // in which it began, or was granted
	Twice    bool              // it was sent twice: the first may arrive until then, whatever the second got, and became of that
}

// A Table is where package lock takes and releases locks, outside of the client's own connection.
// Sent reports whether the database may have been asked.
type Table interface {
	Acquire(ctx context.Context, r store.LockRequest) (answer store.LockAnswer, sent bool, err error)
	// Release waits for a connection so long at most.
	Release(ctx context.Context, wait time.Duration, session int64, r store.LockRelease, run store.Incarnation) (became store.LockOutcome, sent bool, err error)
	// Guard fences a transaction, in which query runs a statement, for so many milliseconds of idling
	// at most.
	Guard(ctx context.Context, query store.Query, name string, token, trust int64) error
}

// acquired is an acquisition from its beginning until the database has nothing of it.
type acquired struct {
	*Acquisition
	stage stage
	token int64 // of what is held

	end     func(cause error, lost bool) // of what is held
	granted chan<- grant                 // answers the caller that waits
	noticed bool                         // a notification named it since the last heartbeat

	released []chan<- bool // answer callers that wait for its release
	tryAt    time.Time     // the release
}

// A grant is what becomes of a place in the queue: a token, or an error; neither: the place is
// lost, with its session.
type grant struct {
	token int64
	err   error
}

type stage int

const (
	sent      stage = iota // package lock awaits the answer, or decides about it
	waiting                // it has a place in the queue
	held                   // by package lock
	lost                   // it was held, and does not count any more; its row stays until it is released, or the session is gone
	releasing              // it is to be given back
)

const maxBatch = 500

var never = time.Unix(1<<40, 0)

// New returns a session's locks: there are none. The first sweep comes within a heartbeat of the
// client's start, because sessions may have expired with rows while no client lived.
func New(c Config, now time.Time) *Session {
	s := &Session{config: c, of: make(map[int64]*acquired), lookAt: never,
		sweepAt: now.Add(rand.N(c.Heartbeat)), batch: maxBatch}
	for i := range s.at {
		s.at[i] = make(map[int64]*acquired)
	}
	return s
}

// Begin begins an acquisition. It ends with one of Hold, Forget and Abandon. The error is why the
// client ends, TrustLost, or the cause of ctx.
func (s *Session) Begin(ctx context.Context, name string) (*Acquisition, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	a := &acquired{Acquisition: &Acquisition{Name: name, Nonce: store.RandomID()}}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := &s.standing; {
	case now.Ending != nil:
		return nil, now.Ending
	case now.Validity == nil || !now.Validity.Holds():
		return nil, s.config.TrustLost
	}
	s.renew(a)
	s.put(a, sent)
	s.used.Store(true)
	return a.Acquisition, nil
}

// Await waits until an acquisition, which has a place in the queue, was granted, and returns the
// token; 0: the place is lost, with its session. It renews what the acquisition says of session and
// trust. The error is why the client ends, or the cause of ctx.
func (s *Session) Await(ctx context.Context, a *Acquisition) (int64, error) {
	answer := make(chan grant, 1)
	s.await(a, answer)
	g, err := Answer(ctx, s.config.Done, s.config.Err, answer)
	return g.token, cmp.Or(g.err, err)
}

func (s *Session) await(a *Acquisition, answer chan<- grant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch of := s.of[a.Nonce]; {
	case s.standing.Ending != nil:
		answer <- grant{err: s.standing.Ending}
	case of == nil: // the session is gone
		answer <- grant{}
	default:
		of.granted = answer
		s.put(of, waiting)
		s.lookAt = time.Time{} // it may have been granted since the answer
		s.config.Wake()
	}
}

// Hold counts a grant. What was granted under another session, before a break of the trust, or by
// another server incarnation may be another's by now: that is an error, and the client gives it
// back. It calls end once when the client begins to close, and the lock is not lost, and once when
// the lock is lost; end must not wait.
func (s *Session) Hold(a *Acquisition, token int64, end func(cause error, lost bool)) error {
	err := s.hold(a, token, end)
	if err != nil {
		s.Abandon(a)
	}
	return err
}

func (s *Session) hold(a *Acquisition, token int64, end func(error, bool)) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	of := s.of[a.Nonce]
	switch now := &s.standing; {
	case now.Ending != nil:
		return now.Ending
	case of == nil || of.Session != now.Session:
		return fmt.Errorf("%w: the session was evicted", s.config.TrustLost)
	case of.Validity != now.Validity || !of.Validity.Holds():
		return s.config.TrustLost
	case of.Run.Unmarked() != now.Confirmed:
		return fmt.Errorf("%w: the server was restarted or promoted meanwhile", s.config.TrustLost)
	}
	of.token, of.end = token, end
	s.put(of, held)
	return nil
}

// Forget notes that nothing was granted, nor will be; or that what was held is released.
func (s *Session) Forget(a *Acquisition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch of := s.of[a.Nonce]; {
	case of == nil:
	case of.Run.Unmarked() != s.standing.Run.Unmarked(): // which may have it again
		s.toRelease(a, nil)
		s.config.Wake()
	default:
		s.givenBack(of, true)
	}
	if s.standing.Ending != nil { // the client's end may wait for that
		s.config.Wake()
	}
}

// SendTwice notes that an acquisition is sent once more, because its answer was lost.
func (s *Session) SendTwice(a *Acquisition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	a.Twice = true
}

// Abandon has the client give back what an acquisition has, or may still get.
func (s *Session) Abandon(a *Acquisition) { s.release(a, nil) }

// Release has the client give up a lock on its own connection, and waits for that until ctx ends.
// It reports whether the database had the lock. The client goes on if ctx ends.
func (s *Session) Release(ctx context.Context, a *Acquisition) (bool, error) {
	answer := make(chan bool, 1)
	s.release(a, answer)
	return Answer(ctx, s.config.Done, s.config.Err, answer)
}

// Answer waits for an answer of a client, until ctx or the client ends: why is then why it did.
func Answer[T any](ctx context.Context, done <-chan struct{}, why func() error, from <-chan T) (answer T, err error) {
	select {
	case answer = <-from:
		return answer, nil
	case <-done:
		err = why()
	case <-ctx.Done():
		err = context.Cause(ctx)
	}
	select {
	case answer = <-from: // both came: it is done
		return answer, nil
	default:
		return answer, err
	}
}

func (s *Session) release(a *Acquisition, answer chan<- bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.toRelease(a, answer)
	s.config.Wake()
}

// toRelease notes a lock that is to be given up. The caller has mu.
func (s *Session) toRelease(a *Acquisition, answer chan<- bool) {
	of := s.of[a.Nonce]
	if of == nil { // it was given up, or the session is gone
		if answer != nil {
			answer <- false
		}
		return
	}
	if !of.Twice && of.stage != sent && of.stage != releasing {
		of.Latest = 0 // its answer came
	}
	of.tryAt = time.Time{}
	s.put(of, releasing)
	if answer != nil {
		of.released = append(of.released, answer)
	}
}

// put notes an acquisition in its stage. The caller has mu.
func (s *Session) put(of *acquired, to stage) {
	delete(s.at[of.stage], of.Nonce)
	of.stage = to
	s.of[of.Nonce], s.at[to][of.Nonce] = of, of
}

// remove forgets an acquisition of which the database has nothing any more. The caller has mu.
func (s *Session) remove(of *acquired, found bool) {
	delete(s.of, of.Nonce)
	delete(s.at[of.stage], of.Nonce)
	for _, answer := range of.released {
		answer <- found
	}
	of.released = nil
}

// givenBack is remove for one that may still arrive, if it was sent twice: until that cannot be any
// more, it is given back again. Once the client ends, it finds the session gone. The caller has mu.
func (s *Session) givenBack(of *acquired, found bool) {
	s.remove(of, found)
	if of.Twice && s.standing.Ending == nil {
		s.put(of, releasing)
	}
}

// renew notes under which session, run and validity an acquisition goes on. The last instant is the
// end of the trust by the database's clock: what arrives later finds that this client does not
// count on it any more. The caller has mu, and there is a validity.
func (s *Session) renew(of *acquired) {
	now := &s.standing
	of.Session, of.Run, of.Validity = now.Session, now.Run, now.Validity
	of.Latest = now.Clock + (time.Since(now.Sent) + now.Validity.Remaining()).Microseconds()
}

package locks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pgleases/pgleases/internal/owned"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/when"
)

// A Session knows the locks that a client's session holds and waits for.
type Session struct {
	config Config

	// mu guards the next five fields. A free lock is acquired and released without the client's
	// goroutine, which would cost 10 % more time. No statement is sent while mu is held.
	mu       sync.Mutex
	of       map[int64]*acquired                // by nonce: all that the database may have
	at       [releasing + 1]map[int64]*acquired // the same by stage: of 1,000 held locks, few wait
	standing Standing
	lost     int64 // held locks that were lost
	warnedOf unreleased
	lookAt   time.Time // when to check the acquisitions that wait or have to be confirmed; never: at the next heartbeat

	Behind atomic.Int64 // calls of package lock that wait in memory, behind a request of their client

	used atomic.Bool // an acquisition was begun under this session

	// Only the client's goroutine uses the fields below.
	beat      chan struct{} // closed when the next heartbeat is answered; nil: no caller waits for one
	listened  int64         // the session whose channel this connection listens to; 0: it does not listen
	toConfirm bool          // another server incarnation has to confirm the held locks, and may have more of them
	sweepAt   time.Time     // when to remove the rows of expired sessions; never: after the next check for them
	batch     int           // the most locks that one statement releases: 1 if the last statement met another's mutex
}

// A Config is a Session's access to its client.
type Config struct {
	Heartbeat time.Duration
	Log       *slog.Logger
	Wake      func()          // wakes the client's goroutine
	Done      <-chan struct{} // closed when the client has ended
	Err       func() error    // why the client has ended
	TrustLost error           // the root package's ErrTrustLost
}

// A Standing is the client's state that acquisitions depend on, as of the client's last loop.
// Between two loops it lacks the events that the client has not handled yet. An event that ends all
// held locks also ends the standing, at the same time: so no lock is held under an ended standing.
type Standing struct {
	Ending   error           // why the client ends; nil: it does not end
	Validity *owned.Validity // nil: there is no trust
	Session  int64
	Run      store.Incarnation // at the last heartbeat

	// Confirmed is the server incarnation, without the boot marker, that has confirmed all held locks.
	// It is zero until one has.
	Confirmed store.Incarnation

	Clock int64     // of the database, when the last heartbeat was executed, microseconds since 1970
	Sent  time.Time // when that heartbeat was sent
}

// An Acquisition is one attempt to acquire a lock, and its result.
type Acquisition struct {
	Name     string
	Nonce    int64
	Session  int64
	Run      store.Incarnation // at the last heartbeat
	Latest   int64             // it may be executed until then, by the database's clock, microseconds since 1970
	Validity *owned.Validity   // the validity when it began, or was granted

	// Twice says that it was sent twice. The first message may arrive until Latest, whatever the
	// result of the second.
	Twice bool
}

// A Table acquires and releases locks for package lock, outside of the client's own connection.
// Sent reports whether the database may have received the request.
type Table interface {
	// Acquire returns store.ErrUnanswered if ctx ends before the answer, which late gets then.
	Acquire(
		ctx context.Context, r store.LockRequest, late func(store.LockAnswer, error),
	) (answer store.LockAnswer, sent bool, err error)
	// Release waits at most for the given time for a connection.
	Release(
		ctx context.Context, wait time.Duration, session int64, r store.LockRelease, run store.Incarnation,
	) (became store.LockOutcome, sent bool, err error)
	// Guard fences a transaction, and limits its idle time to the given milliseconds. query runs a
	// statement in the transaction.
	Guard(ctx context.Context, query store.Query, name string, token, trust int64) error
}

// acquired is an acquisition from its beginning until the database has no row of it.
type acquired struct {
	*Acquisition
	stage stage
	token int64 // of a held lock

	end     func(cause error, lost bool) // of a held lock
	granted chan<- grant                 // answers the caller that waits
	noticed bool                         // a notification named it since the last heartbeat

	lostAt time.Time // of a lost lock
	warnAt time.Time // when to log that a lost lock is not released
	warned bool      // it was logged

	released []chan<- bool // answer the callers that wait for the release
	tryAt    time.Time     // when to try the release
}

// A grant is the result of waiting in the queue: a token, or an error. If it has neither, the place
// was lost with its session.
type grant struct {
	token int64
	err   error
}

type stage int

const (
	sent      stage = iota // package lock waits for the answer, or handles it
	waiting                // it has a place in the queue
	held                   // package lock holds it
	lost                   // it was held; its row stays until it is released, or the session is gone
	releasing              // it has to be released
)

const maxBatch = 500

// New returns the locks of a session, without any lock.
func New(c Config) *Session {
	s := &Session{config: c, of: make(map[int64]*acquired), lookAt: when.Never, sweepAt: when.Never, batch: maxBatch}
	for i := range s.at {
		s.at[i] = make(map[int64]*acquired)
	}
	return s
}

// ErrPaused says that a client with fast failover was stopped, and waits for an answer of the
// server, which shows whether it was evicted meanwhile.
var ErrPaused = errors.New("the process was stopped, and the server has not answered since")

// Begin begins an acquisition. It ends with Hold, Forget or Abandon. The error is why the client
// ends, TrustLost, ErrPaused, or the cause of ctx.
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
	case now.Validity == nil || now.Validity.Over():
		return nil, s.config.TrustLost
	case !now.Validity.Holds():
		return nil, ErrPaused
	}
	s.renew(a)
	s.put(a, sent)
	s.used.Store(true)
	return a.Acquisition, nil
}

// Await waits until an acquisition that is in the queue was granted, and returns the token; 0: the
// place was lost with its session. It updates the session and the validity of the acquisition. The
// error is why the client ends, or the cause of ctx.
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
		s.lookAt = when.AtOnce // it may have been granted since the answer
		s.config.Wake()
	}
}

// Hold accepts a grant. If the lock was granted under another session, before an interruption of
// the trust, or by another server incarnation, another client may have it by now. Then Hold returns
// an error, and the client releases the lock. Hold calls end once when the client begins to close
// and the lock is not lost, and once when the lock is lost. end must not wait.
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
	case of.Validity != now.Validity || of.Validity.Over():
		return s.config.TrustLost
	case of.Run.Unmarked() != now.Confirmed:
		return fmt.Errorf("%w: the server was restarted or promoted meanwhile", s.config.TrustLost)
	}
	of.token, of.end = token, end
	s.put(of, held)
	return nil
}

// Forget notes that the lock was not granted and never will be, or that it was released.
func (s *Session) Forget(a *Acquisition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch of := s.of[a.Nonce]; {
	case of == nil:
	case of.Run.Unmarked() != s.standing.Run.Unmarked(): // the present server may have the row again
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

// Abandon makes the client release what an acquisition has, or may still get.
func (s *Session) Abandon(a *Acquisition) { s.release(a, nil) }

// Release makes the client release a lock on its own connection, and waits for that until ctx ends.
// It reports whether the database had the lock. If ctx ends, the client continues.
func (s *Session) Release(ctx context.Context, a *Acquisition) (bool, error) {
	answer := make(chan bool, 1)
	s.release(a, answer)
	return Answer(ctx, s.config.Done, s.config.Err, answer)
}

// Answer waits for an answer of a client, until ctx or the client ends. Then why returns the error.
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
	case answer = <-from: // both happened: it is answered
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

// toRelease notes a lock that has to be released. The caller has mu.
func (s *Session) toRelease(a *Acquisition, answer chan<- bool) {
	of := s.of[a.Nonce]
	if of == nil { // it was given up, or the session is gone
		if answer != nil {
			answer <- false
		}
		return
	}
	if !of.Twice && of.stage != sent && of.stage != releasing {
		of.Latest = 0 // its answer has arrived
	}
	of.tryAt = time.Time{}
	s.put(of, releasing)
	if answer != nil {
		of.released = append(of.released, answer)
	}
}

// put moves an acquisition to a stage. The caller has mu.
func (s *Session) put(of *acquired, to stage) {
	s.unlost(of)
	delete(s.at[of.stage], of.Nonce)
	of.stage = to
	s.of[of.Nonce], s.at[to][of.Nonce] = of, of
}

// remove forgets an acquisition that has no row in the database any more. The caller has mu.
func (s *Session) remove(of *acquired, found bool) {
	s.unlost(of)
	delete(s.of, of.Nonce)
	delete(s.at[of.stage], of.Nonce)
	for _, answer := range of.released {
		answer <- found
	}
	of.released = nil
}

// givenBack is remove, except for an acquisition that was sent twice and may still arrive: it is
// released again until it can no longer arrive. After the client's end, the late message finds the
// session gone. The caller has mu.
func (s *Session) givenBack(of *acquired, found bool) {
	s.remove(of, found)
	if of.Twice && s.standing.Ending == nil {
		s.put(of, releasing)
	}
}

// renew notes the session, the server incarnation and the validity of an acquisition. Latest is the
// end of the trust by the database's clock: a message that arrives later is refused, because the
// client does not rely on it any more. The caller has mu, and there is a validity.
func (s *Session) renew(of *acquired) {
	now := &s.standing
	of.Session, of.Run = now.Session, now.Run
	of.Validity = now.Validity
	of.Latest = now.Clock + (time.Since(now.Sent) + now.Validity.Left()).Microseconds()
}

package interleavings

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/store"
)

// A session is one of two connections whose statements are played against each other.
type session struct {
	number int
	key    int // of its gates
	conn   *store.Conn
	locks  *store.Locks
	pid    int32

	state  state
	next   string // the step that it is ready for
	turn   int    // the gate that it waits at, of its two
	passed int    // the gate that it passed last, or unpassed

	goOn  chan struct{}
	stops chan stop

	// What the operation has done since the driver looked last. The driver reads these only while the
	// session has stopped.
	committed []commit
	guard     *guard
	refused   []guard
	failed    error
}

// A state says what a session does.
type state int

const (
	running state = iota
	ready         // it has ended a statement, and has another one
	gated         // it waits at a gate
	waits         // it waits for a lock of the other session
	over          // its operation has ended
)

// A stop is where a session stops: at a gate, at the end of a statement, or at the end of its
// operation.
type stop struct {
	state state
	next  string // the statement that follows
	turn  int    // of the gate
}

// unpassed says that a session has passed no gate yet.
const unpassed = -1

// A guard is a partition, or a lock, that a transaction has guarded.
type guard struct {
	place
	lock    string // empty: it is a partition
	epoch   int64  // or token
	session int64  // whose it is
}

// A place is a partition.
type place struct {
	lease     string
	partition int
}

// trust is how long a guarded transaction may be idle, in milliseconds.
const trust int64 = 600_000

var errEnded = errors.New("the interleaving has ended")

// step waits for the session's turn, and runs a statement.
func (s *session) step(ctx context.Context, what string, run func() error) error {
	s.stops <- stop{state: ready, next: what}
	select {
	case <-s.goOn:
	case <-ctx.Done():
		return errEnded
	}
	return run()
}

func (s *session) exec(ctx context.Context, statement string) error {
	_, err := s.conn.Pgx.Exec(ctx, statement)
	return err
}

// transaction runs a statement in a transaction, whose commit is a step of its own. c says what the
// commit does, once the statement has run.
func (s *session) transaction(ctx context.Context, what string, statement func(c *commit) error) error {
	c := commit{what: what}
	err := s.step(ctx, what, func() error {
		if err := s.exec(ctx, "BEGIN"); err != nil {
			return err
		}
		err := statement(&c)
		if err != nil {
			return errors.Join(err, s.exec(ctx, "ROLLBACK"))
		}
		return nil
	})
	if err != nil {
		return err
	}
	return s.commit(ctx, c)
}

// commit commits, and leaves the oracle a note of what.
func (s *session) commit(ctx context.Context, c commit) error {
	return s.step(ctx, "commit "+c.what, func() error {
		s.guard = nil
		if err := s.exec(ctx, "COMMIT"); err != nil {
			return err
		}
		s.committed = append(s.committed, c)
		return nil
	})
}

// alone runs a statement that commits at once, because it changes no owner.
func (s *session) alone(ctx context.Context, what string, statement func() error) error {
	return s.step(ctx, what, func() error {
		if err := statement(); err != nil {
			return err
		}
		s.committed = append(s.committed, commit{what: what})
		return nil
	})
}

// guarded begins a transaction with a guard, and reports whether it passed. If it is refused, the
// transaction ends.
func (s *session) guarded(ctx context.Context, g guard) (passed bool, err error) {
	statement, args := s.locks.Statements.Guard, []any{g.lease, g.partition, g.epoch, trust}
	if g.lock != "" {
		statement, args = s.locks.Statements.LockGuard, []any{g.lock, g.epoch, trust}
	}
	err = s.step(ctx, "guard", func() error {
		if err := s.exec(ctx, "BEGIN"); err != nil {
			return err
		}
		_, err := s.conn.Pgx.Exec(ctx, statement, args...)
		if store.Refused(err) {
			s.refused = append(s.refused, g)
			return s.exec(ctx, "ROLLBACK")
		}
		if err == nil {
			s.guard, passed = &g, true
		}
		return err
	})
	return passed, err
}

// begin starts an operation, and returns when it is ready for its first statement.
func (s *session) begin(ctx context.Context, operate func(context.Context, *session) error) {
	s.committed, s.guard = nil, nil
	s.refused, s.failed = nil, nil
	s.state = running
	s.goOn = make(chan struct{})
	go func() {
		err := operate(ctx, s)
		if err != nil && !errors.Is(err, errEnded) {
			s.failed = err
		}
		s.stops <- stop{state: over}
	}()
}

func (s *session) stopped(at stop) {
	s.state, s.turn = at.state, at.turn
	if at.state != gated {
		s.next = at.next
	}
}

// newSession uses a connection of the library, to a database with gates.
func newSession(ctx context.Context, url string, number int) (*session, error) {
	s := &session{number: number, key: firstGate + number, stops: make(chan stop, 1)}
	conn, err := newConn(ctx, url, func(_ *pgconn.PgConn, n *pgconn.Notice) {
		if turn, is := strings.CutPrefix(n.Message, "gate "); is {
			s.stops <- stop{state: gated, turn: map[string]int{"0": 0, "1": 1}[turn]}
		}
	})
	if err != nil {
		return nil, err
	}
	s.conn, s.pid = conn, int32(conn.Pgx.PgConn().PID())
	s.locks = &store.Locks{Statements: store.StatementsFor("pgleases"), LockWait: 600_000}
	s.locks.OnConn = on(conn)
	return s, s.exec(ctx, fmt.Sprintf("SET interleavings.session = %d; SET deadlock_timeout = '10ms'", s.key))
}

// on makes the statements of locks run on a connection.
func on(conn *store.Conn) func(_, _ context.Context, use func(context.Context, *pgx.Conn) error) error {
	return func(_, working context.Context, use func(context.Context, *pgx.Conn) error) error {
		return use(working, conn.Pgx)
	}
}

// newConn returns a connection whose statements wait for a lock for ten minutes.
func newConn(ctx context.Context, url string, noticed pgconn.NoticeHandler) (*store.Conn, error) {
	config, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, err
	}
	config.OnNotice = noticed
	return store.NewConnector(config, nil, "pgleases", 40*time.Minute).Connect(ctx, time.Minute)
}

package lock

import (
	"context"
	"slices"
	"sync"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/locks"
	"github.com/pgleases/pgleases/internal/wrap"

	"github.com/jackc/pgx/v5/pgxpool"
)

// A line has the calls of a process that wait for one name, in their order. The database knows only
// one request of them at a time. It is made in the name of the whole line, so that a caller may
// give up at any time without a message to the database, and the next caller gets the place in the
// queue. If each caller had a request of its own, those that give up would cost the database more
// than those that get the lock, and after an overload nobody would get it any more.
type line struct {
	key key

	// linesMu guards the following fields.
	callers []*caller
	mode    mode               // of the request under way
	cancel  context.CancelFunc // ends the request
	why     error              // why no caller has the lock yet; nil: it is not known
}

type key struct {
	client *engine.Client
	pool   *pgxpool.Pool
	name   string
}

var (
	linesMu sync.Mutex
	lines   = make(map[key]*line) // those in which somebody waits
)

// A caller is a call in a line.
type caller struct {
	ctx    context.Context
	mode   mode
	asked  bool        // it was in the line when the request under way began
	answer chan answer // of capacity 1
}

// A grant is a lock that nobody holds yet.
type grant struct {
	of    *locks.Acquisition
	token int64
}

type answer struct {
	grant
	err error
}

// wait waits for a lock in its line. A call that does not wait for its turn asks in its own name.
func (l *Locks) wait(ctx context.Context, m mode, name string) (grant, error) {
	if ctx.Err() != nil {
		return grant{}, context.Cause(ctx)
	}
	k := key{l.client, l.pool, name}
	if !m.waits {
		return l.ask(ctx, m, &line{key: k})
	}
	c := &caller{ctx: ctx, mode: m, answer: make(chan answer, 1)}
	of := l.join(c, k)
	select {
	case got := <-c.answer:
		return got.grant, got.err
	case <-ctx.Done():
	}
	left, why := of.leave(c)
	switch got := (answer{}); {
	case !left:
		got = <-c.answer // it was answered at the same time
		if got.err == nil {
			l.give(of, m, got.grant)
		}
	case why != nil:
		return grant{}, wrap.Errorf("%w; %w", context.Cause(ctx), why)
	}
	return grant{}, context.Cause(ctx)
}

// join adds a call to its line.
func (l *Locks) join(c *caller, k key) *line {
	linesMu.Lock()
	defer linesMu.Unlock()
	of := lines[k]
	if of == nil {
		of = &line{key: k}
		lines[k] = of
		go l.serve(of)
	}
	of.change(func() { of.callers = append(of.callers, c) })
	return of
}

// leave removes a call from the line, and reports whether it was not answered. It also returns why
// it has not got the lock.
func (of *line) leave(c *caller) (left bool, why error) {
	linesMu.Lock()
	defer linesMu.Unlock()
	i := slices.Index(of.callers, c)
	if i < 0 {
		return false, nil
	}
	of.change(func() { of.callers = slices.Delete(of.callers, i, i+1) })
	return true, of.why
}

// change changes the callers. The caller has linesMu.
func (of *line) change(f func()) {
	before := max(0, len(of.callers)-1)
	f()
	of.key.client.Locks.Behind.Add(int64(max(0, len(of.callers)-1) - before))
	if of.cancel != nil && (len(of.callers) == 0 || of.callers[0].mode != of.mode) {
		of.cancel() // nobody can take what it asks for
	}
	if len(of.callers) == 0 && lines[of.key] == of {
		delete(lines, of.key) // who comes now begins another line
	}
}

// serve asks for the lock until the line is empty.
func (l *Locks) serve(of *line) {
	for {
		ctx, m := of.next()
		if ctx == nil {
			return
		}
		got, err := l.ask(ctx, m, of)
		switch {
		case err == nil:
			l.give(of, m, got)
		case ctx.Err() == nil:
			of.fail(err)
		}
	}
}

// next returns the context and the mode of the next request; nil if the line is empty. A request
// does not end with the context of a caller, because others may take what it asks for.
func (of *line) next() (context.Context, mode) {
	linesMu.Lock()
	defer linesMu.Unlock()
	if of.cancel != nil {
		of.cancel()
		of.cancel = nil
	}
	if len(of.callers) == 0 {
		return nil, mode{}
	}
	for _, c := range of.callers {
		c.asked = true
	}
	first := of.callers[0]
	ctx, cancel := context.WithCancel(context.WithoutCancel(first.ctx))
	of.mode, of.cancel = first.mode, cancel
	return ctx, first.mode
}

// give gives a lock to the first in the line, or back to the database.
func (l *Locks) give(of *line, m mode, got grant) {
	linesMu.Lock()
	defer linesMu.Unlock()
	if len(of.callers) == 0 || of.callers[0].mode != m {
		l.client.Locks.Abandon(got.of)
		return
	}
	of.callers[0].answer <- answer{grant: got}
	of.change(func() { of.callers = of.callers[1:] })
}

// fail ends the calls for which a request was made.
func (of *line) fail(err error) {
	linesMu.Lock()
	defer linesMu.Unlock()
	of.change(func() {
		of.callers = slices.DeleteFunc(of.callers, func(c *caller) bool {
			if c.asked {
				c.answer <- answer{err: err}
			}
			return c.asked
		})
	})
}

// note notes why nobody in the line has the lock yet.
func (of *line) note(why error) {
	linesMu.Lock()
	defer linesMu.Unlock()
	of.why = why
}

package engine

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// lookups are the calls that ask who owns partitions. Calls that wait at the same time share one
// statement, so that the heartbeat waits for one statement at most, whatever applications ask.
type lookups map[store.Span][]chan<- Owners

// Owners are who owns partitions of a span, at the time AsOf or later.
type Owners struct {
	store.Owners
	AsOf time.Time // when the statement was sent
	err  error
}

// Owners returns who owns partitions, in one round trip on the client's connection. If the client
// has no connection, it waits for one until ctx ends.
func (c *Client) Owners(ctx context.Context, span store.Span) (Owners, error) {
	var asked chan<- Owners // only the client's goroutine uses it
	found, err := requestAnswer(ctx, c, func(e *engine, answer chan<- Owners) {
		asked = answer
		e.lookups[span] = append(e.lookups[span], answer)
	})
	if err != nil {
		c.post(func(e *engine) { e.lookups.abandon(span, asked) })
	}
	return found, cmp.Or(err, found.err)
}

// abandon forgets a call whose caller stopped waiting.
func (ls lookups) abandon(span store.Span, asked chan<- Owners) {
	ls[span] = slices.DeleteFunc(ls[span], func(a chan<- Owners) bool { return a == asked })
	if len(ls[span]) == 0 {
		delete(ls, span)
	}
}

// maxSpans keeps a statement short, however many calls wait.
const maxSpans = 256

// take takes calls for one statement.
func (ls lookups) take() (lookups, []store.Span) {
	taken := make(lookups)
	for span, calls := range ls {
		if len(taken) == maxSpans {
			break
		}
		taken[span] = calls
		delete(ls, span)
	}
	return taken, slices.Collect(maps.Keys(taken))
}

// answer answers calls.
func (ls lookups) answer(found map[store.Span]store.Owners, asOf time.Time, err error) {
	for span, calls := range ls {
		for _, answer := range calls {
			answer <- Owners{found[span], asOf, err}
		}
	}
}

package consumer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

const (
	probeShare = 4 // probes while rows come: at most 1/4 of the time
	probePause = 20 * time.Millisecond
	rare       = 5                // while notifications announce rows, an idle process probes at every fifth poll
	doubtTime  = 10 * time.Minute // it probes at every poll after rows came without a notification
)

// afterNotice are the times after the last notification at which to probe: other inserts send none
// for a while, and may commit later.
var afterNotice = [...]time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 70 * time.Millisecond, 150 * time.Millisecond, 210 * time.Millisecond}

// polls are the times at which a process sends probes.
type polls struct {
	every    time.Duration
	quiet    time.Duration // after a notification, it probes at every poll
	at       time.Time     // when the next probe is sent
	earliest time.Time     // before then none is sent
	heard    time.Time     // when the last notification arrived
	doubt    time.Time     // until then notifications are not relied on
	since    int64         // older transactions may have inserted rows that are not announced; 0: not known
	oldest   int64         // the oldest transaction that was open after the last probe
}

// soon makes the next probe come as early as probes may come.
func (p *polls) soon() { p.at = p.earliest }

// notified notes that a notification has arrived.
func (p *polls) notified() {
	p.soon()
	p.heard, p.since = time.Now(), 0
}

// after returns how long to wait after a probe, if nothing asks for the next one before: one
// poll, or several if notifications announce all rows, and no job was at work meanwhile: rows
// that come for its partitions no probe sees. An insert right after another one sends no
// notification, and may commit much later. So the transactions that were open then must have
// ended.
func (p *polls) after(q *probe, announced, idle bool) time.Duration {
	now, before := time.Now(), p.oldest
	p.oldest = q.oldest
	switch {
	case !announced || now.Sub(p.heard) < p.quiet:
	case len(q.has) > 0:
		p.doubt = now.Add(doubtTime)
	case p.since == 0: // the first after the quiet time
		p.since = q.next
	case idle && before >= p.since && !now.Before(p.doubt):
		return rare * p.every
	}
	return p.every
}

// answered notes when the next probe is sent, after one that took a while. A probe may have taken
// long because a lock, the connection or the whole process stood still, so what it took never
// delays the next one by more than a poll.
func (p *polls) answered(took, poll time.Duration) {
	now := time.Now()
	asked := !p.at.After(now) // while it was under way
	p.earliest = now.Add(max(probePause, min(probeShare*took, p.every)))
	for _, d := range afterNotice {
		if again := p.heard.Add(d).Sub(now); again > 0 {
			poll = min(poll, again)
			break
		}
	}
	p.at = now.Add(poll)
	if asked || p.at.Before(p.earliest) {
		p.at = p.earliest
	}
}

// A probe asks which partitions have something to do.
type probe struct {
	ended int // jobs that had ended before
	sweep bool
	of    []*partition
	owned []int32 // their numbers: which of them have blocked rows that are due
	idle  []int32 // no job works on them: which have rows

	took     time.Duration
	has      map[int]bool
	retries  map[int][]blockedRow
	paused   bool
	blocked  bool  // a row blocks its key
	suspects bool  // crash suspects are due
	oldest   int64 // the oldest open transaction
	next     int64 // the one after the last that has ended
	anywhere bool  // of RunUntilEmpty: some partition of the table has something to do
}

// probe sends a probe if it is time.
func (g *group) probe(ctx context.Context) {
	now := time.Now()
	if g.probing || now.Before(g.polls.at) {
		return
	}
	g.polls.at = now.Add(g.options.poll)
	q := &probe{sweep: !now.Before(g.sweepAt), ended: g.ended}
	for _, p := range g.partitions {
		if !p.known || !p.busy && p.lost {
			continue
		}
		q.of, q.owned = append(q.of, p), append(q.owned, int32(p.Number))
		if !p.busy {
			q.idle = append(q.idle, int32(p.Number))
		}
	}
	if len(q.of) == 0 && !g.untilEmpty {
		return
	}
	if g.untilEmpty {
		q.owned = nil
		for n := range g.queue.Partitions {
			q.owned = append(q.owned, int32(n))
		}
		q.idle = q.owned
	}
	g.probing = true
	listener := g.listener
	go func() {
		ctx, cancel := context.WithTimeout(ctx, g.times.answer)
		defer cancel()
		defer context.AfterFunc(g.line().Life(), cancel)() // the server of its connection may have gone
		began := time.Now()
		err := handlers.Within(ctx, g.times.overrun, func() error { return g.ask(ctx, listener, q) })
		g.events <- func() {
			g.probing = false
			if errors.Is(err, handlers.ErrHangs) { // it keeps its connection, and may still write its answer
				g.listener = g.newListener()
				q = &probe{ended: q.ended, took: time.Since(began)}
			}
			g.take(q, err)
		}
	}()
}

// ask sends a probe on the listener's connection.
func (g *group) ask(ctx context.Context, listener *listen.Listener, q *probe) error {
	conn, err := listener.Ready(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	q.has, q.retries = make(map[int]bool), make(map[int][]blockedRow)
	batch := new(pgx.Batch)
	batch.BeginTx(handlers.ReadCommitted)
	batch.Queue(g.sql.Ours)
	var n int
	var retry blockedRow
	if q.sweep {
		batch.Queue(g.sql.Sweep, g.name, q.owned)
		if slices.Contains(q.owned, 0) { // one of all processes
			batch.Queue(g.sql.Beyond, g.name, g.queue.Partitions)
			batch.Queue(g.sql.Look, g.name)
		}
	}
	batch.Queue(g.sql.Probe, q.idle, g.name).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&n}, func() error { q.has[n], q.anywhere = true, true; return nil })
		return err
	})
	batch.Queue(g.sql.Due, g.name, q.owned).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&n, &retry.id, &retry.asked, &retry.suspect, &retry.skip}, func() error {
			q.retries[n], q.suspects, q.anywhere = append(q.retries[n], retry), q.suspects || retry.suspect, true
			return nil
		})
		return err
	})
	batch.Queue(g.sql.State, g.name, q.owned).QueryRow(func(row pgx.Row) error {
		return row.Scan(&q.paused, &q.blocked, &q.oldest, &q.next)
	})
	batch.Queue("commit")
	if err = conn.SendBatch(ctx, batch).Close(); err != nil {
		listener.Close() // its server may no longer exist
	}
	q.took = time.Since(began)
	return err
}

// take receives the answer of a probe.
func (g *group) take(q *probe, err error) {
	announced := err == nil && !g.untilEmpty && g.announced && g.listener.Direct()
	idle := g.idle() && q.ended == g.ended // no job was at work meanwhile
	if err == nil || g.life.Err() == nil { // otherwise the end of Run broke it off
		g.counts.probe(q.took, err)
	}
	if final := worker.EndsRun(err); final != nil {
		g.stop(final)
	}
	if err != nil {
		g.polls.answered(0, g.options.poll)
		if time.Since(g.failing) > time.Minute && g.life.Err() == nil {
			g.failing = time.Now()
			g.log.Warn("consumer: poll failed, retried each second", slog.Any("error", store.Advised(err)))
		}
		return
	}
	g.polls.answered(q.took, g.polls.after(q, announced, idle && !q.blocked))
	g.failing = time.Time{}
	now := time.Now()
	if q.sweep {
		g.sweepAt = now.Add(g.times.sweep)
	}
	if q.paused != g.paused {
		if q.paused {
			g.log.Warn("consumer: paused by an operator")
		} else {
			g.log.Info("consumer: resumed by an operator")
		}
	}
	g.paused = q.paused
	for _, p := range q.of {
		if !p.busy && q.has[p.Number] && !p.due { // a job finds out itself
			p.due, p.expect = true, max(1, p.expect)
		}
		if p.retryEnded <= q.ended { // otherwise one that is found here may have failed since, and wait again
			p.retries = q.retries[p.Number]
		}
	}
	if g.suspects == 0 && !q.suspects {
		g.heldTill = time.Time{}
	}
	if g.untilEmpty && !q.anywhere && idle {
		switch reason, err := g.whyBlocked(g.life); {
		case err != nil: // the next probe asks again
		case reason != "":
			g.stop(fmt.Errorf("%w: %s", ErrBlocked, reason))
		default:
			g.stop(errEmpty)
		}
	}
}

// why returns what is known about why rows are left, after the end.
func (g *group) why() string {
	switch {
	case g.paused:
		return ", and an operator has paused the consumer"
	case g.last != "":
		return ", last error: " + g.last
	}
	return ""
}

// whyBlocked returns what is known about blocked rows; empty if there are none.
func (g *group) whyBlocked(ctx context.Context) (reason string, err error) {
	ctx, cancel := context.WithTimeout(ctx, lockWait) // partitions wait meanwhile
	defer cancel()
	answer := make(chan string, 1)
	err = handlers.Within(ctx, g.times.overrun, func() error {
		var text string
		err := worker.Read(ctx, g.line(), g.pool, func(ctx context.Context, conn *pgxpool.Conn) error {
			return conn.QueryRow(ctx, g.sql.Why, g.name).Scan(&text)
		})
		answer <- text
		return err
	})
	if err != nil {
		return "", err
	}
	return <-answer, nil
}

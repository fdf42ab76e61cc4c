package consumer

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
)

const (
	pollShare = 4 // polls while rows come: at most 1/4 of the time
	pollPause = 20 * time.Millisecond
	rare      = 5                // while notifications announce rows, an idle process polls at every fifth time
	doubtTime = 10 * time.Minute // it polls each time after rows came without a notification
)

// afterNotice are the times after the last notification at which to poll: other inserts send none
// for a while, and may commit later.
var afterNotice = [...]time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 70 * time.Millisecond, 150 * time.Millisecond, 210 * time.Millisecond}

// A pace is the times at which a process sends polls.
type pace struct {
	every    time.Duration // between two polls, see WithPoll
	quiet    time.Duration // after a notification, it polls each time
	at       time.Time     // when the next poll is sent
	earliest time.Time     // before then none is sent
	heard    time.Time     // when the last notification arrived
	doubt    time.Time     // until then notifications are not relied on
	since    int64         // older transactions may have inserted rows that are not announced; 0: not known
	oldest   int64         // the oldest transaction that was open after the last poll
}

// soon makes the next poll come as early as polls may come.
func (p *pace) soon() { p.at = p.earliest }

// notified notes that a notification has arrived.
func (p *pace) notified() {
	p.soon()
	p.heard, p.since = time.Now(), 0
}

// after returns how long to wait after a poll, if nothing asks for the next one before: the usual
// time, or several if notifications announce all rows, and no job was at work meanwhile. Rows
// that come for its partitions no poll sees. An insert right after another one sends no
// notification, and may commit much later. So the transactions that were open then must have
// ended.
func (p *pace) after(q *poll, announced, idle bool) time.Duration {
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

// answered notes when the next poll is sent, after one that took a while. A poll may have taken
// long because a lock, the connection or the whole process stood still, so what it took never
// delays the next one by more than a poll.
func (p *pace) answered(took, poll time.Duration) {
	now := time.Now()
	asked := !p.at.After(now) // while it was under way
	p.earliest = now.Add(max(pollPause, min(pollShare*took, p.every)))
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

// A poller decides when to poll. It knows neither the queue nor the jobs.
type poller struct {
	pace
	conn    *listen.Listener // a poll that is under way uses it
	polling bool
	sweepAt time.Time // of RunUntilEmpty: when all partitions of the table are swept
	failing time.Time // when it was last logged that polls fail; zero: the last one did not
}

// A poll asks which partitions have something to do.
type poll struct {
	ended    int // jobs that had ended before
	of       []*partition
	sweeps   []*partition // which of them are swept
	swept    []int32      // in which partitions blocked rows are gone or changed
	owned    []int32      // which of them have blocked rows that are due
	idle     []int32      // no job works on them: which have rows
	from     []int64      // where the searches for those begin
	searches []asked      // those for partitions of this process
	before   int64        // the oldest transaction that was open before
	exact    bool         // next is to be exact, which takes a number of a transaction

	took       time.Duration
	has        map[int]bool
	to         map[int]int64 // where the searches ended
	blockedDue map[int][]blockedRow
	paused     bool
	blocked    bool  // a row blocks its key
	suspects   bool  // crash suspects are due
	oldest     int64 // the oldest open transaction
	next       int64 // the one after the last that has ended, or after all that have begun, if exact
	anywhere   bool  // of RunUntilEmpty: some partition of the table has something to do
}

// An asked search is one that a poll makes for a partition.
type asked struct {
	of    *partition
	from  int64
	whole bool // the partition is swept, so this search begins with its first row
}

// isDue reports whether it is time for a poll.
func (p *poller) isDue(now time.Time) bool { return !p.polling && !now.Before(p.at) }

// question returns a poll about partitions. If there are none, and not all are asked about, it is
// not sent.
func (p *poller) question(now time.Time, of, idle []*partition, all int) (q *poll, send bool) {
	p.at = now.Add(p.every)
	q = &poll{of: of, before: p.oldest}
	if all > 0 {
		q.askAll(all, !now.Before(p.sweepAt))
		p.polling = true
		return q, true
	}
	for _, of := range of {
		q.owned = append(q.owned, int32(of.Number))
		if !now.Before(of.sweepAt) {
			q.sweeps, q.swept = append(q.sweeps, of), append(q.swept, int32(of.Number))
			if of.busy {
				of.searched = newSearch() // for the next poll
			}
		}
	}
	for _, of := range idle {
		a := asked{of: of, from: of.searched.from}
		if !now.Before(of.sweepAt) {
			a.from, a.whole = firstID, true
		}
		q.exact = q.exact || of.searched.waits()
		q.idle = append(q.idle, int32(of.Number))
		q.from = append(q.from, a.from)
		q.searches = append(q.searches, a)
	}
	p.polling = len(q.owned) > 0
	return q, p.polling
}

// end returns where a search ended. A partition without rows begins anew, for example because the
// table was truncated, and its IDs too.
func (q *poll) end(a asked) int64 {
	to, found := q.to[a.of.Number]
	if !found {
		return firstID
	}
	return to
}

// askAll makes a poll of RunUntilEmpty, whose end depends on the answer, ask about all rows of the
// table.
func (q *poll) askAll(partitions int, sweep bool) {
	for n := range partitions {
		q.owned = append(q.owned, int32(n))
		q.from = append(q.from, firstID)
	}
	q.idle = q.owned
	if sweep {
		q.swept = q.owned
	}
}

// failed notes that a poll has failed, and reports whether it is to be logged: once a minute, while
// the Run is under way.
func (p *poller) failed(now time.Time, running bool) (log bool) {
	p.answered(0, p.every)
	log = running && now.Sub(p.failing) > time.Minute
	if log {
		p.failing = now
	}
	return log
}

// succeeded notes that a poll was answered. announced is true if notifications announce rows, and
// idle if no job was at work meanwhile.
func (p *poller) succeeded(q *poll, announced, idle bool) {
	p.answered(q.took, p.after(q, announced && p.conn.Direct(), idle && !q.blocked))
	p.failing = time.Time{}
}

// swept notes that a poll has looked for blocked rows that are gone or changed. Partitions come at
// different times from then on, so that no poll does this for all.
func (p *poller) swept(q *poll, now time.Time, every time.Duration) {
	if len(q.swept) > 0 {
		p.sweepAt = now.Add(every)
	}
	for _, of := range q.sweeps {
		of.sweepAt = now.Add(every - rand.N(every)/2)
	}
}

// ask sends a poll on a connection of its own.
func (d *db) ask(ctx context.Context, conn *listen.Listener, q *poll, partitions int) error {
	ready, err := conn.Ready(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	q.has, q.to, q.blockedDue = make(map[int]bool), make(map[int]int64), make(map[int][]blockedRow)
	batch := new(pgx.Batch)
	batch.BeginTx(handlers.ReadCommitted)
	batch.Queue(d.sql.Ours)
	if len(q.swept) > 0 {
		inOne := slices.Contains(q.swept, 0) // of all processes
		if inOne {
			batch.Queue(d.sql.Look, d.name) // first, as verbs of operators lock the consumer first
		}
		batch.Queue(d.sql.Sweep, d.name, q.swept)
		if inOne {
			batch.Queue(d.sql.Beyond, d.name, partitions)
		}
	}
	batch.Queue(d.sql.Poll, q.idle, q.from, d.name).Query(q.readPartitions)
	batch.Queue(d.sql.Due, d.name, q.owned).Query(q.readBlocked)
	batch.Queue(d.sql.State, d.name, q.owned, q.exact).QueryRow(func(row pgx.Row) error {
		return row.Scan(&q.paused, &q.blocked, &q.oldest, &q.next)
	})
	batch.Queue("commit")
	err = ready.SendBatch(ctx, batch).Close()
	if err != nil {
		conn.Close() // its server may no longer exist
	}
	q.took = time.Since(began)
	return err
}

func (q *poll) readPartitions(rows pgx.Rows) error {
	var n int
	var last int64
	var first *int64
	_, err := pgx.ForEachRow(rows, []any{&n, &last, &first}, func() error {
		q.to[n] = last
		if last < math.MaxInt64 {
			q.to[n]++
		}
		if first != nil {
			q.has[n], q.to[n], q.anywhere = true, *first, true
		}
		return nil
	})
	return err
}

func (q *poll) readBlocked(rows pgx.Rows) error {
	var n int
	var b blockedRow
	_, err := pgx.ForEachRow(rows, []any{&n, &b.id, &b.asked, &b.suspect, &b.skip}, func() error {
		q.blockedDue[n] = append(q.blockedDue[n], b)
		q.suspects, q.anywhere = q.suspects || b.suspect, true
		return nil
	})
	return err
}

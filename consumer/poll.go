package consumer

import (
	"context"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
)

const (
	pollShare = 4 // while rows come, the pause after a poll is this many times as long as the poll took
	pollPause = 20 * time.Millisecond
	rare      = 5                // while notifications announce rows, an idle process polls at every fifth time
	doubtTime = 10 * time.Minute // it polls each time after rows came without a notification

	// rowsOfPoll is the most that a poll looks at to find work, and also the most blocked rows that it
	// compares with the table, because they may be gone or changed.
	rowsOfPoll = 20_000
)

// afterNotice are the times after the last notification at which to poll: other inserts send none
// for a while, and may commit later.
var afterNotice = [...]time.Duration{
	10 * time.Millisecond,
	30 * time.Millisecond,
	70 * time.Millisecond,
	150 * time.Millisecond,
	210 * time.Millisecond,
}

// A pace is the times at which a process sends polls.
type pace struct {
	every    time.Duration // between two polls, see WithPoll
	quiet    time.Duration // for this long after a notification, it polls each time
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
		again := p.heard.Add(d).Sub(now)
		if again > 0 {
			poll = min(poll, again)
			break
		}
	}
	p.at = now.Add(poll)
	if asked || p.at.Before(p.earliest) {
		p.at = p.earliest
	}
}

// A poller decides when to poll. It knows neither the queue nor the jobs. Of the queue's partitions
// it reads and writes only where polls look: searched, sweepFrom and sweepAt.
type poller struct {
	pace
	conn    *listen.Listener // a poll that is under way uses it
	polling bool
	rows    int         // the most that a poll looks at
	turn    turn        // of the last poll
	table   tableSearch // of RunUntilEmpty
}

// A tableSearch has the searches of a RunUntilEmpty, for all partitions of the queue table. They
// begin their rounds together. The table is empty if a round finds no row while no job works.
type tableSearch struct {
	partitions []*partition
	active     bool // the round has found something, or a job was at work since it began
	ended      int  // jobs that had ended before the last poll
}

// A turn is the numbers of the partitions that a poll asks about. It has all of them, unless a look
// at each would be more than a poll may look at. Then polls take turns.
type turn struct {
	from, to int  // without to
	more     bool // others have not had theirs yet
}

// next returns the turn after this one, if a poll may ask about so many of the partitions.
func (t turn) next(of []*partition, most int) turn {
	if len(of) <= most {
		return turn{to: math.MaxInt}
	}
	numbers := make([]int, len(of))
	for i, p := range of {
		numbers[i] = p.Number
	}
	slices.Sort(numbers)
	begin, _ := slices.BinarySearch(numbers, t.to)
	if begin == len(numbers) {
		begin = 0
	}
	end := min(begin+most, len(numbers))
	return turn{numbers[begin], numbers[end-1] + 1, end < len(numbers)}
}

// of returns those of the partitions whose turn it is.
func (t turn) of(all []*partition) (its []*partition) {
	for _, p := range all {
		if t.from <= p.Number && p.Number < t.to {
			its = append(its, p)
		}
	}
	return its
}

// A poll asks which partitions have something to do, and has the answer.
type poll struct {
	// The following fields are the question.
	ended    int          // jobs that had ended before
	partial  bool         // others have their turn after it
	of       []*partition // those of this process that it asks about
	sweeps   []*partition // those whose blocked rows are to be compared with the table
	sweeping sweeping     // where the sweeps go on
	owned    []int32      // partitions to ask for blocked rows that are due
	searches []*partition // partitions to ask for rows; no job works on those of this process
	looks    looks        // where the searches go on
	exact    bool         // next must come after all transactions that have begun: it costs a transaction ID

	// The following fields are the answer.
	took       time.Duration
	has        map[int]bool         // partitions with a row whose key is not blocked
	seen       map[int]sight        // what the searches have seen of partitions with rows
	changed    map[int]bool         // partitions whose blocked rows the sweep has changed
	sweptTo    map[int]int64        // where the sweep goes on in partitions of which it has not seen all
	blockedDue map[int][]blockedRow // of each partition, those that are due
	paused     bool                 // an operator has paused the consumer
	blocked    bool                 // a row blocks its key
	oldest     int64                // the oldest open transaction
	next       int64                // the one after the last that has ended, or after all that have begun, if exact
	anywhere   bool                 // some partition of those asked about has something to do
}

// Looks are the parameters of poll.sql, with one element for each search.
type looks struct {
	partitions []int32
	rounds     []int64 // where the rounds go on
	tails      []int64
	most       []int32 // rows from each of the two
}

// Sweeping are the parameters of sweep.sql.
type sweeping struct {
	partitions []int32
	since      []int64
	most       int // rows of each
}

// isDue reports whether it is time for a poll.
func (p *poller) isDue(now time.Time) bool { return !p.polling && !now.Before(p.at) }

// question returns a poll about partitions, after so many jobs have ended. If there are no
// partitions, and not all are asked about, it is not sent.
func (p *poller) question(now time.Time, of, idle []*partition, ended, all int) (q *poll, send bool) {
	p.at = now.Add(p.every)
	partitions := of
	if all > 0 {
		partitions = p.table.all(all)
	}
	p.turn = p.turn.next(partitions, max(1, p.rows/4))
	q = &poll{of: p.turn.of(of), ended: ended, partial: p.turn.more}
	if all > 0 {
		p.table.ask(q, now, p.turn)
	} else {
		q.ask(now, p.turn.of(idle), p.oldest)
	}
	q.sweeping.most = max(1, p.rows/max(1, len(q.sweeps)))
	q.looks = looksOf(q.searches, p.rows)
	p.polling = len(q.owned) > 0
	return q, p.polling
}

// ask makes a poll ask about the partitions of this process. before is the oldest transaction that
// was open.
func (q *poll) ask(now time.Time, idle []*partition, before int64) {
	for _, of := range q.of {
		q.askBlocked(now, of)
	}
	for _, of := range idle {
		q.exact = q.exact || of.searched.waits()
		of.searched.begin(before)
	}
	q.searches = idle
}

// askBlocked makes a poll ask about the blocked rows of a partition.
func (q *poll) askBlocked(now time.Time, of *partition) {
	n := int32(of.Number)
	q.owned = append(q.owned, n)
	if now.Before(of.sweepAt) {
		return
	}
	q.sweeps = append(q.sweeps, of)
	q.sweeping.partitions, q.sweeping.since = append(q.sweeping.partitions, n), append(q.sweeping.since, of.sweepFrom)
}

// all returns the partitions of the table, of which there are so many.
func (t *tableSearch) all(n int) []*partition {
	for next := len(t.partitions); next < n; next++ {
		of := pgleases.Partition{Number: next}
		t.partitions = append(t.partitions, newPartition(&ownership{Partition: of}))
	}
	return t.partitions
}

// ask makes a poll ask about the partitions of the table whose turn it is. A search whose round has
// ended waits for the others, and looks at new rows meanwhile.
func (t *tableSearch) ask(q *poll, now time.Time, its turn) {
	t.active = t.active || q.ended > t.ended
	t.ended = q.ended
	if !t.under() {
		t.active = false
		for _, of := range t.partitions {
			of.searched.want(whole)
			of.searched.begin(0)
		}
	}
	q.searches = its.of(t.partitions)
	for _, of := range q.searches {
		q.askBlocked(now, of)
	}
}

// under reports whether a round is under way.
func (t *tableSearch) under() bool {
	return slices.ContainsFunc(t.partitions, func(of *partition) bool { return of.searched.round.under })
}

// unseen reports whether a poll has stopped before the last row, and not because it has found one.
func (t *tableSearch) unseen(q *poll) bool {
	return len(q.changed) > 0 || len(q.sweptTo) > 0 || slices.ContainsFunc(t.partitions, func(of *partition) bool {
		s := &of.searched
		return (s.round.under || s.round.at < s.tail) && !q.has[of.Number]
	})
}

// empty notes the answer to a poll, and whether all jobs were idle meanwhile. It reports whether
// all is done that can be done.
func (t *tableSearch) empty(q *poll, idle bool) bool {
	t.active = t.active || q.anywhere || len(q.changed) > 0 || !idle
	return !t.active && !t.under() && !t.unseen(q)
}

// looksOf returns where searches go on. Half of the rows that a poll looks at are for long rounds.
func looksOf(searches []*partition, rows int) (l looks) {
	long := 0
	for _, of := range searches {
		if of.searched.long() {
			long++
		}
	}
	for _, of := range searches {
		s := &of.searched
		most := rows / 4 / len(searches) // from each of two places
		if s.long() {
			most += rows / 4 / long
		}
		l.partitions = append(l.partitions, int32(of.Number))
		l.rounds, l.tails = append(l.rounds, s.round.at), append(l.tails, s.tail)
		l.most = append(l.most, int32(max(1, most)))
	}
	return l
}

// failed notes that a poll has failed.
func (p *poller) failed() { p.answered(0, p.every) }

// succeeded notes that a poll was answered. announced is true if notifications announce rows, and
// idle if no job was at work meanwhile. If others have their turn after it, the next one comes
// soon.
func (p *poller) succeeded(q *poll, announced, idle bool) {
	all := p.turn.from == 0 && !q.partial
	p.answered(q.took, p.after(q, announced, idle && all && !q.blocked))
	if q.partial {
		p.soon()
	}
}

// swept notes that a poll has looked for blocked rows that are gone or changed. Partitions come at
// different times from then on, so that no poll does this for all. One with many blocked rows goes
// on with the next poll.
func (p *poller) swept(q *poll, now time.Time, every time.Duration) {
	for _, of := range q.sweeps {
		to, more := q.sweptTo[of.Number]
		if more {
			of.sweepFrom = to
			continue
		}
		of.sweepFrom, of.sweepAt = firstID, now.Add(every-rand.N(every)/2)
		of.searched.want(sweep)
	}
}

// ask sends a poll on a connection of its own.
func (d *db) ask(ctx context.Context, conn *listen.Listener, q *poll, partitions int) error {
	ready, err := conn.Ready(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	q.has, q.seen = make(map[int]bool), make(map[int]sight)
	q.blockedDue = make(map[int][]blockedRow)
	batch := new(pgx.Batch)
	batch.BeginTx(handlers.ReadCommitted)
	batch.Queue(d.sql.Ours)
	if len(q.sweeps) > 0 {
		inOne := slices.Contains(q.sweeping.partitions, 0) // of all processes
		if inOne {
			batch.Queue(d.sql.Look, d.name) // first, as verbs of operators lock the consumer first
		}
		w := &q.sweeping
		batch.Queue(d.sql.Sweep, d.name, w.partitions, w.since, w.most).QueryRow(q.readSweep)
		if inOne {
			batch.Queue(d.sql.Beyond, d.name, partitions)
		}
	}
	l := &q.looks
	batch.Queue(d.sql.Poll, l.partitions, l.rounds, l.tails, l.most, d.name).Query(q.readPartitions)
	batch.Queue(d.sql.Due, d.name, q.owned).Query(q.readBlocked)
	batch.Queue(d.sql.State, d.name, q.owned, q.exact).QueryRow(func(row pgx.Row) error {
		return row.Scan(&q.paused, &q.blocked, &q.oldest, &q.next)
	})
	batch.Queue("commit")
	err = ready.SendBatch(ctx, batch).Close()
	if err != nil || ctx.Err() != nil {
		conn.Close() // its server may no longer exist, or the poll was left behind with it
	}
	q.took = time.Since(began)
	return err
}

func (q *poll) readSweep(row pgx.Row) error {
	var changed, numbers []int32
	var last []int64
	err := row.Scan(&changed, &numbers, &last)
	q.changed, q.sweptTo = make(map[int]bool, len(changed)), make(map[int]int64, len(numbers))
	for _, n := range changed {
		q.changed[int(n)] = true
	}
	for i, n := range numbers {
		q.sweptTo[int(n)] = after(last[i])
	}
	return err
}

func (q *poll) readPartitions(rows pgx.Rows) error {
	var n int
	var last int64
	var id *int64
	var tail, free *bool
	_, err := pgx.ForEachRow(rows, []any{&n, &last, &tail, &id, &free}, func() error {
		seen := q.seen[n]
		seen.end = after(last)
		if id != nil {
			at := stop{early: true, id: after(*id)}
			if *free {
				at.id = *id
				q.has[n], q.anywhere = true, true
			}
			if *tail {
				seen.tail = at
			} else {
				seen.round = at
			}
		}
		q.seen[n] = seen
		return nil
	})
	return err
}

// sightOf returns what the poll has seen of a partition. One without rows begins anew, for example
// because the table was truncated, and its IDs too.
func (q *poll) sightOf(p *partition) sight {
	seen, found := q.seen[p.Number]
	if !found {
		return sight{end: firstID}
	}
	return seen
}

// after returns the first ID that comes after another.
func after(id int64) int64 {
	if id == math.MaxInt64 {
		return id
	}
	return id + 1
}

func (q *poll) readBlocked(rows pgx.Rows) error {
	var n int
	var b blockedRow
	_, err := pgx.ForEachRow(rows, []any{&n, &b.id, &b.asked, &b.suspect, &b.skip}, func() error {
		q.blockedDue[n] = append(q.blockedDue[n], b)
		q.anywhere = true
		return nil
	})
	return err
}

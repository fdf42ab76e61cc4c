package consumer

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/listen"
	"github.com/pgleases/pgleases/internal/store"
)

const (
	drainMargin = 5 * time.Second  // the lease's drain timeout is longer than the handler's timeout by this
	leaveTime   = 2 * time.Second  // for leaving the lease after the last batch
	answerTime  = 10 * time.Second // the most that a statement of this package takes
	lockWait    = time.Second      // the most that it waits for a lock
	putOff      = time.Second      // how long a partition waits after that
	atOnce      = 4096             // the most partitions that begin or end in one transaction
	probeShare  = 4                // probes while rows come: at most 1/4 of the time
	probePause  = 20 * time.Millisecond
	quick       = 2 * time.Millisecond   // rows that take the handler less in all are not shared among workers: a transaction costs more
	short       = 50 * time.Millisecond  // rows that take the handler less in all are one batch, even if they are more than usual
	outagePause = 100 * time.Millisecond // between two attempts of a process while something is away
	rare        = 5                      // while notifications announce rows, an idle process probes at every fifth poll
	doubtTime   = 10 * time.Minute       // it probes at every poll after rows came without a notification
)

// timings are the same in all processes, except in tests.
type timings struct {
	sweep       time.Duration // between two looks for blocked rows that are gone or changed
	suspectHold time.Duration // the most that other work waits for crash suspects
	pauseMax    time.Duration // the longest pause while something that handlers need is away
	quiet       time.Duration // after a notification, the process probes at every poll
}

var defaultTimings = timings{sweep: time.Minute, suspectHold: 5 * time.Second, pauseMax: time.Minute, quiet: 10 * time.Second}

// after are the times after a notification at which to probe: other inserts send none for a while,
// and may commit later.
var after = [...]time.Duration{10 * time.Millisecond, 30 * time.Millisecond, 70 * time.Millisecond, 150 * time.Millisecond, 210 * time.Millisecond}

// A partition is an ownership. Its fields from due on belong to the job that works on the partition,
// and otherwise, as the others, to the goroutine of the group.
type partition struct {
	pgleases.Partition
	asked atomic.Bool   // to end
	idle  chan struct{} // closed when it was asked to end, and no job works on it

	gone    bool         // the goroutine of the group knows that it was asked to end
	begun   bool         // its begin may be recorded
	known   bool         // what was before this ownership is known
	busy    bool         // a job works on it
	retries []blockedRow // those that are due
	last    int64        // the ID of the last that was handled, or failed
	retried bool         // the last job was one of them, so rows that are not blocked come next
	tries   int          // how many such jobs have ended

	due       bool          // it may have rows to handle
	notBefore time.Time     // it waits until then
	expect    int           // how many rows the next read may find
	watched   bool          // batches are noted
	noted     int64         // the highest ID of the noted batch
	outage    time.Duration // the pause, if something that handlers need is away; 0: no pause
	tried     []string      // keys that failed in that time
	troubles  int           // errors that no row is charged with, in a row
	lost      bool          // it is not owned
}

// A blockedRow is a row whose key is blocked, and that is to be handled again.
type blockedRow struct {
	id      int64
	suspect bool // it may crash the process
	skip    bool // an operator skips it
}

// A group is the work of one Run. One goroutine decides what is done, and others do it.
type group struct {
	*Consumer
	lease      *pgleases.Lease
	untilEmpty bool
	stop       context.CancelCauseFunc // ends the Run
	listener   *listen.Listener        // a probe that is under way uses it
	events     chan func()
	ends       chan ending
	life       context.Context

	mu     sync.Mutex // guards the following fields
	failed []string   // keys that failed since the last success
	away   bool       // it is logged that something is away
	// when it was last logged that a batch was broken off
	brokenOff time.Time
	last      string // the last error

	// Only the goroutine uses the following fields.
	partitions []*partition
	gone       bool // some of them are gone
	next       int  // the index of the partition to begin with
	nextRetry  int  // the same, for blocked rows
	running    int
	retrying   int  // jobs with a blocked row
	retried    bool // the last job that began is one of them
	ended      int  // jobs that have ended
	opening    bool
	openAfter  time.Time
	probing    bool
	probeAt    time.Time // when the next probe is sent
	again      []time.Time
	sweepAt    time.Time
	paused     bool      // by an operator
	failing    bool      // the last probe failed
	earliest   time.Time // before then no probe is sent
	heard      time.Time // when the last notification arrived
	doubt      time.Time // until then notifications are not relied on
	since      int64     // older transactions may have inserted rows that are not announced; 0: not known
	oldest     int64     // the oldest transaction that was open after the last probe
	outageAt   time.Time // before then no partition is tried whose pause is over

	suspects int       // crash suspects that are being handled
	alone    bool      // no job begins beside it
	heldTill time.Time // until then other work waits for suspects; zero: no suspect is due
}

// An ending is the end of work on a partition.
type ending struct {
	p    *partition
	done chan struct{}
}

func newGroup(c *Consumer, lease *pgleases.Lease, untilEmpty bool, stop context.CancelCauseFunc) *group {
	return &group{
		Consumer: c, lease: lease, untilEmpty: untilEmpty, stop: stop, listener: listen.New(c.pool, c.options.schema, leaseOf+c.name),
		events: make(chan func()), ends: make(chan ending),
	}
}

// start starts the goroutines. They go on after ctx until the returned function is called.
func (g *group) start(ctx context.Context) (end func()) {
	g.life = ctx
	stopped := make(chan struct{})
	var all sync.WaitGroup
	all.Go(func() { g.loop(ctx, stopped) })
	all.Go(func() { g.recordEnds(stopped) })
	return func() { close(stopped); all.Wait() }
}

// serve is the callback of the lease for a partition. It returns when its context has ended and no
// job works on the partition.
func (g *group) serve(ctx context.Context, owned pgleases.Partition) error {
	p := &partition{Partition: owned, idle: make(chan struct{})}
	g.events <- func() { g.partitions = append(g.partitions, p) }
	<-ctx.Done()
	p.asked.Store(true)
	g.events <- func() {
		p.gone, g.gone = true, true
		if !p.busy {
			close(p.idle)
		}
	}
	<-p.idle
	if p.begun {
		e := ending{p, make(chan struct{})}
		g.ends <- e
		<-e.done
	}
	return nil
}

// recordEnds records the ends of ownerships, those that come together in one statement. What fails
// is repeated each second, so that no partition counts as crashed after an outage of the database.
func (g *group) recordEnds(stopped <-chan struct{}) {
	var owned []*partition // whose ends are to be recorded
	var logged time.Time
	for pause := time.Duration(0); ; {
		var ends []ending
		var again <-chan time.Time
		if len(owned) > 0 {
			again = time.After(pause)
		}
		select {
		case e := <-g.ends:
			ends = append(ends, e)
		case <-again:
		case <-stopped:
			return
		}
		for more := true; more && len(ends) < atOnce; {
			select {
			case e := <-g.ends:
				ends = append(ends, e)
			default:
				more = false
			}
		}
		for _, e := range ends {
			owned = append(owned, e.p)
		}
		rest := max(0, len(owned)-atOnce)
		numbers, epochs := keysOf(owned[rest:])
		ctx, cancel := context.WithTimeout(context.Background(), leaveTime)
		pause = time.Second
		switch err := g.write(ctx, g.sql.End, g.name, numbers, epochs); {
		case err == nil:
			owned, pause = owned[:rest], 0
		case time.Since(logged) > time.Minute:
			logged = time.Now()
			g.log.Warn("consumer: end not recorded yet, the next owner takes it for a crash", slog.Int("partitions", len(owned)), slog.Any("error", store.Advised(err)))
		}
		cancel()
		for _, e := range ends {
			close(e.done)
		}
	}
}

// keysOf returns the numbers and the epochs of partitions.
func keysOf(owned []*partition) (numbers []int32, epochs []int64) {
	for _, p := range owned {
		numbers, epochs = append(numbers, int32(p.Number)), append(epochs, p.Epoch)
	}
	return numbers, epochs
}

func (g *group) loop(ctx context.Context, stopped <-chan struct{}) {
	defer g.listener.Close()
	done := ctx.Done()
	for {
		var timer <-chan time.Time
		if g.gone {
			g.partitions, g.gone = slices.DeleteFunc(g.partitions, func(p *partition) bool { return p.gone }), false
		}
		if ctx.Err() == nil {
			g.open(ctx)
			g.probe(ctx)
			wait := g.begin()
			if !g.probing {
				g.listener.Listen()
				wait = min(wait, time.Until(g.probeAt))
			}
			timer = time.After(wait)
		}
		select {
		case <-timer:
		case f := <-g.events:
			for more := true; more; { // many partitions come and go at once
				f()
				select {
				case f = <-g.events:
				default:
					more = false
				}
			}
		case <-g.listener.Heard:
			g.soon()
			g.heard, g.since = time.Now(), 0
			for _, d := range after {
				g.again = append(g.again, time.Now().Add(d))
			}
			g.again = g.again[max(0, len(g.again)-2*len(after)):]
		case <-done:
			done = nil
		case <-stopped:
			for g.probing || g.opening {
				(<-g.events)()
			}
			return
		}
	}
}

// soon makes the next probe come as early as probes may come.
func (g *group) soon() { g.probeAt = g.earliest }

// pollAfter returns how long to wait after a probe, if nothing asks for the next one before: one
// poll, or several if notifications announce all rows. An insert right after another one sends no
// notification, and may commit much later. So the transactions that were open then must have ended.
// Rows that come for a partition while a job works on it, no probe sees.
func (g *group) pollAfter(q *probe, err error) time.Duration {
	now, before := time.Now(), g.oldest
	g.oldest = q.oldest
	switch {
	case err != nil || g.untilEmpty || !g.announced || !g.listener.Direct() || now.Sub(g.heard) < g.times.quiet:
	case len(q.has) > 0:
		g.doubt = now.Add(doubtTime)
	case g.since == 0: // the first after the quiet time
		g.since = q.next
	case g.running == 0 && q.ended == g.ended && !q.blocked && before >= g.since && !now.Before(g.doubt):
		return rare * g.options.poll
	}
	return g.options.poll
}

// answered notes when the next probe is sent, after one that took a while.
func (g *group) answered(took, poll time.Duration) {
	now := time.Now()
	asked := !g.probeAt.After(now) // while it was under way
	g.earliest = now.Add(max(probePause, probeShare*took))
	g.probeAt = now.Add(poll)
	for len(g.again) > 0 && g.again[0].Before(now) {
		g.again = g.again[1:]
	}
	if len(g.again) > 0 && g.again[0].Before(g.probeAt) {
		g.probeAt = g.again[0]
	}
	if asked || g.probeAt.Before(g.earliest) {
		g.probeAt = g.earliest
	}
}

// open records the begin of new ownerships, and learns what was before them.
func (g *group) open(ctx context.Context) {
	if g.opening || time.Now().Before(g.openAfter) {
		return
	}
	var fresh []*partition
	for _, p := range g.partitions {
		if !p.busy && !p.known && !p.lost && !p.asked.Load() && len(fresh) < atOnce {
			fresh = append(fresh, p)
		}
	}
	if len(fresh) == 0 {
		return
	}
	g.opening = true
	for _, p := range fresh {
		p.busy, p.begun = true, true
	}
	go func() {
		err := g.beginAll(fresh)
		g.events <- func() {
			g.opening = false
			for _, p := range fresh {
				p.known = err == nil
				g.free(p)
			}
			if err != nil && ctx.Err() == nil {
				g.openAfter = time.Now().Add(time.Second)
				g.log.Warn("consumer: cannot begin with new partitions, retried in a second", slog.Int("partitions", len(fresh)), slog.Any("error", store.Advised(err)))
				return
			}
			g.soon()
		}
	}()
}

// A probe asks which partitions have something to do.
type probe struct {
	ended int // jobs that had ended before
	sweep bool
	of    []*partition
	tries []int   // of these, those that had ended before
	owned []int32 // their numbers: which of them have blocked rows that are due
	idle  []int32 // no job works on them: which have rows

	took     time.Duration
	has      map[int]bool
	retries  map[int][]blockedRow
	paused   bool
	blocked  bool  // a row blocks its key
	oldest   int64 // the oldest open transaction
	next     int64 // the one after the last that has ended
	anywhere bool  // of RunUntilEmpty: some partition of the table has something to do
}

// probe sends a probe if it is time.
func (g *group) probe(ctx context.Context) {
	now := time.Now()
	if g.probing || now.Before(g.probeAt) {
		return
	}
	g.probeAt = now.Add(g.options.poll)
	q := &probe{sweep: !now.Before(g.sweepAt), ended: g.ended}
	for _, p := range g.partitions {
		if !p.known || !p.busy && p.lost {
			continue
		}
		q.of, q.tries, q.owned = append(q.of, p), append(q.tries, p.tries), append(q.owned, int32(p.Number))
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
	go func() {
		ctx, cancel := context.WithTimeout(ctx, answerTime)
		defer cancel()
		err := g.ask(ctx, q)
		g.events <- func() { g.probing = false; g.take(q, err) }
	}()
}

// ask sends a probe on the listener's connection.
func (g *group) ask(ctx context.Context, q *probe) error {
	conn, err := g.listener.Ready(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	q.has, q.retries = make(map[int]bool), make(map[int][]blockedRow)
	batch := new(pgx.Batch)
	batch.BeginTx(handlers.ReadCommitted)
	batch.Queue(g.sql.Ours)
	var n int
	if q.sweep {
		batch.Queue(g.sql.Sweep, g.name, q.owned)
	}
	batch.Queue(g.sql.Probe, q.idle, g.name).Query(func(rows pgx.Rows) error {
		_, err := pgx.ForEachRow(rows, []any{&n}, func() error { q.has[n], q.anywhere = true, true; return nil })
		return err
	})
	batch.Queue(g.sql.Due, g.name, q.owned).QueryRow(func(row pgx.Row) error {
		var numbers []int32
		var ids []int64
		var suspects, skips []bool
		var paused *bool
		if err := row.Scan(&paused, &numbers, &ids, &suspects, &skips, &q.blocked, &q.oldest, &q.next); err != nil {
			return err
		}
		q.paused = paused != nil && *paused
		for i, n := range numbers {
			q.retries[int(n)], q.anywhere = append(q.retries[int(n)], blockedRow{ids[i], suspects[i], skips[i]}), true
		}
		return nil
	})
	batch.Queue("commit")
	if err = conn.SendBatch(ctx, batch).Close(); err != nil {
		g.listener.Close() // its server may no longer exist
	}
	q.took = time.Since(began)
	return err
}

// take receives the answer of a probe.
func (g *group) take(q *probe, err error) {
	g.answered(q.took, g.pollAfter(q, err))
	g.counts.probe(q.took, err)
	if err != nil {
		if !g.failing && g.life.Err() == nil {
			g.log.Warn("consumer: probe failed, retried each second", slog.Any("error", store.Advised(err)))
		}
		g.failing = true
		g.probeAt = time.Now().Add(g.options.poll)
		return
	}
	g.failing = false
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
	for i, p := range q.of {
		if !p.busy && q.has[p.Number] && !p.due { // a job finds out itself
			p.due, p.expect = true, max(1, p.expect)
		}
		if p.tries != q.tries[i] { // one that is found here may have failed since, and wait again
			continue
		}
		p.retries = q.retries[p.Number]
		if i := slices.IndexFunc(p.retries, func(b blockedRow) bool { return b.id == p.last }); i >= 0 { // it may be what pauses the partition
			p.retries = slices.Concat(p.retries[i+1:], p.retries[:i+1])
		}
	}
	if g.untilEmpty && !q.anywhere && g.running == 0 && q.ended == g.ended {
		switch reason, err := g.whyBlocked(g.life); {
		case err != nil:
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
	err = g.pool.QueryRow(ctx, g.sql.Why, g.name).Scan(&reason)
	return reason, err
}

// A job is work for one transaction, or for several after a failure.
type job struct {
	partitions []*partition // in the order of numbers
	retry      *blockedRow  // in the first partition; nil: rows that are not blocked
	alone      bool         // no other job begins beside it
	handled    bool         // a row was handled
	recovered  bool         // of a partition that was paused, because something was away
}

// begin begins jobs while there is room, and returns how long to wait for the next.
func (g *group) begin() time.Duration {
	for room := g.workers(); ; {
		if g.paused || g.running >= room {
			return g.options.poll
		}
		j, wait := g.choose(room - g.running)
		if j == nil {
			return wait
		}
		for _, p := range j.partitions {
			p.busy = true
			if p.notBefore = (time.Time{}); p.outage > 0 {
				g.outageAt = time.Now().Add(outagePause)
			}
		}
		g.running++
		if g.retried = j.retry != nil; g.retried {
			g.retrying++
		}
		suspect := j.retry != nil && j.retry.suspect
		if suspect {
			g.suspects++
			g.alone = j.alone
		}
		go func() {
			g.work(j)
			g.events <- func() { g.end(j, suspect) }
		}()
	}
}

// end receives the end of a job.
func (g *group) end(j *job, suspect bool) {
	g.running--
	g.ended++
	if suspect {
		g.suspects--
		g.alone = false
	}
	for _, p := range j.partitions {
		p.retried = j.retry != nil
		if j.retry != nil {
			g.retrying--
			p.last, p.tries = j.retry.id, p.tries+1
			p.retries = slices.DeleteFunc(p.retries, func(b blockedRow) bool { return b.id == j.retry.id })
		}
		g.free(p)
	}
	if j.recovered {
		for _, p := range g.partitions {
			if !p.busy && p.outage > 0 {
				p.notBefore = time.Time{}
			}
		}
	}
	waiting := slices.ContainsFunc(g.partitions, func(p *partition) bool { return !p.busy && p.due && p.notBefore.IsZero() })
	if (j.handled || g.untilEmpty) && !waiting {
		g.soon() // rows may have come meanwhile
	}
}

// free notes that no job works on a partition.
func (g *group) free(p *partition) {
	p.busy = false
	if p.gone {
		close(p.idle)
	}
}

// choose chooses the next job, if there is room for so many. Otherwise it returns how long to wait.
// Blocked rows have half of the workers at most, and take turns with other rows: they may fail, or
// take long, again and again.
func (g *group) choose(room int) (*job, time.Duration) {
	now, wait := time.Now(), g.options.poll
	if g.alone {
		if left := g.heldTill.Sub(now); left > 0 {
			return nil, min(wait, left)
		}
		g.alone = false
	}
	var due []*partition
	var suspect *job
	retry, ahead := -1, len(g.partitions) // the index of the next partition with a blocked row, and how far it is from nextRetry
	for i := range g.partitions {
		at := (g.next + i) % len(g.partitions)
		switch p := g.partitions[at]; {
		case p.busy || !p.known || p.lost || p.asked.Load() || !p.due && len(p.retries) == 0:
		case now.Before(p.notBefore):
			wait = min(wait, p.notBefore.Sub(now))
		case p.outage > 0 && now.Before(g.outageAt):
			wait = min(wait, g.outageAt.Sub(now))
		default:
			if p.due {
				due = append(due, p)
			}
			switch far := (at + len(g.partitions) - g.nextRetry%len(g.partitions)) % len(g.partitions); {
			case len(p.retries) == 0 || p.due && p.retried:
			case firstSafe(p.retries) < 0:
				if suspect == nil {
					suspect = retryOf(p, 0)
				}
			case far < ahead:
				retry, ahead = at, far
			}
		}
	}
	if retry >= 0 && g.retrying < max(1, (g.running+room)/2) && (len(due) == 0 || !g.retried) {
		p := g.partitions[retry]
		g.nextRetry = retry + 1
		return retryOf(p, firstSafe(p.retries)), 0
	}
	if suspect == nil && g.suspects == 0 {
		g.heldTill = time.Time{}
	}
	if suspect != nil {
		if g.heldTill.IsZero() {
			g.heldTill = now.Add(g.times.suspectHold)
		}
		left := g.heldTill.Sub(now)
		switch suspect.alone = left > 0; {
		case left > 0 && g.running > 0:
			return nil, min(wait, left)
		case g.suspects == 0:
			return suspect, 0
		}
	}
	if len(due) == 0 {
		return nil, wait
	}
	j, rows := new(job), 0
	share, most, pace := (len(due)+room-1)/room, g.batch(), g.counts.pace.Load()
	for len(j.partitions) < len(due) && rows < most && (len(j.partitions) < share || pace > 0 && int64(rows)*pace < int64(quick)) {
		p := due[len(j.partitions)]
		if alone := p.watched || p.outage > 0 || p.troubles > 0; alone {
			if len(j.partitions) == 0 {
				j.partitions = due[:1]
			}
			break
		}
		j.partitions, rows = append(j.partitions, p), rows+p.expect
	}
	j.partitions = slices.Clone(j.partitions)
	g.next = slices.Index(g.partitions, j.partitions[len(j.partitions)-1]) + 1 // they take turns
	slices.SortFunc(j.partitions, func(a, b *partition) int { return cmp.Compare(a.Number, b.Number) })
	return j, 0
}

// firstSafe returns the index of the first blocked row that is no suspect; -1: there is none.
func firstSafe(retries []blockedRow) int {
	return slices.IndexFunc(retries, func(b blockedRow) bool { return !b.suspect })
}

// retryOf returns the job of one of a partition's blocked rows that are due.
func retryOf(p *partition, at int) *job {
	retry := p.retries[at]
	return &job{partitions: []*partition{p}, retry: &retry}
}

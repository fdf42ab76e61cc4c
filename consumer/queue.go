package consumer

import (
	"cmp"
	"iter"
	"slices"
	"time"

	"github.com/pgleases/pgleases/internal/worker"
)

const (
	worthSharing = 2 * time.Millisecond // rows that take the handler less in all are one job: a transaction costs more
	freeAgain    = 10 * time.Second     // a partition that succeeds now and then does not let all others try each time
	everything   = "all partitions"     // the group that is doubted when a call hangs, see worker.Slots
)

// A state is what the last job has found out about a partition. The next job gets a copy, and its
// own state comes back with its end.
type state struct {
	due     bool // it may have rows to handle
	expect  int  // how many rows the next read may find
	watched bool // batches are noted
	search  bool // a batch with rows of this partition met a lock, perhaps of one of its rows
	singly  int  // so many rows are handled one by one, because a batch of them took too long
	rows    delay
	blocked delay
	lost    bool // it is not owned
}

// A delay says when a partition's rows may be handled, or its blocked rows: a blocked row that is
// locked, or whose handler finds something away, keeps no others.
type delay struct {
	notBefore time.Time
	away      int      // attempts in a row that found away what handlers need: the rows pause
	triedKeys []string // keys that failed in that time
	breaks    int      // batches in a row that were broken off
	losses    int      // failed attempts in a row that could not be recorded
	free      bool     // another partition has succeeded, so this one is tried at once
}

// lose lets rows wait because a failed attempt could not be recorded. The handler is called for the
// row again, and perhaps the database never records that, so the rows wait longer each time.
func (d *delay) lose(now time.Time) {
	d.losses++
	d.notBefore = now.Add(worker.PauseAfter(d.losses, lossPauses))
}

var lossPauses = worker.WithoutJitter(worker.Backoff(breakWait, time.Minute))

// leaveOut returns the keys to leave out of a read.
func (d *delay) leaveOut() []string { return append([]string{}, d.triedKeys...) } // not null

// A blockedRow is a row whose key is blocked, and that is to be handled again.
type blockedRow struct {
	id      int64
	asked   bool // an operator retries or skips it
	suspect bool // it may crash the process
	skip    bool // an operator skips it
}

// A partition is what the queue knows about an ownership.
type partition struct {
	*ownership
	state
	begun      bool // its begin is recorded
	busy       bool // a job works on it, or its begin is being recorded
	gone       bool // it is to end
	blockedDue []blockedRow
	wasBlocked bool // the last job was one of a blocked row, so rows that are not blocked come next
	found      bool // a poll found rows while a job worked on it
	blockedEnd int  // queue.ended after the last such job

	searched  search    // where polls look for rows whose keys are not blocked
	sweepAt   time.Time // when a poll compares its blocked rows with the table again
	sweepFrom int64     // the ID with which that goes on

	answeredAt time.Time // when a job ended in which the handler returned in time; zero: never yet
	dueAt      time.Time // since when it is due
	besideSlow bool      // since then it was in a job in which a partition became slow, perhaps itself
	hung       bool      // a row was charged for its timeout, and no other was handled since
}

// becomeDue notes that the partition has rows to handle from now on.
func (p *partition) becomeDue(now time.Time) {
	p.due, p.expect = true, max(1, p.expect)
	p.dueAt, p.besideSlow = now, false
}

// newPartition returns a partition that no poll has asked about.
func newPartition(o *ownership) *partition {
	return &partition{ownership: o, searched: newSearch(), sweepFrom: firstID}
}

// batchesAlone reports whether its batches have rows of no other partition.
func (s *state) batchesAlone() bool {
	return s.watched || s.search || s.singly > 0 || s.rows.away > 0 || s.rows.breaks > 0
}

// A part is a partition as a job has it.
type part struct {
	*ownership
	state
	noted    int64         // the highest ID of the noted batch
	slow     bool          // it is slow from now on
	why      worker.Reason // why it is slow, if it is
	charged  bool          // it is slow because of a row that was charged, and blocks its key
	healed   bool          // it is no longer slow
	answered bool          // the handler has returned in time for a row
	freed    bool          // a row no longer blocks its key
}

// gone reports whether the process has lost the partition.
func (p *part) gone() bool { return p.Context().Err() != nil }

// ownedOf returns the partitions that are not known to be lost.
func ownedOf(parts []*part) []*part {
	return slices.DeleteFunc(slices.Clone(parts), func(p *part) bool { return p.lost })
}

// A job is work for one transaction, or for several after a failure. Only the goroutine of loop
// uses of, began, over, overdue and freed. The other fields do not change after the job has begun.
type job struct {
	of      []*partition // in the order of numbers
	lane    worker.Lane
	limit   int // how many rows its batch may have
	isRetry bool
	retry   blockedRow // of the first partition, if it is a retry

	began   time.Time
	over    bool
	overdue bool         // its slot was given to others
	freed   []*partition // it has these no longer
}

// parts returns the copies for the job's goroutine.
func (j *job) parts() (all []*part) {
	for _, p := range j.of {
		all = append(all, &part{ownership: p.ownership, state: p.state})
	}
	return all
}

// Turns are those of partitions with one kind of rows: blocked rows, or the others.
type turns struct {
	next    int       // the index of the partition to begin with
	pauseAt time.Time // before then no partition is tried whose pause is over
}

// wait returns how long a partition's rows must wait.
func (t *turns) wait(d *delay, now time.Time) time.Duration {
	at := d.notBefore
	if d.away > 0 && !d.free && at.Before(t.pauseAt) {
		at = t.pauseAt
	}
	return at.Sub(now)
}

// A queue decides what begins next. It reads no clock and sends nothing: the planner tells it the
// time and what has happened.
type queue struct {
	times      *timings
	poll       time.Duration // the longest that anything waits
	untilEmpty bool
	ascending  bool // the application gives the IDs, so rows may come before those of other keys
	partitions []*partition
	someGone   bool
	paused     bool // by an operator

	slots    worker.Slots[int] // which slots jobs have, and which partitions are slow
	under    []*job            // the jobs that have not ended, the oldest first
	rows     turns
	blocked  turns
	overdue  int       // jobs whose slots were given to others
	fair     fair      // between the classes of slow work
	doubtAt  time.Time // partitions are doubted that have not answered since
	suspects int       // jobs of a crash suspect
	retried  bool      // the last job that began has a blocked row
	ended    int       // jobs that have ended
	freed    time.Time // when the pauses of all partitions were last ended
	heldTill time.Time // until then other work waits for suspects; zero: no suspect is due
}

// A class is a kind of slow work.
type class int

const (
	doubtedRows class = iota
	blockedRows
	slowRows
	classes
)

// A fair lets the classes of slow work have the same time each, so that those whose jobs are short
// need not wait for those that hang.
type fair struct {
	had [classes]time.Duration
	at  time.Duration // what the class had that came last: one that had no work meanwhile has no more left
}

// next returns the class that comes next, of those that have work.
func (f *fair) next(has [classes]bool) class {
	first := classes
	for c := range classes {
		f.had[c] = max(f.had[c], f.at)
		if has[c] && (first == classes || f.had[c] < f.had[first]) {
			first = c
		}
	}
	f.at = f.had[first]
	return first
}

// ended notes how long a job took.
func (f *fair) ended(j *job, took time.Duration) {
	switch {
	case j.lane == worker.Doubted:
		f.had[doubtedRows] += took
	case j.isRetry:
		f.had[blockedRows] += took
	case j.lane == worker.Slow:
		f.had[slowRows] += took
	}
}

// A room is what the next job may have.
type room struct {
	size int           // how many jobs may be under way
	rows int           // how many rows a batch may have
	pace time.Duration // how long the handler takes for a row; 0: that is not known
}

// add adds a partition that is owned now.
func (q *queue) add(p *partition) { q.partitions = append(q.partitions, p) }

// leave notes that the ownership of a partition is to end. It does so when no job works on it.
func (q *queue) leave(p *partition) {
	q.someGone, p.gone = true, true
	if !p.busy {
		close(p.idle)
	}
}

// removeGone forgets the partitions that are gone.
func (q *queue) removeGone() {
	if !q.someGone {
		return
	}
	q.someGone = false
	q.partitions = slices.DeleteFunc(q.partitions, func(p *partition) bool {
		if p.gone {
			q.slots.Heal(p.Number)
		}
		return p.gone
	})
}

// fresh returns partitions whose begin is to be recorded, and keeps them busy until then.
func (q *queue) fresh() (all []*partition) {
	for _, p := range q.partitions {
		if !p.busy && !p.begun && !p.lost && !p.halting.Load() && len(all) < atOnce {
			p.busy = true
			all = append(all, p)
		}
	}
	return all
}

// began notes that the begin of a partition is recorded, or that this has failed.
func (q *queue) began(p *partition, o state, ok bool) {
	p.begun = ok
	if ok {
		p.watched, p.lost = o.watched, o.lost
	}
	q.free(p)
}

// free notes that no job works on a partition.
func (q *queue) free(p *partition) {
	p.busy = false
	if p.gone {
		close(p.idle)
	}
}

// idle reports whether no job is at work.
func (q *queue) idle() bool { return q.slots.Busy() == 0 && q.overdue == 0 }

// next returns the next job, and begins it. If there is none, it returns how long to wait.
func (q *queue) next(now time.Time, r room) (*job, time.Duration) {
	if q.paused || q.slots.Busy() >= r.size {
		return nil, q.poll
	}
	j, wait := q.choose(now, r)
	if j == nil {
		return nil, wait
	}
	t := &q.rows
	q.retried = j.isRetry
	if j.isRetry {
		t = &q.blocked
	}
	for _, p := range j.of {
		p.busy = true
		d := p.delayOf(j)
		if d.away > 0 && !d.free {
			t.pauseAt = now.Add(q.times.outage)
		}
		d.notBefore, d.free = time.Time{}, false
	}
	j.began, j.limit = now, r.rows
	q.under = append(q.under, j)
	q.slots.Begin(j.lane)
	if j.retry.suspect {
		q.suspects++
	}
	return j, 0
}

// delayOf returns the delay of the job's kind of rows.
func (s *state) delayOf(j *job) *delay {
	if j.isRetry {
		return &s.blocked
	}
	return &s.rows
}

// giveSlotBack lets other work have the slot of a job in which code of the application goes on
// after its context has ended. The job keeps the partitions that are not free, because their rows
// must stay in order.
func (q *queue) giveSlotBack(j *job, free []int, now time.Time, size int) {
	if j.over {
		return
	}
	for _, p := range j.of {
		// not once more, if the code of another of its attempts goes on: others may have the partition
		if slices.Contains(free, p.Number) && !slices.Contains(j.freed, p) {
			p.besideSlow = true
			j.freed = append(j.freed, p)
			q.free(p)
		}
	}
	if j.overdue {
		return
	}
	j.overdue = true
	q.overdue++
	q.slots.End(j.lane, size, now.Sub(j.began), now)
	q.restAfter(j, true, now, size)
	for _, p := range j.of {
		if !slices.Contains(j.freed, p) {
			q.fail(p, worker.TimedOut, false, j.began, now)
		}
	}
}

// restAfter lets slow work rest after a job of healthy work that hung. The place that is left is
// for those that are doubted from then on.
func (q *queue) restAfter(j *job, hung bool, now time.Time, size int) {
	if hung && j.lane == worker.Healthy {
		q.slots.Rest(size, now.Sub(j.began), now)
	}
}

// fail notes that a partition is slow after a job, unless its ownership is to end: removeGone has
// forgotten it. If it is slow because of a row that is charged, which blocks its key from then on,
// its other rows are only doubted, until one of them takes too long as well.
func (q *queue) fail(p *partition, why worker.Reason, charged bool, began, now time.Time) {
	if p.gone {
		return
	}
	if why == worker.TimedOut {
		q.doubt(p, began, now)
	}
	if charged && !p.hung {
		p.hung, p.answeredAt = true, time.Time{}
		return
	}
	q.slots.Fail(p.Number, why, now)
}

// doubt notes that a call hung. What makes it hang may do so for other partitions too, and each of
// them would hold a slot to become known. So for a while, those are doubted that have not answered
// since the call began. A partition that had answered says that something new hangs.
func (q *queue) doubt(p *partition, began, now time.Time) {
	if !q.doubted(p, now) {
		q.doubtAt = began
	}
	q.slots.Doubt(everything, now.Sub(began), now)
}

// doubtedDue returns how many doubted partitions wait for a place.
func (q *queue) doubtedDue(now time.Time) int {
	_, doubted, _, _ := q.dueRows(now)
	return len(doubted)
}

// doubted reports whether a partition may hang as others do.
func (q *queue) doubted(p *partition, now time.Time) bool {
	return !p.answeredAt.After(q.doubtAt) && q.slots.Doubts(everything, now)
}

// A result is what a job comes back with.
type result struct {
	parts     []*part // in the order of the job's partitions
	handled   bool    // a row was handled
	recovered bool    // of a partition that was paused, because something was away
	retryHung bool    // the handler of a blocked row took its whole timeout
}

// timedOut reports whether a batch took its whole timeout.
func (r result) timedOut() bool {
	return slices.ContainsFunc(r.parts, func(back *part) bool { return back.slow && back.why == worker.TimedOut })
}

// end receives the end of a job, and reports whether rows may have come meanwhile that only a poll
// finds.
func (q *queue) end(j *job, r result, now time.Time, size int) (poll bool) {
	j.over = true
	q.under = slices.DeleteFunc(q.under, func(other *job) bool { return other == j })
	if j.overdue {
		q.overdue--
	} else {
		q.slots.End(j.lane, size, now.Sub(j.began), now)
		q.restAfter(j, r.timedOut(), now, size)
	}
	q.fair.ended(j, now.Sub(j.began))
	if j.retry.suspect {
		q.suspects--
	}
	q.ended++
	if r.retryHung {
		q.slots.Doubt(everything, now.Sub(j.began), now)
	}
	slowed := slices.ContainsFunc(r.parts, func(back *part) bool { return back.slow })
	for i, p := range j.of {
		if slices.Contains(j.freed, p) {
			continue
		}
		back := r.parts[i]
		if back.healed {
			q.slots.Heal(p.Number)
		}
		if back.slow {
			q.fail(p, back.why, back.charged, j.began, now)
		}
		if back.freed {
			p.searched.want(whole)
		}
		p.besideSlow = p.besideSlow || slowed
		if back.answered && !back.slow && !j.isRetry {
			p.answeredAt, p.hung = now, false
			p.dueAt, p.besideSlow = now, false
		}
		p.state = back.state
		if j.isRetry && p.found && !p.due {
			p.becomeDue(now)
		}
		p.found = false
		p.wasBlocked = j.isRetry
		if j.isRetry {
			p.blockedEnd = q.ended
			p.blockedDue = slices.DeleteFunc(p.blockedDue, func(b blockedRow) bool { return b.id == j.retry.id })
		}
		q.free(p)
	}
	if r.recovered {
		q.endPauses(now)
	}
	waits := func(p *partition) bool { return !p.busy && p.due && p.rows.notBefore.IsZero() }
	return (r.handled || q.untilEmpty) && !slices.ContainsFunc(q.partitions, waits)
}

// endPauses lets all paused partitions be tried, because one has succeeded: at once, or one after
// the other if that was done a short time ago.
func (q *queue) endPauses(now time.Time) {
	again := now.Sub(q.freed) < freeAgain
	if !again {
		q.freed = now
	}
	for _, p := range q.partitions {
		for _, d := range []*delay{&p.rows, &p.blocked} {
			if !p.busy && d.away > 0 {
				d.notBefore, d.free = time.Time{}, d.free || !again
			}
		}
	}
}

// swept notes that blocked rows of partitions are gone or changed, and with them perhaps those that
// paused the blocked rows of the partition. It returns the partitions that no row pauses any more.
func (q *queue) swept(changed map[int]bool) (free []int) {
	for _, p := range q.partitions {
		if !changed[p.Number] || p.busy || p.blocked.away == 0 {
			continue
		}
		p.blocked = delay{}
		if p.rows.away == 0 {
			free = append(free, p.Number)
		}
	}
	return free
}

// asked returns the partitions that a poll asks about, and those of them on which no job works.
func (q *queue) asked() (all, idle []*partition) {
	for _, p := range q.partitions {
		if !p.begun || !p.busy && p.lost {
			continue
		}
		all = append(all, p)
		if !p.busy {
			idle = append(idle, p)
		}
	}
	return all, idle
}

// answered takes what a poll has found. ended is the number of jobs that had ended when it was
// sent.
func (q *queue) answered(a *poll, now time.Time) {
	q.paused = a.paused
	for _, p := range a.searches {
		p.searched.saw(a.sightOf(p), a)
		if q.ascending {
			p.searched.want(whole)
		}
	}
	for _, p := range a.of {
		switch {
		case !a.has[p.Number]:
		case p.busy: // a job finds out itself, unless it is one of a blocked row
			p.found = true
		case !p.due:
			p.becomeDue(now)
		}
		if hasSuspect(p.blockedDue) || hasSuspect(a.blockedDue[p.Number]) {
			p.searched.want(whole) // the end of the owner before may free them
		}
		if p.blockedEnd <= a.ended { // otherwise one that is found here may have failed since, and wait again
			p.blockedDue = a.blockedDue[p.Number]
		}
	}
	dueSuspect := slices.ContainsFunc(q.partitions, func(p *partition) bool { return hasSuspect(p.blockedDue) })
	if q.suspects == 0 && !dueSuspect {
		q.heldTill = time.Time{}
	}
}

// choose chooses the next job. If there is none, it returns how long to wait. Slow work, which may
// fail, or take long, again and again, has half of the slots at most, and rests while doubted
// partitions wait for the last of these, or may come at any time and slow work has others. Blocked
// rows are such work too, and take turns with other rows while no call hangs. Crash suspects begin
// alone, and for a while nothing begins beside them.
func (q *queue) choose(now time.Time, r room) (*job, time.Duration) {
	held := q.heldTill.Sub(now)
	if q.suspects > 0 && held > 0 {
		return nil, min(q.poll, held)
	}
	due, doubted, slow, wait := q.dueRows(now)
	retry, suspect, waitOfBlocked := q.dueBlocked(now, q.slots.Room(r.size))
	wait = min(wait, waitOfBlocked)
	hasSlow := len(doubted)+len(slow) > 0
	hanging := q.slots.Doubts(everything, now)
	switch {
	case retry != nil && q.comesFirst(retry, len(due) > 0 || hasSlow, hanging):
		return q.retry(retry), 0
	case suspect != nil:
		return q.beginAlone(suspect, now, wait)
	}
	has := [classes]bool{doubtedRows: len(doubted) > 0 && q.slots.Room(r.size)}
	ill := len(slow) > 0 || retry != nil && hanging
	several := r.size/2 > 1 // places of slow work
	lastWanted := q.slots.Rooms(r.size) == 1 && (len(doubted) > 0 || several && hanging)
	lane := q.slots.Next(r.size, len(due) > 0 || lastWanted, ill, now)
	if lane == worker.Slow {
		has[blockedRows], has[slowRows] = retry != nil, len(slow) > 0
	}
	switch {
	case has != [classes]bool{}:
		return q.slowJob(q.fair.next(has), doubted, slow, retry, r), 0
	case lane == worker.Healthy && len(due) > 0:
		return &job{of: q.share(due, r.size-q.slots.Busy(), r), lane: worker.Healthy}, 0
	}
	return nil, wait
}

// comesFirst reports whether the job of a blocked row begins at once: it takes turns with others,
// if there are any. While calls hang, it waits as other slow work does, unless an operator asks for
// it.
func (q *queue) comesFirst(retry *job, others, hanging bool) bool {
	return retry.retry.skip || (retry.retry.asked || !hanging) && (!others || !q.retried)
}

// retry returns the job of a blocked row, and notes whose turn is next.
func (q *queue) retry(j *job) *job {
	q.blocked.next = slices.Index(q.partitions, j.of[0]) + 1
	return j
}

// slowJob returns the next job of a class of slow work.
func (q *queue) slowJob(c class, doubted, slow []*partition, retry *job, r room) *job {
	switch c {
	case doubtedRows:
		return &job{of: q.doubtedOf(doubted, r), lane: worker.Doubted}
	case blockedRows:
		return q.retry(retry)
	}
	first := slices.MinFunc(slow, func(a, b *partition) int { return q.slots.Compare(a.Number, b.Number) })
	return &job{of: []*partition{first}, lane: worker.Slow}
}

// doubtedOf returns the doubted partitions of the next job: those together whose rows came last,
// because those that hang stay. If all of them were in a job with one that became slow since they
// are due, each comes alone, first the one that answered last.
func (q *queue) doubtedOf(doubted []*partition, r room) []*partition {
	fresh := slices.DeleteFunc(slices.Clone(doubted), func(p *partition) bool { return p.besideSlow })
	if len(fresh) == 0 {
		last := slices.MaxFunc(doubted, func(a, b *partition) int { return a.answeredAt.Compare(b.answeredAt) })
		return []*partition{last}
	}
	slices.SortStableFunc(fresh, func(a, b *partition) int { return b.dueAt.Compare(a.dueAt) })
	return q.share(fresh, q.slots.Rooms(r.size), r)
}

// beginAlone lets a suspect begin when nothing else is at work, or after a while.
func (q *queue) beginAlone(suspect *job, now time.Time, wait time.Duration) (*job, time.Duration) {
	if q.heldTill.IsZero() {
		q.heldTill = now.Add(q.times.suspectHold)
	}
	held := q.heldTill.Sub(now)
	if held > 0 && !q.idle() {
		return nil, min(wait, held)
	}
	return suspect, 0
}

// inTurn returns the partitions that a job may begin with, from that at an index on.
func (q *queue) inTurn(next int) iter.Seq[*partition] {
	return func(yield func(*partition) bool) {
		for i := range q.partitions {
			p := q.partitions[(next+i)%len(q.partitions)]
			free := !p.busy && p.begun && !p.lost && !p.halting.Load()
			if free && !yield(p) {
				return
			}
		}
	}
}

// dueRows returns the partitions with rows that may be handled now, those of them that are doubted,
// or slow, and how long others wait.
func (q *queue) dueRows(now time.Time) (due, doubted, slow []*partition, wait time.Duration) {
	wait = q.poll
	for p := range q.inTurn(q.rows.next) {
		if !p.due {
			continue
		}
		left := q.rows.wait(&p.rows, now)
		next, isSlow := q.slots.Slow(p.Number)
		if isSlow {
			left = max(left, next.Sub(now))
		}
		switch {
		case left > 0:
			wait = min(wait, left)
		case isSlow:
			slow = append(slow, p)
		case q.doubted(p, now):
			doubted = append(doubted, p)
		default:
			due = append(due, p)
		}
	}
	return due, doubted, slow, wait
}

// dueBlocked returns the next job of a blocked row, that of a crash suspect, and how long others
// wait. If hasRoom is false, the first is a skip.
func (q *queue) dueBlocked(now time.Time, hasRoom bool) (retry, suspect *job, wait time.Duration) {
	wait = q.poll
	for p := range q.inTurn(q.blocked.next) {
		if len(p.blockedDue) == 0 || p.wasBlocked && p.due && q.rows.wait(&p.rows, now) <= 0 {
			continue
		}
		b := p.blockedDue[0]
		left := q.blocked.wait(&p.blocked, now)
		if left > 0 && !(b.skip && b.asked) {
			wait = min(wait, left)
			continue
		}
		if b.suspect && q.suspects == 0 {
			if suspect == nil {
				suspect = retryOf(p, b)
			}
			continue
		}
		b, found := firstThatIsNoSuspect(p.blockedDue)          // not beside another
		better := retry == nil || b.asked && !retry.retry.asked // somebody waits for it
		if found && better && (hasRoom || b.skip) {
			retry = retryOf(p, b)
		}
	}
	return retry, suspect, wait
}

func hasSuspect(rows []blockedRow) bool {
	return slices.ContainsFunc(rows, func(b blockedRow) bool { return b.suspect })
}

func firstThatIsNoSuspect(rows []blockedRow) (b blockedRow, found bool) {
	i := slices.IndexFunc(rows, func(b blockedRow) bool { return !b.suspect })
	if i < 0 {
		return b, false
	}
	return rows[i], true
}

// retryOf returns the job of a blocked row.
func retryOf(p *partition, b blockedRow) *job {
	j := &job{of: []*partition{p}, isRetry: true, retry: b, lane: worker.Slow}
	if b.skip {
		j.lane = worker.Healthy // it calls no handler
	}
	return j
}

// share returns a slot's share of partitions that have rows, if so many slots are free. They take
// turns.
func (q *queue) share(due []*partition, slots int, r room) []*partition {
	share := (len(due) + slots - 1) / slots
	n, rows := 1, due[0].expect
	// One whose rows might leave no room for those of the others does not join: they would wait
	// forever.
	for n < len(due) && !due[0].batchesAlone() && !due[n].batchesAlone() && rows+due[n].expect <= r.rows &&
		(n < share || r.pace > 0 && time.Duration(rows)*r.pace < worthSharing) {
		rows += due[n].expect
		n++
	}
	q.rows.next = slices.Index(q.partitions, due[n-1]) + 1
	slices.SortFunc(due[:n], func(a, b *partition) int { return cmp.Compare(a.Number, b.Number) })
	return due[:n]
}

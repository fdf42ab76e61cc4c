package consumer

import (
	"time"

	"github.com/jackc/pgx/v5"
)

// SweepEvery sets the time between two looks for blocked rows that are gone or changed.
func (c *Consumer) SweepEvery(d time.Duration) { c.times.sweep = d }

// HoldForSuspects sets how long other work waits for crash suspects.
func (c *Consumer) HoldForSuspects(d time.Duration) { c.times.suspectHold = d }

// PauseAtMost sets the longest pause while something that handlers need is away.
func (c *Consumer) PauseAtMost(d time.Duration) {
	c.times.pauses = Backoff(min(d, 100*time.Millisecond), d)
}

// TryWhileAway sets the time between two attempts of the process while something is away.
func (c *Consumer) TryWhileAway(d time.Duration) { c.times.outage = d }

// QuietAfter sets how long the process polls each time after a notification.
func (c *Consumer) QuietAfter(d time.Duration) { c.times.quiet = d }

// LeaveWithin sets how long Run tries to leave the lease after the last batch.
func (c *Consumer) LeaveWithin(d time.Duration) { c.times.leave = d }

// RecordWithin sets how long recording the ends of ownerships may take.
func (c *Consumer) RecordWithin(d time.Duration) { c.times.record = d }

// Announced reports whether the table has the trigger that notifies.
func (c *Consumer) Announced() bool { return c.announced }

// CrashSQL returns the statement of crash.sql.
func (c *Consumer) CrashSQL() string { return c.sql.Crash }

// OursSQL returns the statement that makes the settings of our statements.
func (c *Consumer) OursSQL() string { return c.sql.Ours }

// PollSQL returns the statement of poll.sql.
func (c *Consumer) PollSQL() string { return c.sql.Poll }

// Together returns how many of so many partitions that have a row each get into one batch while so
// many slots are free, if the handler takes so long for a row of so many bytes; 0: that is not known.
func Together(due, free int, pace time.Duration, size int64, opts ...Option) int {
	o, _ := newOptions(opts)
	c := &Consumer{options: o}
	c.counts.pace.Store(int64(pace))
	c.counts.size.Store(size)
	q := queued(due)
	for _, p := range q.partitions {
		p.due, p.expect = true, 1
	}
	j, _ := q.next(time.Now(), room{free, c.batch(), pace})
	return len(j.of)
}

// Pace returns how long the handler takes for a row, as far as that is known.
func (c *Consumer) Pace() time.Duration { return time.Duration(c.counts.pace.Load()) }

// LogOverrunAfter sets after how long it is logged that code of the application continues.
func (c *Consumer) LogOverrunAfter(d time.Duration) { c.times.overrun = d }

// LookEvery sets the time between two looks whether the transaction of a call still exists.
func (c *Consumer) LookEvery(d time.Duration) { c.times.look = d }

// GoOnFor sets for how long a job goes on with the next rows of its partition.
func (c *Consumer) GoOnFor(d time.Duration) { c.times.goOn = d }

// AnswerWithin sets the most that a poll, or the begin of ownerships, takes.
func (c *Consumer) AnswerWithin(d time.Duration) { c.times.answer = d }

// LookAt sets how many rows a poll looks at, at most.
func (c *Consumer) LookAt(rows int) { c.times.rows = rows }

// DueSQL returns the statement of due.sql.
func (c *Consumer) DueSQL() string { return c.sql.Due }

// Searches are polls of a process that owns partitions, without the process.
type Searches struct {
	queue  *queue
	poller poller
	sent   *poll
}

// NewSearches returns the polls of a process that owns so many partitions. Each looks at so many
// rows at most.
func NewSearches(n, rows int) *Searches {
	return &Searches{queue: queued(n), poller: poller{rows: rows}}
}

// Sweep makes the next poll sweep a partition.
func (s *Searches) Sweep(partition int) { s.queue.partitions[partition].sweepAt = time.Time{} }

// Ask returns the parameters of the next poll's statement of poll.sql.
func (s *Searches) Ask(consumer string) []any {
	of, idle := s.queue.asked()
	s.sent, _ = s.poller.question(time.Now(), of, idle, 0, 0)
	s.sent.has, s.sent.seen = make(map[int]bool), make(map[int]sight)
	l := s.sent.looks
	return []any{l.partitions, l.rounds, l.tails, l.most, consumer}
}

// Answer takes the answer to the poll, with the oldest open transaction, and the one after the
// last that has ended. It returns how many partitions have rows.
func (s *Searches) Answer(rows pgx.Rows, oldest, next int64) (int, error) {
	err := s.sent.readPartitions(rows)
	s.sent.oldest, s.sent.next = oldest, next
	s.poller.after(s.sent, false, false)
	s.poller.swept(s.sent, time.Now(), defaultTimings.sweep)
	s.queue.answered(s.sent, time.Now())
	return len(s.sent.has), err
}

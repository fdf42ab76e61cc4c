package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/handlers"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/schedule/sql"
)

// This file sends the SQL of the package, with one method for each statement in sql. Only what one
// part alone needs is with that part: blocking by kind or because a row is unreadable, and
// settings.

// statements has the statements of sql/statements.sql by name: see store.Fill.
type statements struct {
	Join, Place, Poll, Block, SetAside, Begin, End, Open, Locked string
	Limit                                                        string
	Close, EndTick, EndJob, PostponeJob                          string
	MakeSlots, TakeSlot, FreeSlot                                string
	EnqueueMany, Enqueue, EnqueueOrKeep, EnqueueOrReplace        string
	Job, Jobs, Get, Create, Replace                              string
	List, History, Trim                                          string
	Declare, Declared                                            string

	// The verbs on schedules and jobs: of programs with Do before the name, of operators without.
	Read                       string
	DoLock, Lock               string
	DoPause, Pause             string
	DoResume, Resume           string
	DoCatchUp, CatchUp         string
	DoDelete, Delete           string
	DoTrigger, Trigger         string
	DoBackfill, Backfill       string
	DoRetryTick, RetryTick     string
	DoRetryJob, RetryJob       string
	DoRetryFailed, RetryFailed string
	DoCancelJob, CancelJob     string
}

func statementsFor(schema string) (s statements) {
	store.Fill(&s, store.Texts(sql.Files, schema))
	return s
}

// A db sends the statements of a group.
type db struct {
	pool       *pgxpool.Pool
	line       *worker.Line // nil: there is no client
	group      string
	partitions int
	statements statements
	times      *timings
	log        *slog.Logger
	staged     bool // the clock of a test counts

	reason, actor string // of WithReason
	// inPool runs a function in a transaction of the pool
	inPool func(context.Context, *worker.Line, *pgxpool.Pool, func(context.Context, pgx.Tx) error) error
	around func(context.Context, Info, func(context.Context) error) error
}

func newDB(pool *pgxpool.Pool, group string, o options, times *timings) *db {
	return &db{
		pool: pool, group: group, partitions: o.partitions, statements: statementsFor(o.schema), times: times,
		log: slog.New(slog.DiscardHandler), reason: o.reason, actor: o.actor,
		inPool: worker.InTx, around: o.around,
	}
}

// A querier is a connection, a pool, or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// void runs a statement, and ignores its result.
func void(ctx context.Context, q querier, statement string, args ...any) error {
	return q.QueryRow(ctx, statement, args...).Scan(nil)
}

// maxConflicts is how many attempts a transaction has that the database breaks off in favor of
// another.
const maxConflicts = 3

// inTx runs f in its own transaction, and repeats it if the database broke it off.
func (d *db) inTx(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return d.repeat(ctx, maxConflicts, conflict, func() error { return d.inOneTx(ctx, f) })
}

func (d *db) inOneTx(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return store.Advised(d.inPool(ctx, d.line, d.pool, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, fmt.Sprintf("SET LOCAL lock_timeout = %d", d.times.LockWait.Milliseconds()))
		if err != nil {
			return err
		}
		return f(ctx, tx)
	}))
}

// briefly is inTx with the time limit for an answer of the database.
func (d *db) briefly(ctx context.Context, f func(context.Context, pgx.Tx) error) error {
	return d.within(ctx, func(ctx context.Context) error { return d.inTx(ctx, f) })
}

// asking calls f with a connection of the pool. f only reads, or may be repeated.
func (d *db) asking(ctx context.Context, f func(context.Context, querier) error) error {
	return worker.Read(ctx, d.line, d.pool, func(ctx context.Context, conn *pgxpool.Conn) error { return f(ctx, conn) })
}

// asked is asking for an f that returns what it has read.
func asked[T any](ctx context.Context, d *db, f func(context.Context, querier) (T, error)) (found T, err error) {
	err = d.asking(ctx, func(ctx context.Context, q querier) error {
		found, err = f(ctx, q)
		return err
	})
	return found, err
}

// repeat calls f up to atMost times, while passes is true for its error.
func (d *db) repeat(ctx context.Context, atMost int, passes func(error) bool, f func() error) error {
	if d.staged {
		atMost = min(atMost, 3) // usually the other transaction waits for the test
	}
	for tries := 1; ; tries++ {
		err := f()
		if err == nil || !passes(err) || tries == atMost || ctx.Err() != nil {
			return err
		}
		store.Pause(ctx, min(10*time.Millisecond<<min(tries, 8), 2*time.Second))
	}
}

// within limits the time of statements besides those of handlers, so a silent connection delays no
// run for longer. They are in no transaction of a run: if a tracer or a hook of the application's
// pool ends its goroutine, that is an error of the connection, as a panic is.
func (d *db) within(ctx context.Context, f func(context.Context) error) error {
	return lostIfCut(handlers.Call(func() error { return d.inTime(ctx, d.times.Answer, f) }))
}

// inTime limits the time of statements.
func (d *db) inTime(ctx context.Context, limit time.Duration, f func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	return store.Advised(d.traced(ctx, func() error { return f(ctx) }))
}

// traced calls what sends statements, in which a tracer or a hook of the application's pool may
// misbehave. A panic there is an error of the connection. traced logs it if such code continues for
// long after the end of ctx, because a run waits for it.
func (d *db) traced(ctx context.Context, f func() error) (err error) {
	defer handlers.Watch(ctx, d.times.Overrun, func() {
		d.log.Warn("schedule: statement still under way after its time limit", slog.Any("cause", context.Cause(ctx)))
	}, func(lasted time.Duration) {
		d.log.Info("schedule: statement ended after its time limit", slog.Duration("for", lasted))
	})()
	defer func() { err = lostIfCut(err) }()
	defer handlers.Caught(&err)
	return f()
}

// lostIfCut makes an error of the connection of a panic, so that what failed is repeated.
func lostIfCut(err error) error {
	if errors.As(err, new(handlers.CutShort)) {
		return worker.Lost(err)
	}
	return err
}

func (d *db) sendJoin(ctx context.Context, q querier) error {
	return void(ctx, q, d.statements.Join, d.group, int32(d.partitions))
}

func (d *db) sendPlace(ctx context.Context, q querier, misplaced []subject) error {
	schedules, jobs := idsOf(misplaced)
	return void(ctx, q, d.statements.Place, d.group, int32(d.partitions), schedules, jobs)
}

// idsOf returns the IDs of schedules and those of jobs.
func idsOf(subjects []subject) (schedules, jobs []int64) {
	schedules, jobs = []int64{}, []int64{} // not NULL
	for _, s := range subjects {
		if s.Job {
			jobs = append(jobs, s.ID)
		} else {
			schedules = append(schedules, s.ID)
		}
	}
	return schedules, jobs
}

// sendPoll sets in a poll what is due, the database's time when the poll began, how long the poll
// took there, and what is gone.
func (d *db) sendPoll(ctx context.Context, q querier, p *poll, keys []string) error {
	var micro, spent int64
	var goneSchedules, goneJobs []int64
	schedules, jobs := idsOf(p.running)
	var f struct {
		id, due                      []int64
		job                          []bool
		priority, partition, crashes []int
		key, kind                    []string
	}
	err := q.QueryRow(
		ctx, d.statements.Poll, d.group, p.partitions, append([]int32{}, p.fresh...), p.since.UnixMicro(),
		p.ahead.Microseconds(), p.furtherBack(), p.mostOf(), p.few, p.total, keys,
		append([]string{}, p.left.kinds...), schedules, jobs,
	).Scan(
		&micro, &spent, &f.id, &f.job, &f.priority, &f.partition, &f.key, &f.kind, &f.due, &f.crashes,
		&goneSchedules, &goneJobs,
	)
	if err != nil {
		return err
	}
	p.clock, p.took = time.UnixMicro(micro), time.Duration(spent)*time.Microsecond
	p.due, p.gone = make([]item, len(f.id)), nil
	for i := range p.due {
		p.due[i] = item{
			subject: subject{f.id[i], f.job[i]}, Priority: f.priority[i], Partition: f.partition[i],
			Key: f.key[i], Kind: f.kind[i], DueMicro: f.due[i], Crashes: f.crashes[i],
		}
	}
	for _, id := range goneSchedules {
		p.gone = append(p.gone, subject{ID: id})
	}
	for _, id := range goneJobs {
		p.gone = append(p.gone, subject{ID: id, Job: true})
	}
	return nil
}

// begin sets crashed to whether the previous owner crashed while runs may have been under way.
func (d *db) begin(crashed *bool) opening {
	args := []any{d.group, d.times.LockWait.Milliseconds()}
	return opening{d.statements.Begin, args, func(row pgx.Row) error { return row.Scan(crashed) }}
}

// sendEnd records that all runs of ownerships have ended, including those with a counted crash.
func (d *db) sendEnd(ctx context.Context, q querier, of []*ownership, counted []subject) error {
	schedules, jobs := idsOf(counted)
	var numbers []int32
	var epochs []int64
	for _, o := range of {
		numbers, epochs = append(numbers, int32(o.Number)), append(epochs, o.Epoch)
	}
	wait := d.times.LockWait.Milliseconds()
	return void(ctx, q, d.statements.End, leaseOf+d.group, numbers, epochs, d.group, schedules, jobs, wait)
}

// open sets *found to the schedule or job; nil if it does not exist.
func (d *db) open(found *runnable, of subject, run string, timeout, idle time.Duration) opening {
	args := []any{of.ID, of.Job, run, timeout.Milliseconds(), idle.Milliseconds(), d.times.LockWait.Milliseconds()}
	return opening{d.statements.Open, args, func(row pgx.Row) error {
		var text *string
		err := row.Scan(&text)
		if err != nil || text == nil {
			return err
		}
		*found, err = decodeRunnable(*text, of.Job)
		return err
	}}
}

// decodeRunnable returns a schedule or job. If it cannot be read, it has what identifies it.
func decodeRunnable(text string, isJob bool) (runnable, error) {
	if isJob {
		job, err := decodeJob(&text)
		if err == nil {
			return job, nil
		}
		ill, err := unreadableRow(text, err)
		return &jobRow{row: ill}, err
	}
	one, err := decodeSchedule(&text)
	if err == nil {
		return one, nil
	}
	ill, err := unreadableRow(text, err)
	return &scheduleRow{row: ill}, err
}

// sendClose ends a run, with limits of its own, because those before are the handler's. It commits
// the transaction, takes at most limit, and waits at most lockWait for a lock.
func (d *db) sendClose(
	ctx context.Context, tx *handlers.Transaction, of runnable, run string, st step, limit, lockWait time.Duration,
) error {
	st.Outcomes = slices.Clone(st.Outcomes)
	if !tx.InUTF8() { // it may lack characters of an error
		st.inASCII()
	}
	batch := new(pgx.Batch)
	batch.Queue(d.statements.Limit, max(statementLimit, limit).Milliseconds(), lockWait.Milliseconds())
	closed := false
	statement, args := d.endStatement(of, run, &st)
	batch.Queue(statement, args...).Exec(func(pgconn.CommandTag) error {
		closed = true
		return nil
	})
	err := d.inTime(ctx, limit, func(ctx context.Context) error {
		return d.line.Answered(ctx, func(ctx context.Context) error { return tx.CommitAfter(ctx, batch) })
	})
	// otherwise a deferred constraint of the handler's tables waited during the commit
	if !closed && store.LockTimeout(err) {
		return locked{err}
	}
	return err
}

// lockWait returns how long the end of a run waits for the row of its schedule or job, after a
// handler that took this long. To run it again costs as much, and a longer wait would keep its
// place from others.
func (d *db) lockWait(took time.Duration) time.Duration {
	return min(max(leastLockWait, took), d.times.LockWait)
}

const leastLockWait = 100 * time.Millisecond

// sendLocked reports whether another transaction has locked the row of a schedule or job.
func (d *db) sendLocked(ctx context.Context, q querier, of subject) (is bool, err error) {
	err = q.QueryRow(ctx, d.statements.Locked, of.ID, of.Job).Scan(&is)
	return is, err
}

// endStatement returns the statement that ends a run, and its arguments.
func (d *db) endStatement(of runnable, run string, st *step) (statement string, args []any) {
	job, is := of.(*jobRow)
	if !is {
		r := of.(*scheduleRow)
		if r.endsTick(st) {
			return d.statements.EndTick, endTickArgs(r, run, st)
		}
		return d.statements.Close, closeArgs(r, run, st)
	}
	if len(st.Outcomes) > 0 {
		return d.statements.EndJob, endJobArgs(job, run, st.Outcomes[0])
	}
	args = []any{job.ID, run, job.Revision, st.Due, st.BlockedReason}
	return d.statements.PostponeJob, append(args, trialArgs(st.Trying)...)
}

// endTickArgs are the arguments of schedule_end_tick.
func endTickArgs(r *scheduleRow, run string, st *step) []any {
	ran := st.Outcomes[0]
	return []any{
		r.ID, run, r.Revision, st.Before, st.Cursor, shownMicro(st.CursorLocal), st.Due, ran.Epoch, ran.StartedAt,
		st.RanUntil,
	}
}

// closeArgs are the arguments of schedule_close.
func closeArgs(r *scheduleRow, run string, st *step) []any {
	args := []any{
		r.ID, run, r.Revision, st.Before, st.Cursor, shownMicro(st.CursorLocal), st.Due, st.Succeeded,
		st.RanFrom, st.RanUntil, st.Failures, st.PausedAt, st.BlockedReason,
	}
	t := value(st.Trying)
	args = append(args, known(t.At), shownMicro(known(t.Local)), t.Missed)
	args = append(args, trialArgs(st.Trying)...)
	passed, ran := st.passed()
	since, until := []time.Time{}, []time.Time{}
	ticks, outcomes := []int64{}, []string{}
	for _, f := range passed {
		since, until = append(since, f.Since), append(until, f.Until)
		ticks, outcomes = append(ticks, f.Ticks), append(outcomes, string(f.Outcome))
	}
	args = append(args, since, until, ticks, outcomes)
	if ran == nil {
		return append(args, nil, nil, nil, nil, nil, nil, nil, nil)
	}
	args = append(args, ran.Since, string(ran.Outcome), ran.Error, ran.Attempts, ran.Epoch, ran.StartedAt)
	if ran.Outcome == OutcomeSucceeded {
		return append(args, nil, nil)
	}
	return append(args, ran.Rule, ran.Begins)
}

// endJobArgs are the arguments of schedule_end_job.
func endJobArgs(r *jobRow, run string, f newEntry) []any {
	args := []any{r.ID, run, r.Revision, string(f.Outcome), f.Error, f.Attempts, f.Epoch, f.StartedAt, f.Until}
	if f.Outcome == OutcomeSucceeded { // it is not retried
		return append(args, nil, nil, nil)
	}
	return append(args, f.Key, string(f.Args), f.Nonce)
}

// trialArgs are the arguments for the columns of a trial, from began to call_ends.
func trialArgs(trying *trial) []any {
	t := value(trying)
	return []any{
		known(t.Began), t.Attempts, t.Away, t.Error, known(t.Again), t.Crashes, known(t.Epoch),
		known(t.Run), known(t.Called), t.Once, known(t.Started), known(t.Ends),
	}
}

// known returns nil, which is NULL, for a zero value.
func known[T comparable](v T) *T {
	if v == *new(T) {
		return nil
	}
	return &v
}

// shownMicro returns a local time as microseconds since 1970, as if it were in UTC; nil for nil.
func shownMicro(local *time.Time) *int64 {
	if local == nil {
		return nil
	}
	_, offset := local.Zone()
	micro := local.UnixMicro() + int64(offset)*1e6
	return &micro
}

// sendEnqueueMany returns the IDs of jobs without a unique key.
func (d *db) sendEnqueueMany(ctx context.Context, q querier, job newJob, args []string) (ids []int64, err error) {
	nonces, hashes := job.marks(len(args))
	err = q.QueryRow(
		ctx, d.statements.EnqueueMany, d.group, int32(d.partitions), job.Kind, known(job.Key), job.Priority,
		job.At, job.InMicro, args, nonces, hashes,
	).Scan(&ids)
	return ids, err
}

// sendEnqueue returns the ID of a job; empty if its unique key is taken.
func (d *db) sendEnqueue(ctx context.Context, q querier, job newJob) (ids []int64, err error) {
	err = q.QueryRow(ctx, d.statements.Enqueue, d.group, int32(d.partitions), encode([]newJob{job})).Scan(&ids)
	return ids, err
}

// sendEnqueueOrKeep returns the ID of the live job with the unique key.
func (d *db) sendEnqueueOrKeep(ctx context.Context, q querier, job newJob) (id int64, err error) {
	err = q.QueryRow(ctx, d.statements.EnqueueOrKeep, d.group, int32(d.partitions), encode(job)).Scan(&id)
	return id, err
}

// sendEnqueueOrReplace returns the ID of the live job with the unique key.
func (d *db) sendEnqueueOrReplace(ctx context.Context, q querier, job newJob) (id int64, err error) {
	err = q.QueryRow(ctx, d.statements.EnqueueOrReplace, d.group, int32(d.partitions), encode(job)).Scan(&id)
	return id, err
}

// sendJob returns a job, or its outcome; nil if neither exists.
func (d *db) sendJob(ctx context.Context, q querier, id int64) (*Job, error) {
	var found *string
	if err := q.QueryRow(ctx, d.statements.Job, d.group, id).Scan(&found); err != nil {
		return nil, err
	}
	return decode[Job](found)
}

func (d *db) sendJobs(ctx context.Context, q querier, f JobFilter, after int64) ([]Job, error) {
	return collect[Job](ctx, q, d.statements.Jobs, d.group, f.Kind, f.Prefix, string(f.State), after, page)
}

// verb sends a verb: with a reason that of an operator, which records it, and otherwise that of a
// program.
func (d *db) verb(ctx context.Context, tx pgx.Tx, program, operator string, args ...any) pgx.Row {
	if d.reason == "" {
		return refusing{tx.QueryRow(ctx, program, args...)}
	}
	return refusing{tx.QueryRow(ctx, operator, append(args, d.actor, d.reason)...)}
}

// A refusing row returns what the database refuses as a refusal.
type refusing struct{ pgx.Row }

func (r refusing) Scan(dest ...any) error { return refusal(r.Row.Scan(dest...)) }

// sendRead returns a schedule.
func (d *db) sendRead(ctx context.Context, q querier, name string) (*scheduleRow, error) {
	return scheduleIn(refusing{q.QueryRow(ctx, d.statements.Read, d.group, name)})
}

// sendLock locks a schedule until the end of the transaction, and returns it.
func (d *db) sendLock(ctx context.Context, tx pgx.Tx, name string) (*scheduleRow, error) {
	return scheduleIn(d.verb(ctx, tx, d.statements.DoLock, d.statements.Lock, d.group, name))
}

// scheduleIn returns the schedule in the one column of a row.
func scheduleIn(row pgx.Row) (*scheduleRow, error) {
	var found string
	err := row.Scan(&found)
	if err != nil {
		return nil, err
	}
	return decodeSchedule(&found)
}

func (d *db) sendPause(ctx context.Context, tx pgx.Tx, name string) error {
	return d.verb(ctx, tx, d.statements.DoPause, d.statements.Pause, d.group, name).Scan(nil)
}

// sendResume ends the pause of a schedule that sendLock has locked, and cancels passed ticks.
func (d *db) sendResume(ctx context.Context, tx pgx.Tx, name string, c canceled) error {
	args := []any{d.group, name, c.until, c.last, c.ticks}
	return d.verb(ctx, tx, d.statements.DoResume, d.statements.Resume, args...).Scan(nil)
}

// sendCatchUp ends the pause of a schedule, and keeps passed ticks.
func (d *db) sendCatchUp(ctx context.Context, tx pgx.Tx, name string) error {
	return d.verb(ctx, tx, d.statements.DoCatchUp, d.statements.CatchUp, d.group, name).Scan(nil)
}

// sendDelete deletes a schedule that sendLock has locked, and cancels passed ticks.
func (d *db) sendDelete(ctx context.Context, tx pgx.Tx, name string, c canceled) error {
	args := []any{d.group, name, c.until, c.last, c.ticks}
	return d.verb(ctx, tx, d.statements.DoDelete, d.statements.Delete, args...).Scan(nil)
}

// sendTrigger returns the job of the extra run.
func (d *db) sendTrigger(ctx context.Context, tx pgx.Tx, name string) (id int64, err error) {
	err = d.verb(ctx, tx, d.statements.DoTrigger, d.statements.Trigger, d.group, name).Scan(&id)
	return id, err
}

// sendBackfill returns the jobs of the extra runs.
func (d *db) sendBackfill(ctx context.Context, tx pgx.Tx, name string, b backfill) (ids []int64, err error) {
	if d.reason == "" {
		err = tx.QueryRow(ctx, d.statements.DoBackfill, d.group, name, b.begins, b.ticks).Scan(&ids)
		return ids, refusal(err)
	}
	args := []any{d.group, name, b.after, b.until, b.begins, b.ticks, d.actor, d.reason}
	err = tx.QueryRow(ctx, d.statements.Backfill, args...).Scan(&ids)
	return ids, refusal(err)
}

// sendRetryTick returns the job that runs the tick once more.
func (d *db) sendRetryTick(ctx context.Context, tx pgx.Tx, name string, tick time.Time) (id int64, err error) {
	err = d.verb(ctx, tx, d.statements.DoRetryTick, d.statements.RetryTick, d.group, name, tick).Scan(&id)
	return id, err
}

// sendRetryJob returns the job that runs the job once more.
func (d *db) sendRetryJob(ctx context.Context, tx pgx.Tx, job int64) (id int64, err error) {
	err = d.verb(ctx, tx, d.statements.DoRetryJob, d.statements.RetryJob, d.group, job).Scan(&id)
	return id, err
}

// sendRetryFailed returns the new jobs, and how many ticks and jobs were not retried.
func (d *db) sendRetryFailed(
	ctx context.Context, tx pgx.Tx, kind string, since time.Time,
) (ids []int64, refused int, err error) {
	program, operator := d.statements.DoRetryFailed, d.statements.RetryFailed
	err = d.verb(ctx, tx, program, operator, d.group, kind, since).Scan(&ids, &refused)
	return ids, refused, err
}

func (d *db) sendCancelJob(ctx context.Context, tx pgx.Tx, job int64) error {
	return d.verb(ctx, tx, d.statements.DoCancelJob, d.statements.CancelJob, d.group, job).Scan(nil)
}

// sendGet locks a schedule for an edit. It returns the time, and the schedule; nil if it does not
// exist.
func (d *db) sendGet(
	ctx context.Context, q querier, name string, args json.RawMessage,
) (clock time.Time, r *scheduleRow, err error) {
	var micro int64
	var found *string
	err = q.QueryRow(ctx, d.statements.Get, d.group, name, string(args)).Scan(&micro, &found)
	if err == nil {
		r, err = decodeSchedule(found)
		if err != nil {
			err = unreadable{err}
		}
	}
	return time.UnixMicro(micro), r, err
}

// sendCreate reports whether a schedule is created. It is not if another transaction has created
// one of its name.
func (d *db) sendCreate(
	ctx context.Context, q querier, want *scheduleRow, now time.Time, due *time.Time,
) (created bool, err error) {
	args := append([]any{d.group, int32(d.partitions), want.Name}, wantedArgs(want, now, due)...)
	err = q.QueryRow(ctx, d.statements.Create, args...).Scan(&created)
	return created, err
}

// sendReplace edits a schedule that sendGet has locked.
func (d *db) sendReplace(
	ctx context.Context, q querier, id int64, want *scheduleRow, now time.Time, due *time.Time, c canceled,
) error {
	args := append([]any{d.group, int32(d.partitions), id}, wantedArgs(want, now, due)...)
	return void(ctx, q, d.statements.Replace, append(args, c.until, c.last, c.ticks)...)
}

// wantedArgs are the arguments for what a caller wants of a schedule.
func wantedArgs(want *scheduleRow, now time.Time, due *time.Time) []any {
	p := want.Policy
	return []any{
		want.Key, want.Kind, string(want.Args), want.Rule, missedNames[p.Missed], overlapNames[p.Overlap],
		p.Grace.Microseconds(), p.Jitter.Microseconds(), known(p.PauseAfter), want.Declared, now, due,
	}
}

func (d *db) sendDeclare(ctx context.Context, q querier, names []string) error {
	return void(ctx, q, d.statements.Declare, d.group, names)
}

// sendDeclared returns the stored schedules among the declared ones, and how many partitions the
// lease has; 0 if it does not exist.
func (d *db) sendDeclared(
	ctx context.Context, q querier, declared []*scheduleRow,
) (have map[string]*scheduleRow, partitions int, err error) {
	var names, args, texts []string
	for _, r := range declared {
		names, args = append(names, r.Name), append(args, string(r.Args))
	}
	err = q.QueryRow(ctx, d.statements.Declared, d.group, names, args, leaseOf+d.group).Scan(&texts, &partitions)
	if err != nil {
		return nil, 0, err
	}
	have = make(map[string]*scheduleRow, len(texts))
	for _, text := range texts {
		r, err := decodeRunnable(text, false)
		if err != nil {
			return nil, 0, err
		}
		have[r.common().Name] = r.(*scheduleRow)
	}
	return have, partitions, nil
}

func (d *db) sendList(ctx context.Context, q querier, f ScheduleFilter, after string, most int) ([]Schedule, error) {
	return collect[Schedule](ctx, q, d.statements.List, d.group, f.Only, f.Prefix, after, most)
}

// sendHistory returns the entries of a schedule; if name is nil, of failed jobs.
func (d *db) sendHistory(ctx context.Context, q querier, name *string, before int64, most int) ([]HistoryEntry, error) {
	return collect[HistoryEntry](ctx, q, d.statements.History, d.group, name, before, most)
}

func (d *db) sendTrim(
	ctx context.Context, q querier, failed bool, before time.Time, after int64,
) (upTo int64, more bool, err error) {
	err = q.QueryRow(ctx, d.statements.Trim, d.group, failed, before, after, trimPage).Scan(&upTo, &more)
	return upTo, more, err
}

func (d *db) sendMakeSlots(ctx context.Context, q querier, k *kind) error {
	return void(ctx, q, d.statements.MakeSlots, d.group, k.name, k.limits.concurrent)
}

// sendTakeSlot returns the slot that a run has taken; nil if all were taken. run is nil if the
// slot ends with the transaction.
func (d *db) sendTakeSlot(
	ctx context.Context, tx *handlers.Transaction, k *kind, p pgleases.Partition, run *string,
) (slot *int, err error) {
	args := []any{d.group, k.name, k.limits.concurrent, p.Number, p.Epoch, run}
	err = tx.QueryRow(ctx, d.statements.TakeSlot, args...).Scan(&slot)
	return slot, err
}

// sendFreeSlot frees the slot of a call; nil: it is not known which.
func (d *db) sendFreeSlot(ctx context.Context, q querier, kind string, slot *int, run string) error {
	return void(ctx, q, d.statements.FreeSlot, d.group, kind, slot, run, time.Second.Milliseconds())
}

// collect returns the rows of a statement, each as JSON. A row that cannot be read is returned with
// what is known of it.
func collect[T any](ctx context.Context, q querier, statement string, args ...any) ([]T, error) {
	rows, _ := q.Query(ctx, statement, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (v T, err error) {
		var text string
		err = r.Scan(&text)
		if err != nil {
			return v, err
		}
		err = json.Unmarshal([]byte(text), &v)
		shown, ok := any(&v).(interface{ showUnreadable(string, error) })
		if ok && err != nil {
			shown.showUnreadable(text, err)
			err = nil
		}
		return v, err
	})
}

// decode returns nil for NULL.
func decode[T any](text *string) (*T, error) {
	if text == nil {
		return nil, nil
	}
	v := new(T)
	return v, json.Unmarshal([]byte(*text), v)
}

// encode returns the JSON of a value that always has JSON.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

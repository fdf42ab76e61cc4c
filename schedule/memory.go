package schedule

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// This file is what the functions in sql/functions.sql do, without a database, for package scheduletest. Tests of that package hold both against each other.

// A memory has the tables of one group.
type memory struct {
	stage *seam.Stage

	mu         sync.Mutex // guards what follows, and what transactions have written
	partitions int
	rows               // that are committed
	due        []*line // that are ever due, in that order
	owners     map[int]owner
	locks      map[any]*memoryTx // what transactions that are under way have written
	last       int64             // id of a row
	lastEntry  int64
	ended      map[int64]*told // of jobs
	runs       map[subject]bool
	slots      map[slot]string // that calls outside of transactions have
}

// rows are written by one transaction, or are what is committed.
type rows struct {
	of      map[subject]*line // nil: it is deleted
	history []*told           // in the order of their ids
	edited  map[int64]*told   // by their ids; nil: it is deleted
}

// A line is a schedule, or a job. It is never changed, but replaced.
type line struct {
	record
	unique   *string
	priority int
}

// told is a row of the history.
type told struct {
	entry
	of      subject
	again   newJob // of a job: what it is retried as
	retried int64  // the job as which it was; 0: it was not
}

// A slot is one of a kind that has a limit.
type slot struct {
	kind string
	n    int
}

// An owner is what is known of the owners of a partition.
type owner struct {
	opened, closed int64
	died           bool
}

func newMemory(stage *seam.Stage, partitions int) *memory {
	return &memory{
		stage: stage, partitions: partitions, rows: newRows(), owners: make(map[int]owner), locks: make(map[any]*memoryTx),
		ended: make(map[int64]*told), slots: make(map[slot]string), runs: make(map[subject]bool),
	}
}

func newRows() rows { return rows{of: make(map[subject]*line), edited: make(map[int64]*told)} }

// now is the time as the database has it.
func (m *memory) now() time.Time { return m.stage.Now().Truncate(time.Microsecond).UTC() }

// read is a row as it is read.
func (m *memory) read(r *line) *record {
	if r == nil {
		return nil
	}
	read := r.record
	read.Clock = m.now()
	return &read
}

func (m *memory) partitionOf(key string) int { return seam.PartitionFor(key, m.partitions) }

// declare stands in for schedule_declare.
func (m *memory) declare(names []string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for s, r := range m.of {
		if !s.Job && slices.Contains(names, r.Name) {
			declared := *r
			declared.Registered = m.now()
			m.write(s, &declared)
		}
	}
	return nil
}

// join stands in for schedule_join.
func (m *memory) join(partitions int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.partitions = partitions
	for s, r := range m.of {
		moved := *r
		moved.Partition = m.partitionOf(r.Key)
		m.write(s, &moved)
	}
	return nil
}

// begin stands in for schedule_begin.
func (m *memory) begin(partition int, epoch int64) (died bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	o := m.owners[partition]
	if o.opened != epoch {
		o.died = o.opened > o.closed
	}
	o.opened = epoch
	m.owners[partition] = o
	return o.died
}

// end stands in for schedule_end.
func (m *memory) end(partition int, epoch int64, charged []subject) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range charged {
		if r := m.of[s]; r != nil && r.Trying.chargedTo(epoch) {
			taken, t := *r, *r.Trying
			t.Crashes, t.Epoch = t.Crashes-1, 0
			taken.Trying = &t
			m.write(s, &taken)
		}
	}
	if o := m.owners[partition]; o.opened == epoch {
		o.closed = epoch
		m.owners[partition] = o
	}
}

// take stands in for schedule_take.
func (m *memory) take(ctx context.Context, tx *transaction, k *kind, run *string) (taken bool, err error) {
	err = m.in(ctx, tx.Tx, func(t *memoryTx) error {
		for n := range k.limits.atOnce {
			s := slot{k.name, n}
			if m.slots[s] != "" || t.lock(s) != nil {
				continue
			}
			if taken = true; run != nil {
				m.slots[s] = *run
			}
			return nil
		}
		return nil
	})
	return taken, err
}

// free stands in for schedule_free.
func (m *memory) free(run string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	maps.DeleteFunc(m.slots, func(_ slot, of string) bool { return of == run })
}

// open stands in for schedule_open.
func (m *memory) open(s subject) *record {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.read(m.of[s])
}

// running notes that something runs, or does no more.
func (m *memory) running(s subject, runs bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if runs {
		m.runs[s] = true
	} else {
		delete(m.runs, s)
	}
}

// look stands in for schedule_look: it visits what is due up to an instant, in that order.
func (m *memory) look(until time.Time, visit func(seam.Due) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, r := range m.due {
		if r.Due.After(until) || !visit(seam.Due{
			ID: r.ID, Job: r.Job, Priority: r.priority, Partition: r.Partition, Key: r.Key, Kind: r.Kind, At: *r.Due,
			Crashes: r.Trying.crashes(),
		}) {
			return
		}
	}
}

// next is when the first is due after an instant; zero: never.
func (m *memory) next(after time.Time) time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	i, _ := slices.BinarySearchFunc(m.due, after, func(r *line, t time.Time) int {
		if r.Due.After(t) {
			return 1
		}
		return -1
	})
	if i == len(m.due) {
		return time.Time{}
	}
	return *m.due[i].Due
}

// write changes what is committed.
func (m *memory) write(s subject, r *line) {
	if before := m.of[s]; before != nil && before.Due != nil {
		i, _ := slices.BinarySearchFunc(m.due, before, sooner)
		m.due = slices.Delete(m.due, i, i+1)
	}
	if r == nil {
		delete(m.of, s)
		return
	}
	m.of[s] = r
	if r.Due != nil {
		i, _ := slices.BinarySearchFunc(m.due, r, sooner)
		m.due = slices.Insert(m.due, i, r)
	}
}

// sooner compares by when they are due, and by which came first.
func sooner(a, b *line) int { return cmp.Or(a.Due.Compare(*b.Due), cmp.Compare(a.ID, b.ID)) }

// fresh has what waits be due: another process may know what the last did not.
func (m *memory) fresh() {
	m.mu.Lock()
	defer m.mu.Unlock()
	clear(m.slots) // of epochs that have ended
	now := m.now()
	for s, r := range m.of {
		if r.Waits != nil && r.PausedAt == nil && r.DisabledAt == nil && r.Due != nil && r.Due.After(now) {
			due := *r
			due.Due = &now
			m.write(s, &due)
		}
	}
}

// A memoryTx is a transaction, or a savepoint of one: what it wrote is committed with what the application did in its own.
type memoryTx struct {
	m     *memory
	ctx   context.Context
	upper *memoryTx // of a savepoint
	wrote rows
	locks []any
	fails bool // a statement of ours has failed

	begun *pgx.Tx // the application's; nil: nothing has been asked of it
	ended bool
}

// BeginTx begins a transaction.
func (m *memory) BeginTx(ctx context.Context, _ pgx.TxOptions) (pgx.Tx, error) {
	return m.beginTx(ctx), nil
}

func (m *memory) beginTx(ctx context.Context) *memoryTx {
	return &memoryTx{m: m, ctx: ctx, wrote: newRows()}
}

// guarded runs f in a transaction, and commits it where f has not.
func (m *memory) guarded(life context.Context, queue queue, f func(context.Context, *transaction) error) error {
	if life.Err() != nil {
		return pgleases.ErrNotOwner
	}
	if err := queue(life, nil); err != nil { // what it would send is done
		return err
	}
	of := m.beginTx(life)
	defer func() { _ = of.Rollback(context.WithoutCancel(life)) }() // where it was not committed
	tx := &transaction{Tx: of}
	err := f(life, tx)
	switch {
	case err == nil && life.Err() != nil:
		err = pgleases.ErrNotOwner
	case err == nil && !tx.ended.Load():
		err = of.Commit(life)
	}
	if err != nil && of.begun != nil && of.Conn() != nil && of.Conn().IsClosed() {
		return lost{err}
	}
	return err
}

// in runs a statement of ours in a transaction: in that of q, where it is one that is known here, else in one of its own.
func (m *memory) in(ctx context.Context, q querier, f func(*memoryTx) error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	switch own := q.(type) {
	case handlerTx:
		q = own.live()
	case savepoint:
		q = own.live()
	}
	if q == closedTx {
		return pgx.ErrTxClosed
	}
	tx, known := q.(*memoryTx)
	if !known {
		tx = m.beginTx(ctx)
		defer func() { _ = tx.Rollback(ctx) }()
	}
	m.mu.Lock()
	err := pgx.ErrTxClosed
	switch {
	case tx.over():
	case tx.aborted():
		err = errAborted
	default:
		err = f(tx)
	}
	tx.fails = tx.fails || err != nil
	m.mu.Unlock()
	if err == nil && !known {
		err = tx.Commit(ctx)
	}
	return err
}

// over reports whether the transaction has ended.
func (t *memoryTx) over() bool { return t.ended || t.upper != nil && t.upper.over() }

// errAborted is what the server says to each statement after one that failed.
var errAborted = &pgconn.PgError{Severity: "ERROR", Code: "25P02", Message: "current transaction is aborted, commands ignored until end of transaction block"}

// aborted reports whether a statement has failed in it, ours or the application's.
func (t *memoryTx) aborted() bool {
	if t.upper != nil && t.upper.aborted() {
		return true
	}
	conn := t.Conn()
	return t.fails || conn != nil && conn.PgConn().TxStatus() == 'E'
}

// get returns a row as the transaction sees it.
func (t *memoryTx) get(s subject) *line {
	for ; t != nil; t = t.upper {
		if r, ok := t.wrote.of[s]; ok {
			return r
		}
		if t.upper == nil {
			return t.m.of[s]
		}
	}
	return nil
}

// find returns a row that the transaction sees.
func (t *memoryTx) find(is func(*line) bool) *line {
	look := func(rows map[subject]*line) *line {
		for s, r := range rows {
			if r != nil && is(r) && t.get(s) == r {
				return r
			}
		}
		return nil
	}
	for l := t; l != nil; l = l.upper {
		if r := look(l.wrote.of); r != nil {
			return r
		}
	}
	return look(t.m.of)
}

func (t *memoryTx) named(name string) *line {
	return t.find(func(r *line) bool { return !r.Job && r.Name == name })
}

// lock locks something until the transaction ends. Where another has it, the database would wait for that in vain.
func (t *memoryTx) lock(what any) error {
	top := t
	for top.upper != nil {
		top = top.upper
	}
	switch t.m.locks[what] {
	case top:
	case nil:
		t.m.locks[what] = top
		top.locks = append(top.locks, what)
	default:
		return &pgconn.PgError{
			Severity: "ERROR", Code: "55P03",
			Message: fmt.Sprintf("canceling statement due to lock timeout: a transaction that is under way has written %v", what),
		}
	}
	return nil
}

// set writes a row, which is not to be changed any more; nil: it is deleted.
func (t *memoryTx) set(s subject, r *line) { t.wrote.of[s] = r }

// tell writes down what became of a schedule's ticks, or of a job.
func (t *memoryTx) tell(r *line, fates []fate) {
	for _, f := range slices.SortedStableFunc(slices.Values(fates), func(a, b fate) int { return a.Until.Compare(b.Until) }) {
		e := entry{
			Name: r.Name, Kind: r.Kind, Since: f.Since, Until: f.Until, Ticks: f.Ticks, Fate: f.Fate, Attempts: f.Attempts,
			StartedAt: f.StartedAt, EndedAt: t.m.now(),
		}
		of := r.subject()
		if r.Job {
			e.Since, e.Until, e.Ticks = r.At, r.At, 1
		}
		if f.Error != nil {
			e.Error = *f.Error
		}
		if f.Epoch != nil {
			e.Epoch = *f.Epoch
		}
		t.wrote.history = append(t.wrote.history, &told{entry: e, of: of, again: r.again()})
	}
}

// again is a job as it is put once more.
func (r *line) again() newJob {
	if !r.Job {
		return newJob{}
	}
	return newJob{Kind: r.Kind, Name: &r.Name, Key: r.Key, Args: r.Args, Priority: Priority(r.priority), At: &r.At, Since: r.Since, UniqueKey: r.unique}
}

func (r *line) subject() subject { return subject{r.ID, r.Job} }

// close stands in for schedule_close and schedule_close_job, and commits.
func (m *memory) close(ctx context.Context, tx *transaction, r *record, st step) error {
	of := tx.Tx.(*memoryTx)
	err := m.in(ctx, of, func(t *memoryTx) error {
		s := subject{r.ID, r.Job}
		have := t.get(s)
		if have == nil {
			return &pgconn.PgError{Severity: "ERROR", Code: codeDeleted, Message: "it was deleted, or cancelled"}
		}
		if err := t.lock(have.lock()); err != nil {
			return err
		}
		if r.Job {
			t.closeJob(have, r, st)
			return nil
		}
		return t.close(have, r, st)
	})
	switch {
	case err == nil:
		err = of.Commit(ctx)
	case store.LockTimeout(err):
		err = locked{err}
	}
	tx.ended.Store(of.ended)
	return err
}

// lock is what is locked where a row is written.
func (r *line) lock() any {
	if r.Job {
		return r.subject()
	}
	return scheduleNamed(r.Name)
}

// scheduleNamed is a schedule as it is locked, also before it is there.
type scheduleNamed string

func (n scheduleNamed) String() string { return fmt.Sprintf("schedule %q", string(n)) }
func (s subject) String() string       { return fmt.Sprintf("job %d", s.ID) }

// A uniqueKey is locked, also before there is a job with it.
type uniqueKey struct{ kind, key string }

func (k uniqueKey) String() string { return fmt.Sprintf("unique key %q", k.key) }

func (t *memoryTx) close(have *line, r *record, st step) error {
	now, n := t.m.now(), *have
	if have.Cursor.Equal(r.Cursor) {
		n.Cursor, n.CursorLocal, n.Trying, n.Waits = st.Cursor, st.CursorLocal, st.Trying, st.Waits
		if st.Failures != nil {
			n.Failures = *st.Failures
		}
		n.Done, n.RanFrom, n.RanUntil = cmp.Or(st.Done, have.Done), cmp.Or(st.RanFrom, have.RanFrom), cmp.Or(st.RanUntil, have.RanUntil)
		n.PausedAt, n.DisabledAt = cmp.Or(have.PausedAt, st.PausedAt), cmp.Or(have.DisabledAt, st.DisabledAt)
		n.Due = st.Due
		if have.Revision != r.Revision {
			n.Due = &now
		}
		switch {
		case st.Waits != nil:
			n.WaitsSince = cmp.Or(have.WaitsSince, &now)
		case st.Due == nil || st.Due.After(now):
			n.WaitsSince = nil
		}
	} else { // where an edit passed over these ticks while they ran, they have run all the same
		if !t.passedOver(have, r.Cursor, st) {
			return &pgconn.PgError{
				Severity: "ERROR", Code: codeMoved,
				Message: fmt.Sprintf("schedule %q has come as far as %v, and the run began at %v", have.Name, have.Cursor, r.Cursor),
			}
		}
		if st.Done != nil && (have.Done == nil || st.Done.After(*have.Done)) {
			n.Done = st.Done
		}
	}
	t.set(have.subject(), &n)
	t.tell(have, st.Fates)
	return nil
}

// passedOver takes ticks that have run after all out of an entry, and reports whether there is one.
func (t *memoryTx) passedOver(have *line, since time.Time, st step) bool {
	var total int64
	for _, f := range st.Fates {
		total += f.Ticks
	}
	less := func(e *told) (left *told, is bool) {
		if total == 0 || e.of != have.subject() || e.Fate != FateCancelled || !e.Since.Equal(since) || e.Until.Before(st.Cursor) || e.Ticks < total {
			return e, false
		}
		if e.Ticks == total {
			return nil, true
		}
		l := *e
		l.Since, l.Ticks = st.Cursor, e.Ticks-total
		return &l, true
	}
	for i, e := range t.wrote.history { // the handler edited its own schedule
		if left, is := less(e); is {
			t.wrote.history = slices.Delete(t.wrote.history, i, i+1)
			if left != nil {
				t.wrote.history = slices.Insert(t.wrote.history, i, left)
			}
			return true
		}
	}
	for i := len(t.m.history) - 1; i >= 0; i-- {
		if left, is := less(t.m.history[i]); is {
			t.wrote.edited[t.m.history[i].ID] = left
			return true
		}
	}
	return false
}

func (t *memoryTx) closeJob(have *line, r *record, st step) {
	switch {
	case have.Revision != r.Revision: // it was replaced: what ran was the one before, and this one is to run
	case len(st.Fates) > 0:
		t.set(have.subject(), nil)
	default:
		n, now := *have, t.m.now()
		n.Due, n.Trying, n.Waits, n.WaitsSince = st.Due, st.Trying, st.Waits, nil
		if st.Waits != nil {
			n.WaitsSince = cmp.Or(have.WaitsSince, &now)
		}
		t.set(have.subject(), &n)
	}
	t.tell(have, st.Fates)
}

// enqueue stands in for schedule_enqueue.
func (m *memory) enqueue(ctx context.Context, q querier, jobs []newJob, taken string) (ids []int64, err error) {
	err = m.in(ctx, q, func(t *memoryTx) error {
		for _, j := range jobs {
			if err := storable(j.Args); err != nil {
				return err
			}
			have, err := t.unique(j)
			if err != nil {
				return err
			}
			switch {
			case have == nil:
				m.last++
				t.set(subject{m.last, true}, m.newJob(m.last, j))
				ids = append(ids, m.last)
			case taken == Ignore.String():
				ids = append(ids, have.ID)
			case taken == Replace.String():
				if err := t.lock(have.lock()); err != nil {
					return err
				}
				n := m.newJob(have.ID, j)
				n.Name, n.Trigger, n.Since, n.Revision = have.Name, have.Trigger, have.Since, have.Revision+1
				t.set(n.subject(), n)
				ids = append(ids, have.ID)
			}
		}
		return nil
	})
	return ids, err
}

// unique returns the job that has the unique key of another; nil: none has.
func (t *memoryTx) unique(j newJob) (*line, error) {
	if j.UniqueKey == nil {
		return nil, nil
	}
	have := t.find(func(r *line) bool { return r.unique != nil && *r.unique == *j.UniqueKey && r.Kind == j.Kind })
	if have != nil {
		return have, nil
	}
	return nil, t.lock(uniqueKey{j.Kind, *j.UniqueKey})
}

func (m *memory) newJob(id int64, j newJob) *line {
	now := m.now()
	r := &line{
		record: record{
			ID: id, Nonce: fmt.Sprint(id), Job: true, Key: j.Key, Partition: m.partitionOf(j.Key), Kind: j.Kind, Args: j.Args,
			Trigger: j.Trigger, Since: j.Since, At: now, Revision: 1,
		},
		unique: j.UniqueKey, priority: int(j.Priority),
	}
	switch {
	case j.Name != nil:
		r.Name = *j.Name
	case j.UniqueKey != nil:
		r.Name = *j.UniqueKey
	}
	switch {
	case j.At != nil:
		r.At = j.At.Round(time.Microsecond)
	case j.InMicro != nil:
		r.At = now.Add(time.Duration(*j.InMicro) * time.Microsecond)
	}
	due := r.At
	if due.Before(now) {
		due = now
	}
	r.Due = &due
	return r
}

// storable reports what the type jsonb refuses.
func storable(args []byte) error {
	if bytes.Contains(bytes.ReplaceAll(args, []byte(`\\`), nil), []byte(`\u0000`)) {
		return &pgconn.PgError{Severity: "ERROR", Code: "22P05", Message: "unsupported Unicode escape sequence", Detail: `\u0000 cannot be converted to text.`}
	}
	return nil
}

// job stands in for schedule_job.
func (m *memory) job(ctx context.Context, id int64) (*jobRow, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if r := m.of[subject{id, true}]; r != nil {
		return m.jobRow(r), nil
	}
	if e := m.ended[id]; e != nil {
		return &jobRow{Ended: &e.entry}, nil
	}
	return nil, nil
}

// jobs stands in for schedule_jobs.
func (m *memory) jobs(ctx context.Context, f JobFilter, after int64) ([]*jobRow, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*jobRow
	for s, r := range m.of {
		if s.Job && s.ID > after && (f.Kind == "" || f.Kind == r.Kind) && strings.HasPrefix(r.Name, f.Prefix) {
			if j := m.jobRow(r); f.State == "" || f.State == j.State {
				found = append(found, j)
			}
		}
	}
	slices.SortFunc(found, func(a, b *jobRow) int { return cmp.Compare(a.ID, b.ID) })
	return found[:min(page, len(found))], nil
}

func (m *memory) jobRow(r *line) *jobRow {
	j := &jobRow{
		ID: r.ID, Name: r.Name, Kind: r.Kind, Trigger: r.Trigger, Key: r.Key, Args: r.Args, State: StatePlanned, At: r.At, Due: r.Due,
		Attempts: r.attempts(),
	}
	if r.Trying != nil && r.Trying.Error != nil {
		j.Error = *r.Trying.Error
	}
	if r.Waits != nil {
		j.Waits = *r.Waits
	}
	switch {
	case m.runs[r.subject()]:
		j.State = StateRuns
	case r.Waits != nil:
		j.State = StateWaits
	case r.Due != nil && !r.Due.After(m.now()):
		j.State = StateDue
	case r.Trying != nil:
		j.State = StateRetries
	}
	return j
}

// retry stands in for schedule_retry.
func (m *memory) retry(ctx context.Context, q querier, group string, name *string, tick *time.Time, job *int64) (id int64, err error) {
	err = m.in(ctx, q, func(t *memoryTx) error {
		what, e, again := "", (*told)(nil), newJob{}
		refused := func(code, hint, format string, args ...any) error {
			return &pgconn.PgError{Severity: "ERROR", Code: code, Hint: hint, Message: what + " " + fmt.Sprintf(format, args...)}
		}
		if job != nil {
			what, e = fmt.Sprintf("job %d", *job), m.ended[*job]
			if e != nil {
				again = e.again
			}
		} else {
			what = fmt.Sprintf("tick %s of schedule %q", tick.UTC().Format("2006-01-02 15:04:05.999999+00"), *name)
			for _, h := range m.history {
				if !h.of.Job && h.Name == *name && h.Until.Equal(*tick) {
					e = h
				}
			}
		}
		switch {
		case e == nil && job != nil && t.get(subject{*job, true}) != nil:
			return refused("55000", "It is tried again by itself, or waits: jobs_status tells.", "has not ended")
		case e == nil:
			return refused(
				"42704", "A tick is named by its instant, as until in the history. What ended long ago is forgotten.",
				"is not in the history of group %q", group,
			)
		case e.Fate != FateDead && e.Fate != FateLost && (e.Fate != FateCancelled || job == nil):
			return refused(
				"55000",
				"To be retried, a tick is dead or lost, and a job is dead, lost or cancelled. Ticks that were passed over, and those that are done, can be backfilled.",
				"is %s", e.Fate,
			)
		case e.retried != 0:
			return refused("55000", "See what became of that job. If it is dead too, retry it.", "was retried, as job %d", e.retried)
		}
		if job == nil {
			s := t.get(e.of)
			if s == nil {
				return refused("42704", "Nobody knows any more what it would be run with.", "cannot be retried: its schedule was deleted")
			}
			from := e.Since
			var done time.Time // ticks that overlap end in any order
			for _, h := range m.history {
				if h.of == e.of && h.Fate == FateDone && !h.Until.After(e.Since) && h.Until.After(done) {
					from, done = h.Until, h.Until
				}
			}
			again = newJob{Kind: s.Kind, Name: &s.Name, Key: s.Key, Args: s.Args, Priority: 1, At: &e.Until, Since: &from}
		}
		again.Trigger = TriggerRetry
		taken, err := t.unique(again)
		switch {
		case err != nil:
			return err
		case taken != nil:
			return refused(
				"23505", "That job does its work. If it does not, cancel it first.",
				"cannot be retried: there is a living job of kind %q with its unique key %q", e.Kind, *again.UniqueKey,
			)
		}
		m.last++
		id = m.last
		t.set(subject{id, true}, m.newJob(id, again))
		done := *e
		done.retried = id
		t.wrote.edited[e.ID] = &done
		return nil
	})
	return id, err
}

// cancel stands in for schedule_cancel.
func (m *memory) cancel(ctx context.Context, q querier, id int64) (found bool, err error) {
	err = m.in(ctx, q, func(t *memoryTx) error {
		r := t.get(subject{id, true})
		if found = r != nil; !found {
			return nil
		}
		if err := t.lock(r.lock()); err != nil {
			return err
		}
		t.set(r.subject(), nil)
		f := fate{Fate: FateCancelled, Attempts: r.attempts()}
		if r.Trying != nil {
			f.Error = r.Trying.Error
		}
		t.tell(r, []fate{f})
		return nil
	})
	return found, err
}

// get stands in for schedule_get.
func (m *memory) get(ctx context.Context, q querier, name string, edit bool) (clock time.Time, r *record, err error) {
	err = m.in(ctx, q, func(t *memoryTx) error {
		clock = m.now()
		have := t.named(name)
		r = m.read(have)
		if have != nil && edit {
			return t.lock(have.lock())
		}
		return nil
	})
	return clock, r, err
}

// dueAgain is when to look at a schedule that is written, and has been due: as in schedule_put.
func (n *line) dueAgain(have *line, now time.Time) *time.Time {
	switch {
	case n.ID == 0 || have == nil:
		return &now
	case have.Due == nil && have.Revision == n.Revision && cmp.Or(have.PausedAt, have.DisabledAt, n.PausedAt, n.DisabledAt) == nil:
		return nil
	case have.Due == nil || have.Partition != n.Partition:
		return &now
	}
	due := *n.Due
	if have.Due.After(due) {
		due = *have.Due
	}
	if due.After(now) {
		due = now
	}
	return &due
}

// put stands in for schedule_put.
func (m *memory) put(ctx context.Context, q querier, r *record, fates []fate) (written bool, err error) {
	err = m.in(ctx, q, func(t *memoryTx) error {
		if err := storable(r.Args); err != nil {
			return err
		}
		n := &line{record: *r, priority: 1}
		n.parsed = nil
		if rule, err := Parse(r.Rule); err == nil {
			n.parsed = &rule
		}
		if err := t.lock(n.lock()); err != nil {
			return err
		}
		n.Partition = m.partitionOf(r.Key)
		have, now := t.named(r.Name), m.now()
		if n.Due != nil && n.Due.Before(now) {
			n.Due = n.dueAgain(have, now)
		}
		if r.ID == 0 {
			if have != nil {
				return nil
			}
			m.last++
			n.ID, n.Nonce = m.last, fmt.Sprint(m.last)
			fates = nil
		} else if have != nil {
			n.Nonce, n.Done, n.RanFrom, n.RanUntil = have.Nonce, have.Done, have.RanFrom, have.RanUntil
		}
		written = true
		t.set(n.subject(), n)
		t.tell(n, fates)
		return nil
	})
	return written, err
}

// delete stands in for schedule_delete.
func (m *memory) delete(ctx context.Context, q querier, id int64, fates []fate) error {
	return m.in(ctx, q, func(t *memoryTx) error {
		have := t.get(subject{id, false})
		if have == nil {
			return nil
		}
		if err := t.lock(have.lock()); err != nil {
			return err
		}
		t.set(have.subject(), nil)
		t.tell(have, fates)
		return nil
	})
}

// list stands in for schedule_list.
func (m *memory) list(ctx context.Context, prefix, after string, most int) ([]*record, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*record
	for _, r := range m.of {
		if !r.Job && r.Name > after && strings.HasPrefix(r.Name, prefix) {
			found = append(found, m.read(r))
		}
	}
	slices.SortFunc(found, func(a, b *record) int { return strings.Compare(a.Name, b.Name) })
	return found[:min(most, len(found))], nil
}

// told stands in for schedule_history.
func (m *memory) told(ctx context.Context, name string, before int64, most int) ([]*entry, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	var found []*entry
	for i := m.place(before) - 1; i >= 0 && len(found) < most; i-- {
		if h := m.history[i]; !h.of.Job && h.Name == name {
			e := h.entry
			found = append(found, &e)
		}
	}
	return found, nil
}

// place is where the entry of an id is in the history, or would be.
func (m *memory) place(id int64) int {
	if id == math.MaxInt64 {
		return len(m.history)
	}
	i, _ := slices.BinarySearchFunc(m.history, id, func(e *told, id int64) int { return cmp.Compare(e.ID, id) })
	return i
}

// commit has what a transaction wrote be seen, by the upper one or by all.
func (t *memoryTx) commit() {
	if up := t.upper; up != nil {
		maps.Copy(up.wrote.of, t.wrote.of)
		maps.Copy(up.wrote.edited, t.wrote.edited)
		up.wrote.history = append(up.wrote.history, t.wrote.history...)
		return
	}
	m := t.m
	for s, r := range t.wrote.of {
		m.write(s, r)
	}
	for id, left := range t.wrote.edited {
		i := m.place(id)
		if left == nil {
			m.history = slices.Delete(m.history, i, i+1)
		} else {
			m.history[i] = left
			if left.of.Job {
				m.ended[left.of.ID] = left
			}
		}
	}
	for _, e := range t.wrote.history {
		m.lastEntry++
		e.ID = m.lastEntry
		m.history = append(m.history, e)
		if e.of.Job {
			m.ended[e.of.ID] = e
		}
	}
}

// end ends the transaction, and reports whether it is committed.
func (t *memoryTx) end(commits bool) error {
	t.m.mu.Lock()
	defer t.m.mu.Unlock()
	t.ended = true
	var err error
	switch {
	case commits && t.fails:
		err = pgx.ErrTxCommitRollback
	case commits:
		t.commit()
	}
	for _, l := range t.locks {
		delete(t.m.locks, l)
	}
	return err
}

// app is the application's transaction, begun now where it was not.
func (t *memoryTx) app(ctx context.Context) (tx pgx.Tx, err error) {
	switch {
	case t.over():
		return nil, pgx.ErrTxClosed
	case t.fails: // else the server says so
		return nil, errAborted
	case t.begun != nil:
		return *t.begun, nil
	case t.upper == nil:
		tx, err = t.m.stage.Begin(ctx)
	default:
		if tx, err = t.upper.app(ctx); err == nil {
			tx, err = tx.Begin(ctx)
		}
	}
	if err == nil {
		t.begun = &tx
	}
	return tx, err
}

// Begin begins a savepoint.
func (t *memoryTx) Begin(ctx context.Context) (pgx.Tx, error) {
	switch {
	case t.over():
		return nil, pgx.ErrTxClosed
	case t.aborted():
		return nil, errAborted
	}
	return &memoryTx{m: t.m, ctx: ctx, upper: t, wrote: newRows()}, nil
}

// Commit commits the application's transaction, and then what is in the memory.
func (t *memoryTx) Commit(ctx context.Context) error {
	switch {
	case t.over():
		return pgx.ErrTxClosed
	case t.fails && t.upper != nil: // which has not been rolled back to the savepoint
		t.upper.fails = true
		_ = t.Rollback(ctx)
		return errAborted
	case t.fails:
		_ = t.Rollback(ctx)
		return pgx.ErrTxCommitRollback
	case t.begun != nil:
		if err := (*t.begun).Commit(ctx); err != nil {
			_ = t.end(false)
			return err
		}
	}
	return t.end(true)
}

// Rollback rolls both back.
func (t *memoryTx) Rollback(ctx context.Context) error {
	if t.over() {
		return pgx.ErrTxClosed
	}
	err := t.end(false)
	if t.begun != nil {
		err = (*t.begun).Rollback(ctx)
	}
	return err
}

func (t *memoryTx) CopyFrom(ctx context.Context, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (int64, error) {
	tx, err := t.app(ctx)
	if err != nil {
		return 0, err
	}
	return tx.CopyFrom(ctx, table, columns, rows)
}

func (t *memoryTx) SendBatch(ctx context.Context, b *pgx.Batch) pgx.BatchResults {
	tx, err := t.app(ctx)
	if err != nil {
		return pgx.FailedBatchResults(b, err)
	}
	return tx.SendBatch(ctx, b)
}

// LargeObjects are those of the application's transaction; where there is none, they cannot be used.
func (t *memoryTx) LargeObjects() pgx.LargeObjects {
	tx, err := t.app(t.ctx)
	if err != nil {
		return pgx.LargeObjects{}
	}
	return tx.LargeObjects()
}

func (t *memoryTx) Prepare(ctx context.Context, name, sql string) (*pgconn.StatementDescription, error) {
	tx, err := t.app(ctx)
	if err != nil {
		return nil, err
	}
	return tx.Prepare(ctx, name, sql)
}

func (t *memoryTx) Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error) {
	tx, err := t.app(ctx)
	if err != nil {
		return pgconn.CommandTag{}, err
	}
	return tx.Exec(ctx, sql, args...)
}

func (t *memoryTx) Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error) {
	tx, err := t.app(ctx)
	if err != nil {
		return failed(err).Query()
	}
	return tx.Query(ctx, sql, args...)
}

func (t *memoryTx) QueryRow(ctx context.Context, sql string, args ...any) pgx.Row {
	tx, err := t.app(ctx)
	if err != nil {
		return failed(err).QueryRow()
	}
	return tx.QueryRow(ctx, sql, args...)
}

// failed answers with an error.
func failed(err error) pgx.BatchResults { return pgx.FailedBatchResults(new(pgx.Batch), err) }

// Conn is the connection of the application's transaction; nil: there is none, or it has not been asked for anything.
func (t *memoryTx) Conn() *pgx.Conn {
	if t.begun == nil {
		return nil
	}
	return (*t.begun).Conn()
}

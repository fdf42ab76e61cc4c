package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule/sql"
)

// This file is all that talks SQL: one method for each statement in sql.

var part = store.Schedules(sql.Files)

// The SQLSTATEs that close.sql raises.
const (
	codeDeleted = "PS001"
	codeMoved   = "PS002"
	codeEnded   = "PS003"
)

// A record is a schedule, as the database has it; or a job, which has some of that, and a time of its own.
type record struct {
	ID          int64           `json:"id"` // 0: it is new
	Name        string          `json:"name"`
	Key         string          `json:"key"`
	Partition   int             `json:"partition"`
	Kind        string          `json:"kind"`
	Args        json.RawMessage `json:"args"`
	Rule        string          `json:"rule"`
	Anchor      time.Time       `json:"anchor"`
	Policy      policy          `json:"policy"`
	Declared    bool            `json:"declared"`
	Cursor      time.Time       `json:"cursor"`
	CursorLocal *time.Time      `json:"cursor_local"`
	Due         *time.Time      `json:"due"`
	Done        *time.Time      `json:"done"`
	RanFrom     *time.Time      `json:"ran_from"`
	RanUntil    *time.Time      `json:"ran_until"`
	Trying      *trial          `json:"trying"`
	Failures    int             `json:"failures"`
	Revision    int64           `json:"revision"`
	PausedAt    *time.Time      `json:"paused_at"`
	Waits       *string         `json:"waits"`
	WaitsSince  *time.Time      `json:"waits_since"`
	Registered  time.Time       `json:"registered"`
	Nonce       string          `json:"nonce,omitempty"` // names it for others than this database
	Clock       time.Time       `json:"clock"`           // when it was read
	Job         bool            `json:"job"`
	Trigger     Trigger         `json:"trigger"`
	Since       *time.Time      `json:"begins"`
	At          time.Time       `json:"at"` // of a job: the time that it was put for

	parsed *Rule // Rule, where that was parsed before
}

// A step is what close.sql writes.
type step struct {
	Cursor      time.Time  `json:"cursor"`
	CursorLocal *time.Time `json:"cursor_local,omitempty"`
	Due         *time.Time `json:"due,omitempty"`
	Done        *time.Time `json:"done,omitempty"`
	RanFrom     *time.Time `json:"ran_from,omitempty"`
	RanUntil    *time.Time `json:"ran_until,omitempty"`
	Trying      *trial     `json:"trying,omitempty"`
	Failures    *int       `json:"failures,omitempty"`  // null: it changes nothing
	PausedAt    *time.Time `json:"paused_at,omitempty"` // null: it does not pause it
	Waits       *string    `json:"waits,omitempty"`
	Fates       []fate     `json:"fates"`
}

// A trial is a tick that was begun, and has no fate yet.
type trial struct {
	At       time.Time `json:"at"`
	Local    time.Time `json:"local"`
	Missed   int64     `json:"missed"`
	Began    time.Time `json:"began"`    // the first attempt
	Attempts int       `json:"attempts"` // that failed
	Error    *string   `json:"error"`    // of the last of them
	Again    time.Time `json:"again"`    // not before
	Crashes  int       `json:"crashes"`  // how many processes died while it ran, and the one that runs it now, under Epoch
	Epoch    int64     `json:"epoch"`
	Called   int64     `json:"called"` // the epoch of Run
	Run      string    `json:"run"`    // which calls the handler outside of a transaction; empty: none does
}

func (t *trial) begun() string {
	if t == nil {
		return ""
	}
	return t.Run
}

func (t *trial) crashes() int {
	if t == nil {
		return 0
	}
	return t.Crashes
}

// chargedTo reports whether the last crash is that of an owner.
func (t *trial) chargedTo(epoch int64) bool { return t != nil && t.Epoch == epoch }

// A fate is a row of the history, as it is written.
type fate struct {
	Since     time.Time  `json:"since"`
	Until     time.Time  `json:"until"`
	Ticks     int64      `json:"ticks"`
	Fate      Fate       `json:"fate"`
	Error     *string    `json:"error,omitempty"`
	Attempts  int        `json:"attempts"`
	Epoch     *int64     `json:"epoch,omitempty"`
	StartedAt *time.Time `json:"started_at,omitempty"`

	// Of a job's run, what ran: it may have been replaced since.
	Key  string          `json:"key,omitempty"`
	Args json.RawMessage `json:"args,omitempty"`
}

// A subject is a schedule, or a job.
type subject struct {
	ID  int64
	Job bool
}

// An item is a schedule or a job that is due now or soon.
type item struct {
	subject
	Priority  int
	Partition int
	Key       string
	Kind      string
	DueMicro  int64
	Crashes   int // counted

	earliest time.Time // by this host: it is not due before, as the database said when its last run began; zero: it said nothing
	slotless bool      // it found no slot of its kind's
}

func (i item) due() time.Time { return time.UnixMicro(i.DueMicro) }

// Migrate makes the tables of package schedule, or brings them up to date, after those of the engine, see pgleases.Migrate: of which it has
// the promises, too. The only option is WithSchema; any other is an error.
func Migrate(ctx context.Context, pool *pgxpool.Pool, opts ...Option) error {
	o, err := onlyOptions("Migrate", opts, "WithSchema")
	if err != nil {
		return err
	}
	if err := pgleases.Migrate(ctx, pool, pgleases.WithSchema(o.schema)); err != nil {
		return err
	}
	return withConn(ctx, pool, "migrate", o.schema, part.Migrate)
}

// Schema returns the DDL that Migrate runs after that of pgleases.Schema, for goose, tern, Flyway and the like. The only option is WithSchema;
// any other is an error.
func Schema(opts ...Option) (string, error) {
	o, err := onlyOptions("Schema", opts, "WithSchema")
	if err != nil {
		return "", err
	}
	return part.DDL(o.schema), nil
}

// onlyOptions returns the options of a call that takes no others than these.
func onlyOptions(call string, opts []Option, these ...string) (options, error) {
	o, err := newOptions(opts)
	for _, name := range o.given {
		if err == nil && !slices.Contains(these, name) {
			err = fmt.Errorf("schedule: %s means nothing to %s: only %s does", name, call, strings.Join(these, ", or "))
		}
	}
	return o, err
}

func withConn(ctx context.Context, pool *pgxpool.Pool, doing, schema string, f func(context.Context, *pgx.Conn, string) error) error {
	return store.OpenError(ctx, "schedule", doing, schema, pgleases.ErrSchema, pool.AcquireFunc(ctx, func(c *pgxpool.Conn) error { return f(ctx, c.Conn(), schema) }))
}

// statements are the texts of the files in sql, by their names: see store.Fill.
type statements struct {
	Share, Join, Place, Look, Begin, End        string
	Open, Limit, Close, Done, CloseJob, DoneJob string
	Enqueue, Job, Jobs, Edit, Change            string
	Get, Put, List, History, Trim, MakeSlots    string
	Declare, Declared                           string
	Take, Free                                  string
}

func statementsFor(schema string) (s statements) {
	store.Fill(&s, store.Texts(sql.Files, schema))
	return s
}

// A querier is a connection, a pool, or a transaction.
type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// void runs a statement that returns nothing of interest.
func void(ctx context.Context, q querier, statement string, args ...any) error {
	return q.QueryRow(ctx, statement, args...).Scan(nil)
}

// sendShare returns the number of the channel on which it is told that something was put, and that of the server's process.
func (s *Scheduler) sendShare(ctx context.Context, q querier) (share int, pid uint32, err error) {
	err = q.QueryRow(ctx, s.statements.Share, s.group).Scan(&share, &pid)
	return share, pid, err
}

func (s *Scheduler) sendJoin(ctx context.Context, q querier) error {
	return void(ctx, q, s.statements.Join, s.group, int32(s.options.partitions))
}

func (s *Scheduler) sendPlace(ctx context.Context, q querier, misplaced []subject) error {
	schedules, jobs := idsOf(misplaced)
	return void(ctx, q, s.statements.Place, s.group, int32(s.options.partitions), schedules, jobs)
}

// idsOf returns the ids of schedules and of jobs, apart.
func idsOf(subjects []subject) (schedules, jobs []int64) {
	schedules, jobs = []int64{}, []int64{} // no NULL
	for _, s := range subjects {
		if s.Job {
			jobs = append(jobs, s.ID)
		} else {
			schedules = append(schedules, s.ID)
		}
	}
	return schedules, jobs
}

// sendLook returns what is due after since, up to ahead from now, but for some keys and kinds; the database's time when it began with that,
// and how long it took over it.
func (s *Scheduler) sendLook(
	ctx context.Context, q querier, partitions, fresh []int32, since time.Time, ahead time.Duration, most int, but, butKinds []string,
) (clock time.Time, took time.Duration, due []item, err error) {
	var micro, spent int64
	var f struct {
		id, due                      []int64
		job                          []bool
		priority, partition, crashes []int
		key, kind                    []string
	}
	err = q.QueryRow(ctx, s.statements.Look, s.group, partitions, fresh, since.UnixMicro(), ahead.Microseconds(), most, but, butKinds).
		Scan(&micro, &spent, &f.id, &f.job, &f.priority, &f.partition, &f.key, &f.kind, &f.due, &f.crashes)
	if err != nil {
		return clock, 0, nil, err
	}
	due = make([]item, len(f.id))
	for i := range due {
		due[i] = item{
			subject: subject{f.id[i], f.job[i]}, Priority: f.priority[i], Partition: f.partition[i], Key: f.key[i], Kind: f.kind[i],
			DueMicro: f.due[i], Crashes: f.crashes[i],
		}
	}
	return time.UnixMicro(micro), time.Duration(spent) * time.Microsecond, due, nil
}

// queueBegin has died report whether the owner before died while something may have run.
func (s *Scheduler) queueBegin(batch *pgx.Batch, died *bool, partition int, epoch int64) {
	batch.Queue(s.statements.Begin, s.group, partition, epoch, s.lockWait.Milliseconds()).QueryRow(func(row pgx.Row) error { return row.Scan(died) })
}

func (s *Scheduler) queueEnd(batch *pgx.Batch, partition int, epoch int64, charged []subject) {
	schedules, jobs := idsOf(charged)
	batch.Queue(s.statements.End, s.group, partition, epoch, schedules, jobs, s.lockWait.Milliseconds())
}

// queueOpen has r be the schedule or the job, under the guard of the partition; nil: there is none.
func (s *Scheduler) queueOpen(
	batch *pgx.Batch, f fence, p pgleases.Partition, r **record, of subject, run string, timeout, idle time.Duration,
) error {
	args := []any{of.ID, of.Job, run, timeout.Milliseconds(), idle.Milliseconds(), s.lockWait.Milliseconds()}
	return f.queueGuarded(batch, p, s.statements.Open, args, func(row pgx.Row) error {
		var found *string
		err := row.Scan(&found)
		if err == nil {
			*r, err = decode[record](found)
		}
		return err
	})
}

// sendClose closes a run, under limits of its own: those until then are the handler's. It commits the
// transaction, and takes limit at most.
func (s *Scheduler) sendClose(ctx context.Context, tx *transaction, r *record, run string, st step, limit time.Duration) error {
	st.Fates = listed(st.Fates)
	if tx.Conn().PgConn().ParameterStatus("server_encoding") != "UTF8" { // and may not have the letters of an error
		st.inASCII()
	}
	batch := new(pgx.Batch)
	batch.Queue(s.statements.Limit, max(closing, limit).Milliseconds(), s.lockWait.Milliseconds())
	closed := false
	ended := func(pgconn.CommandTag) error {
		closed = true
		return nil
	}
	switch {
	case r.Job && len(st.Fates) == 1 && st.Fates[0].Fate == FateDone:
		f := st.Fates[0]
		batch.Queue(s.statements.DoneJob, r.ID, run, r.Revision, f.Attempts, f.Epoch, f.StartedAt.UnixMicro(), r.At).Exec(ended)
	case r.Job:
		for i := range st.Fates {
			st.Fates[i].Key, st.Fates[i].Args = r.Key, r.Args
		}
		batch.Queue(s.statements.CloseJob, r.ID, run, r.Revision, encode(st)).Exec(ended)
	case st.onlyDone():
		f := st.Fates[0]
		batch.Queue(
			s.statements.Done, r.ID, run, r.Revision, r.Cursor, st.Cursor, shownMicro(*st.CursorLocal), st.Due, st.RanFrom, st.RanUntil,
			f.Attempts, f.Epoch, f.StartedAt,
		).Exec(ended)
	default:
		batch.Queue(s.statements.Close, r.ID, run, r.Revision, r.Cursor, encode(st)).Exec(ended)
	}
	err := inTime(ctx, limit, func(ctx context.Context) error { return tx.commit(ctx, batch) })
	if !closed && store.LockTimeout(err) { // else it is the commit's: a constraint of the handler's tables that waited
		return locked{err}
	}
	return err
}

// onlyDone reports whether one tick is done, and nothing else is to be written: what done.sql writes.
func (st *step) onlyDone() bool {
	return len(st.Fates) == 1 && st.Fates[0].Fate == FateDone && st.Trying == nil && st.Waits == nil && st.PausedAt == nil
}

// shownMicro is what clocks show, in microseconds since 1970 as if they were those of UTC.
func shownMicro(local time.Time) int64 {
	_, offset := local.Zone()
	return local.UnixMicro() + int64(offset)*1e6
}

// locked is an error of sendClose: another transaction has the schedule's row locked.
type locked struct{ error }

func (e locked) Unwrap() error { return e.error }

// inASCII writes the texts of errors so that every encoding of a database can keep them.
func (st *step) inASCII() {
	for i := range st.Fates {
		st.Fates[i].Error = inASCII(st.Fates[i].Error)
	}
	st.Waits = inASCII(st.Waits)
	if st.Trying != nil {
		t := *st.Trying
		t.Error = inASCII(t.Error)
		st.Trying = &t
	}
}

func inASCII(text *string) *string {
	if text == nil || !strings.ContainsFunc(*text, func(r rune) bool { return r >= utf8.RuneSelf }) {
		return text
	}
	quoted := strconv.QuoteToASCII(*text)
	return &quoted
}

// sendEnqueue returns the ids of jobs; none: the unique key is taken.
func (s *Scheduler) sendEnqueue(ctx context.Context, q querier, jobs []newJob, taken string) (ids []int64, err error) {
	err = q.QueryRow(ctx, s.statements.Enqueue, s.group, int32(s.options.partitions), encode(jobs), taken).Scan(&ids)
	return ids, err
}

// sendJob returns a job, or what became of it; nil: there is neither.
func (s *Scheduler) sendJob(ctx context.Context, q querier, id int64) (*Job, error) {
	var found *string
	if err := q.QueryRow(ctx, s.statements.Job, s.group, id).Scan(&found); err != nil {
		return nil, err
	}
	return decode[Job](found)
}

func (s *Scheduler) sendJobs(ctx context.Context, q querier, f JobFilter, after int64) ([]*Job, error) {
	return collect[Job](ctx, q, s.statements.Jobs, s.group, f.Kind, f.Prefix, string(f.State), after, page)
}

// sendChange has a schedule or a job changed: see edit.sql. What comes back as asks is null where it is done.
func (s *Scheduler) sendChange(ctx context.Context, tx pgx.Tx, verb string, name *string, what map[string]any) (asks *record, ids []int64, refused int, err error) {
	text, err := json.Marshal(what)
	if err != nil {
		return nil, nil, 0, err
	}
	statement, args := s.statements.Edit, []any{verb, s.group, name, string(text)}
	if s.options.reason != "" {
		statement, args = s.statements.Change, append(args, s.options.actor, s.options.reason)
	}
	var asked *string
	if err = tx.QueryRow(ctx, statement, args...).Scan(&asked, &ids, &refused); err != nil {
		return nil, nil, 0, refusal(err)
	}
	asks, err = decode[record](asked)
	return asks, ids, refused, err
}

// refusal is the error of a change that edit.sql refuses.
func refusal(err error) error {
	var told *pgconn.PgError
	if !errors.As(err, &told) {
		return err
	}
	text := told.Message
	if told.Hint != "" {
		text += ": " + told.Hint
	}
	switch told.Code {
	case "42704":
		return fmt.Errorf("%w: %s", ErrNotFound, text)
	case "23505":
		return fmt.Errorf("%w: %s", ErrExists, text)
	case "55000", "22023":
		return errors.New(text)
	}
	return err
}

// sendGet returns the time, and the schedule; nil: there is none. For an edit it locks it, and tells
// whether it has these arguments.
func (s *Scheduler) sendGet(
	ctx context.Context, q querier, name string, edit bool, args json.RawMessage,
) (clock time.Time, r *record, same bool, err error) {
	var micro int64
	var found *string
	err = q.QueryRow(ctx, s.statements.Get, s.group, name, edit, string(args)).Scan(&micro, &found, &same)
	if err == nil {
		r, err = decode[record](found)
	}
	return time.UnixMicro(micro), r, same, err
}

// sendPut reports whether it is written: a new one is not where another transaction has made one of its name.
func (s *Scheduler) sendPut(ctx context.Context, q querier, r *record, fates []fate) (written bool, err error) {
	err = q.QueryRow(ctx, s.statements.Put, s.group, int32(s.options.partitions), encode(r), encode(listed(fates))).Scan(&written)
	return written, err
}

func (s *Scheduler) sendDeclare(ctx context.Context, q querier, names []string) error {
	return void(ctx, q, s.statements.Declare, s.group, names)
}

// sendDeclared returns the schedules of these names that are there, and how many partitions the lease has; 0: there is none.
func (s *Scheduler) sendDeclared(ctx context.Context, q querier, names []string) (have map[string]*record, partitions int, err error) {
	var texts []string
	var n *int
	if err := q.QueryRow(ctx, s.statements.Declared, s.group, names, leaseOf+s.group).Scan(&texts, &n); err != nil {
		return nil, 0, err
	}
	if n != nil {
		partitions = *n
	}
	have = make(map[string]*record, len(texts))
	for _, text := range texts {
		r, err := decode[record](&text)
		if err != nil {
			return nil, 0, err
		}
		have[r.Name] = r
	}
	return have, partitions, nil
}

func (s *Scheduler) sendList(ctx context.Context, q querier, prefix, after string, most int) ([]*record, error) {
	return collect[record](ctx, q, s.statements.List, s.group, prefix, after, most)
}

func (s *Scheduler) sendHistory(ctx context.Context, q querier, name string, before int64, most int) ([]*entryRow, error) {
	return collect[entryRow](ctx, q, s.statements.History, s.group, name, before, most)
}

func (s *Scheduler) sendTrim(ctx context.Context, q querier, failed bool, before time.Time, after int64) (upTo int64, more bool, err error) {
	err = q.QueryRow(ctx, s.statements.Trim, s.group, failed, before, after, trimPage).Scan(&upTo, &more)
	return upTo, more, err
}

func (s *Scheduler) sendMakeSlots(ctx context.Context, q querier, k *kind) error {
	return void(ctx, q, s.statements.MakeSlots, s.group, k.name, k.limits.atOnce)
}

// sendTake reports whether there was a slot for a run; run is nil for one that ends with the transaction.
func (s *Scheduler) sendTake(ctx context.Context, tx *transaction, k *kind, p pgleases.Partition, run *string) (taken bool, err error) {
	err = tx.QueryRow(ctx, s.statements.Take, s.group, k.name, k.limits.atOnce, p.Number, p.Epoch, run).Scan(&taken)
	return taken, err
}

func (s *Scheduler) sendFree(ctx context.Context, q querier, kind, run string) error {
	return void(ctx, q, s.statements.Free, s.group, kind, run)
}

func collect[T any](ctx context.Context, q querier, statement string, args ...any) ([]*T, error) {
	rows, _ := q.Query(ctx, statement, args...) // CollectRows returns its error
	return pgx.CollectRows(rows, func(r pgx.CollectableRow) (*T, error) {
		var text *string
		if err := r.Scan(&text); err != nil {
			return nil, err
		}
		return decode[T](text)
	})
}

// listed is the fates as a list, also where there are none.
func listed(fates []fate) []fate { return append([]fate{}, fates...) }

// decode returns nil for NULL.
func decode[T any](text *string) (*T, error) {
	if text == nil {
		return nil, nil
	}
	v := new(T)
	return v, json.Unmarshal([]byte(*text), v)
}

// encode returns the JSON of what is always JSON.
func encode(v any) string {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return string(b)
}

//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
)

// A Queue says how a worker works through the table app.outbox.
type Queue struct {
	Handler     string // one of Consumers, or of Naive
	Receiver    string // the URL of a database for effects outside; empty: effects are in the queue's database
	Outage      string // a file; while it exists, all rows fail. Files beside it count calls
	DeadLetters bool   // rows move after their last attempt; otherwise they block their keys
}

// QueueAttempts is the number of attempts of a row.
const QueueAttempts = 5

// The kinds of rows, by what happens to their handler.
const (
	Good          = "good"
	FailsAlways   = "fails always"
	FailsThrice   = "fails thrice"
	FailsTogether = "fails together" // fails if another such row is in its batch
	KillsProcess  = "kills its process"
	Idles         = "idles"          // its transaction is idle for two TTLs
	CommitsItself = "commits itself" // sends COMMIT, if it is in a transaction
)

// QueueTables returns the application's tables. The queue is outbox. Table written has the rows
// that were committed to it, and what the application did to them later.
func QueueTables(partitions int) string {
	return fmt.Sprintf(`CREATE SCHEMA app;
CREATE TABLE app.customers (customer text PRIMARY KEY, orders bigint NOT NULL DEFAULT 1);
CREATE TABLE app.outbox (id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, customer text NOT NULL, name text NOT NULL DEFAULT gen_random_uuid()::text,
    kind text NOT NULL, version int NOT NULL DEFAULT 1, attempts int NOT NULL DEFAULT 0,
    partition int NOT NULL GENERATED ALWAYS AS (pgleases.partition_for(customer, %d)) STORED);
CREATE INDEX ON app.outbox (partition, id);
CREATE TABLE app.dead (name text NOT NULL, at timestamptz NOT NULL DEFAULT clock_timestamp());
CREATE TABLE app.written (id bigint NOT NULL, customer text NOT NULL, name text PRIMARY KEY, kind text NOT NULL,
    version int NOT NULL DEFAULT 1, deleted boolean NOT NULL DEFAULT false);
%s`, partitions, HandledTable)
}

// HandledTable has what the handlers did, in their order. It has no constraint against a second row
// for a task.
const HandledTable = `CREATE TABLE handled (
    n bigint GENERATED ALWAYS AS IDENTITY,
    worker text NOT NULL,
    id bigint NOT NULL,
    customer text NOT NULL,
    name text NOT NULL,
    kind text NOT NULL,
    version int NOT NULL,
    partition int NOT NULL,
    epoch bigint NOT NULL,
    attempt int NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
)`

// insertTasks inserts rows of a kind in the order of their customers, and notes what it has inserted.
const insertTasks = `
	WITH o AS (
		INSERT INTO app.outbox (customer, kind)
		SELECT c, $2 FROM unnest($1::text[]) WITH ORDINALITY AS u(c, n) ORDER BY n
		RETURNING id, customer, name, kind
	)
	INSERT INTO app.written (id, customer, name, kind) SELECT * FROM o`

const insertHandled = `
	INSERT INTO handled (worker, id, customer, name, kind, version, partition, epoch, attempt)
	VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)`

// failsBefore is whether the transaction has handled two rows or more of a kind.
const failsBefore = "SELECT count(*) > 1 FROM handled WHERE kind = $1 AND xmin = pg_current_xact_id()::xid"

type executor interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}

// Enqueue writes a row of a kind for each of these customers, as most writers do: it locks the
// customers' own rows, and then inserts.
func Enqueue(ctx context.Context, tx executor, kind string, customers ...string) error {
	if _, err := tx.Exec(ctx, `INSERT INTO app.customers SELECT DISTINCT c FROM unnest($1::text[]) AS c ORDER BY c
ON CONFLICT (customer) DO UPDATE SET orders = customers.orders + 1`, customers); err != nil {
		return err
	}
	_, err := tx.Exec(ctx, insertTasks, customers, kind)
	return err
}

// Produce writes, changes and deletes rows until ctx ends. Some of its transactions commit late,
// and some roll back. An error is ignored: the content of the database decides.
func Produce(ctx context.Context, pool *pgxpool.Pool, keys int) {
	for pause(ctx, rand.N(20*time.Millisecond)) {
		_ = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			linger, err := 300*time.Millisecond, error(nil)
			switch rand.N(12) {
			case 0, 1, 2: // the row may be in a handler's hands
				linger = 1500 * time.Millisecond
				_, err = tx.Exec(ctx, `WITH o AS (UPDATE app.outbox SET version = version + 1
    WHERE id = (SELECT id FROM app.outbox WHERE kind NOT IN ($2, $3) ORDER BY id * $1 LIMIT 1 OFFSET 3) RETURNING name, version)
UPDATE app.written SET version = o.version FROM o WHERE written.name = o.name`, rand.N(2)*2-1, KillsProcess, CommitsItself)
			case 3:
				_, err = tx.Exec(ctx, `WITH o AS (DELETE FROM app.outbox
    WHERE id = (SELECT id FROM app.outbox WHERE kind = $2 ORDER BY id * $1 LIMIT 1 OFFSET 3) RETURNING name)
UPDATE app.written SET deleted = true FROM o WHERE written.name = o.name`, rand.N(2)*2-1, Good)
			default:
				customers := make([]string, 1+rand.N(3))
				for i := range customers {
					customers[i] = strconv.Itoa(rand.N(keys))
				}
				err = Enqueue(ctx, tx, Good, customers...)
				if rand.N(20) == 0 { // behind a row of its key, and before another
					last := customers[len(customers)-1]
					err = errors.Join(err, Enqueue(ctx, tx, FailsThrice, last), Enqueue(ctx, tx, Good, last))
				}
			}
			switch rand.N(20) {
			case 0:
				pause(ctx, rand.N(linger))
			case 1:
				return errTaken
			}
			return err
		})
	}
}

// A task is a row of the queue in a handler.
type task struct {
	ID                   int64
	Customer, Name, Kind string
	Version, Partition   int
	Epoch                int64
	Attempt              int
}

// A handler is a worker's part in the queue.
type handler struct {
	Config
	log            *slog.Logger
	client         *pgleases.Client
	lease          *pgleases.Lease
	pool, receiver *pgxpool.Pool // of the queue, and of effects outside
}

// runQueue works through the queue until stop is called.
func runQueue(
	config Config, client *pgleases.Client, lease *pgleases.Lease, log *slog.Logger,
) (stop func() error, err error) {
	if config.Queue == nil {
		return func() error { return nil }, nil
	}
	h := &handler{Config: config, log: log, client: client, lease: lease}
	if config.Queue.Receiver != "" {
		h.receiver, err = pgxpool.New(context.Background(), config.Queue.Receiver)
		if err != nil {
			return nil, err
		}
	}
	return repeatedly(config, client, 8, log, func(ctx context.Context, pool *pgxpool.Pool) error {
		h.pool = pool
		switch config.Queue.Handler {
		case Naive[0]:
			return h.skipLocked(ctx)
		case Naive[1]:
			return h.owner(ctx)
		}
		return h.consume(ctx)
	})
}

// handle handles rows: in their transaction, or outside if tx is nil. If a row fails, it returns
// the row's index and the error.
func (h *handler) handle(ctx context.Context, tx pgx.Tx, tasks []task) (int, error) {
	h.linger(ctx, len(tasks))
	for i, t := range tasks {
		record := func(db executor) error {
			_, err := db.Exec(ctx, insertHandled,
				h.ID, t.ID, t.Customer, t.Name, t.Kind, t.Version, t.Partition, t.Epoch, t.Attempt)
			return err
		}
		if tx != nil { // before it fails, because no effect of a failure may stay
			if err := record(tx); err != nil {
				return i, err
			}
		}
		if err := h.outcome(ctx, tx, t, tasks[:i]); err != nil {
			return i, err
		}
		if tx == nil {
			if err := record(h.receiver); err != nil {
				return i, err
			}
		}
	}
	h.linger(ctx, len(tasks))
	commits := slices.IndexFunc(tasks, func(t task) bool { return t.Kind == CommitsItself })
	if tx != nil && commits >= 0 {
		_, err := tx.Exec(ctx, "COMMIT")
		return commits, err
	}
	return len(tasks), nil
}

// linger waits in some calls with n rows, so that faults hit them at any point.
func (h *handler) linger(ctx context.Context, n int) {
	if rand.N(30) < min(n, 3) {
		pause(ctx, rand.N(h.TTL/4))
	}
}

// outcome does what the kind of a row says.
func (h *handler) outcome(ctx context.Context, tx pgx.Tx, t task, before []task) (err error) {
	fails := t.Kind == FailsAlways
	switch t.Kind {
	case FailsThrice:
		var calls int64
		calls, err = count(h.Queue.Outage + t.Name)
		fails = calls <= 3
		if fails {
			pause(ctx, rand.N(50*time.Millisecond)) // meanwhile others commit
		}
	case FailsTogether:
		for _, other := range before {
			fails = fails || other.Kind == FailsTogether
		}
		if tx != nil && !fails { // a batch's transaction may be handed over row by row
			err = tx.QueryRow(ctx, failsBefore, FailsTogether).Scan(&fails)
		}
	case KillsProcess:
		h.log.Info("faults: the process kills itself", slog.Any("task", t))
		err = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	case Idles:
		pause(ctx, 2*h.TTL)
	}
	_, missing := os.Stat(h.Queue.Outage)
	if fails || missing == nil {
		err = errors.Join(err, fmt.Errorf("row %d fails", t.ID))
	}
	return err
}

// count counts the calls of a row in all processes, in a file.
func count(path string) (int64, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	if _, err := f.Write([]byte{1}); err != nil {
		return 0, err
	}
	info, err := f.Stat()
	return info.Size(), err
}

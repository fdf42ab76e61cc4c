package admin

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Consumer is a consumer of package consumer. Counts of rows are at most 1,000, which means 1,000
// or more.
type Consumer struct {
	Name       string `json:"name"`
	Queue      string `json:"queue"` // the table, quoted if need be
	Partitions int    `json:"partitions"`
	Owned      int    `json:"owned"` // partitions that have an owner
	// Oldest is known: the queue has a column for the time, and an index that begins with the ID.
	Timed bool `json:"timed"`
	// Rows in the table; nil: this role may not read it, or it is gone.
	Waiting *int `json:"waiting"`
	// Age of the oldest row whose key is not blocked, among the first 1,000, or else among the first ones
	// of the partitions; nil: there is none, or it is not known.
	Oldest *time.Duration `json:"oldest_ns"`
	// Since the row with the lowest ID whose key is not blocked is the same, to 1 min; 0: no such row
	// waits, or no process is to handle it.
	FirstFor     time.Duration `json:"first_for_ns"`
	BlockedKeys  int           `json:"blocked_keys"`
	BlockedFor   time.Duration `json:"blocked_for_ns"` // since the oldest blocked row failed first
	DeadLetters  int           `json:"dead_letters"`
	Unhandled    *int          `json:"unhandled"`     // rows whose partition is null or out of range; nil: as Waiting
	PausedAt     time.Time     `json:"paused_at"`     // zero: it is not paused
	PausedBy     string        `json:"paused_by"`     // the operator
	PausedReason string        `json:"paused_reason"` // why
	LeasePaused  bool          `json:"lease_paused"`  // its lease is paused, so no process owns its partitions
	// Of Admin.Consumer, at most 100 each: the rows that block their keys, the oldest first; the dead
	// letters, the newest first; and the changes that operators made, the newest first.
	Blocked []BlockedRow     `json:"blocked"`
	Letters []DeadLetter     `json:"letters"`
	Changes []ConsumerChange `json:"changes"`
}

// A BlockedRow is a row that blocks its key.
type BlockedRow struct {
	ID        int64     `json:"id,string"`
	Key       string    `json:"key"`
	Partition int       `json:"partition"`
	Attempts  int       `json:"attempts"` // that failed
	Suspect   bool      `json:"suspect"`  // it was in the batch of a process that crashed
	Crashes   int       `json:"crashes"`  // of processes that handled it alone, with the attempt under way
	Error     string    `json:"error"`
	Since     time.Time `json:"since"`
	// The next attempt; zero: none before somebody retries or skips the row, or changes it.
	Next      time.Time `json:"next"`
	SkippedBy string    `json:"skipped_by"` // the operator; its owner is about to move it to the dead letters
}

// A DeadLetter is a row that was taken out of its queue table.
type DeadLetter struct {
	ID        int64     `json:"id,string"`
	Key       string    `json:"key"`
	Partition int       `json:"partition"`
	Attempts  int       `json:"attempts"` // that failed
	Error     string    `json:"error"`    // of the last attempt
	At        time.Time `json:"at"`       // when it was taken out
}

// A ConsumerChange is an event: a change that an operator made to a consumer, its rows or its
// lease.
type ConsumerChange struct {
	At     time.Time `json:"at"`
	Cause  string    `json:"cause"`     // as of an Event
	ID     *int64    `json:"id,string"` // the row that was retried, skipped or returned; nil: none, or all
	Rows   *int      `json:"rows"`      // how many rows were changed; nil: the change is of the consumer or its lease
	Actor  string    `json:"actor"`
	Reason string    `json:"reason"`
}

// ErrNoConsumers is returned if the database has no tables of package consumer, or too old ones.
var ErrNoConsumers = errors.New("pgleases: there are no consumers here")

// Consumers returns the consumers by name. What waits in a table is known if the role may read the
// table. Consumers returns ErrNoConsumers, or an error of the database.
func (a *Admin) Consumers(ctx context.Context) ([]Consumer, error) { return a.consumers(ctx, nil) }

// Consumer is Consumers for the one of this name, with its blocked rows and changes. It returns nil
// if there is no such consumer.
func (a *Admin) Consumer(ctx context.Context, name string) (*Consumer, error) {
	all, err := a.consumers(ctx, &name)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	return &all[0], nil
}

func (a *Admin) consumers(ctx context.Context, name *string) ([]Consumer, error) {
	all, err := collect(ctx, a, a.pool, "consumers", pgx.RowTo[Consumer], name, 100)
	if store.Undefined(err) {
		return nil, a.noConsumers(err)
	}
	return all, a.failure("read the consumers", err)
}

func (a *Admin) noConsumers(err error) error {
	return wrap.Errorf("%w: %w\nthe tables of package consumer are missing in this database, or too old, "+
		"in schema %q: name it with --schema, or run pgleases migrate --consumers", ErrNoConsumers, err, a.schema)
}

package admin

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A ScheduleGroup is a group of schedules and jobs. The counts are at most 1,001, which means more
// than 1,000.
type ScheduleGroup struct {
	Name      string         `json:"name"`
	Schedules int            `json:"schedules"`
	Paused    int            `json:"paused"`
	Blocked   int            `json:"blocked"`  // their owners cannot run them
	Failing   int            `json:"failing"`  // their last ticks failed
	Late      int            `json:"late"`     // due more than 10 s ago
	Jobs      int            `json:"jobs"`     // that have not ended
	Stuck     int            `json:"stuck"`    // jobs whose owners cannot run them
	Outcomes  []OutcomeCount `json:"outcomes"` // of the last 6 hours, among the latest 10,000 entries of all groups
}

// An OutcomeCount is the number of ticks and jobs with an outcome.
type OutcomeCount struct {
	Outcome string    `json:"outcome"`
	Count   int64     `json:"count"`
	Since   time.Time `json:"since"`
}

// An IllSchedule is a schedule that does not go on as it should.
type IllSchedule struct {
	Group string `json:"group"`
	Name  string `json:"name"`
	// One or more of failing, blocked, late, paused and skipping, in this order. It is late if it was due
	// more than 10 s ago, and skipping if it skipped most of its ticks.
	Faults   []string `json:"faults"`
	State    string   `json:"state"`
	Why      string   `json:"why"`      // the reason for State, if it is known
	Failures int      `json:"failures"` // consecutive failed ticks
	// The tick of the first failure after the last success; zero: it does not fail, or the history does
	// not go back so far.
	FailingSince time.Time     `json:"failing_since,omitzero"`
	Succeeded    time.Time     `json:"succeeded,omitzero"` // the last tick that succeeded; zero: no tick did
	Error        string        `json:"error"`              // the first line of the last one
	Late         time.Duration `json:"late_ns"`            // how long it has been late or blocked
	PausedAt     time.Time     `json:"paused_at,omitzero"`
	Skipped      int64         `json:"skipped"` // of Ticks
	Ticks        int64         `json:"ticks"`   // with an outcome in the last day, of a schedule that is skipping
}

const (
	// IllMost is the maximum number of schedules that IllSchedules returns.
	IllMost = 200
	// GroupsMost is the maximum number of groups that are read, by name.
	GroupsMost = 100
)

// IllSchedules returns the schedules of all groups that do not go on as they should, by group and
// name, at most 200. It returns ErrNoSchedules, or an error of the database.
func (a *Admin) IllSchedules(ctx context.Context) ([]IllSchedule, error) {
	const entriesMost, searched = 10_000, 1000
	all, err := collect(ctx, a, a.pool, "ill", pgx.RowTo[IllSchedule], GroupsMost, IllMost, entriesMost, searched)
	if store.Undefined(err) {
		return nil, a.noSchedules(err)
	}
	return all, a.failure("read the schedules that do not go on", err)
}

// ErrNoSchedules is returned if the database has no tables of package schedule, or too old ones.
var ErrNoSchedules = errors.New("pgleases: there are no schedules here")

// ScheduleGroups returns the groups of schedules, at most 100, by name. It returns ErrNoSchedules,
// or an error of the database.
func (a *Admin) ScheduleGroups(ctx context.Context) ([]ScheduleGroup, error) {
	const entriesMost, hours = 10_000, 6
	groups, err := collect(ctx, a, a.pool, "groups", pgx.RowTo[ScheduleGroup], GroupsMost, entriesMost, hours)
	if store.Undefined(err) {
		return nil, a.noSchedules(err)
	}
	return groups, a.failure("read the groups of schedules", err)
}

func (a *Admin) noSchedules(err error) error {
	return wrap.Errorf("%w: %w\nthe tables of package schedule are missing in this database, or too old, "+
		"in schema %q: name it with --schema, or run pgleases migrate --schedules", ErrNoSchedules, err, a.schema)
}

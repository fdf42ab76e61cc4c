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

// ErrNoSchedules is returned if the database has no tables of package schedule, or too old ones.
var ErrNoSchedules = errors.New("pgleases: there are no schedules here")

// ScheduleGroups returns the groups of schedules, at most 100, by name. It returns ErrNoSchedules,
// or an error of the database.
func (a *Admin) ScheduleGroups(ctx context.Context) ([]ScheduleGroup, error) {
	const groupsMost, entriesMost, hours = 100, 10_000, 6
	groups, err := collect(ctx, a, a.pool, "groups", pgx.RowTo[ScheduleGroup], groupsMost, entriesMost, hours)
	if store.Undefined(err) {
		return nil, a.noSchedules(err)
	}
	return groups, a.failure("read the groups of schedules", err)
}

func (a *Admin) noSchedules(err error) error {
	return wrap.Errorf("%w: %w\nthe tables of package schedule are missing in this database, or too old, "+
		"in schema %q: name it with --schema, or run pgleases migrate --schedules", ErrNoSchedules, err, a.schema)
}

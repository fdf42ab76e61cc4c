package admin

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
)

// What package schedule has in its tables, by the views and functions of schedule/sql. A million
// schedules cost no more than a thousand: counts end at 1,001, and lists come in pages.

// A ScheduleGroup is a group of schedules and jobs. Counts go to 1,001, which means more than
// 1,000.
type ScheduleGroup struct {
	Name      string         `json:"name"`
	Schedules int            `json:"schedules"`
	Paused    int            `json:"paused"`
	Blocked   int            `json:"blocked"`  // their owners cannot run them
	Failing   int            `json:"failing"`  // their last ticks failed
	Late      int            `json:"late"`     // by more than 10 s
	Jobs      int            `json:"jobs"`     // that have not ended
	Stuck     int            `json:"stuck"`    // jobs whose owners cannot run them
	Outcomes  []OutcomeCount `json:"outcomes"` // of the last 6 hours, by the latest 10,000 entries of all groups
}

// An OutcomeCount is how many ticks and jobs had an outcome.
type OutcomeCount struct {
	Outcome string    `json:"outcome"`
	Count   int64     `json:"count"`
	Since   time.Time `json:"since"`
}

// A Schedule is one of package schedule. What the tables do not tell is zero.
type Schedule struct {
	ID          int64         `json:"id,string"`
	Name        string        `json:"name"`
	Kind        string        `json:"kind"`
	Key         string        `json:"key"`
	Partition   int           `json:"partition"` // of the lease schedule/GROUP
	Owner       string        `json:"owner"`     // client ID of who runs it
	Rule        string        `json:"rule"`
	State       string        `json:"state"` // running, paused, blocked, due, retrying, planned, over
	Why         string        `json:"why"`
	Succeeded   time.Time     `json:"succeeded,omitzero"` // the last tick whose run succeeded
	LastOutcome string        `json:"last_outcome"`
	Due         time.Time     `json:"due,omitzero"` // when it is looked at next
	Late        time.Duration `json:"late_ns"`
	Failures    int           `json:"failures"` // consecutive ticks that failed
	Attempts    int           `json:"attempts"` // at the tick under way, that failed
	Crashes     int           `json:"crashes"`  // of processes, during that tick
	Error       string        `json:"error"`
	PausedAt    time.Time     `json:"paused_at,omitzero"`
}

// A Job is one of package schedule that has not ended.
type Job struct {
	ID    int64         `json:"id,string"`
	Kind  string        `json:"kind"`
	Name  string        `json:"name"` // the schedule for which it runs, or its unique key
	Owner string        `json:"owner"`
	State string        `json:"state"` // running, blocked, due, retrying, planned
	Why   string        `json:"why"`
	At    time.Time     `json:"at,omitzero"`
	Due   time.Time     `json:"due,omitzero"`
	Late  time.Duration `json:"late_ns"`
	Error string        `json:"error"`
}

// A HistoryEntry is an entry of the history.
type HistoryEntry struct {
	ID       int64     `json:"id,string"`
	Name     string    `json:"name"`
	Kind     string    `json:"kind"`
	Job      int64     `json:"job,string"` // 0: it is of ticks
	Since    time.Time `json:"since"`      // it tells of the ticks after this
	Until    time.Time `json:"until"`      // up to this, the tick itself where it is one
	Ticks    int64     `json:"ticks"`
	Outcome  string    `json:"outcome"`
	Error    string    `json:"error"`
	Attempts int       `json:"attempts"`
	Started  time.Time `json:"started,omitzero"`
	At       time.Time `json:"at"`
	Retried  int64     `json:"retried,string"` // the job that runs it again; 0: none
}

const (
	mostGroups      = 100
	latestOutcomes  = 10_000
	hoursOfOutcomes = 6
	mostPage        = 1000
)

// ErrNoSchedules is returned where the database has no tables of package schedule, or too old ones.
var ErrNoSchedules = errors.New("admin: there are no schedules here")

// ScheduleGroups returns the groups of schedules, at most 100, by name. The errors: ErrNoSchedules,
// and the database's.
func (a *Admin) ScheduleGroups(ctx context.Context) ([]ScheduleGroup, error) {
	groups, err := collect(ctx, a, a.pool, "groups", pgx.RowTo[ScheduleGroup], mostGroups, latestOutcomes, hoursOfOutcomes)
	return groups, a.scheduleFailure("read the groups of schedules", err)
}

// Which of the schedules or jobs are listed.
const (
	Paused  = "paused"  // schedules
	Failing = "failing" // schedules whose last tick failed
	Late    = "late"    // schedules, by more than 10 s
	Blocked = "blocked" // their owners cannot run them
	Due     = "due"     // jobs that are to run now, or run
)

// Schedules returns schedules of a group whose names begin with prefix and come after that one, by
// name, at most that many, 1 to 1000. Which: Paused, Failing, Late, Blocked, or empty for all. Of
// those that are late or wait no more than 1,000 are found.
func (a *Admin) Schedules(ctx context.Context, group, which, prefix, after string, most int) ([]Schedule, error) {
	page, err := listOf[Schedule](ctx, a, fmt.Sprintf("list the schedules of group %q", group), "schedules",
		which, []string{Paused, Failing, Late, Blocked}, most, group, which, prefix, after)
	if end := slices.IndexFunc(page, func(s Schedule) bool { return !strings.HasPrefix(s.Name, prefix) }); end >= 0 {
		page = page[:end]
	}
	return page, err
}

// Jobs returns jobs of a group that have not ended and have a higher ID than that one, by ID, at
// most that many, 1 to 1000. Which: Blocked, Due, or empty for any. No more than 1,000 are found.
func (a *Admin) Jobs(ctx context.Context, group, which string, after int64, most int) ([]Job, error) {
	return listOf[Job](ctx, a, fmt.Sprintf("list the jobs of group %q", group), "jobs", which, []string{Blocked, Due}, most, group, which, after)
}

// ScheduleHistory returns what became of a schedule's ticks, and of jobs of its name, the latest
// first, at most that many, 1 to 1000, with a lower ID than before; 0: from the latest on.
func (a *Admin) ScheduleHistory(ctx context.Context, group, schedule string, before int64, most int) ([]HistoryEntry, error) {
	return a.history(ctx, group, &schedule, before, most)
}

// FailedJobs returns the group's jobs that failed or are unknown, as ScheduleHistory does, by the
// latest 1,000 failures of all groups.
func (a *Admin) FailedJobs(ctx context.Context, group string, before int64, most int) ([]HistoryEntry, error) {
	return a.history(ctx, group, nil, before, most)
}

func (a *Admin) history(ctx context.Context, group string, schedule *string, before int64, most int) ([]HistoryEntry, error) {
	if before <= 0 {
		before = math.MaxInt64
	}
	return listOf[HistoryEntry](ctx, a, fmt.Sprintf("read the history of group %q", group), "history", "", nil, most, group, schedule, before)
}

// listOf returns what a statement lists, which is one of some or empty, at most that many, which is
// the statement's last parameter.
func listOf[T any](ctx context.Context, a *Admin, doing, statement, which string, some []string, most int, args ...any) ([]T, error) {
	if most < 1 || most > mostPage || which != "" && !slices.Contains(some, which) {
		return nil, refusef("admin: %s: %d that are %q is out of range: 1 to %d, that are one of %q, or any", doing, most, which, mostPage, some)
	}
	page, err := collect(ctx, a, a.pool, statement, pgx.RowTo[T], append(args, most)...)
	return page, a.scheduleFailure(doing, err)
}

// scheduleFailure says what to do about an error.
func (a *Admin) scheduleFailure(doing string, err error) error {
	if store.Undefined(err) {
		return fmt.Errorf(
			"%w: %s: %w\nthe tables of package schedule are missing in this database, or too old, in schema %q: name it with --schema, or run pgleases migrate --schedules",
			ErrNoSchedules, doing, err, a.schema,
		)
	}
	return a.failure(doing, err)
}

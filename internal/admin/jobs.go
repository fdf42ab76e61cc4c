package admin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
)

const (
	jobsSearched = 20_000 // jobs of a group that one question for a kind reads
	jobsMatched  = 1_000  // of them, those whose state it finds out
	jobsFailed   = 1_000  // the latest failures of all groups that one question reads
)

// A JobFilter says which jobs of a group Jobs and FailedJobs return. An empty field takes all.
type JobFilter struct {
	Group, State, Kind, Key string
	// After is a cursor. Jobs returns those with a higher ID, and FailedJobs the entries of the history
	// with a lower one. 0: from the first on.
	After int64
}

// Jobs returns the jobs that have not ended, at most most, by ID. They are JSON as package schedule
// reads it. If end is not 0, the jobs with higher IDs were not searched yet.
func (a *Admin) Jobs(ctx context.Context, f JobFilter, most int) (jobs []json.RawMessage, end int64, err error) {
	doing := fmt.Sprintf("read the jobs of group %q", f.Group)
	err = a.past(ctx, Period{}, doing, func(tx pgx.Tx, _, _ time.Time) error {
		partition, err := a.partitionOf(ctx, tx, f)
		if err != nil {
			return err
		}
		var last *int64
		args := []any{f.Group, f.State, f.Kind, f.Key, partition, f.After, jobsSearched, jobsMatched, most}
		err = tx.QueryRow(ctx, a.statement("jobs"), args...).Scan(&jobs, &last)
		if last != nil {
			end = *last
		}
		return err
	})
	switch {
	case errors.Is(err, pgx.ErrNoRows): // a group that has never run has no jobs
		return nil, 0, nil
	case store.Undefined(err):
		return nil, 0, a.noSchedules(err)
	}
	return jobs, end, err
}

// partitionOf returns the partition of the key that a filter names; nil: it names no key.
func (a *Admin) partitionOf(ctx context.Context, tx pgx.Tx, f JobFilter) (*int, error) {
	if f.Key == "" {
		return nil, nil
	}
	var partitions int
	if err := tx.QueryRow(ctx, a.statement("groupsize"), f.Group).Scan(&partitions); err != nil {
		return nil, err
	}
	partition := store.PartitionFor(f.Key, partitions)
	return &partition, nil
}

// FailedJobs returns the failed and unknown jobs, at most most, the newest first, among the latest
// 1,000 such entries of all groups. They are JSON as package schedule reads it.
func (a *Admin) FailedJobs(ctx context.Context, f JobFilter, most int) (jobs []json.RawMessage, err error) {
	doing := fmt.Sprintf("read the failed jobs of group %q", f.Group)
	err = a.past(ctx, Period{}, doing, func(tx pgx.Tx, _, _ time.Time) error {
		args := []any{f.Group, f.Kind, f.Key, cmp.Or(f.After, math.MaxInt64), jobsFailed, most}
		return tx.QueryRow(ctx, a.statement("failedjobs"), args...).Scan(&jobs)
	})
	if store.Undefined(err) {
		return nil, a.noSchedules(err)
	}
	return jobs, err
}

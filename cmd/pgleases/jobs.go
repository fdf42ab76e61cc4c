package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/schedule"
)

// The verbs on the jobs of package schedule, and those that make jobs of schedules.

func newJobs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "Show what became of a job, and cancel one",
		Long: `Show what became of a job of package schedule, and cancel one. ID is what Enqueue returned, or pgleases schedules trigger or backfill printed. GROUP is the name
that the processes gave to schedule.New.`,
	}
	cancel := &cobra.Command{Use: "cancel GROUP ID", Short: "Cancel a job", Long: "Cancel a job that has not ended. A run that is under way is refused its commit. What it has done outside of the database is done.", Args: exactly("GROUP", "ID")}
	cancel.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := jobID(args[1])
		if err != nil {
			return err
		}
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error { return jobFailure(s.Cancel(ctx, id)) })
	}
	cmd.AddCommand(newJobShow(), cancel)
	return cmd
}

// jobFailure says what it means that a job is not found.
func jobFailure(err error) error {
	if errors.Is(err, schedule.ErrNotFound) {
		return fmt.Errorf("%v: the group has no such job, or it has ended; what ended long ago is forgotten", err)
	}
	return err
}

func jobID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, fmt.Errorf("%q is no job: give its number, as 17", text)
	}
	return id, nil
}

// A shownJob is a job as JSON.
type shownJob struct {
	ID        int64           `json:"id,string"`
	Name      string          `json:"name"`
	Kind      string          `json:"kind,omitempty"`
	Key       string          `json:"key,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`
	Fate      schedule.Fate   `json:"fate,omitempty"`
	At        time.Time       `json:"at"`
	Due       time.Time       `json:"due,omitzero"`
	Attempts  int             `json:"attempts"`
	Error     string          `json:"error,omitempty"`
	Waits     string          `json:"waits,omitempty"`
	Epoch     int64           `json:"epoch,string"`
	StartedAt time.Time       `json:"started_at,omitzero"`
	EndedAt   time.Time       `json:"ended_at,omitzero"`
}

func newJobShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show GROUP ID",
		Short: "Show a job, or what became of it",
		Long: `Show a job, or what became of it: done; dead, it failed; lost, nobody knows what came of a call that is made at most once; cancelled. One that has not ended waits, or runs just now.
NAME is its unique key, or the schedule of which it was made.`,
		Args: exactly("GROUP", "ID"),
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := jobID(args[1])
		if err != nil {
			return err
		}
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			j, err := s.Job(ctx, id)
			if err != nil {
				return jobFailure(err)
			}
			value := shownJob{ID: j.ID, Name: j.Name, Kind: j.Kind, Key: j.Key, Args: j.Args, Fate: j.Fate, At: j.At, Due: j.Due, Attempts: j.Attempts,
				Error: j.Error, Waits: j.Waits, Epoch: j.Epoch, StartedAt: j.StartedAt, EndedAt: j.EndedAt}
			return out.print(cmd.OutOrStdout(), value, func(w io.Writer) {
				state := string(j.Fate)
				switch {
				case state != "":
				case j.Waits != "":
					state = "waits: " + printable(j.Waits)
				default:
					state = "has not ended"
				}
				t := table{{"JOB", "NAME", "KIND", "AT", "STATE", "FAILED", "STARTED", "ENDED", "ERROR"}}
				t.add(strconv.FormatInt(j.ID, 10), orNothing(j.Name), orNothing(j.Kind), instant(j.At), state, strconv.Itoa(j.Attempts), instant(j.StartedAt), instant(j.EndedAt), orNothing(j.Error))
				t.write(w)
			})
		})
	}
	return cmd
}

func newTrigger() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "trigger GROUP SCHEDULE",
		Short: "Run a schedule now, besides its ticks",
		Long: `Run a schedule now, besides its ticks, also where it is paused: as a job, whose number is printed. pgleases jobs show tells what becomes of it; the schedule's history
tells nothing of it.`,
		Args: groupAndName,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			id, err := s.Trigger(ctx, args[1])
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		})
	}
	return cmd
}

func newBackfill() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backfill GROUP SCHEDULE FROM TO",
		Short: "Run a schedule once more for ticks that have passed",
		Long: `Run a schedule once more for its ticks after FROM, up to TO, 1,000 at most: each as a job of the lowest priority, in order. It prints their numbers, without ticks of which
such a job has not ended yet. The schedule's history stays as it is. To run one tick again, give a time just before it, and the tick.`,
		Example: `  pgleases schedules backfill books close-day 2026-03-01T00:00:00Z 2026-03-02T00:00:00Z`,
		Args:    exactly("GROUP", "SCHEDULE", "FROM", "TO"),
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		var between [2]time.Time
		for i, text := range args[2:] {
			at, err := time.Parse(time.RFC3339, text)
			if err != nil {
				return fmt.Errorf("%q is no time: give one as 2026-03-02T08:00:00Z", text)
			}
			between[i] = at
		}
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			ids, err := s.Backfill(ctx, args[1], between[0], between[1])
			for _, id := range ids {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		})
	}
	return cmd
}

package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/schedule"
)

// The verbs on the jobs of package schedule.

func newJobs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List, show, cancel and retry jobs",
		Long: `List the jobs of package schedule, show what became of one, cancel one, and run one once more. ID is what Enqueue returned, or pgleases schedules trigger or backfill printed. GROUP is the name
that the processes gave to schedule.New.`,
	}
	cmd.RunE = onlyVerbs
	cmd.AddCommand(newJobList(), newJobShow(),
		newEdit("cancel_job", "cancel GROUP ID", "Cancel a job", `The job has not ended. A run that is under way is refused its commit. What it has done outside of the
database is done.`, ""),
		newEdit("retry_job", "retry GROUP ID", "Retry a job that failed", `The job failed, its outcome is unknown, or it was
canceled. It runs as a new job with the same arguments, whose number is printed. A job is retried once; the new job can be retried in turn.`, ""),
		newEdit("retry_failed", "retry-failed GROUP KIND SINCE", "Retry failed jobs and ticks of a kind", `Those that failed or became unknown
since a time are retried, each once, the oldest 10,000: each as a new job, whose number is printed. What cannot be retried is counted: its schedule was deleted, or a live job has its unique key.`,
			"  pgleases jobs retry-failed reports mail 2026-03-02T00:00:00Z --reason 'the mail server is back'"))
	return cmd
}

func newJobList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list GROUP [PREFIX]",
		Short: "List the pending jobs of a group",
		Long: `List the jobs of a group that have not ended, in the order in which they were put, those whose names begin with PREFIX. NAME is the unique key, or the schedule of which it was made. FAILED
is how many attempts have failed. A job is blocked if the process that owns it does not know it; STATE says why.`,
	}
	kind := cmd.Flags().String("kind", "", "only jobs of this kind")
	state := choiceFlag(cmd, "state", "", "", "only jobs in this state", string(schedule.StatePlanned), string(schedule.StateDue),
		string(schedule.StateRunning), string(schedule.StateRetrying), string(schedule.StateBlocked))
	most := cmd.Flags().IntP("number", "n", 100, "how many jobs, 1 or more")
	return looking(cmd, withGroup, func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		filter := schedule.JobFilter{Kind: *kind, Prefix: strings.Join(args[1:], ""), State: schedule.State(state.value)}
		all, err := ofGroup(cmd, args[0], s.Jobs(ctx, filter), *most)
		return all, table("JOB,NAME,KIND,AT,STATE,FAILED,NEXT,ERROR", all, func(j schedule.Job) []any {
			return []any{j.ID, orNothing(j.Name), orNothing(j.Kind), instant(j.At), stateOf(j), j.Attempts, instant(j.Due), orNothing(j.Error)}
		}), err
	})
}

func jobID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, fmt.Errorf("%q is no job: give its number, as 17", text)
	}
	return id, nil
}

// stateOf is what a job does, or what became of it.
func stateOf(j schedule.Job) string {
	switch {
	case j.Outcome != "":
		return string(j.Outcome)
	case j.Why != "":
		return string(j.State) + ": " + printable(j.Why)
	}
	return string(j.State)
}

func newJobShow() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "show GROUP ID",
		Short: "Show a job and its outcome",
		Long: `Show a job, or its outcome: succeeded; failed; unknown, if a call that is made at most once was cut off; canceled. A job that has not ended
is planned, due, running, retrying, or blocked until a process knows it.
NAME is its unique key, or the schedule of which it was made.`,
	}, withGroup, func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		id, err := jobID(args[1])
		if err != nil {
			return nil, "", err
		}
		j, err := s.Job(ctx, id)
		if errors.Is(err, schedule.ErrNotFound) {
			err = fmt.Errorf("%v: the group has no such job; what ended long ago is forgotten", err)
		}
		return j, table("JOB,NAME,KIND,AT,STATE,FAILED,STARTED,ENDED,ERROR", []schedule.Job{j}, func(j schedule.Job) []any {
			failed := j.Attempts
			if j.Outcome == schedule.OutcomeSucceeded || j.Outcome == schedule.OutcomeUnknown {
				failed-- // the last
			}
			return []any{j.ID, orNothing(j.Name), orNothing(j.Kind), instant(j.At), stateOf(j), failed,
				instant(j.StartedAt), instant(j.EndedAt), orNothing(j.Error)}
		}), err
	})
}

func parsedTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%q is no time: give one as 2026-03-02T08:00:00Z", text)
	}
	return at, nil
}

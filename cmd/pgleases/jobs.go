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

// The verbs on jobs.

func newJobs() *cobra.Command {
	cmd := &cobra.Command{Use: "jobs", Short: "List, show, cancel and retry jobs"}
	cmd.RunE = onlyVerbs
	cmd.AddCommand(newJobList(), newJobFailed(), newJobShow(),
		newEdit("cancel_job", "cancel GROUP ID", "Cancel a job"),
		newEdit("retry_job", "retry GROUP ID", "Retry a job that failed"),
		newEdit("retry_failed", "retry-failed GROUP KIND SINCE", "Retry failed jobs and ticks of a kind"))
	return cmd
}

func newJobList() *cobra.Command {
	cmd := &cobra.Command{Use: "list GROUP [PREFIX]", Short: "List the pending jobs of a group"}
	kind := cmd.Flags().String("kind", "", "only jobs of this kind")
	state := choiceFlag(cmd, "state", "", "", "only jobs in this state", string(schedule.StatePlanned), string(schedule.StateDue),
		string(schedule.StateRunning), string(schedule.StateRetrying), string(schedule.StateBlocked))
	most := cmd.Flags().IntP("number", "n", 100, "number of jobs, 1 or more")
	return looking(cmd, withGroup, func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		filter := schedule.JobFilter{Kind: *kind, Prefix: strings.Join(args[1:], ""), State: schedule.State(state.value)}
		all, err := ofGroup(cmd, args[0], s.Jobs(ctx, filter), *most)
		now := time.Now()
		return all, table("JOB,NAME,KIND,AT,STATE,FAILED,NEXT,ERROR", all, func(j schedule.Job) []any {
			return []any{j.ID, orDash(j.Name), orDash(j.Kind), relative(now, j.At), stateOf(j), j.Attempts, relative(now, j.Due), orDash(j.Error)}
		}), err
	})
}

func newJobFailed() *cobra.Command {
	cmd := &cobra.Command{Use: "failed GROUP", Short: "List the failed jobs of a group"}
	most := cmd.Flags().IntP("number", "n", 100, "number of jobs, 1 or more")
	return looking(cmd, withGroup, func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		all, err := ofGroup(cmd, args[0], s.FailedJobs(ctx, 0), *most)
		now := time.Now()
		return all, table("JOB,NAME,KIND,OUTCOME,ATTEMPTS,ENDED,RETRIED AS,ERROR", all, func(e schedule.Entry) []any {
			return []any{e.Job, orDash(e.Name), orDash(e.Kind), e.Outcome, e.Attempts, relative(now, e.EndedAt), idOrDash(e.Retried), orDash(e.Error)}
		}), err
	})
}

func jobID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, fmt.Errorf("%q is no job: give its number, such as 17", text)
	}
	return id, nil
}

// stateOf returns the state of a job, or its outcome if it has ended.
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
	return looking(&cobra.Command{Use: "show GROUP ID", Short: "Show a job and its outcome"}, withGroup, func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		id, err := jobID(args[1])
		if err != nil {
			return nil, "", err
		}
		j, err := s.Job(ctx, id)
		if errors.Is(err, schedule.ErrNotFound) {
			err = fmt.Errorf("%v: the group has no such job; jobs that ended long ago are deleted", err)
		}
		now := time.Now()
		return j, table("JOB,NAME,KIND,AT,STATE,FAILED,STARTED,ENDED,ERROR", []schedule.Job{j}, func(j schedule.Job) []any {
			failed := j.Attempts
			if j.Outcome == schedule.OutcomeSucceeded || j.Outcome == schedule.OutcomeUnknown {
				failed-- // the last attempt
			}
			return []any{j.ID, orDash(j.Name), orDash(j.Kind), relative(now, j.At), stateOf(j), failed,
				relative(now, j.StartedAt), relative(now, j.EndedAt), orDash(j.Error)}
		}), err
	})
}

func parsedTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%q is no time: give one such as 2026-03-02T08:00:00Z", text)
	}
	return at, nil
}

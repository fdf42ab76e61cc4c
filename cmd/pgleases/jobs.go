package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/schedule"
)

// The verbs on jobs.

func newJobs() *cobra.Command {
	cmd := &cobra.Command{Use: "jobs", Short: "List, show, cancel and retry jobs", RunE: onlyVerbs}
	cmd.AddCommand(newJobList(), newJobFailed(), newJobShow(),
		newEdit("cancel_job", "cancel GROUP ID", "Cancel a job"),
		newEdit("retry_job", "retry GROUP ID", "Retry a job that failed"),
		newEdit("retry_failed", "retry-failed GROUP KIND SINCE", "Retry failed jobs and ticks of a kind"))
	return cmd
}

func newJobList() *cobra.Command {
	cmd := &cobra.Command{Use: "list GROUP [PREFIX]", Short: "List the pending jobs of a group"}
	kind := cmd.Flags().String("kind", "", "only jobs of this kind")
	states := []schedule.State{
		schedule.StatePlanned, schedule.StateDue, schedule.StateRunning, schedule.StateRetrying, schedule.StateBlocked,
	}
	words := mapped(states, func(s schedule.State) string { return string(s) })
	state := choiceFlag(cmd, "state", "", "", "only jobs in this state", words...)
	most := cmd.Flags().IntP("number", "n", 100, "number of jobs, 1 or more")
	list := func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		all, err := ofGroup(cmd, args[0], s.Jobs(ctx, schedule.JobFilter{
			Kind:   *kind,
			Prefix: strings.Join(args[1:], ""),
			State:  schedule.State(state.value),
		}), *most)
		err = cmp.Or(err, nameSuspects(all, s.Jobs(ctx, schedule.JobFilter{State: schedule.StateRunning})))
		now := time.Now()
		text := table("JOB,NAME,KIND,AT,STATE,OWNER,ATTEMPTS,NEXT,ERROR", all, func(j schedule.Job) []any {
			state, next := stateOf(now, j.State, j.Why, j.Crashes, j.StartedAt, time.Time{}, j.Due)
			return []any{
				j.ID, orDash(j.Name), orDash(j.Kind), relative(now, j.At), state, orDash(j.Owner), j.Attempts,
				next, orDash(firstLine(j.Error)),
			}
		})
		if len(all) == *most {
			text += "\nThere may be more: give a larger number with -n, or --kind or --state.\n"
		}
		return all, text, err
	}
	return looking(cmd, withGroup, list)
}

// nameSuspects sets the reason of due jobs whose owner runs a crash suspect: no other suspect
// begins beside it for some seconds, and no other job when it begins.
func nameSuspects(jobs []schedule.Job, running iter.Seq2[schedule.Job, error]) error {
	waits := func(j schedule.Job) bool {
		return j.State == schedule.StateDue && j.Owner != "" && (j.Crashes > 0 || j.Why == "")
	}
	if !slices.ContainsFunc(jobs, waits) {
		return nil
	}
	for suspect, err := range running {
		if err != nil {
			return err
		}
		for i := range jobs {
			if suspect.Crashes > 0 && jobs[i].Owner == suspect.Owner && waits(jobs[i]) {
				jobs[i].Why = fmt.Sprintf("waits for crash suspect job %d", suspect.ID)
			}
		}
	}
	return nil
}

func newJobFailed() *cobra.Command {
	cmd := &cobra.Command{Use: "failed GROUP", Short: "List the failed jobs of a group"}
	most := cmd.Flags().IntP("number", "n", 100, "number of jobs, 1 or more")
	list := func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		const heading = "JOB,NAME,KIND,OUTCOME,ATTEMPTS,ENDED,RETRIED AS,ERROR (ARGUMENTS)"
		all, err := ofGroup(cmd, args[0], s.FailedJobs(ctx, 0), *most)
		return all, table(heading, all, func(e schedule.HistoryEntry) []any {
			text := orDash(firstLine(e.Error))
			if e.Args != nil {
				text += " (" + cut(printable(string(e.Args)), 80) + ")"
			}
			return []any{
				e.Job, orDash(e.Name), orDash(e.Kind), e.Outcome, e.Attempts, relative(time.Now(), e.EndedAt),
				idOrDash(e.Retried), text,
			}
		}), err
	}
	return looking(cmd, withGroup, list)
}

func jobID(text string) (int64, error) {
	id, err := strconv.ParseInt(text, 10, 64)
	if err != nil || id < 1 {
		return 0, fmt.Errorf("%q is no job: give its number, such as 17", text)
	}
	return id, nil
}

// stateOf returns a state with its time and its reason as tables show it, and when the next run is
// due.
func stateOf(
	now time.Time, state schedule.State, why string, crashes int, started, paused, due time.Time,
) (text, next string) {
	text, next = string(state), relative(now, due)
	switch {
	case state == schedule.StatePaused: // its owner reads that when it is due
		text, next = text+" "+relative(now, paused), dash
	case state == schedule.StateRunning && started.IsZero():
		next = dash
	case state == schedule.StateRunning:
		text, next = text+" for "+period(now.Sub(started)), dash
	}
	if crashes > 0 {
		text += fmt.Sprintf(", crashes %d", crashes)
	}
	if why != "" {
		text += ": " + printable(why)
	}
	return strings.Replace(text, " ago: by ", " ago by ", 1), next
}

func newJobShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show GROUP ID", Short: "Show a job and its outcome"}
	show := func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		id, err := jobID(args[1])
		if err != nil {
			return nil, "", err
		}
		j, err := s.Job(ctx, id)
		if errors.Is(err, schedule.ErrNotFound) {
			err = fmt.Errorf("%v: the group has no such job; jobs that ended long ago are deleted", err)
		}
		const heading = "JOB,NAME,KIND,AT,STATE,OWNER,ATTEMPTS,STARTED,ENDED,RETRY OF,RETRIED AS,ERROR"
		now := time.Now()
		text := table(heading, []schedule.Job{j}, func(j schedule.Job) []any {
			state, _ := stateOf(now, j.State, j.Why, j.Crashes, time.Time{}, time.Time{}, j.Due)
			return []any{
				j.ID, orDash(j.Name), orDash(j.Kind), relative(now, j.At), cmp.Or(string(j.Outcome), state),
				orDash(j.Owner), j.Attempts, relative(now, j.StartedAt), relative(now, j.EndedAt),
				idOrDash(j.RetryOf), idOrDash(j.Retried), orDash(firstLine(j.Error)),
			}
		})
		if j.Args != nil {
			text += "arguments: " + cut(printable(string(j.Args)), 1000) + "\n"
		}
		if firstLine(j.Error) != j.Error {
			text += "\n" + lines(j.Error) + "\n"
		}
		return j, text, err
	}
	return looking(cmd, withGroup, show)
}

func parsedTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%q is no time: give one such as 2026-03-02T08:00:00Z", text)
	}
	return at, nil
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/schedule"
)

// The verbs on the jobs of package schedule, and those that make jobs of schedules.

func newJobs() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "jobs",
		Short: "List jobs, show what became of one, cancel one, run one once more",
		Long: `List the jobs of package schedule, show what became of one, cancel one, and run one once more. ID is what Enqueue returned, or pgleases schedules trigger or backfill printed. GROUP is the name
that the processes gave to schedule.New.`,
	}
	cmd.RunE = onlyVerbs
	cancel := &cobra.Command{
		Use: "cancel GROUP ID", Short: "Cancel a job",
		Long: "Cancel a job that has not ended. A run that is under way is refused its commit. What it has done outside of the database is done.",
		Args: exactly("GROUP", "ID"),
	}
	withCancel := editing(cancel)
	cancel.RunE = func(_ *cobra.Command, args []string) error {
		id, err := jobID(args[1])
		if err != nil {
			return err
		}
		return withCancel(args[0], func(ctx context.Context, s *schedule.Scheduler) error { return s.Cancel(ctx, id) })
	}
	retry := &cobra.Command{Use: "retry GROUP ID", Short: "Run a job that failed once more",
		Long: "Run a job that is dead, lost or cancelled once more: as a new job, with what it had, whose number is printed. Once: that one can be retried in its turn.", Args: exactly("GROUP", "ID")}
	withRetry := editing(retry)
	retry.RunE = func(_ *cobra.Command, args []string) error {
		id, err := jobID(args[1])
		if err != nil {
			return err
		}
		return withRetry(args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			again, err := s.Retry(ctx, id)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), again)
			}
			return err
		})
	}
	cmd.AddCommand(newJobList(), newJobShow(), cancel, retry, newRetryDead())
	return cmd
}

func newJobList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list GROUP [PREFIX]",
		Short: "List the jobs of a group that have not ended",
		Long: `List the jobs of a group that have not ended, in the order in which they were put, those whose names begin with PREFIX. NAME is the unique key, or the schedule of which it was made. FAILED
is how many attempts have failed. A job that waits is not known, as it is, to the process that owns it; STATE says why.`,
		Args: groupAndPrefix,
	}
	out := outputFlag(cmd)
	var filter schedule.JobFilter
	cmd.Flags().StringVar(&filter.Kind, "kind", "", "only jobs of this kind")
	states := []string{
		string(schedule.StatePlanned), string(schedule.StateDue), string(schedule.StateRuns), string(schedule.StateRetries),
		string(schedule.StateWaits),
	}
	cmd.Flags().StringVar((*string)(&filter.State), "state", "", "only jobs in this state: "+strings.Join(states, ", "))
	_ = cmd.RegisterFlagCompletionFunc("state", cobra.FixedCompletions(states, cobra.ShellCompDirectiveNoFileComp))
	most := cmd.Flags().IntP("number", "n", 100, "how many jobs, 1 or more")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *most < 1:
			return fmt.Errorf("-n %d: give 1 or more", *most)
		case filter.State != "" && !slices.Contains(states, string(filter.State)):
			return fmt.Errorf("--state %q: give one of %s", filter.State, strings.Join(states, ", "))
		}
		filter.Prefix = strings.Join(args[1:], "")
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			all := []shownJob{}
			for j, err := range s.Jobs(ctx, filter) {
				if err != nil {
					return err
				}
				if all = append(all, showJob(j)); len(all) == *most {
					break
				}
			}
			if len(all) == 0 {
				if err := withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error { return checkGroup(ctx, a, args[0]) }); err != nil {
					return err
				}
			}
			return out.print(cmd.OutOrStdout(), all, func(w io.Writer) {
				t := table{{"JOB", "NAME", "KIND", "AT", "STATE", "FAILED", "NEXT", "ERROR"}}
				for _, j := range all {
					t.add(
						strconv.FormatInt(j.ID, 10), orNothing(j.Name), orNothing(j.Kind), instant(j.At), j.state(),
						strconv.Itoa(j.Attempts), instant(j.Due), orNothing(j.Error),
					)
				}
				t.write(w)
			})
		})
	}
	return cmd
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
	Trigger   string          `json:"trigger,omitempty"`
	Args      json.RawMessage `json:"args,omitempty"`
	State     schedule.State  `json:"state,omitempty"`
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

func showJob(j schedule.Job) shownJob {
	return shownJob{ID: j.ID, Name: j.Name, Kind: j.Kind, Key: j.Key, Trigger: string(j.Trigger), Args: j.Args, State: j.State, Fate: j.Fate, At: j.At, Due: j.Due, Attempts: j.Attempts,
		Error: j.Error, Waits: j.Waits, Epoch: j.Epoch, StartedAt: j.StartedAt, EndedAt: j.EndedAt}
}

// state is what a job does, or what became of it.
func (j shownJob) state() string {
	switch {
	case j.Fate != "":
		return string(j.Fate)
	case j.State == schedule.StateWaits:
		return "waits: " + printable(j.Waits)
	}
	return string(j.State)
}

func newJobShow() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show GROUP ID",
		Short: "Show a job, or what became of it",
		Long: `Show a job, or what became of it: done; dead, it failed; lost, nobody knows what came of a call that is made at most once; cancelled. One that has not ended
is planned, due, runs, is tried again, or waits for a process that knows it.
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
			if errors.Is(err, schedule.ErrNotFound) {
				return fmt.Errorf("%v: the group has no such job; what ended long ago is forgotten", err)
			}
			if err != nil {
				return err
			}
			value := showJob(j)
			return out.print(cmd.OutOrStdout(), value, func(w io.Writer) {
				t := table{{"JOB", "NAME", "KIND", "AT", "STATE", "FAILED", "STARTED", "ENDED", "ERROR"}}
				t.add(
					strconv.FormatInt(j.ID, 10), orNothing(j.Name), orNothing(j.Kind), instant(j.At), value.state(),
					strconv.Itoa(j.Attempts), instant(j.StartedAt), instant(j.EndedAt), orNothing(j.Error),
				)
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
	with := editing(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return with(args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			id, err := s.Trigger(ctx, args[1])
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		})
	}
	return cmd
}

func newTickRetry() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry GROUP SCHEDULE TICK",
		Short: "Run a schedule once more for a tick that failed",
		Long: `Run a schedule once more for a tick that is dead or lost: as a job, whose number is printed. TICK is its instant, as pgleases schedules history -o json prints it in until. The tick keeps its fate. Once:
the job can be retried in its turn, with pgleases jobs retry.`,
		Example: `  pgleases schedules retry books close-day 2026-03-02T00:00:00Z --reason 'there is paper'`,
		Args:    exactly("GROUP", "SCHEDULE", "TICK"),
	}
	with := editing(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		tick, err := parsedTime(args[2])
		if err != nil {
			return err
		}
		return with(args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			id, err := s.RetryTick(ctx, args[1], tick)
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		})
	}
	return cmd
}

func newRetryDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "retry-dead GROUP KIND SINCE",
		Short: "Retry all jobs and ticks of a kind that failed",
		Long: `Retry all jobs and ticks of a kind that became dead or lost since a time, each once, the oldest 10,000: each as a new job, whose number is printed. What cannot be retried is counted: its
schedule was deleted, or a living job has its unique key.`,
		Example: `  pgleases jobs retry-dead books mail 2026-03-02T00:00:00Z --reason 'the mail server is back'`,
		Args:    exactly("GROUP", "KIND", "SINCE"),
	}
	with := editing(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		since, err := parsedTime(args[2])
		if err != nil {
			return err
		}
		return with(args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			ids, refused, err := s.RetryDead(ctx, args[1], since)
			for _, id := range ids {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			if err == nil && refused > 0 {
				err = fmt.Errorf("%d cannot be retried, because their schedule was deleted, or a living job has their unique key", refused)
			}
			return err
		})
	}
	return cmd
}

func parsedTime(text string) (time.Time, error) {
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return at, fmt.Errorf("%q is no time: give one as 2026-03-02T08:00:00Z", text)
	}
	return at, nil
}

func newBackfill() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "backfill GROUP SCHEDULE FROM TO",
		Short: "Run a schedule once more for ticks that have passed",
		Long: `Run a schedule once more for its ticks after FROM, up to TO, 1,000 at most: each as a job of the lowest priority, in order. It prints their numbers, without ticks of which
such a job has not ended yet. The schedule's history stays as it is. To run one tick again, give a time just before it, and the tick.`,
		Example: `  pgleases schedules backfill books close-day 2026-03-01T00:00:00Z 2026-03-02T00:00:00Z --reason 'the numbers were wrong'`,
		Args:    exactly("GROUP", "SCHEDULE", "FROM", "TO"),
	}
	with := editing(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		var between [2]time.Time
		for i, text := range args[2:] {
			at, err := parsedTime(text)
			if err != nil {
				return err
			}
			between[i] = at
		}
		return with(args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			ids, err := s.Backfill(ctx, args[1], between[0], between[1])
			for _, id := range ids {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		})
	}
	return cmd
}

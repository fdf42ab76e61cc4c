package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/schedule"
)

// The verbs on the schedules of package schedule.

func newSchedules() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedules",
		Short: "Show schedules and what became of their ticks; pause, resume, trigger, backfill, retry and delete them",
		Long: `Show the schedules of package schedule and what became of their ticks; pause, resume, trigger, backfill, retry and delete them.

GROUP is the name that the processes gave to schedule.New. Its lease is schedule/GROUP: describe shows who runs what.`,
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error { // else cobra prints the help for a verb that is none, and all is well
		if len(args) == 0 {
			return cmd.Help()
		}
		return fmt.Errorf("there is no verb %q: pgleases schedules --help shows those that there are", args[0])
	}
	cmd.AddCommand(newScheduleList(), newScheduleHistory(), newTrigger(), newBackfill(), newTickRetry(),
		newScheduleEdit("pause", "Have a schedule not run until it is resumed",
			"Have a schedule not run until it is resumed. A run that is under way goes on.",
			func(*cobra.Command) func(context.Context, *schedule.Scheduler, string) error {
				return func(ctx context.Context, s *schedule.Scheduler, name string) error { return s.Pause(ctx, name) }
			}),
		newScheduleEdit("resume", "Have a schedule that was paused run again",
			"Have a schedule that was paused run again, with its next tick. The ticks that passed are cancelled, or with --catch-up treated as if nobody could run them until now.",
			func(cmd *cobra.Command) func(context.Context, *schedule.Scheduler, string) error {
				catchUp := cmd.Flags().Bool("catch-up", false, "do not cancel the ticks that passed: what becomes of late ones is the schedule's to say")
				return func(ctx context.Context, s *schedule.Scheduler, name string) error {
					if *catchUp {
						return s.Resume(ctx, name, schedule.CatchUp)
					}
					return s.Resume(ctx, name, schedule.FromNow)
				}
			}),
		newScheduleEdit("delete", "Delete a schedule",
			"Delete a schedule. Its history stays. A run that is under way is refused its commit. One that the code declares comes back with the next process that\nstarts: pause it instead.",
			func(*cobra.Command) func(context.Context, *schedule.Scheduler, string) error {
				return func(ctx context.Context, s *schedule.Scheduler, name string) error { return s.Delete(ctx, name) }
			}))
	return cmd
}

// withScheduler has a verb use the schedules of a group.
func withScheduler(cmd *cobra.Command, group string, use func(ctx context.Context, s *schedule.Scheduler) error) error {
	return withPool(cmd, func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
		s, err := schedule.Manage(ctx, pool, group, schedule.WithSchema(schema))
		if err == nil {
			err = use(ctx, s)
		}
		if errors.Is(err, schedule.ErrNotFound) {
			err = fmt.Errorf("%w\npgleases schedules list GROUP shows those that there are", err)
		}
		return err
	})
}

// A scheduled is a schedule as JSON.
type scheduled struct {
	Name     string          `json:"name"`
	Kind     string          `json:"kind"`
	Key      string          `json:"key"`
	Args     json.RawMessage `json:"args"`
	Rule     string          `json:"rule"`
	Declared bool            `json:"declared"`
	Cursor   time.Time       `json:"cursor"`
	Due      time.Time       `json:"due,omitzero"`
	Done     time.Time       `json:"done,omitzero"`
	PausedAt time.Time       `json:"paused_at,omitzero"`
	Failures int             `json:"failures"`
	Attempts int             `json:"attempts"`
	Error    string          `json:"error,omitempty"`
	Waits    string          `json:"waits,omitempty"`
}

func newScheduleList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list GROUP [PREFIX]",
		Short: "List the schedules of a group",
		Long: `List the schedules of a group, whose names begin with PREFIX. NEXT is when the process that owns it looks at it next, as a rule at its next tick; DONE is the
last tick that was done. One that waits is not known, as it is, to the process that owns it; STATE says why.`,
		Args: groupAndPrefix,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			all := []scheduled{}
			for one, err := range s.List(ctx, strings.Join(args[1:], "")) {
				if err != nil {
					return err
				}
				all = append(all, scheduled{Name: one.Name, Kind: one.Kind, Key: one.Key, Args: one.Args, Rule: one.Rule, Declared: one.Declared, Cursor: one.Cursor,
					Due: one.Due, Done: one.Done, PausedAt: one.PausedAt, Failures: one.Failures, Attempts: one.Attempts, Error: one.Error, Waits: one.Waits})
			}
			return out.print(cmd.OutOrStdout(), all, func(w io.Writer) {
				t := table{{"SCHEDULE", "KIND", "RULE", "NEXT", "DONE", "STATE"}}
				for _, one := range all {
					state, next := "runs", instant(one.Due)
					switch {
					case !one.PausedAt.IsZero(): // its owner may still have to look at what that means, but nothing comes of it
						next = nothing
						state = "paused " + instant(one.PausedAt)
					case one.Waits != "":
						state = "waits: " + printable(one.Waits)
					case one.Attempts > 0:
						state = fmt.Sprintf("is tried again, failed %d times: %s", one.Attempts, shown(one.Error))
					case one.Due.IsZero():
						state = "has no further tick"
					}
					t.add(shown(one.Name), shown(one.Kind), shown(one.Rule), next, instant(one.Done), state)
				}
				t.write(w)
			})
		})
	}
	return cmd
}

// An entry is one of a schedule's history as JSON.
type entry struct {
	Since     time.Time     `json:"since"`
	Until     time.Time     `json:"until"`
	Ticks     int64         `json:"ticks"`
	Fate      schedule.Fate `json:"fate"`
	Attempts  int           `json:"attempts"`
	Error     string        `json:"error,omitempty"`
	Epoch     int64         `json:"epoch,string"`
	StartedAt time.Time     `json:"started_at,omitzero"`
	EndedAt   time.Time     `json:"ended_at"`
}

func newScheduleHistory() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history GROUP SCHEDULE",
		Short: "Show what became of the ticks of a schedule, the newest first",
		Long: `Show what became of the ticks of a schedule, the newest first, also of those that were deleted. Each tick has one fate: done; dead, its run failed; lost, nobody knows what came of a call that is made at most once; missed, it was too late
to run it; skipped, the run before was under way; cancelled, an edit, a resumption or a deletion came first.`,
		Args: groupAndName,
	}
	out := outputFlag(cmd)
	most := cmd.Flags().IntP("number", "n", 20, "how many entries, 1 or more")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *most < 1 {
			return fmt.Errorf("-n %d: give 1 or more", *most)
		}
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error {
			all := []entry{}
			for e, err := range s.History(ctx, args[1]) {
				if err != nil {
					return err
				}
				if all = append(all, entry{e.Since, e.Until, e.Ticks, e.Fate, e.Attempts, e.Error, e.Epoch, e.StartedAt, e.EndedAt}); len(all) == *most {
					break
				}
			}
			return out.print(cmd.OutOrStdout(), all, func(w io.Writer) {
				t := table{{"TICK", "TICKS", "FATE", "STARTED", "TOOK", "ERROR"}}
				for _, e := range all {
					took := nothing
					if !e.StartedAt.IsZero() {
						took = period(e.EndedAt.Sub(e.StartedAt))
					}
					t.add(instant(e.Until), strconv.FormatInt(e.Ticks, 10), string(e.Fate), instant(e.StartedAt), took, orNothing(e.Error))
				}
				t.write(w)
			})
		})
	}
	return cmd
}

// newScheduleEdit returns a verb that changes a schedule.
func newScheduleEdit(verb, short, long string, edit func(*cobra.Command) func(context.Context, *schedule.Scheduler, string) error) *cobra.Command {
	cmd := &cobra.Command{Use: verb + " GROUP SCHEDULE", Short: short, Long: long, Args: groupAndName}
	do := edit(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return withScheduler(cmd, args[0], func(ctx context.Context, s *schedule.Scheduler) error { return do(ctx, s, args[1]) })
	}
	return cmd
}

func groupAndPrefix(cmd *cobra.Command, args []string) error {
	if len(args) < 1 || len(args) > 2 {
		return fmt.Errorf("give a group, and a prefix if you like: %s", cmd.UseLine())
	}
	return nil
}

func groupAndName(cmd *cobra.Command, args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("give the group and the schedule: %s", cmd.UseLine())
	}
	return nil
}

// instant is a point in time in this machine's zone; nothing for none.
func instant(at time.Time) string {
	if at.IsZero() {
		return nothing
	}
	return at.Local().Format("2006-01-02 15:04:05 MST")
}

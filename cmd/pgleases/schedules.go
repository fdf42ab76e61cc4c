package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/internal/store"
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
	cmd.RunE = onlyVerbs
	cmd.AddCommand(newScheduleGroups(), newScheduleList(), newScheduleHistory(), newTrigger(), newBackfill(), newTickRetry(),
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

// onlyVerbs is what a command with verbs does without one. Else cobra prints the help for a verb that is none, and all is well.
func onlyVerbs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return fmt.Errorf("there is no verb %q: %s --help shows those that there are", args[0], cmd.CommandPath())
}

// withScheduler has a verb use the schedules of a group.
func withScheduler(cmd *cobra.Command, group string, use func(ctx context.Context, s *schedule.Scheduler) error, opts ...schedule.Option) error {
	return withPool(cmd, func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
		s, err := schedule.Manage(ctx, pool, group, append(opts, schedule.WithSchema(schema))...)
		if err == nil {
			err = use(ctx, s)
		}
		remedy := ""
		switch {
		case errors.Is(err, schedule.ErrNotFound):
			remedy = "pgleases schedules list GROUP and pgleases jobs list GROUP show those that there are"
		case store.ReadOnly(err) || store.Code(err) == "0A000":
			remedy = "the server is a standby: give the address of the primary"
		case store.Denied(err):
			remedy = fmt.Sprintf("give the role what pgleases grants ROLE --for=%s prints for schema %q", admin.ForScheduleOperators, schema)
		}
		if remedy != "" {
			err = fmt.Errorf("%w\n%s", err, remedy)
		}
		return err
	})
}

const editHelp = `

It is written down with the reason, with the role that connects, and with --actor, in the table schedule_changes. It needs the rights that pgleases grants ROLE --for=schedule-operators prints.`

// editing has a verb that changes schedules or jobs take a reason and an actor, and returns withScheduler with them.
func editing(cmd *cobra.Command) func(group string, use func(ctx context.Context, s *schedule.Scheduler) error) error {
	cmd.Long += editHelp
	var reason, actor string
	reasonFlags(cmd, &reason, &actor, "why; it has to be given")
	return func(group string, use func(ctx context.Context, s *schedule.Scheduler) error) error {
		if reason == "" {
			return errNoReason
		}
		return withScheduler(cmd, group, use, schedule.WithReason(reason, actor))
	}
}

// checkGroup is the error where nothing is found as there is no such group.
func checkGroup(ctx context.Context, a *admin.Admin, group string) error {
	groups, err := a.ScheduleGroups(ctx)
	if err != nil || slices.ContainsFunc(groups, func(g admin.ScheduleGroup) bool { return g.Name == group }) {
		return err
	}
	return fmt.Errorf("there is no group %q: pgleases schedules groups shows those that there are", group)
}

func newScheduleGroups() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "groups",
		Short: "List the groups, with how many schedules and jobs they have",
		Long: `List the groups, with how many schedules and jobs they have; beyond 1,000 they are not counted. LATE are those that were due more than 10 s ago, FAILING those whose last tick is dead. What
waits is not known, as it is, to the process that owns it: schedules in WAITING, jobs in STUCK.`,
		Args: cobra.NoArgs,
	}
	out := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			groups, err := a.ScheduleGroups(ctx)
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), groups, func(w io.Writer) {
				t := table{{"GROUP", "SCHEDULES", "LATE", "WAITING", "PAUSED", "FAILING", "JOBS", "STUCK"}}
				for _, g := range groups {
					row := []string{shown(g.Name)}
					for _, n := range []int{g.Schedules, g.Late, g.Waiting, g.Paused, g.Failing, g.Jobs, g.Stuck} {
						if n > 1000 {
							row = append(row, "1000+")
							continue
						}
						row = append(row, strconv.Itoa(n))
					}
					t.add(row...)
				}
				t.write(w)
			})
		})
	}
	return cmd
}

func newScheduleList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list GROUP [PREFIX]",
		Short: "List the schedules of a group",
		Long: `List the schedules of a group, whose names begin with PREFIX, by name. NEXT is when the process that owns it looks at it next, as a rule at its next tick; DONE is the
last tick that was done. One that waits is not known, as it is, to the process that owns it; STATE says why. Of those that are late or wait no more than 1,000 are found.`,
		Args: groupAndPrefix,
	}
	out := outputFlag(cmd)
	kinds := []string{admin.Late, admin.Failing, admin.Waiting, admin.Paused}
	only := cmd.Flags().String("only", "", "only those that are so: "+strings.Join(kinds, ", "))
	_ = cmd.RegisterFlagCompletionFunc("only", cobra.FixedCompletions(kinds, cobra.ShellCompDirectiveNoFileComp))
	most := cmd.Flags().IntP("number", "n", 100, "how many schedules, 1 to 1000")
	after := cmd.Flags().String("after", "", "only names behind this one, to go on from the last of a list")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *most < 1 || *most > 1000:
			return fmt.Errorf("-n %d: give 1 to 1000", *most)
		case *only != "" && !slices.Contains(kinds, *only):
			return fmt.Errorf("--only %q: give one of %s", *only, strings.Join(kinds, ", "))
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			all, err := a.Schedules(ctx, args[0], *only, strings.Join(args[1:], ""), *after, *most)
			if err == nil && len(all) == 0 {
				err = checkGroup(ctx, a, args[0])
			}
			if err != nil {
				return err
			}
			return out.print(cmd.OutOrStdout(), all, func(w io.Writer) {
				t := table{{"SCHEDULE", "KIND", "RULE", "OWNER", "NEXT", "DONE", "STATE"}}
				for _, one := range all {
					state, next := one.State, instant(one.Due)
					if !one.PausedAt.IsZero() { // its owner may still have to look at what that means, but nothing comes of it
						next = nothing
						state += " " + instant(one.PausedAt)
					}
					for _, text := range []string{one.Why, one.Error} {
						if text != "" {
							state += ": " + printable(text)
						}
					}
					t.add(shown(one.Name), shown(one.Kind), shown(one.Rule), orNothing(one.Owner), next, instant(one.Done), state)
				}
				t.write(w)
				if len(all) == *most {
					fmt.Fprintln(w, "\nThere may be more: go on with --after and the last name.")
				}
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
			if len(all) == 0 {
				if _, err := s.Get(ctx, args[1]); err != nil {
					return err
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
	do, with := edit(cmd), editing(cmd)
	cmd.RunE = func(_ *cobra.Command, args []string) error {
		return with(args[0], func(ctx context.Context, s *schedule.Scheduler) error { return do(ctx, s, args[1]) })
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

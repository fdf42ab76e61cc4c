package main

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/internal/manage"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule"
)

// The verbs on the schedules of package schedule.

func newSchedules() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "schedules",
		Short: "Show, pause, resume, trigger, backfill and delete schedules",
		Long: `Show the schedules of package schedule and what became of their ticks; pause, resume, trigger, backfill, retry and delete them.

GROUP is the name that the processes gave to schedule.New. Its lease is schedule/GROUP: describe shows who runs what.`,
	}
	cmd.RunE = onlyVerbs
	cmd.AddCommand(newScheduleGroups(), newScheduleList(), newScheduleHistory(),
		newEdit("pause_schedule", "pause GROUP SCHEDULE", "Pause a schedule until it is resumed", "A run that is under way continues.", ""),
		newEdit("resume_schedule", "resume GROUP SCHEDULE", "Resume a paused schedule", `It runs again with its next tick. The ticks that passed
are canceled; with --catch-up they are late ticks instead.`, ""),
		newEdit("delete_schedule", "delete GROUP SCHEDULE", "Delete a schedule", `Its history stays. A run that is under way is refused its commit. One that the code declares
comes back with the next process that starts: pause it instead.`, ""),
		newEdit("trigger_schedule", "trigger GROUP SCHEDULE", "Trigger a run of a schedule now", `The run is a job, whose number is
printed, in addition to the ticks, even if the schedule is paused. pgleases jobs show shows its outcome; the schedule's history does not.`, ""),
		newEdit("backfill_schedule", "backfill GROUP SCHEDULE FROM TO", "Run a schedule again for past ticks", `The ticks after FROM, up to TO,
1,000 at most, each run as a job of the lowest priority, in order. It prints the numbers of the jobs, except for ticks that still have
such a job. The schedule's history does not change. To run one tick again, give a time just before it, and the tick.`,
			"  pgleases schedules backfill reports nightly 2026-03-01T00:00:00Z 2026-03-02T00:00:00Z --reason 'the numbers were wrong'"),
		newEdit("retry_tick", "retry GROUP SCHEDULE TICK", "Retry a tick that failed", `The tick failed or its outcome is
unknown. It runs as a job, whose number is printed. TICK is its instant, as
pgleases schedules history -o json prints it in until. The tick keeps its outcome. Once: the job can be retried in its turn, with
pgleases jobs retry.`,
			"  pgleases schedules retry reports nightly 2026-03-02T00:00:00Z --reason 'there is paper'"))
	return cmd
}

// onlyVerbs is what a command with verbs does without one. Else cobra prints the help for a verb
// that is none, and all is well.
func onlyVerbs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return fmt.Errorf("there is no verb %q: %s --help shows those that there are", args[0], cmd.CommandPath())
}

// withGroup has a verb use the schedules of the group that is its first argument.
func withGroup(cmd *cobra.Command, use func(ctx context.Context, s *schedule.Scheduler) error) error {
	return withPool(cmd, func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
		opts := []schedule.Option{schedule.WithSchema(schema)}
		if reason, err := cmd.Flags().GetString("reason"); err == nil {
			actor, _ := cmd.Flags().GetString("actor")
			opts = append(opts, schedule.WithReason(reason, actor))
		}
		s, err := schedule.Manage(ctx, pool, cmd.Flags().Arg(0), opts...)
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

// newEdit returns a verb that changes a schedule or a job, and prints the numbers of the jobs that
// come of it.
func newEdit(verb, use, short, long, example string) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Long: short + ". " + long + editHelp, Example: example, Args: asUsed}
	r := manage.Request{Verb: verb}
	var reason, actor string
	reasonFlags(cmd, &reason, &actor, "why; it has to be given")
	if verb == "resume_schedule" {
		cmd.Flags().BoolVar(&r.CatchUp, "catch-up", false, "leave the ticks that passed to what the schedule says of late ones")
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		for i, name := range arguments(cmd) {
			switch name {
			case "SCHEDULE":
				r.Schedule = args[i]
			case "KIND":
				r.Kind = args[i]
			case "ID":
				r.Job, err = jobID(args[i])
			case "TICK":
				r.Tick, err = parsedTime(args[i])
			case "FROM", "SINCE":
				r.After, err = parsedTime(args[i])
			case "TO":
				r.Until, err = parsedTime(args[i])
			}
			if err != nil {
				return err
			}
		}
		if reason == "" {
			return errNoReason
		}
		return withGroup(cmd, func(ctx context.Context, s *schedule.Scheduler) error {
			jobs, err := r.Do(ctx, s)
			for _, id := range jobs {
				fmt.Fprintln(cmd.OutOrStdout(), id)
			}
			return err
		})
	}
	return cmd
}

// ofGroup is firstOf of what a group has. If that is nothing, there has to be such a group.
func ofGroup[T any](cmd *cobra.Command, group string, seq iter.Seq2[T, error], most int) ([]T, error) {
	all, err := firstOf(seq, most)
	if err != nil || len(all) > 0 {
		return all, err
	}
	return all, withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
		groups, err := a.ScheduleGroups(ctx)
		if err != nil || slices.ContainsFunc(groups, func(g admin.ScheduleGroup) bool { return g.Name == group }) {
			return err
		}
		return fmt.Errorf("there is no group %q: pgleases schedules groups shows those that there are", group)
	})
}

func newScheduleGroups() *cobra.Command {
	return looking(&cobra.Command{
		Use:   "groups",
		Short: "List the groups of schedules",
		Long: `List the groups, with how many schedules and jobs they have; beyond 1,000 they are not counted. LATE are those that were due more than 10 s ago, FAILING those whose last tick failed. The
process that owns them does not know schedules in BLOCKED and jobs in STUCK.`,
	}, withAdmin, func(ctx context.Context, a *admin.Admin, _ []string) (any, string, error) {
		groups, err := a.ScheduleGroups(ctx)
		return groups, table("GROUP,SCHEDULES,LATE,BLOCKED,PAUSED,FAILING,JOBS,STUCK", groups, func(g admin.ScheduleGroup) []any {
			row := []any{shown(g.Name)}
			for _, n := range []int{g.Schedules, g.Late, g.Blocked, g.Paused, g.Failing, g.Jobs, g.Stuck} {
				if n > 1000 {
					row = append(row, "1000+")
					continue
				}
				row = append(row, n)
			}
			return row
		}), err
	})
}

func newScheduleList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list GROUP [PREFIX]",
		Short: "List the schedules of a group",
		Long: `List the schedules of a group, whose names begin with PREFIX, by name. NEXT is when the process that owns it looks at it next, as a rule at its next tick; SUCCEEDED is the
last tick that succeeded. A schedule is blocked if the process that owns it does not know it; STATE says why. Of those that are late or blocked no more than 1,000 are found.`,
	}
	only := choiceFlag(cmd, "only", "", "", "only those that are so", schedule.OnlyLate, schedule.OnlyFailing, schedule.OnlyBlocked, schedule.OnlyPaused)
	most := cmd.Flags().IntP("number", "n", 100, "how many schedules, 1 or more")
	after := cmd.Flags().String("after", "", "only names behind this one, to go on from the last of a list")
	return looking(cmd, withGroup, func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		filter := schedule.ScheduleFilter{Prefix: strings.Join(args[1:], ""), After: *after, Only: only.value}
		all, err := ofGroup(cmd, args[0], s.List(ctx, filter), *most)
		text := table("SCHEDULE,KIND,RULE,OWNER,NEXT,SUCCEEDED,STATE", all, func(one schedule.Schedule) []any {
			state, next := string(one.State), instant(one.Due)
			if !one.PausedAt.IsZero() { // its owner may still have to look at what that means, but nothing comes of it
				next = nothing
				state += " " + instant(one.PausedAt)
			}
			for _, text := range []string{one.Why, one.Error} {
				if text != "" {
					state += ": " + printable(text)
				}
			}
			return []any{shown(one.Name), shown(one.Kind), shown(one.Rule), orNothing(one.Owner), next, instant(one.Succeeded), state}
		})
		if len(all) == *most {
			text += "\nThere may be more: go on with --after and the last name.\n"
		}
		return all, text, err
	})
}

func newScheduleHistory() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "history GROUP SCHEDULE",
		Short: "Show the history of a schedule",
		Long: `Show what became of the ticks of a schedule, and of its runs besides, which are jobs, the newest first, also of those that were deleted. Each has one outcome: succeeded; failed; unknown, if a call that is made at most once was cut off; missed, it was too late
to run it; skipped, the run before was under way; canceled, an edit, a resumption or a deletion came first.`,
	}
	most := cmd.Flags().IntP("number", "n", 20, "how many entries, 1 or more")
	return looking(cmd, withGroup, func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		all, err := firstOf(s.History(ctx, args[1], 0), *most)
		if err == nil && len(all) == 0 {
			_, err = s.Get(ctx, args[1])
		}
		return all, table("TICK,TICKS,JOB,OUTCOME,STARTED,TOOK,ERROR", all, func(e schedule.Entry) []any {
			took := nothing
			if !e.StartedAt.IsZero() {
				took = period(e.EndedAt.Sub(e.StartedAt))
			}
			job := nothing
			if e.Job > 0 {
				job = strconv.FormatInt(e.Job, 10)
			}
			return []any{instant(e.Until), e.Ticks, job, e.Outcome, instant(e.StartedAt), took, orNothing(e.Error)}
		}), err
	})
}

// instant is a point in time in this machine's zone; nothing for none.
func instant(at time.Time) string {
	if at.IsZero() {
		return nothing
	}
	return at.Local().Format("2006-01-02 15:04:05 MST")
}

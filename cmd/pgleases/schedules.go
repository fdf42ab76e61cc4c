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

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/manage"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/shell"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/schedule"
)

// The verbs on schedules.

func newSchedules() *cobra.Command {
	cmd := &cobra.Command{Use: "schedules", Short: "List, pause, trigger, backfill and delete schedules"}
	looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, _ []string) (any, string, error) {
		ill, err := a.IllSchedules(ctx)
		if err != nil {
			return nil, "", err
		}
		groups, err := a.ScheduleGroups(ctx)
		unread := notesUnread(cmd, groups)
		return ill, illText(ill, unread), err
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return onlyVerbs(cmd, args)
		}
		return nil
	}
	cmd.AddCommand(newScheduleGroups(), newScheduleList(), newScheduleHistory(),
		newEdit("pause_schedule", "pause GROUP SCHEDULE", "Pause a schedule until it is resumed"),
		newEdit("resume_schedule", "resume GROUP SCHEDULE", "Resume a paused schedule"),
		newEdit("delete_schedule", "delete GROUP SCHEDULE", "Delete a schedule"),
		newEdit("trigger_schedule", "trigger GROUP SCHEDULE", "Trigger a run of a schedule now"),
		newEdit("backfill_schedule", "backfill GROUP SCHEDULE FROM TO", "Run a schedule again for past ticks"),
		newEdit("retry_tick", "retry GROUP SCHEDULE TICK", "Retry a tick that failed"))
	return cmd
}

// notesUnread prints a note if there may be groups that are not read, and reports whether it has.
func notesUnread(cmd *cobra.Command, groups []admin.ScheduleGroup) bool {
	if len(groups) < admin.GroupsMost {
		return false
	}
	cmd.PrintErrf("pgleases: only the first %d groups by name are read: there may be more\n", admin.GroupsMost)
	return true
}

// illText returns schedules that do not go on as a table, or says that all is well.
func illText(ill []admin.IllSchedule, unread bool) string {
	if len(ill) == 0 {
		return fmt.Sprintf("All is well%s: no schedule is failing, blocked, late or paused, "+
			"and none skips most of its ticks.\n", either(unread, " in the groups that were read", ""))
	}
	more := ""
	if len(ill) == admin.IllMost {
		more = fmt.Sprintf("\nThere may be more: these are the first %d by group and name.\n", admin.IllMost)
	}
	now := time.Now()
	return table("GROUP,SCHEDULE,SINCE,SUCCEEDED,STATE", ill, func(one admin.IllSchedule) []any {
		var since time.Time
		var state []string
		for _, fault := range one.Faults {
			text, at := faultText(one, fault, now)
			state = append(state, text)
			since = cmp.Or(since, at)
		}
		return []any{
			shown(one.Group), shown(one.Name), relative(now, since), relative(now, one.Succeeded),
			strings.Join(state, "; "),
		}
	}) + more
}

// faultText returns what is wrong with a schedule, and since when; the zero time: that is not known.
func faultText(one admin.IllSchedule, fault string, now time.Time) (text string, since time.Time) {
	why := ""
	if one.Why != "" && (fault == one.State || fault == "late") {
		why = ": " + printable(one.Why)
	}
	switch fault {
	case "failing":
		return fmt.Sprintf("failing, %s: %s", ranges.Many(one.Failures, "tick"), printable(one.Error)), one.FailingSince
	case "blocked", "late":
		return fault + why, now.Add(-one.Late)
	case "paused":
		return strings.Replace(fault+why, "paused: by ", "paused by ", 1), one.PausedAt
	}
	return fmt.Sprintf("skipping, %d of %d ticks of the last day", one.Skipped, one.Ticks), time.Time{}
}

// onlyVerbs runs a command that needs a verb. Without it, cobra prints the help for an unknown
// verb, and the command succeeds.
func onlyVerbs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return unknown("verb", args[0], mapped(cmd.Commands(), (*cobra.Command).Name), cmd.CommandPath()+" --help")
}

// withGroup calls use with the scheduler of the group that is the first argument.
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
		switch {
		case errors.Is(err, schedule.ErrNotFound):
			if other := checkGroup(cmd, cmd.Flags().Arg(0)); other != nil {
				return other
			}
			err = fmt.Errorf("%w\npgleases schedules list GROUP, schedules history GROUP SCHEDULE "+
				"and jobs list GROUP show what there is", err)
		case worker.Whose(err) == worker.Standby:
			err = fmt.Errorf("%w\n%s", err, store.NoWrites)
		case store.Denied(err):
			err = fmt.Errorf("%w\ngive the role what pgleases grants ROLE --for=%s prints for schema %q",
				err, admin.ForScheduleOperators, schema)
		}
		return err
	})
}

// newEdit returns a verb that changes a schedule or a job. It prints the numbers of the jobs that
// it created, or that it is done.
func newEdit(verb, use, short string) *cobra.Command {
	cmd := &cobra.Command{Use: use, Short: short, Args: asUsed, Annotations: map[string]string{shared: "edit"}}
	r := manage.Request{Verb: verb}
	var reason, actor string
	reasonFlags(cmd, &reason, &actor)
	unknown := false
	switch verb {
	case "retry_tick", "retry_job":
		const help = "retry even if the outcome is unknown, so that it may be done twice"
		cmd.Flags().BoolVar(&unknown, "unknown", false, help)
	case "resume_schedule":
		const help = "treat the ticks that passed as late ticks, instead of canceling them"
		cmd.Flags().BoolVar(&r.CatchUp, "catch-up", false, help)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) (err error) {
		texts := map[string]*string{"SCHEDULE": &r.Schedule, "KIND": &r.Kind}
		times := map[string]*time.Time{"TICK": &r.Tick, "FROM": &r.After, "SINCE": &r.After, "TO": &r.Until}
		for i, name := range arguments(cmd) {
			switch {
			case texts[name] != nil:
				*texts[name] = args[i]
			case times[name] != nil:
				*times[name], err = parsedTime(args[i])
			case name == "ID":
				r.Job, err = jobID(args[i])
			}
			if err != nil {
				return err
			}
		}
		if reason == "" {
			return errNoReason
		}
		return withGroup(cmd, func(ctx context.Context, s *schedule.Scheduler) error {
			return edit(ctx, cmd, s, r, args, unknown)
		})
	}
	return cmd
}

// edit executes a request, and prints what it has done. With unknown, it retries an unknown
// outcome.
func edit(
	ctx context.Context, cmd *cobra.Command, s *schedule.Scheduler, r manage.Request, args []string, unknown bool,
) error {
	j, err := before(ctx, s, r)
	var jobs []int64
	switch {
	case j.Outcome == schedule.OutcomeUnknown && !unknown:
		err = errors.New("its outcome is unknown, so it may have been done: check its effect first; " +
			"only if it was not done, add --unknown")
	case err == nil:
		jobs, err = r.Do(ctx, s)
	}
	for _, id := range jobs {
		fmt.Fprintln(cmd.OutOrStdout(), id)
	}
	if len(jobs) > 0 {
		cmd.PrintErrf("pgleases: new jobs: %d; to see how it goes: pgleases jobs show %s %d\n",
			len(jobs), shell.Word(args[0]), jobs[0])
	}
	state := "done"
	switch {
	case err != nil || len(jobs) > 0:
		return err
	case r.Verb == "retry_failed":
		state, err = nothingToRetry(ctx, cmd, s, r.Kind)
	case r.Verb == "resume_schedule" && j.At.IsZero():
		state = "it was not paused"
	case j.State == schedule.StateRunning:
		state = fmt.Sprintf("done; the context of its handler ends; "+
			"if the handler continues, restart %s: pgleases clients names its host and pid", shell.Word(j.Owner))
	}
	fmt.Fprint(cmd.OutOrStdout(), done(cmd, args, state))
	return err
}

// nothingToRetry says that no run of a kind can be retried, and which kinds have failed.
func nothingToRetry(ctx context.Context, cmd *cobra.Command, s *schedule.Scheduler, kind string) (string, error) {
	jobs, err := ofGroup(cmd, cmd.Flags().Arg(0), s.FailedJobs(ctx, 0), 1000)
	jobs = slices.DeleteFunc(jobs, func(e schedule.HistoryEntry) bool { return e.Retried != 0 })
	failing, other := firstOf(s.List(ctx, schedule.ScheduleFilter{Only: schedule.OnlyFailing}), 1000)
	kinds := mapped(jobs, func(e schedule.HistoryEntry) string { return shown(e.Kind) })
	for _, one := range failing {
		kinds = append(kinds, shown(one.Kind))
	}
	slices.Sort(kinds)
	text := fmt.Sprintf("nothing to retry: no job or tick of kind %s failed since then, or all were retried; "+
		"kinds of failed jobs and failing schedules: %s",
		shown(kind), cmp.Or(strings.Join(slices.Compact(kinds), ", "), "none"))
	return text, cmp.Or(err, other)
}

// before returns the job of a request; of a tick, only its outcome, of a resume, At is when the
// pause began.
func before(ctx context.Context, s *schedule.Scheduler, r manage.Request) (j schedule.Job, err error) {
	switch {
	case r.Job > 0:
		return s.Job(ctx, r.Job)
	case r.Verb == "resume_schedule":
		one, err := s.Get(ctx, r.Schedule)
		return schedule.Job{At: one.PausedAt}, err
	case r.Tick.IsZero():
		return j, nil
	}
	for e, err := range s.History(ctx, r.Schedule, 0) {
		if err != nil || e.Job == 0 && !e.Until.After(r.Tick) {
			return schedule.Job{Outcome: e.Outcome}, err
		}
	}
	return j, nil
}

// ofGroup is like firstOf for the items of a group. It returns an error if the group does not
// exist.
func ofGroup[T any](cmd *cobra.Command, group string, seq iter.Seq2[T, error], most int) ([]T, error) {
	all, err := firstOf(seq, most)
	if err != nil || len(all) > 0 {
		return all, err
	}
	return all, checkGroup(cmd, group)
}

// checkGroup returns an error if a group does not exist.
func checkGroup(cmd *cobra.Command, group string) error {
	return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
		groups, err := a.ScheduleGroups(ctx)
		names := mapped(groups, func(g admin.ScheduleGroup) string { return g.Name })
		if err != nil || slices.Contains(names, group) || len(names) == admin.GroupsMost { // there may be more groups
			return err
		}
		return unknown("group", group, names, "pgleases schedules groups")
	})
}

func newScheduleGroups() *cobra.Command {
	cmd := &cobra.Command{Use: "groups", Short: "List the groups of schedules"}
	return looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, _ []string) (any, string, error) {
		const heading = "GROUP,SCHEDULES,LATE,BLOCKED,PAUSED,FAILING,JOBS,BLOCKED JOBS"
		groups, err := a.ScheduleGroups(ctx)
		_ = notesUnread(cmd, groups)
		return groups, table(heading, groups, func(g admin.ScheduleGroup) []any {
			row := []any{shown(g.Name)}
			for _, n := range []int{g.Schedules, g.Late, g.Blocked, g.Paused, g.Failing, g.Jobs, g.Stuck} {
				row = append(row, strings.Replace(strconv.Itoa(n), "1001", "1000+", 1)) // more are not counted
			}
			return row
		}), err
	})
}

func newScheduleList() *cobra.Command {
	cmd := &cobra.Command{Use: "list GROUP [PREFIX]", Short: "List the schedules of a group"}
	only := choiceFlag(cmd, "only", "", "", "only schedules in this state",
		schedule.OnlyLate, schedule.OnlyFailing, schedule.OnlyBlocked, schedule.OnlyPaused)
	most := cmd.Flags().IntP("number", "n", 100, "number of schedules, 1 or more")
	after := cmd.Flags().String("after", "", "only names after this one, the last of the previous list")
	list := func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		filter := schedule.ScheduleFilter{Prefix: strings.Join(args[1:], ""), After: *after, Only: only.value}
		all, err := ofGroup(cmd, args[0], s.List(ctx, filter), *most)
		now := time.Now()
		text := table("SCHEDULE,KIND,RULE,OWNER,NEXT,SUCCEEDED,STATE", all, func(one schedule.Schedule) []any {
			state, next := stateOf(now, one.State, one.Why, one.Crashes, one.StartedAt, one.PausedAt, one.Due)
			if one.Error != "" {
				state += " (last error: " + printable(firstLine(one.Error)) + ")"
			}
			return []any{
				shown(one.Name), shown(one.Kind), shown(one.Rule), orDash(one.Owner), next,
				relative(now, one.Succeeded), state,
			}
		})
		if len(all) == *most {
			text += "\nThere may be more: continue with --after and the last name.\n"
		}
		return all, text, err
	}
	return looking(cmd, withGroup, list)
}

func newScheduleHistory() *cobra.Command {
	cmd := &cobra.Command{Use: "history GROUP SCHEDULE", Short: "Show the history of a schedule"}
	most := cmd.Flags().IntP("number", "n", 20, "number of entries, 1 or more")
	show := func(ctx context.Context, s *schedule.Scheduler, args []string) (any, string, error) {
		all, err := firstOf(s.History(ctx, args[1], 0), *most)
		if err == nil && len(all) == 0 {
			_, err = s.Get(ctx, args[1])
		}
		const heading = "TICK,TICKS,JOB,OUTCOME,STARTED,TOOK,RETRIED AS,ERROR"
		now := time.Now()
		return all, table(heading, all, func(e schedule.HistoryEntry) []any {
			tick := e.Until.UTC().Format(time.RFC3339Nano)
			took := either(e.StartedAt.IsZero(), dash, period(e.EndedAt.Sub(e.StartedAt)))
			return []any{
				tick, e.Ticks, idOrDash(e.Job), e.Outcome, relative(now, e.StartedAt), took,
				idOrDash(e.Retried), orDash(firstLine(e.Error)),
			}
		}), err
	}
	return looking(cmd, withGroup, show)
}

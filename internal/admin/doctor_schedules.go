package admin

import (
	"fmt"
	"strings"

	"github.com/pgleases/pgleases/internal/shell"
)

// kindsOfSchedules are the faults that schedules of a group may have.
var kindsOfSchedules = []kind{
	{"schedules", "unattended", LevelWarning, "no process runs", attended, attend},
	{"schedules", "late", LevelWarning, "late", agedSchedule, onlySchedules("late")},
	{"schedules", "blocked", LevelWarning, "blocked, so they wait", agedSchedule, blockedSchedules},
	{"schedules", "overdue", LevelWarning, "running for longer than their timeout", agedSchedule, endIfItHangs},
	{"schedules", "away", LevelWarning, kindsAway, agedSchedule, plain(untilItIsBack)},
	{"schedules", "unknown", LevelWarning, perhapsDone, namedSchedule, retryUnknownTick},
	{"schedules", "failing", LevelWarning, "failed 3 or more times in a row", failedSchedule, repairSchedule},
	{"schedules", "paused", LevelNote, "failed, and paused", namedSchedule, resumeSchedule},
	{"schedules", "failed", LevelWarning, "the last tick failed", namedSchedule, retryFailedTick},
	{"schedules", "undeclared", LevelNote, "no process has declared them for a week, so they wait",
		namedSchedule, declareOrDelete},
	{"schedules", "unread", LevelNote, "only 100 groups are examined, by name", unexamined, lookAtGroup},
}

// kindsOfJobs are the faults that jobs of a group may have.
var kindsOfJobs = []kind{
	{"jobs", "late", LevelWarning, "late", agedJob, lateJobs},
	{"jobs", "blocked", LevelWarning, "blocked, so they wait", agedJob, blockedJobs},
	{"jobs", "overdue", LevelWarning, "running for longer than their timeout", agedJob, endIfItHangs},
	{"jobs", "away", LevelWarning, kindsAway, agedSchedule, plain(untilItIsBack)}, // the name of a kind
	{"jobs", "unknown", LevelWarning, perhapsDone, namedJob, retryUnknownJob},
	{"jobs", "failing", LevelWarning, "failed 3 or more times, and are retried", failedJob, failingJobs},
	{"jobs", "failed", LevelWarning, "failed in the last day, and were not retried", namedJob, retryFailedJob},
}

const (
	perhapsDone   = "outcome unknown, so they may have been done"
	kindsAway     = "kinds paused, because something that their handlers need is away"
	untilItIsBack = "repair what the error names; " +
		"each process tries one run of the kind at a time, and goes on by itself"
	knownKinds = "; a limit frees itself as runs end; for the rest, deploy a process that knows them"
)

func attended(f fault) string { return fmt.Sprintf("group %q", f.Group) }

func unexamined(f fault) string { return fmt.Sprintf("not %q, and not those after it", f.Group) }

func namedSchedule(f fault) string { return fmt.Sprintf("%s%q%s", f.suchAs(), f.Name, f.fails()) }

func agedSchedule(f fault) string { return namedSchedule(f) + f.lasts() }

func failedSchedule(f fault) string {
	return fmt.Sprintf("%s%q %v times%s", f.suchAs(), f.Name, f.Worst, f.fails())
}

func namedJob(f fault) string { return f.suchAs() + "job " + f.Name + f.fails() }

func agedJob(f fault) string { return namedJob(f) + f.lasts() }

func failedJob(f fault) string {
	return fmt.Sprintf("%sjob %s %v times%s", f.suchAs(), f.Name, f.Worst, f.fails())
}

// ofSchedule returns the group and the schedule as arguments of a verb.
func (f fault) ofSchedule() string { return shell.Word(f.Group) + " " + shell.Word(f.Name) }

// ofJob returns the group and the number of the job as arguments of a verb.
func (f fault) ofJob() string {
	number, _, _ := strings.Cut(f.Name, " ")
	return shell.Word(f.Group) + " " + number
}

// tick returns the tick that the reason names, or the word for one.
func (f fault) tick() string {
	if tick, found := strings.CutPrefix(f.Why, "tick "); found {
		return tick
	}
	return "TICK"
}

func attend(f fault) string {
	return fmt.Sprintf("start a process that runs the group; "+
		"if a program enqueues jobs under a wrong name, correct it: pgleases jobs list %s shows them",
		shell.Word(f.Group))
}

func lookAtGroup(f fault) string {
	group := shell.Word(f.Group)
	return fmt.Sprintf("look at each of them with pgleases schedules list %s --only late, and --only failing, "+
		"and with pgleases jobs list %s", group, group)
}

func onlySchedules(state string) func(fault) string {
	return func(f fault) string {
		return fmt.Sprintf("pgleases schedules list %s --only %s shows why", shell.Word(f.Group), state)
	}
}

func blockedSchedules(f fault) string {
	return onlySchedules("blocked")(f) + " each waits" + knownKinds
}

func endIfItHangs(f fault) string {
	return `if it hangs (its log says "handler still running"): ` + f.Why + "; SIGTERM would wait for the work"
}

func retryUnknownTick(f fault) string {
	return fmt.Sprintf("check its effect first; only if it was not done: "+
		"pgleases schedules retry %s %s --unknown --reason '...'", f.ofSchedule(), f.tick())
}

func repairSchedule(f fault) string {
	return fmt.Sprintf("its handler, or what that calls, must be repaired: "+
		"pgleases schedules history %s shows the errors\n"+
		"until then: pgleases schedules pause %[1]s --reason '...'; afterwards resume", f.ofSchedule())
}

func resumeSchedule(f fault) string {
	return fmt.Sprintf("when it is repaired: pgleases schedules resume %s --reason '...'", f.ofSchedule())
}

func retryFailedTick(f fault) string {
	return fmt.Sprintf("pgleases schedules list %s --only failing shows the errors; "+
		"pgleases schedules retry %s %s --reason '...' runs one again", shell.Word(f.Group), f.ofSchedule(), f.tick())
}

func declareOrDelete(f fault) string {
	return fmt.Sprintf("start a process that declares them, "+
		"or delete them with pgleases schedules delete %s --reason '...'", f.ofSchedule())
}

func lateJobs(f fault) string {
	return fmt.Sprintf("pgleases jobs list %s shows why", shell.Word(f.Group))
}

func blockedJobs(f fault) string {
	return fmt.Sprintf("pgleases jobs list %s --state blocked shows why each waits", shell.Word(f.Group)) + knownKinds
}

func retryUnknownJob(f fault) string {
	return fmt.Sprintf("check its effect first; only if it was not done: "+
		"pgleases jobs retry %s --unknown --reason '...'", f.ofJob())
}

func failingJobs(f fault) string {
	return fmt.Sprintf("pgleases jobs list %s shows the errors", shell.Word(f.Group))
}

func retryFailedJob(f fault) string {
	return fmt.Sprintf("pgleases jobs failed %s shows them; pgleases jobs retry %s --reason '...' runs one again",
		shell.Word(f.Group), f.ofJob())
}

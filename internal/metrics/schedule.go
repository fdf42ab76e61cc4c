package metrics

import (
	"time"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/schedule"
)

// scheduler has the numbers of a scheduler.
type scheduler struct {
	schedule.Stats
	late map[string]bridge.Delays // by kind
}

// Scheduler returns the source for a scheduler.
func Scheduler(s *schedule.Scheduler) Source {
	return newSource(ofScheduler, map[string]string{"group": s.Group()}, func() *scheduler {
		return &scheduler{s.Stats(), bridge.Lateness(s)}
	})
}

// kinds reads a metric that each kind has, with the values of its second label.
func kinds(of func(k *schedule.KindStats, to add)) func(*scheduler, add) {
	return func(s *scheduler, to add) {
		for name, k := range s.Kinds {
			of(&k, func(value float64, labels ...string) { to(value, append([]string{name}, labels...)...) })
		}
	}
}

var ofScheduler = []entry[scheduler]{
	{Metric{"pgleases.schedule.partition.owned", "{partition}", Level, nil,
		"Partitions of the group that the process owns."},
		count(func(s *scheduler) int { return s.Partitions }), nil},
	{Metric{"pgleases.schedule.run.waiting", "{run}", Level, nil,
		"Schedules and jobs that are due, and wait for room or for a run of their key."},
		count(func(s *scheduler) int { return s.Waiting }), nil},
	{Metric{"pgleases.schedule.run.suspects", "{run}", Level, nil,
		"Schedules and jobs that are due soon and may crash their process."},
		count(func(s *scheduler) int { return s.CrashSuspects }), nil},
	{Metric{"pgleases.schedule.run.slow", "{run}", Level, []string{"waits_for"},
		"Schedules and jobs that run or are due soon, and are tried less often until they succeed, " +
			"by what they wait for."},
		func(s *scheduler, to add) {
			to(float64(s.SlowByTimeout), worker.TimedOut.String())
			to(float64(s.SlowByLock), worker.Locked.String())
			to(float64(s.SlowByConnection), worker.Hung.String())
		}, nil},
	{Metric{"pgleases.schedule.overdue", "{run}", Level, nil,
		"Runs that have not ended 10 s after their context, and whose places went to others."},
		count(func(s *scheduler) int { return s.Overdue }), nil},
	{Metric{"pgleases.schedule.run.age", "s", Gauge, nil,
		"Time since the oldest run began that is under way; 0 if no run is."},
		seconds(func(s *scheduler) time.Duration { return s.OldestRun }), nil},
	{Metric{"pgleases.schedule.polls", "{poll}", Counter, nil,
		"Polls for what is due."},
		count(func(s *scheduler) int64 { return s.Polls }), nil},
	{Metric{"pgleases.schedule.poll.errors", "{poll}", Counter, nil,
		"Failed polls for what is due."},
		count(func(s *scheduler) int64 { return s.PollErrors }), nil},
	{Metric{"pgleases.schedule.poll.time", "s", Counter, nil,
		"Total time of the polls for what is due."},
		seconds(func(s *scheduler) time.Duration { return s.PollTime }), nil},
	{Metric{"pgleases.schedule.poll.age", "s", Gauge, nil,
		"Time since the last successful poll was sent."},
		seconds(func(s *scheduler) time.Duration { return s.SinceLastPoll }), nil},
	{Metric{"pgleases.schedule.clock.offset", "s", Gauge, nil,
		"The database's clock minus the clock of the host."},
		seconds(func(s *scheduler) time.Duration { return s.ClockOffset }), nil},
	{Metric{"pgleases.schedule.clock.unstable", "", Gauge, nil,
		"1 if the database's clock has stepped and no run begins, else 0."},
		truth(func(s *scheduler) bool { return s.ClockUnstable }), nil},
	{Metric{"pgleases.schedule.run.active", "{run}", Level, []string{"kind"},
		"Handlers under way."},
		kinds(func(k *schedule.KindStats, to add) { to(float64(k.Running)) }), nil},
	{Metric{"pgleases.schedule.run.begun", "{run}", Counter, []string{"kind"},
		"Calls of handlers."},
		kinds(func(k *schedule.KindStats, to add) { to(float64(k.Begun)) }), nil},
	{Metric{"pgleases.schedule.run.repeated", "{run}", Counter, []string{"kind", "reason"},
		"Runs that run again, by reason."},
		kinds(func(k *schedule.KindStats, to add) {
			to(float64(k.Retried), "retry")
			to(float64(k.Snoozed), "snooze")
			to(float64(k.Unavailable), "unavailable")
		}), nil},
	{Metric{"pgleases.schedule.outcomes", "{run}", Counter, []string{"kind", "outcome"},
		"Ticks and jobs that ended, by outcome."},
		kinds(func(k *schedule.KindStats, to add) {
			to(float64(k.Succeeded), string(schedule.OutcomeSucceeded))
			to(float64(k.Failed), string(schedule.OutcomeFailed))
			to(float64(k.Unknown), string(schedule.OutcomeUnknown))
			to(float64(k.Missed), string(schedule.OutcomeMissed))
			to(float64(k.Skipped), string(schedule.OutcomeSkipped))
		}), nil},
	{Metric{"pgleases.schedule.lateness", "s", Histogram, []string{"kind"},
		"Time from when a run was due to the call of its handler."},
		nil, func(s *scheduler, to spread) {
			var bounds []float64
			for _, bound := range bridge.DelayBounds {
				bounds = append(bounds, bound.Seconds())
			}
			for name, k := range s.Kinds {
				late := s.late[name]
				to(Distribution{late.Count, k.TotalLateness.Seconds(), bounds, late.Within[:]}, name)
			}
		}},
}

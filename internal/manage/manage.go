// Package manage has the verbs on schedules and jobs that the command and the dashboard share.
package manage

import (
	"context"
	"fmt"
	"time"

	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/schedule"
)

// Verbs are the verbs on one schedule or one job. Do also knows retry_failed.
var Verbs = []string{
	"pause_schedule", "resume_schedule", "delete_schedule", "trigger_schedule", "backfill_schedule", "retry_tick",
	"cancel_job", "retry_job",
}

// A Request is a verb with its object.
type Request struct {
	Verb     string    `json:"verb"`
	Schedule string    `json:"schedule"`
	ID       int64     `json:"id,string"`  // of delete_schedule; 0: any schedule with the name
	Job      int64     `json:"job,string"` // of cancel_job and retry_job
	Kind     string    `json:"kind"`       // of retry_failed
	Tick     time.Time `json:"tick"`       // of retry_tick
	After    time.Time `json:"after"`      // of backfill_schedule and retry_failed
	Until    time.Time `json:"until"`      // of backfill_schedule
	CatchUp  bool      `json:"catch_up"`   // of resume_schedule
}

// Do executes a request. It returns the jobs that it created, even if it returns an error.
func (r Request) Do(ctx context.Context, s *schedule.Scheduler) (jobs []int64, err error) {
	switch r.Verb {
	case "pause_schedule":
		return nil, s.Pause(ctx, r.Schedule)
	case "resume_schedule":
		mode := schedule.ResumeFromNow
		if r.CatchUp {
			mode = schedule.ResumeCatchUp
		}
		return nil, s.Resume(ctx, r.Schedule, mode)
	case "delete_schedule":
		if r.ID == 0 {
			return nil, s.Delete(ctx, r.Schedule)
		}
		return nil, bridge.DeleteSchedule(ctx, s, r.Schedule, r.ID)
	case "trigger_schedule":
		return one(s.Trigger(ctx, r.Schedule))
	case "backfill_schedule":
		return s.Backfill(ctx, r.Schedule, r.After, r.Until)
	case "retry_tick":
		return one(s.RetryTick(ctx, r.Schedule, r.Tick))
	case "cancel_job":
		return nil, s.Cancel(ctx, r.Job)
	case "retry_job":
		return one(s.Retry(ctx, r.Job))
	case "retry_failed":
		jobs, refused, err := s.RetryFailed(ctx, r.Kind, r.After)
		if err == nil && refused > 0 {
			err = fmt.Errorf("%d were not retried, because their outcome is unknown, their schedule was deleted, "+
				"or a live job has their unique key", refused)
		}
		return jobs, err
	}
	return nil, fmt.Errorf("%q is not a verb on schedules or jobs", r.Verb)
}

func one(job int64, err error) ([]int64, error) {
	if err != nil {
		return nil, err
	}
	return []int64{job}, nil
}

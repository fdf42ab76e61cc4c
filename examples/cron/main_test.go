package main

import (
	"strings"
	"testing"

	"github.com/pgleases/pgleases/schedule"
)

func TestTimetableIsValid(t *testing.T) {
	names := make(map[string]bool)
	for _, job := range timetable() {
		if err := job.Schedule.Err(); err != nil {
			t.Errorf("job %q: %v", job.Name, err)
		}
		if names[job.Name] {
			t.Errorf("two jobs are called %q", job.Name)
		}
		names[job.Name] = true
	}
}

func TestJobWithABadScheduleIsNamed(t *testing.T) {
	err := run(t.Context(), "", []Job{{Name: "close", Schedule: schedule.Cron("60 * * * *", "UTC")}})
	if err == nil || !strings.Contains(err.Error(), `job "close"`) || !strings.Contains(err.Error(), `"60 * * * *"`) {
		t.Errorf("it returned %v", err)
	}
}

package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/manage"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule"
)

// The part of the page for package schedule. The hub reads the groups for all viewers. A page reads
// lists in pages of rows, and viewers of the same page of rows share it. So the load of the
// database does not grow with the number of schedules or viewers.

const (
	counted = 5 * time.Second // minimum time between two reads of the groups: see rest
	perPage = 50
)

// shownGroups are the groups of schedules.
type shownGroups struct {
	Groups  []admin.ScheduleGroup `json:"groups"`  // empty also if package schedule has no tables
	Failure string                `json:"failure"` // empty: no failure
}

// count reads the groups.
func (h *hub) count(ctx, limited context.Context) {
	groups, err := h.admin.ScheduleGroups(limited)
	shown := shownGroups{Groups: append([]admin.ScheduleGroup{}, groups...)}
	if err != nil && !errors.Is(err, admin.ErrNoSchedules) {
		shown.Failure = err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.uncounted = shown.Failure != ""
	h.publish(ctx, schedules, shown)
}

// rest returns the pause after a read of the groups. If reads take long, because there are many
// schedules or the server is slow, they take at most 5 % of the time.
func rest(took time.Duration) time.Duration { return max(counted, 20*took) }

// restOfCount is rest, but after a failed read at most the time between two checks of the health,
// because its cause may be mended meanwhile.
func (h *hub) restOfCount(took time.Duration) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.uncounted {
		return min(rest(took), examined)
	}
	return rest(took)
}

// A list is a page of rows. The next page begins after the last row.
type list[T any] struct {
	Rows []T  `json:"rows"`
	More bool `json:"more"`
	// Next is where the next page begins; 0: after the last row.
	Next int64 `json:"next,omitzero"`
}

// manage returns the scheduler of a group.
func (h *handler) manage(ctx context.Context, group string, opts ...schedule.Option) (*schedule.Scheduler, error) {
	pool, schema := h.hub.admin.Database()
	return schedule.Manage(ctx, pool, group, append(opts, schedule.WithSchema(schema))...)
}

// rows reads rows of a scheduler.
type rows[T any] func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[T, error]

// listed returns a page of rows. It reads one row more than it shows, to know whether there are
// more.
func listed[T any](h *handler, r *http.Request, read rows[T]) (any, error) {
	return h.shared(r, kept, func(ctx context.Context) (any, error) {
		s, err := h.manage(ctx, r.URL.Query().Get("group"))
		if err != nil {
			return nil, refused(err, admin.ForReader)
		}
		content := list[T]{Rows: []T{}}
		for row, err := range read(ctx, s) {
			if err != nil {
				return nil, refused(err, admin.ForReader)
			}
			content.More = len(content.Rows) == perPage
			if content.More {
				break
			}
			content.Rows = append(content.Rows, row)
		}
		return content, nil
	})
}

func (h *handler) schedules(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.Schedule, error] {
		return s.List(ctx, schedule.ScheduleFilter{
			Prefix: q.Get("prefix"),
			After:  q.Get("after"),
			Only:   q.Get("which"),
		})
	})
}

func (h *handler) jobs(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	after, err := number(q.Get("after"))
	switch {
	case err != nil:
		return nil, err
	case q.Get("kind") != "" || q.Get("key") != "":
		return h.filtered(r, after)
	case q.Get("which") == "failed":
		return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.HistoryEntry, error] {
			return s.FailedJobs(ctx, after)
		})
	}
	return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.Job, error] {
		return s.Jobs(ctx, schedule.JobFilter{State: schedule.State(q.Get("which")), After: after})
	})
}

// states are what a page may ask for with a kind or a key.
var states = []string{"", "planned", "due", "running", "retrying", "blocked", "failed"}

// filtered returns the jobs of a kind, or with a key.
func (h *handler) filtered(r *http.Request, after int64) (any, error) {
	q := r.URL.Query()
	f := admin.JobFilter{
		Group: q.Get("group"), State: q.Get("which"), Kind: q.Get("kind"), Key: q.Get("key"), After: after,
	}
	if !slices.Contains(states, f.State) {
		return nil, bad("%q is not a state of jobs, which are %s.", f.State, strings.Join(states[1:], ", "))
	}
	return h.shared(r, kept, func(ctx context.Context) (any, error) {
		if f.State == "failed" {
			found, err := h.hub.admin.FailedJobs(ctx, f, perPage+1)
			if err != nil {
				return nil, err
			}
			return pageOf(found, 0, func(e schedule.HistoryEntry) int64 { return e.ID })
		}
		found, end, err := h.hub.admin.Jobs(ctx, f, perPage+1)
		if err != nil {
			return nil, err
		}
		return pageOf(found, end, func(j schedule.Job) int64 { return j.ID })
	})
}

// pageOf returns a page of rows. If the search ended before the last row, the next page begins at
// end, so a page may be short, or even empty, and not be the last.
func pageOf[T any](found []json.RawMessage, end int64, idOf func(T) int64) (list[T], error) {
	page := list[T]{Rows: []T{}, More: end != 0 || len(found) > perPage, Next: end}
	for _, text := range found[:min(len(found), perPage)] {
		var row T
		if err := json.Unmarshal(text, &row); err != nil {
			return page, err
		}
		page.Rows = append(page.Rows, row)
		if len(found) > perPage {
			page.Next = idOf(row)
		}
	}
	return page, nil
}

func (h *handler) history(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	before, err := number(q.Get("after"))
	if err != nil {
		return nil, err
	}
	return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.HistoryEntry, error] {
		return s.History(ctx, q.Get("name"), before)
	})
}

// A shownSchedule is one schedule with its past and its future.
type shownSchedule struct {
	Schedule schedule.Schedule `json:"schedule"`
	// The latest entries of its history that are of ticks, the newest first.
	Ticks []schedule.HistoryEntry `json:"ticks"`
	// The tick of the first failure after the last success; zero: the last tick did not fail, or the
	// history does not go back so far.
	FailingSince time.Time `json:"failing_since,omitzero"`
	// The next ticks, fewer if the rule has fewer, and none while it is paused.
	Next []nextTick `json:"next"`
}

// A nextTick is a tick of the future, with its local time in the zone of the rule.
type nextTick struct {
	At    time.Time `json:"at"`
	Local string    `json:"local"`
}

const (
	shownTicks = 100
	mostTicks  = 1000 // entries that are searched for the first failure
	nextTicks  = 5
)

// schedule returns one schedule.
func (h *handler) schedule(r *http.Request, _ string) (any, error) {
	name := r.URL.Query().Get("name")
	return h.shared(r, kept, func(ctx context.Context) (any, error) {
		s, err := h.manage(ctx, r.URL.Query().Get("group"))
		if err != nil {
			return nil, refused(err, admin.ForReader)
		}
		one, err := s.Get(ctx, name)
		if errors.Is(err, schedule.ErrNotFound) {
			return nil, &refusal{http.StatusNotFound, "bad", err.Error()}
		}
		if err != nil {
			return nil, refused(err, admin.ForReader)
		}
		told := shownSchedule{Schedule: one, Ticks: []schedule.HistoryEntry{}, Next: nextOf(one)}
		if err := told.readTicks(ctx, s); err != nil {
			return nil, refused(err, admin.ForReader)
		}
		return told, nil
	})
}

// calendar counts the ticks of a schedule in its last 30 days, and those of today.
func (h *handler) calendar(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	period := admin.Period{Last: mostPeriod}
	return h.shared(r, keptSamples, func(ctx context.Context) (any, error) {
		return h.hub.admin.Ticks(ctx, period, q.Get("group"), q.Get("name"))
	})
}

// readTicks reads the latest ticks, and as many more as it takes to know since when it fails.
func (told *shownSchedule) readTicks(ctx context.Context, s *schedule.Scheduler) error {
	failing := told.Schedule.Failures > 0
	read := 0
	for entry, err := range s.History(ctx, told.Schedule.Name, 0) {
		if err != nil {
			return err
		}
		read++
		enough := len(told.Ticks) == shownTicks
		if enough && !failing {
			return nil
		}
		if read > mostTicks && failing { // for longer than is read
			told.FailingSince = time.Time{}
		}
		if read > mostTicks {
			return nil
		}
		if entry.Job != 0 {
			continue
		}
		if !enough {
			told.Ticks = append(told.Ticks, entry)
		}
		switch entry.Outcome {
		case schedule.OutcomeSucceeded:
			failing = false
		case schedule.OutcomeFailed, schedule.OutcomeUnknown:
			if failing {
				told.FailingSince = entry.Until
			}
		}
	}
	return nil
}

// nextOf returns the next ticks of a schedule that is not paused.
func nextOf(s schedule.Schedule) []nextTick {
	next := []nextTick{}
	rule, err := schedule.Parse(s.Rule)
	if err != nil || !s.PausedAt.IsZero() || s.Due.IsZero() {
		return next
	}
	// The cursor is a tick, or the start of the rule, so Every counts from it.
	for _, tick := range rule.Preview(s.Cursor, schedule.Tick{At: s.Cursor}, nextTicks) {
		next = append(next, nextTick{tick.At, tick.Local.Format("Mon, 2 Jan 15:04:05")})
	}
	return next
}

// number returns the number in a text, 0 for an empty text.
func number(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && text != "" {
		return 0, bad("%q is not a number.", text)
	}
	return n, nil
}

// asked is a request as the page sends it.
type asked struct {
	manage.Request
	Group  string `json:"group"`
	Reason string `json:"reason"`
	Token  string `json:"token"`
}

// ask executes a verb on a schedule or a job.
func (h *handler) ask(r *http.Request, actor string) (any, error) {
	var a asked
	if err := read(r, &a); err != nil {
		return nil, err
	}
	reason := strings.TrimSpace(a.Reason)
	switch {
	case reason == "":
		return nil, bad("Give a reason.")
	case !slices.Contains(manage.Verbs, a.Verb):
		return nil, bad("%q is not a verb on schedules or jobs.", a.Verb)
	case a.Verb == "delete_schedule" && a.ID == 0:
		return nil, bad("Give the ID of the schedule to delete.")
	}
	return h.once(r, actor, a.Token, func(ctx context.Context) (any, error) {
		var jobs []int64
		s, err := h.manage(ctx, a.Group, schedule.WithReason(reason, actor))
		if err == nil {
			jobs, err = a.Do(ctx, s)
		}
		h.forget()
		if err != nil {
			if errors.Is(err, schedule.ErrNotFound) && a.Verb == "delete_schedule" {
				return nil, &refusal{http.StatusConflict, "changed", err.Error()}
			}
			return nil, refused(err, admin.ForScheduleOperators)
		}
		answer := map[string]any{"job": "0", "jobs": len(jobs)} // job 0: no job, or several
		if len(jobs) == 1 {
			answer["job"] = strconv.FormatInt(jobs[0], 10)
		}
		return answer, nil
	})
}

// refused returns an error as the page receives it. purpose names the rights that the request
// needs.
func refused(err error, purpose admin.Purpose) error {
	switch {
	case errors.Is(err, schedule.ErrUnknown):
		return &refusal{http.StatusBadGateway, "unknown", err.Error()}
	case errors.Is(err, pgleases.ErrSchema):
		return &refusal{http.StatusNotFound, "bad", err.Error()}
	case store.Denied(err):
		return fmt.Errorf("%w\ngive the role what pgleases grants ROLE --for=%s prints", err, purpose)
	case store.Code(err) == "" && !store.Unconnected(err): // not an error of the database
		return &refusal{http.StatusUnprocessableEntity, "refused", err.Error()}
	}
	return err
}

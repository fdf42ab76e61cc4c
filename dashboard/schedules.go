package dashboard

import (
	"context"
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
	counted  = 5 * time.Second // minimum time between two reads of the groups: see rest
	kept     = 2 * time.Second // time that a page of rows is kept
	perPage  = 50
	mostKept = 64 // pages of rows
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
	h.publish(ctx, schedules, shown)
}

// rest returns the pause after a read of the groups. If reads take long, because there are many
// schedules or the server is slow, they take at most 5 % of the time.
func rest(took time.Duration) time.Duration { return max(counted, 20*took) }

// A page is a page of rows that several viewers may share.
type page struct {
	at      time.Time
	content any
}

// A list is a page of rows. The next page begins after the last row.
type list[T any] struct {
	Rows []T  `json:"rows"`
	More bool `json:"more"`
}

// manage returns the scheduler of a group.
func (h *handler) manage(ctx context.Context, group string, opts ...schedule.Option) (*schedule.Scheduler, error) {
	pool, schema := h.hub.admin.Database()
	return schedule.Manage(ctx, pool, group, append(opts, schedule.WithSchema(schema))...)
}

// rows reads rows of a scheduler.
type rows[T any] func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[T, error]

// listed returns a kept page of rows, or reads it. It reads one row more than it shows, to know
// whether there are more. The caller has the turn of reads, so no other request reads meanwhile.
func listed[T any](h *handler, r *http.Request, read rows[T]) (any, error) {
	key := r.URL.Path + "?" + r.URL.Query().Encode()
	h.mu.Lock()
	p, has := h.pages[key]
	h.mu.Unlock()
	if has && time.Since(p.at) < kept {
		return p.content, nil
	}
	s, err := h.manage(r.Context(), r.URL.Query().Get("group"))
	if err != nil {
		return nil, refused(err, admin.ForReader)
	}
	content := list[T]{Rows: []T{}}
	for row, err := range read(r.Context(), s) {
		if err != nil {
			return nil, refused(err, admin.ForReader)
		}
		content.More = len(content.Rows) == perPage
		if content.More {
			break
		}
		content.Rows = append(content.Rows, row)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.pages) >= mostKept {
		clear(h.pages)
	}
	h.pages[key] = page{time.Now(), content}
	return content, nil
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
	case q.Get("which") == "failed":
		return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.HistoryEntry, error] {
			return s.FailedJobs(ctx, after)
		})
	}
	return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.Job, error] {
		return s.Jobs(ctx, schedule.JobFilter{State: schedule.State(q.Get("which")), After: after})
	})
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
		h.mu.Lock()
		clear(h.pages) // the page of the user reads them at once
		h.mu.Unlock()
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
	case store.Code(err) == "": // not an error of the database
		return &refusal{http.StatusUnprocessableEntity, "refused", err.Error()}
	}
	return err
}

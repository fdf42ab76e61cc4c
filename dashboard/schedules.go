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
	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/internal/manage"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule"
)

// What is shown of package schedule: the groups to all, from time to time; lists to who looks at
// them, a page at a time, which those share who look at the same one. So neither the number of
// schedules nor that of viewers is that of what the database does.

const (
	counted  = 5 * time.Second // between two looks at the groups, or more: see rest
	kept     = 2 * time.Second // for how long a page is the same for all who ask
	perPage  = 50
	mostKept = 64 // pages
)

// shownGroups are the groups of schedules.
type shownGroups struct {
	Groups  []admin.ScheduleGroup `json:"groups"`  // empty also where there are no tables of package schedule
	Failure string                `json:"failure"` // empty: none
}

// count sees to the groups.
func (h *hub) count(ctx, limited context.Context) {
	groups, err := h.admin.ScheduleGroups(limited)
	told := shownGroups{Groups: append([]admin.ScheduleGroup{}, groups...)}
	if err != nil && !errors.Is(err, admin.ErrNoSchedules) {
		told.Failure = err.Error()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.publish(ctx, schedules, told)
}

// rest is how long nobody looks at the groups after a look that took so long: where there are very
// many schedules, or the server is slow, that is no more than a twentieth of the time.
func rest(took time.Duration) time.Duration { return max(counted, 20*took) }

// A page is what several may look at.
type page struct {
	at      time.Time
	content any
}

// A list is a page of rows, of which the last is where the next page begins.
type list[T any] struct {
	Rows []T  `json:"rows"`
	More bool `json:"more"`
}

// manage is the schedules of a group.
func (h *handler) manage(ctx context.Context, group string, opts ...schedule.Option) (*schedule.Scheduler, error) {
	pool, schema := h.hub.admin.Database()
	return schedule.Manage(ctx, pool, group, append(opts, schedule.WithSchema(schema))...)
}

// listed answers with the page that another was answered a moment ago, or reads it, with one row
// more than are shown, to know whether there are more. Whoever calls it has the turn of those who
// look, so nobody asks the same meanwhile.
func listed[T any](h *handler, r *http.Request, read func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[T, error]) (any, error) {
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
		if content.More = len(content.Rows) == perPage; content.More {
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
		return s.List(ctx, schedule.ScheduleFilter{Prefix: q.Get("prefix"), After: q.Get("after"), Only: q.Get("which")})
	})
}

func (h *handler) jobs(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	after, err := number(q.Get("after"))
	switch {
	case err != nil:
		return nil, err
	case q.Get("which") == "failed":
		return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.Entry, error] {
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
	return listed(h, r, func(ctx context.Context, s *schedule.Scheduler) iter.Seq2[schedule.Entry, error] {
		return s.History(ctx, q.Get("name"), before)
	})
}

// number is that of a text; 0 for none.
func number(text string) (int64, error) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil && text != "" {
		return 0, bad("%q is no number.", text)
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

// ask has a verb on a schedule or a job carried out.
func (h *handler) ask(r *http.Request, actor string) (any, error) {
	var a asked
	if err := read(r, &a); err != nil {
		return nil, err
	}
	reason := strings.TrimSpace(a.Reason)
	switch {
	case reason == "":
		return nil, bad("Say why, for whoever wonders later.")
	case !slices.Contains(manage.Verbs, a.Verb):
		return nil, bad("%q is no verb on schedules or jobs.", a.Verb)
	case a.Verb == "delete_schedule" && a.ID == 0:
		return nil, bad("Say which one: what is deleted is what was shown.")
	}
	return h.once(r, actor, a.Token, func(ctx context.Context) (any, error) {
		var jobs []int64
		s, err := h.manage(ctx, a.Group, schedule.WithReason(reason, actor))
		if err == nil {
			jobs, err = a.Do(ctx, s)
		}
		h.mu.Lock()
		clear(h.pages) // who asked looks at once
		h.mu.Unlock()
		if err != nil {
			if errors.Is(err, schedule.ErrNotFound) && a.Verb == "delete_schedule" {
				return nil, &refusal{http.StatusConflict, "changed", err.Error()}
			}
			return nil, refused(err, admin.ForScheduleOperators)
		}
		answer := struct {
			Job  int64 `json:"job,string"` // 0: none comes of it, or several
			Jobs int   `json:"jobs"`
		}{0, len(jobs)}
		if len(jobs) == 1 {
			answer.Job = jobs[0]
		}
		return answer, nil
	})
}

// refused has the page know which error it is, of what needs the rights for a purpose.
func refused(err error, purpose admin.Purpose) error {
	switch {
	case errors.Is(err, schedule.ErrUnknown):
		return &refusal{http.StatusBadGateway, "unknown", err.Error()}
	case errors.Is(err, pgleases.ErrSchema):
		return &refusal{http.StatusNotFound, "bad", err.Error()}
	case store.Denied(err):
		return fmt.Errorf("%w\ngive the role what pgleases grants ROLE --for=%s prints", err, purpose)
	case store.Code(err) == "": // it is not the database's
		return &refusal{http.StatusUnprocessableEntity, "refused", err.Error()}
	}
	return err
}

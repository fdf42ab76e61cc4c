package dashboard

import (
	"context"
	"net/http"
	"time"
)

// The answers to questions by GET are kept for a moment, so the load of the database does not grow
// with the number of viewers of one address.

const (
	kept     = 2 * time.Second // an answer about the present is kept so long
	keptPast = 5 * time.Second // an answer about the past is kept so long
	mostKept = 64              // answers
)

// An answered question is an answer that several viewers may share.
type answered struct {
	until   time.Time
	content any
}

// shared returns a kept answer to the question of a request, or asks it. An answer that takes long
// is kept for longer, so that one address takes at most 5 % of the time. Errors are not kept. The
// caller has the turn of reads, so no other request reads meanwhile.
func (h *handler) shared(r *http.Request, keep time.Duration, ask func(context.Context) (any, error)) (any, error) {
	key := r.URL.Path + "?" + r.URL.Query().Encode()
	h.mu.Lock()
	known, has := h.answers[key]
	h.mu.Unlock()
	if has && time.Now().Before(known.until) {
		return known.content, nil
	}
	began := time.Now()
	content, err := ask(r.Context())
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.answers) >= mostKept {
		clear(h.answers)
	}
	h.answers[key] = answered{time.Now().Add(max(keep, 20*time.Since(began))), content}
	return content, nil
}

// forget drops all kept answers, so that the user who made a change sees it at once.
func (h *handler) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.answers)
}

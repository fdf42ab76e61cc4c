package dashboard

import (
	"context"
	"encoding/json"
	"net/http"
	"time"
)

// The answers to questions by GET are kept for a moment, so the load of the database does not grow
// with the number of viewers of one address.

const (
	kept     = 2 * time.Second // an answer about the present is kept so long
	keptPast = 5 * time.Second // an answer about the past is kept so long
	// An answer about samples is kept so long. They are written once a minute.
	keptSamples = 20 * time.Second
	mostKept    = 16 << 20 // bytes of all answers
)

// An answered question is an answer as it is sent. All viewers get the same bytes, so a viewer that
// does not read costs only its connection.
type answered struct {
	until time.Time
	sent  json.RawMessage
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
		return known.sent, nil
	}
	began := time.Now()
	content, err := ask(r.Context())
	if err != nil {
		return nil, err
	}
	sent := json.RawMessage(encode(content))
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(key, answered{time.Now().Add(max(keep, 20*time.Since(began))), sent})
	return sent, nil
}

// keep keeps an answer, in place of the others if they are too large together. The caller holds mu.
func (h *handler) keep(key string, a answered) {
	sum := len(key) + len(a.sent)
	for key, other := range h.answers {
		sum += len(key) + len(other.sent)
	}
	if sum > mostKept {
		clear(h.answers)
	}
	h.answers[key] = a
}

// forget drops all kept answers, so that the user who made a change sees it at once.
func (h *handler) forget() {
	h.mu.Lock()
	defer h.mu.Unlock()
	clear(h.answers)
}

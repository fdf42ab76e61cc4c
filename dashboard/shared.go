package dashboard

import (
	"context"
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"time"
)

// The answers to questions by GET are kept for a moment, so the load of the database does not grow
// with the number of viewers of one address.

const (
	kept     = 2 * time.Second // an answer about the present is kept so long
	keptPast = 5 * time.Second // an answer about the past is kept so long
	// A failure is kept for at most so long, because its cause may be mended meanwhile.
	keptFailed = 5 * time.Second
	// An answer about samples is kept so long. They are written once a minute.
	keptSamples = 20 * time.Second
	mostKept    = 16 << 20 // bytes of all answers
)

// An answered question is an answer as it is sent. All viewers get the same bytes, so a viewer that
// does not read costs only its connection.
type answered struct {
	until  time.Time
	sent   json.RawMessage
	failed error // instead of sent
}

// shared returns a kept answer to the question of a request, or asks it. An answer that takes long
// is kept for longer, so that one address takes at most 5 % of the time. A failure is shared too, also
// one of a part, for a shorter time, unless the request itself has ended. The caller has the turn of
// reads, so no other request reads meanwhile.
func (h *handler) shared(r *http.Request, keep time.Duration, ask func(context.Context) (any, error)) (any, error) {
	key := r.URL.Path + "?" + r.URL.Query().Encode()
	h.mu.Lock()
	known, has := h.answers[key]
	h.mu.Unlock()
	if has && time.Now().Before(known.until) {
		return known.content()
	}
	began := time.Now()
	content, err := ask(r.Context())
	if errors.Is(r.Context().Err(), context.Canceled) { // only this viewer has gone, so its answer is not kept
		return nil, r.Context().Err()
	}
	answer := answered{failed: err}
	if err == nil {
		answer.sent = encode(content)
	}
	inParts, ok := content.(interface{ hasFailed() bool })
	lasts := max(keep, 20*time.Since(began))
	if err != nil || ok && inParts.hasFailed() {
		lasts = min(max(kept, 20*time.Since(began)), keptFailed)
	}
	answer.until = time.Now().Add(lasts)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.keep(key, answer)
	return answer.content()
}

// content returns the answer, or why there is no answer.
func (a answered) content() (any, error) {
	if a.failed != nil {
		return nil, a.failed
	}
	return a.sent, nil
}

// keep keeps an answer, in place of the others if they are too large together. The caller holds mu.
func (h *handler) keep(key string, a answered) {
	now := time.Now()
	maps.DeleteFunc(h.answers, func(_ string, other answered) bool { return now.After(other.until) })
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

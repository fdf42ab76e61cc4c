package dashboard

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/pgleases/pgleases/admin"
)

// What a page asks for besides the polls. One look and one change at a time go to the database,
// whoever asks: so many ask it no more than one.

// maxBody is the longest text of a POST, in bytes. Names have 255 at most.
const maxBody = 16 << 10

// A question is answered with what is sent as JSON.
type question func(h *handler, r *http.Request, actor string) (any, error)

// looks are questions by GET, changes are those by POST, which only operators may ask.
var (
	looks = map[string]question{
		"explain": (*handler).explain, "events": (*handler).events, "schedules": (*handler).schedules, "jobs": (*handler).jobs,
		"history": (*handler).history,
	}
	changes = map[string]question{"preview": (*handler).preview, "apply": (*handler).apply, "ask": (*handler).ask}
)

// wanted is a change as the page sends it.
type wanted struct {
	admin.Change
	Lasts string `json:"lasts"` // how long it stands, as 2h; empty: until it is taken back
	Token string `json:"token"`
}

// A refusal is an answer that is none.
type refusal struct {
	status int
	Kind   string `json:"kind"` // what the page goes on with: denied, bad, refused, changed, last, unknown, failed
	Text   string `json:"text"`
}

func (r *refusal) Error() string { return r.Text }

func bad(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, "bad", fmt.Sprintf(format, args...)}
}

// operate answers a question that only operators may ask.
func (h *handler) operate(w http.ResponseWriter, r *http.Request, access Access, actor string, ask question) {
	kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")) // what is none is empty
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		http.Error(w, "This changes something: it takes POST.", http.StatusMethodNotAllowed)
	case access != Operator:
		h.reply(w, nil, &refusal{http.StatusForbidden, "denied", "You may look, and change nothing."})
	case kind != "application/json": // which no form of another site can send
		h.reply(w, nil, &refusal{http.StatusUnsupportedMediaType, "bad", fmt.Sprintf("Content-Type %q is not application/json.", r.Header.Get("Content-Type"))})
	default:
		if err := h.receive(w, r); err != nil {
			h.reply(w, nil, err)
			return
		}
		h.answer(w, r, actor, ask, h.operating)
	}
}

// foreign refuses what comes from another origin. It may be our own page behind a proxy that asks
// for another host: the page of a browser that sends no Sec-Fetch-Site, as over plain HTTP, is told
// from others by the host alone.
func (h *handler) foreign(w http.ResponseWriter, r *http.Request) {
	text := "This was asked for by a page of another site."
	if origin := r.Header.Get("Origin"); r.Header.Get("Sec-Fetch-Site") == "" {
		text = fmt.Sprintf(
			"Nothing was done: the page is of %q, and the dashboard was asked for as %q. Where a proxy is in front, have it pass the Host on that the browser asked for, or serve it over HTTPS.",
			origin, r.Host,
		)
	}
	h.reply(w, nil, &refusal{http.StatusForbidden, "bad", text})
}

// receive reads the body of a POST before its turn comes: a slow sender keeps no other operator
// waiting. The time for that ends with it, as the server takes its end for that of the request.
func (h *handler) receive(w http.ResponseWriter, r *http.Request) error {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(h.times.write)) // where there is none the server's own holds
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		return &refusal{http.StatusRequestEntityTooLarge, "bad", fmt.Sprintf("The request is longer than %d bytes.", long.Limit)}
	case err != nil:
		return bad("The request did not come whole: %v.", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// answer answers a question when those before it are. The turn has room for one, and is over before
// the answer is sent: who does not read it keeps nobody from asking.
func (h *handler) answer(w http.ResponseWriter, r *http.Request, actor string, ask question, turn chan struct{}) {
	select {
	case turn <- struct{}{}:
	case <-r.Context().Done():
		return
	}
	content, err := func() (any, error) {
		defer func() { <-turn }()
		ctx, cancel := context.WithTimeout(r.Context(), h.times.answers)
		defer cancel()
		return ask(h, r.WithContext(ctx), actor)
	}()
	h.reply(w, content, err)
}

func (h *handler) reply(w http.ResponseWriter, content any, err error) {
	status := http.StatusOK
	if err != nil {
		is := refusalOf(err)
		status, content = is.status, is
	}
	encoded, err := json.Marshal(content)
	if err != nil {
		panic(err) // a type that cannot be
	}
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.times.write)) // where there is none the server's own holds
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(encoded) // the browser has gone
}

// read reads the one JSON value of a POST.
func read(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return nil
		}
		err = errors.New("more than one value")
	}
	return bad("The request is not what this page sends: %v.", err)
}

// change is what a request wants, and the token of the press by which it was asked for.
func change(r *http.Request, actor string) (c admin.Change, token string, err error) {
	var w wanted
	if err := read(r, &w); err != nil {
		return c, "", err
	}
	c = w.Change
	c.Reason, c.Actor = strings.TrimSpace(c.Reason), actor
	if w.Lasts != "" {
		if c.Lasts, err = time.ParseDuration(w.Lasts); err != nil || c.Lasts <= 0 {
			return c, "", bad("It cannot stand for %q: give a duration, as 2h.", w.Lasts)
		}
	}
	return c, w.Token, nil
}

// preview tells what would move.
func (h *handler) preview(r *http.Request, actor string) (any, error) {
	c, _, err := change(r, actor)
	if err != nil {
		return nil, err
	}
	return h.hub.admin.DryRun(r.Context(), c)
}

// apply does what was previewed.
func (h *handler) apply(r *http.Request, actor string) (any, error) {
	c, token, err := change(r, actor)
	switch {
	case err != nil:
		return nil, err
	case c.Reason == "":
		return nil, bad("Say why, for whoever wonders later.")
	case c.IfUnchanged == "":
		return nil, bad("Preview it first: what is done is what was previewed.")
	}
	return h.once(r, actor, token, func(ctx context.Context) (any, error) { return struct{}{}, h.hub.admin.Apply(ctx, c) })
}

// mostOutcomes is how many changes are remembered, the latest: a request that is sent again comes
// soon.
const mostOutcomes = 64

// An outcome is what came of a change.
type outcome struct {
	actor, token string
	content      any
	err          error
}

// once does what a press of a button asks for, and goes on where the browser has gone: else nobody
// would know what came of it. A browser sends a POST again by itself where the connection ends
// before the answer, with the token that it had: that is answered with what came of the first,
// which is over, as one change is made at a time. It knows those of this process alone.
func (h *handler) once(r *http.Request, actor, token string, do func(context.Context) (any, error)) (any, error) {
	h.mu.Lock()
	i := slices.IndexFunc(h.outcomes, func(o outcome) bool { return token != "" && o.token == token && o.actor == actor })
	if i >= 0 {
		defer h.mu.Unlock()
		return h.outcomes[i].content, h.outcomes[i].err
	}
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), h.times.answers)
	defer cancel()
	content, err := do(ctx)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.outcomes = append(slices.Clone(h.outcomes[max(0, len(h.outcomes)-mostOutcomes+1):]), outcome{actor, token, content, err})
	return content, err
}

// refusalOf has the page know which error it is.
func refusalOf(err error) *refusal {
	is := &refusal{http.StatusBadGateway, "failed", err.Error()}
	switch {
	case errors.As(err, &is):
	case errors.Is(err, admin.ErrChanged):
		is.status, is.Kind = http.StatusConflict, "changed"
	case errors.Is(err, admin.ErrLast):
		is.status, is.Kind = http.StatusConflict, "last"
	case errors.Is(err, admin.ErrUnknown):
		is.Kind = "unknown"
	case errors.Is(err, admin.ErrNoSuchPartition), errors.Is(err, admin.ErrNoSchedules):
		is.status, is.Kind = http.StatusNotFound, "bad"
	case errors.Is(err, admin.ErrRefused):
		is.status, is.Kind = http.StatusUnprocessableEntity, "refused"
	}
	return is
}

// explain tells why a partition is where it is.
func (h *handler) explain(r *http.Request, _ string) (any, error) {
	query := r.URL.Query()
	partition, err := strconv.Atoi(query.Get("partition"))
	if err != nil {
		return nil, bad("Partition %q is no number.", query.Get("partition"))
	}
	return h.hub.admin.Explain(r.Context(), query.Get("lease"), partition)
}

// events tells more of the latest ones than the polls do.
func (h *handler) events(r *http.Request, _ string) (any, error) {
	return h.hub.readEvents(r.Context(), r.URL.Query().Get("lease"), mostEvents), nil
}

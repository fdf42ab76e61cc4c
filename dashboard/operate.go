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
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/store"
)

// The requests of a page other than polls. For all users together, one read and one change at a
// time go to the database.

// maxText is the maximum size of a path, of a query, or of the body of a POST, in bytes. Names have
// at most 255.
const maxText = 16 << 10

// A question returns the content of an answer, which is sent as JSON.
type question func(h *handler, r *http.Request, actor string) (any, error)

// looks are questions by GET. changes are questions by POST, for operators only.
var (
	looks = map[string]question{
		"explain":   (*handler).explain,
		"past":      (*handler).past,
		"life":      (*handler).life,
		"happened":  (*handler).happened,
		"schedules": (*handler).schedules,
		"schedule":  (*handler).schedule,
		"jobs":      (*handler).jobs,
		"history":   (*handler).history,
		"consumers": (*handler).consumers,
		"consumer":  (*handler).consumer,
		"curves":    (*handler).curves,
		"calendar":  (*handler).calendar,
	}
	changes = map[string]question{
		"preview":  (*handler).preview,
		"apply":    (*handler).apply,
		"ask":      (*handler).ask,
		"rehearse": (*handler).rehearse,
		"handle":   (*handler).handle,
	}
)

// wanted is a change as the page sends it.
type wanted struct {
	admin.Change
	Lasts string `json:"lasts"` // duration of the override, such as 2h; empty: until it is taken back
	Token string `json:"token"`
}

// A refusal is an answer that reports an error.
type refusal struct {
	status int
	Kind   string `json:"kind"` // how the page continues: denied, bad, refused, changed, last, unknown, failed
	Text   string `json:"text"`
}

func (r *refusal) Error() string { return r.Text }

func bad(format string, args ...any) error {
	return &refusal{http.StatusBadRequest, "bad", fmt.Sprintf(format, args...)}
}

// look answers a poll, or a question by GET.
func (h *handler) look(w http.ResponseWriter, r *http.Request, actor, name string) {
	err := checkQuery(r.URL.RawQuery)
	switch {
	case err != nil:
		h.reply(w, nil, err)
	case name == "poll":
		h.poll(w, r)
	default:
		h.answer(w, r, actor, looks[name], h.looking)
	}
}

// operate answers a question of an operator.
func (h *handler) operate(w http.ResponseWriter, r *http.Request, access Access, actor string, ask question) {
	sent := r.Header.Get("Content-Type")
	kind, _, _ := mime.ParseMediaType(sent) // an invalid type is empty
	switch {
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", "POST")
		http.Error(w, "This makes a change: it takes POST.", http.StatusMethodNotAllowed)
	case access != AccessOperator:
		h.reply(w, nil, &refusal{http.StatusForbidden, "denied", "You may look, and change nothing."})
	case kind != "application/json": // forms of other sites cannot send this type
		text := fmt.Sprintf("Content-Type %q is not application/json.", sent)
		h.reply(w, nil, &refusal{http.StatusUnsupportedMediaType, "bad", text})
	default:
		if err := h.receive(w, r); err != nil {
			h.reply(w, nil, err)
			return
		}
		h.answer(w, r, actor, ask, h.operating)
	}
}

// foreign refuses a request from another origin. It may come from our own page behind a proxy that
// changes the host: if a browser sends no Sec-Fetch-Site, for example over plain HTTP, only the
// host distinguishes our own page from others.
func (h *handler) foreign(w http.ResponseWriter, r *http.Request) {
	text := "The request comes from a page of another site."
	if r.Header.Get("Sec-Fetch-Site") == "" {
		text = fmt.Sprintf("Nothing was done: the page is of %q, and the request of %q. "+
			"If a proxy is in front, configure it to pass on the Host of the browser and Sec-Fetch-Site, or use HTTPS.",
			r.Header.Get("Origin"), r.Host)
	}
	h.reply(w, nil, &refusal{http.StatusForbidden, "bad", text})
}

// receive reads the body of a POST before its turn, so a slow sender does not make other operators
// wait. It then removes its deadline, because the server would end the request at that time.
func (h *handler) receive(w http.ResponseWriter, r *http.Request) error {
	conn := http.NewResponseController(w)
	_ = conn.SetReadDeadline(time.Now().Add(h.times.write)) // if it cannot be set, the server's own holds
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxText))
	var long *http.MaxBytesError
	switch {
	case errors.As(err, &long):
		text := fmt.Sprintf("The request is longer than %d bytes.", long.Limit)
		return &refusal{http.StatusRequestEntityTooLarge, "bad", text}
	case err != nil:
		return bad("The request is incomplete: %v.", err)
	}
	_ = conn.SetReadDeadline(time.Time{})
	r.Body = io.NopCloser(bytes.NewReader(body))
	return nil
}

// answer answers a question after those before it. The turn ends before the answer is sent, so a
// slow reader does not make others wait.
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
	text, isEncoded := content.(json.RawMessage)
	if !isEncoded {
		text = encode(content)
	}
	// The limit begins here, because it is for the browser, and long texts take a while to encode.
	// If it cannot be set, the server's own holds.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(h.times.write))
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(text) // the browser has gone
}

// read reads the one JSON value of a POST.
func read(r *http.Request, into any) error {
	d := json.NewDecoder(r.Body)
	d.DisallowUnknownFields()
	err := d.Decode(into)
	if err == nil {
		_, more := d.Token()
		if more == io.EOF {
			return nil
		}
		err = errors.New("more than one value")
	}
	return bad("The request is invalid: %v.", err)
}

// change returns the change of a request, and the token of the press of a button that sent it.
func change(r *http.Request, actor string) (c admin.Change, token string, err error) {
	var w wanted
	if err := read(r, &w); err != nil {
		return c, "", err
	}
	c = w.Change
	c.Reason, c.Actor = strings.TrimSpace(c.Reason), actor
	if w.Lasts != "" {
		c.Lasts, err = time.ParseDuration(w.Lasts)
		if err != nil || c.Lasts <= 0 {
			return c, "", bad("The duration %q is invalid: give one such as 2h.", w.Lasts)
		}
	}
	return c, w.Token, nil
}

// preview returns the moves of a change.
func (h *handler) preview(r *http.Request, actor string) (any, error) {
	c, _, err := change(r, actor)
	if err != nil {
		return nil, err
	}
	return h.hub.admin.DryRun(r.Context(), c)
}

// apply makes a change.
func (h *handler) apply(r *http.Request, actor string) (any, error) {
	c, token, err := change(r, actor)
	if err != nil {
		return nil, err
	}
	return h.once(r, actor, token, func(ctx context.Context) (any, error) {
		return struct{}{}, h.hub.admin.Apply(ctx, c)
	})
}

// mostOutcomes is the number of latest changes whose outcome is kept: a repeated request arrives
// soon.
const mostOutcomes = 64

// An outcome is the outcome of a change.
type outcome struct {
	actor, token string
	content      any
	err          error
}

// once makes the change of a press of a button. It continues if the browser disconnects, so that
// the outcome is known. A browser repeats a POST, with the same token, if the connection ends
// before the answer. once answers a repeated POST with the outcome of the first one, which has
// ended, because changes are made one at a time. It knows only the changes of this process.
func (h *handler) once(r *http.Request, actor, token string, do func(context.Context) (any, error)) (any, error) {
	h.mu.Lock()
	i := slices.IndexFunc(h.outcomes, func(o outcome) bool {
		return token != "" && o.token == token && o.actor == actor
	})
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
	latest := h.outcomes[max(0, len(h.outcomes)-mostOutcomes+1):]
	h.outcomes = append(slices.Clone(latest), outcome{actor, token, content, err})
	return content, err
}

// refusalOf returns an error as the page receives it.
func refusalOf(err error) *refusal {
	is := &refusal{http.StatusBadGateway, "failed", err.Error()}
	switch {
	case errors.As(err, &is):
	case errors.Is(err, admin.ErrLast):
		is.status, is.Kind = http.StatusConflict, "last"
	case errors.Is(err, admin.ErrUnknown):
		is.Kind = "unknown"
	case errors.Is(err, admin.ErrNoLease), errors.Is(err, admin.ErrNoSuchPartition),
		errors.Is(err, admin.ErrNoSchedules), errors.Is(err, admin.ErrNoConsumers):
		is.status, is.Kind = http.StatusNotFound, "bad"
	case errors.Is(err, admin.ErrRefused):
		is.status, is.Kind = http.StatusUnprocessableEntity, "refused"
	}
	return is
}

// explain returns why a client owns a partition, which the query names by its number or by a key.
func (h *handler) explain(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	lease := q.Get("lease")
	partition := 0
	if !q.Has("key") {
		var err error
		partition, err = partitionOf(q)
		if err != nil {
			return nil, err
		}
	}
	return h.shared(r, kept, func(ctx context.Context) (any, error) {
		if q.Has("key") {
			partitions, err := h.hub.admin.Partitions(ctx, lease)
			if err != nil {
				return nil, err
			}
			partition = store.PartitionFor(q.Get("key"), partitions)
		}
		return h.hub.admin.Explain(ctx, lease, partition)
	})
}

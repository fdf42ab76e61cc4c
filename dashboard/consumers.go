package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/store"
)

// Consumers, their blocked rows and their dead letters.

// shownConsumers are all consumers.
type shownConsumers struct {
	Consumers []admin.Consumer `json:"consumers"` // empty also if package consumer has no tables
	Missing   bool             `json:"missing"`   // package consumer has no tables
}

// consumers returns all consumers, without their rows.
func (h *handler) consumers(r *http.Request, _ string) (any, error) {
	return h.shared(r, kept, func(ctx context.Context) (any, error) {
		all, err := h.hub.admin.Consumers(ctx)
		if err != nil && !errors.Is(err, admin.ErrNoConsumers) {
			return nil, err
		}
		return shownConsumers{append([]admin.Consumer{}, all...), err != nil}, nil
	})
}

// consumer returns one consumer with its rows.
func (h *handler) consumer(r *http.Request, _ string) (any, error) {
	return h.shared(r, kept, func(ctx context.Context) (any, error) {
		return h.readConsumer(ctx, r.URL.Query().Get("name"))
	})
}

func (h *handler) readConsumer(ctx context.Context, name string) (*admin.Consumer, error) {
	c, err := h.hub.admin.Consumer(ctx, name)
	if err == nil && c == nil {
		return nil, &refusal{http.StatusNotFound, "bad", fmt.Sprintf("There is no consumer %q.", name)}
	}
	return c, err
}

// A handling is a verb on a consumer or on some of its rows, as the page sends it.
type handling struct {
	Verb     string  `json:"verb"`
	Consumer string  `json:"consumer"`
	Rows     []rowID `json:"rows"` // of retry, skip and return
	Reason   string  `json:"reason"`
	Token    string  `json:"token"`
}

// A rowID is the ID of a row, a string in JSON, because it has up to 63 bits.
type rowID struct {
	ID int64 `json:"id,string"`
}

// mostRows is the maximum number of rows of a request: the page lists as many.
const mostRows = 100

// The verbs on consumers, and those that name rows.
var (
	consumerVerbs = []string{"pause", "resume", "retry", "skip", "return", "retry_all", "return_all"}
	rowVerbs      = []string{"retry", "skip", "return"}
)

// handlingOf returns the request of a page.
func handlingOf(r *http.Request) (a handling, err error) {
	if err := read(r, &a); err != nil {
		return a, err
	}
	a.Reason = strings.TrimSpace(a.Reason)
	ofRows := slices.Contains(rowVerbs, a.Verb)
	switch {
	case !slices.Contains(consumerVerbs, a.Verb):
		return a, bad("%q is not a verb on consumers, which are %s.", a.Verb, strings.Join(consumerVerbs, ", "))
	case ofRows && len(a.Rows) == 0:
		return a, bad("The verb %s needs the IDs of rows.", a.Verb)
	case !ofRows && len(a.Rows) > 0:
		return a, bad("The verb %s takes no rows.", a.Verb)
	case len(a.Rows) > mostRows:
		return a, bad("%d rows are too many for one change: choose at most %d.", len(a.Rows), mostRows)
	}
	return a, nil
}

// A rehearsal is what a verb would do.
type rehearsal struct {
	Rows []rowID `json:"rows"` // that it would change
	Gone []rowID `json:"gone"` // that are no longer there
	// All is the number of rows that retry_all or return_all would change.
	All int `json:"all"`
	// Already reports that the consumer is paused before pause, or not paused before resume.
	Already bool `json:"already"`
}

// rehearse returns what a verb on a consumer would do now.
func (h *handler) rehearse(r *http.Request, _ string) (any, error) {
	a, err := handlingOf(r)
	if err != nil {
		return nil, err
	}
	c, err := h.readConsumer(r.Context(), a.Consumer)
	if err != nil {
		return nil, err
	}
	there := make(map[int64]bool)
	if a.Verb == "return" {
		for _, l := range c.Letters {
			there[l.ID] = true
		}
	} else {
		for _, b := range c.Blocked {
			there[b.ID] = true
		}
	}
	told := rehearsal{Rows: []rowID{}, Gone: []rowID{}}
	for _, row := range a.Rows {
		if there[row.ID] {
			told.Rows = append(told.Rows, row)
		} else {
			told.Gone = append(told.Gone, row)
		}
	}
	switch a.Verb {
	case "retry_all":
		told.All = max(len(c.Blocked), c.BlockedKeys) // a key may have several rows, of which 100 are read
	case "return_all":
		told.All = c.DeadLetters
	case "pause", "resume":
		told.Already = c.PausedAt.IsZero() == (a.Verb == "resume")
	}
	return told, nil
}

// A handled verb is what it did.
type handled struct {
	Rows   int         `json:"rows"` // that were changed
	Failed []failedRow `json:"failed"`
}

// A failedRow is a row that was not changed, and why.
type failedRow struct {
	ID   int64  `json:"id,string"`
	Text string `json:"text"`
}

// handle executes a verb on a consumer. Each row is a change of its own, so some may fail.
func (h *handler) handle(r *http.Request, actor string) (any, error) {
	a, err := handlingOf(r)
	if err != nil {
		return nil, err
	}
	if a.Reason == "" {
		return nil, bad("Give a reason.")
	}
	return h.once(r, actor, a.Token, func(ctx context.Context) (any, error) {
		defer h.forget()
		pool, schema := h.hub.admin.Database()
		options := []consumer.Option{consumer.WithSchema(schema), consumer.WithReason(a.Reason, actor)}
		m, err := consumer.Manage(ctx, pool, a.Consumer, options...)
		if err != nil {
			return nil, ofConsumer(err)
		}
		return a.do(ctx, m)
	})
}

// do executes a verb.
func (a handling) do(ctx context.Context, m *consumer.Manager) (told handled, err error) {
	told.Failed = []failedRow{}
	switch a.Verb {
	case "pause":
		_, err = m.Pause(ctx)
		return told, ofConsumer(err)
	case "resume":
		_, err = m.Resume(ctx)
		return told, ofConsumer(err)
	case "retry_all":
		told.Rows, err = m.RetryAll(ctx)
		return told, ofConsumer(err)
	case "return_all":
		told.Rows, err = m.ReturnAll(ctx)
		return told, ofConsumer(err)
	}
	one := map[string]func(context.Context, int64) error{"retry": m.Retry, "skip": m.Skip, "return": m.Return}[a.Verb]
	for _, row := range a.Rows {
		err := one(ctx, row.ID)
		switch {
		case err == nil:
			told.Rows++
		case errors.Is(err, consumer.ErrNotFound), errors.Is(err, consumer.ErrExists):
			told.Failed = append(told.Failed, failedRow{row.ID, err.Error()})
		case told.Rows == 0: // nothing was done
			return told, ofConsumer(err)
		default: // the next rows would fail as this one did
			told.Failed = append(told.Failed, failedRow{row.ID, err.Error()})
			return told, nil
		}
	}
	return told, nil
}

// ofConsumer returns an error of package consumer as the page receives it.
func ofConsumer(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, consumer.ErrUnknown):
		return &refusal{http.StatusBadGateway, "unknown", err.Error()}
	case errors.Is(err, consumer.ErrNotFound):
		return &refusal{http.StatusNotFound, "refused", err.Error()}
	case errors.Is(err, consumer.ErrExists), errors.Is(err, consumer.ErrInUse):
		return &refusal{http.StatusConflict, "refused", err.Error()}
	case store.Code(err) == "" || store.Code(err) == "22023":
		return &refusal{http.StatusUnprocessableEntity, "refused", err.Error()}
	}
	return err
}

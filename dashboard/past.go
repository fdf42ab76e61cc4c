package dashboard

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/pgleases/pgleases/internal/admin"
)

// The past: the address of the page names a period, as since=1h, or as from and to.

const (
	leastPeriod = time.Minute
	mostPeriod  = 31 * 24 * time.Hour
)

var (
	sincePattern = regexp.MustCompile(`^(\d{1,4})([mhd])$`)
	units        = map[string]time.Duration{"m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
)

// periodOf returns the period of a query; without one, the last hour.
func periodOf(q url.Values) (p admin.Period, err error) {
	const how = "give since=1h, 24h or 7d, or from=2031-05-01T03:00:00Z and to"
	since := q.Get("since")
	from, to := q.Get("from"), q.Get("to")
	var isFrom, isTo bool
	p.From, isFrom = timeOf(from)
	if !isFrom {
		return p, bad("The start %q of the period is no time: %s.", from, how)
	}
	p.To, isTo = timeOf(to)
	if !isTo {
		return p, bad("The end %q of the period is no time: %s.", to, how)
	}
	p.Last = time.Hour
	if since != "" {
		match := sincePattern.FindStringSubmatch(since)
		if match == nil {
			return p, bad("The period %q is invalid: %s.", since, how)
		}
		n, _ := strconv.Atoi(match[1]) // the pattern has digits only
		p.Last = time.Duration(n) * units[match[2]]
	}
	until := time.Now()
	if to != "" {
		until = p.To
	}
	if from != "" {
		p.Last = until.Sub(p.From)
	}
	if p.Last < leastPeriod || p.Last > mostPeriod {
		const out = "The period of %v is out of range, which is 1 minute to 31 days: %s."
		return p, bad(out, p.Last.Round(time.Second), how)
	}
	return p, nil
}

// timeOf returns the time in a text, and the zero time for an empty one. JSON can hold the years 1 to
// 9999, also of the start and the end of the longest period.
func timeOf(text string) (t time.Time, ok bool) {
	if text == "" {
		return t, true
	}
	t, err := time.Parse(time.RFC3339, text)
	year := t.UTC().Year()
	return t, err == nil && year > 1 && year < 9999
}

// A happening is the strip of time of the overview. Each half may fail on its own.
type happening struct {
	Moves        *admin.Strip `json:"moves"`
	MovesFailure string       `json:"moves_failure"`
	Runs         *admin.Strip `json:"runs"` // nil also if package schedule has no tables
	RunsFailure  string       `json:"runs_failure"`
}

// hasFailed reports whether a half has failed.
func (told happening) hasFailed() bool { return told.MovesFailure != "" || told.RunsFailure != "" }

// past counts what happened in a period.
func (h *handler) past(r *http.Request, _ string) (any, error) {
	period, err := periodOf(r.URL.Query())
	if err != nil {
		return nil, err
	}
	return h.shared(r, keptPast, func(ctx context.Context) (any, error) {
		var told happening
		told.Moves, err = h.hub.admin.Moves(ctx, period)
		if err != nil {
			told.MovesFailure = err.Error()
		}
		told.Runs, err = h.hub.admin.Runs(ctx, period)
		if err != nil && !errors.Is(err, admin.ErrNoSchedules) {
			told.RunsFailure = err.Error()
		}
		return told, nil
	})
}

// life returns who owned the partitions of a lease, or one of them.
func (h *handler) life(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	period, err := periodOf(q)
	if err != nil {
		return nil, err
	}
	partition := -1
	if q.Has("partition") {
		partition, err = partitionOf(q)
		if err != nil {
			return nil, err
		}
	}
	return h.shared(r, keptPast, func(ctx context.Context) (any, error) {
		return h.hub.admin.Life(ctx, period, q.Get("lease"), partition)
	})
}

// happened returns the events of a period.
func (h *handler) happened(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	period, err := periodOf(q)
	if err != nil {
		return nil, err
	}
	filter := admin.EventFilter{
		Lease: q.Get("lease"), Client: q.Get("client"), Cause: q.Get("cause"), Name: q.Get("name"),
	}
	return h.shared(r, keptPast, func(ctx context.Context) (any, error) {
		return h.hub.admin.Happened(ctx, period, filter)
	})
}

// sampled are the kinds of samples that a curve of a thing shows.
var sampled = map[string][]string{
	"all":      {"clients", "leases", "unowned", "waiting", "failing", "late", "locks"},
	"consumer": {"waiting", "oldest", "blocked"},
}

// curves returns the samples of a period: of=all, or of=consumer and a name.
func (h *handler) curves(r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	period, err := periodOf(q)
	if err != nil {
		return nil, err
	}
	of, name := q.Get("of"), q.Get("name")
	kinds := sampled[of]
	switch {
	case kinds == nil:
		return nil, bad("There are no curves of %q: ask for those of all, or of consumer.", of)
	case (of == "all") != (name == ""):
		return nil, bad("Curves of a consumer need its name, and those of all take no name.")
	}
	return h.shared(r, keptSamples, func(ctx context.Context) (any, error) {
		return h.hub.admin.Curves(ctx, period, name, kinds...)
	})
}

// checkQuery returns an error for a query that is too long, that cannot be read as a whole, or that
// the database cannot take as text.
func checkQuery(raw string) error {
	if len(raw) > maxText {
		text := fmt.Sprintf("The query is longer than %d bytes.", maxText)
		return &refusal{http.StatusRequestURITooLong, "bad", text}
	}
	q, err := url.ParseQuery(raw)
	if err != nil {
		return bad("The query is invalid: %v.", err)
	}
	for key, values := range q {
		for _, value := range values {
			if !utf8.ValidString(value) || strings.Contains(value, "\x00") {
				return bad("The value %q of %q is not text of UTF-8 without NUL.", value, key)
			}
		}
	}
	return nil
}

func partitionOf(q url.Values) (int, error) {
	partition, err := strconv.Atoi(q.Get("partition"))
	if err != nil || partition < 0 {
		return 0, bad("Partition %q is not a number from 0.", q.Get("partition"))
	}
	return partition, nil
}

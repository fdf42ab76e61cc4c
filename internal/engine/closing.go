package engine

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/when"
	"github.com/pgleases/pgleases/internal/wrap"
)

// closing is the state of the client's end: by Close, by a newer process with its ID, or by an
// operator.
type closing struct {
	reason   error     // why the client ends; nil: it does not end
	since    time.Time // when it began to end
	reportAt time.Time // when to log what it waits for
	returns  bool      // by a call of Close, after which the client is to come back
	// a call of Close has a deadline, so it says how long to wait for a server that answers late
	patient  bool
	lookUp   bool      // read which process superseded it, for the reason's text
	hurried  error     // why Close no longer waits for work; nil: it still waits
	giveUpAt time.Time // when to leave behind what is not released by then
	// Until then this client plans what others' guarded transactions keep. Zero: no moves were left
	// over.
	planUntil    time.Time
	sessionEnded bool // the database has ended the session
}

func newClosing() closing { return closing{giveUpAt: when.Never, reportAt: when.Never} }

// ends reports whether the client ends.
func (c *closing) ends() bool { return c.reason != nil }

// reportClosingAfter is how long a client ends before it logs what it waits for. Later lines follow
// at doubling intervals.
const reportClosingAfter = time.Second

// begin notes that the client begins to end.
func (c *closing) begin(now time.Time) {
	c.since = now
	c.reportAt = now.Add(reportClosingAfter)
}

// reported notes that it was logged what the client waits for, and returns for how long it has been
// ending.
func (c *closing) reported(now time.Time) (lasts time.Duration) {
	lasts = now.Sub(c.since)
	c.reportAt = now.Add(lasts)
	return lasts
}

// due returns when the end goes on though nothing happens.
func (c *closing) due() time.Time { return when.Earlier(c.giveUpAt, c.reportAt) }

// hurry ends the wait for work.
func (c *closing) hurry(cause error, now time.Time) {
	if c.hurried == nil {
		c.hurried, c.giveUpAt = cause, now.Add(closeGrace)
	}
}

// leavesToOthers reports whether a client that ends, and is no longer a member of a lease, leaves
// it to the others to give the partitions that a guarded transaction keeps. The transaction is not
// its own. Most such transactions end very soon. The first call sets when it does so.
func (c *closing) leavesToOthers(now time.Time) bool {
	if c.planUntil.IsZero() {
		c.planUntil = now.Add(closeGrace)
	}
	return !now.Before(c.planUntil)
}

// A closeStage is a part of what a client that ends has to do before it ends its session.
type closeStage struct {
	remains func(*engine) bool // it is not done
	// something can be done for it now, so Close waits even if it is in a hurry
	proceeds func(*engine, time.Time) bool
	busy     func(*engine) []string // what remains, in words
}

// closeStages are the stages of a client's end. See the order of a Close in doc.go.
var closeStages = []closeStage{
	{
		remains: func(e *engine) bool { return e.members.inDatabase() },
		proceeds: func(e *engine, now time.Time) bool {
			return !readDue(e, now).After(now) || !e.members.releaseDue(now).After(now)
		},
		busy: func(e *engine) []string {
			return namedLeases(e, "work on partitions %s of lease %q", "lease %q")
		},
	},
	{
		remains:  func(e *engine) bool { return e.locks.Remain() },
		proceeds: func(e *engine, _ time.Time) bool { return e.locks.Releases() },
		busy:     func(e *engine) []string { return named("lock %q", e.locks.Names()) },
	},
	{
		remains:  func(e *engine) bool { return !e.plans.none() },
		proceeds: func(e *engine, _ time.Time) bool { return !e.plans.none() },
		busy:     func(e *engine) []string { return named("plan of lease %q", e.plans.names()) },
	},
	{
		remains:  func(e *engine) bool { return len(e.releases.unannounced) > 0 },
		proceeds: func(e *engine, _ time.Time) bool { return len(e.releases.unannounced) > 0 },
		busy: func(e *engine) []string {
			return named("announcement of lease %q", slices.Sorted(maps.Keys(e.releases.unannounced)))
		},
	},
}

// named puts each name into a text.
func named(format string, names []string) []string {
	all := make([]string, len(names))
	for i, name := range names {
		all[i] = fmt.Sprintf(format, name)
	}
	return all
}

// namedLeases puts each lease that the session has not left into a text: inWork takes the partitions
// in work, if there are any, and the lease, and joined takes only the lease.
func namedLeases(e *engine, inWork, joined string) (all []string) {
	for _, name := range slices.Sorted(maps.Keys(e.members.byName)) {
		m := e.members.byName[name]
		working := e.members.shared.inWork(m)
		if len(working) > 0 {
			all = append(all, fmt.Sprintf(inWork, ranges.Short(working), name))
		} else if m.inDatabase() {
			all = append(all, fmt.Sprintf(joined, name))
		}
	}
	return all
}

// leftBehind returns the error of a Close that could not end everything, in one line.
func leftBehind(left []string, hurried error) error {
	const until = "the session keeps what is left until it expires"
	what := strings.Join(shortened(left), ", ")
	switch {
	case len(left) == 0:
		return nil
	case hurried == nil:
		return fmt.Errorf("pgleases: close: %s; %s", what, until)
	}
	return wrap.Errorf("pgleases: close: %s: %w; %s", what, hurried, until)
}

// reportedMost is how many things a client names in one line.
const reportedMost = 20

// shortened returns as many things as fit into one line, and how many more there are.
func shortened(all []string) []string {
	more := len(all) - reportedMost
	if more <= 0 {
		return all
	}
	return append(slices.Clone(all[:reportedMost]), fmt.Sprintf("%d more", more))
}

// reportClosing logs what a client waits for that has been ending for long.
func (e *engine) reportClosing(now time.Time) {
	if now.Before(e.closing.reportAt) {
		return
	}
	var busy []string
	for _, stage := range closeStages {
		busy = append(busy, stage.busy(e)...)
	}
	if len(busy) == 0 {
		busy = []string{"the end of its session"}
	}
	lasts := e.closing.reported(now)
	e.log.Info("pgleases: end of the client takes long", slog.Duration("for", lasts.Round(10*time.Millisecond)),
		slog.String("busy", strings.Join(shortened(busy), ", ")))
}

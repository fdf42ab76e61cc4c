package schedule

import (
	"log/slog"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// postponed counts the runs that could not begin, to log them once a minute.
type postponed struct {
	mu     sync.Mutex // guards the following field
	causes map[cause]*logged
}

// A cause is why runs cannot begin: a SQLSTATE, with which runs of a kind meet.
type cause struct{ kind, state string }

type logged struct {
	at   time.Time // when it was logged
	more int       // how many runs have met it since
}

// count counts a run that cannot begin. It reports whether to log that now, and how many others
// were not logged since the last time.
func (p *postponed) count(of cause, now time.Time) (others int, log bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.causes == nil {
		p.causes = make(map[cause]*logged)
	}
	last := p.causes[of]
	if last != nil && now.Sub(last.at) < time.Minute {
		last.more++
		return 0, false
	}
	if last != nil {
		others = last.more
	}
	p.causes[of] = &logged{at: now}
	return others, true
}

// logPostponed logs that a run of a kind could not begin. An empty kind stands for several.
func (x *executor) logPostponed(log *slog.Logger, kind string, err error) {
	others, now := x.postponed.count(cause{kind, store.Code(err)}, time.Now())
	if now {
		log.Warn("schedule: run postponed", slog.Any("error", err), slog.Int("others", others))
	}
}

// lasts reports whether a statement of this package fails until somebody changes something.
func lasts(err error) bool { return worker.Whose(err).Final() }

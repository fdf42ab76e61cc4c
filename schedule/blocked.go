package schedule

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/store"
)

// This file blocks what is of a kind that this process does not register. There may be any number
// of such jobs during a deploy, so they take no places: a statement blocks a page of them, while
// polls leave out their kinds.

// blockPage is how many schedules, and how many jobs, one statement blocks at most.
const blockPage = 1000

// strange has the kinds that this process does not register, while what is due of them is blocked.
// The goroutine of loop uses it.
type strange struct {
	kinds []string
	in    []*ownership
}

// sort removes what is due of unregistered kinds from an answer, and returns it by its partition.
func (r *registry) sort(due []item, server time.Time) (known, unknown []item) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, it := range due {
		switch {
		case r.kinds[it.Kind] != nil:
			known = append(known, it)
		case !it.due().After(server):
			unknown = append(unknown, it)
		}
	}
	return known, unknown
}

// blockStrange begins to block what is due of unregistered kinds, unless that is under way. Others
// may have locked some of it, or the database may refuse to block it. So polls find that again, and
// the next try is as long after this one as two polls are apart.
func (p *planner) blockStrange(ctx context.Context, unknown []item, until time.Time) {
	if len(unknown) == 0 || len(p.strange.kinds) > 0 {
		return
	}
	for _, it := range unknown {
		if !slices.Contains(p.strange.kinds, it.Kind) {
			p.strange.kinds = append(p.strange.kinds, it.Kind)
		}
		o := p.owned.get(it.Partition)
		if o != nil && !slices.Contains(p.strange.in, o) {
			p.strange.in = append(p.strange.in, o)
		}
	}
	p.poller.soon() // for what is behind them in an answer
	kinds, in := p.strange.kinds, p.strange.in
	go func() {
		for _, o := range in {
			if ctx.Err() == nil && o.begin() {
				p.block(o, kinds, until)
				o.runs.Done()
			}
		}
		store.Pause(ctx, p.s.times.Poll)
		p.blockedAll <- struct{}{}
	}()
}

// block blocks all that is due of these kinds in a partition, page by page.
func (p *planner) block(o *ownership, kinds []string, until time.Time) {
	for more := true; more && o.ctx.Err() == nil; {
		further, found := new(bool), new([]blockedKind)
		err := p.exec.forUs(o.ctx, o.Partition, p.s.db.block(kinds, until, further, found), nil)
		if err != nil {
			if o.ctx.Err() == nil && !errors.Is(err, pgleases.ErrNotOwner) {
				err = fmt.Errorf("partition %d: %w", o.Number, store.Advised(err))
				p.exec.logPostponed(p.s.log, "", err)
			}
			return
		}
		for _, b := range *found {
			p.s.registry.warnUnknown(p.s.log, b.item(o), b.Name, b.Since, b.Waited)
		}
		more = *further
	}
}

// A blockedKind is what has been blocked for longest of a kind.
type blockedKind struct {
	ID     int64     `json:"id"`
	Job    bool      `json:"job"`
	Name   string    `json:"name"`
	Key    string    `json:"key"`
	Kind   string    `json:"kind"`
	Since  time.Time `json:"since"`
	Waited float64   `json:"waited"` // seconds
}

func (b blockedKind) item(o *ownership) item {
	return item{subject: subject{b.ID, b.Job}, Key: b.Key, Kind: b.Kind, Partition: o.Number}
}

// block blocks a page of what is due of these kinds by then. It sets more to whether more may be
// due.
func (d *db) block(kinds []string, until time.Time, more *bool, found *[]blockedKind) opening {
	var reasons []string
	for _, kind := range kinds {
		reasons = append(reasons, *storableText(errUnregistered(kind)))
	}
	args := []any{
		d.group, kinds, reasons, until.UnixMicro(), blockedLeast.Milliseconds(), blockedMost.Milliseconds(), blockPage,
		d.times.LockWait.Milliseconds(),
	}
	return opening{d.statements.Block, args, func(row pgx.Row) error {
		var text *string
		err := row.Scan(more, &text)
		if err != nil || text == nil {
			return err
		}
		return json.Unmarshal([]byte(*text), found)
	}}
}

func errUnregistered(kind string) error { return fmt.Errorf("kind %q is not registered", kind) }

// warnUnknown logs, once for each kind, that something of an unregistered kind has been blocked for
// longer than a deploy may take to start a process that registers it.
func (r *registry) warnUnknown(log *slog.Logger, it item, name string, since time.Time, waited float64) {
	if waited < blockedLeast.Seconds() {
		return
	}
	if _, logged := r.warned.LoadOrStore(it.Kind, true); !logged {
		itemLogger(log, it).Warn(
			"schedule: blocked, kind not registered in this process", nonEmpty("name", name),
			slog.Time("since", since), slog.Any("registered", r.names()),
		)
	}
}

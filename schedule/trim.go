package schedule

import (
	"context"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
)

// This file is what the owner of partition 0 does for all: it trims the history, and finds what is in a
// partition that there is none of.

const (
	trimEvery = time.Minute
	trimPage  = 1000 // entries that one statement looks at
)

// trim deletes the group's old entries until ctx ends, page by page. The owner of one partition does it for all. It goes on where it left
// off: what is deleted stays in the index for a while, and is not to be passed over again.
func (p *planner) trim(ctx context.Context) {
	var done, failed int64
	failing := false
	for {
		pause := p.s.trimEvery
		if now, told := p.told(); told {
			err := p.trimTo(ctx, false, now, p.s.options.retention, &done)
			if err == nil {
				err = p.trimTo(ctx, true, now, p.s.options.retentionFailed, &failed)
			}
			if err == nil {
				err = p.s.within(ctx, func(ctx context.Context) error { return p.s.sendPlace(ctx, p.s.pool, nil) })
			}
			if err != nil && !failing && ctx.Err() == nil {
				p.s.log.Warn("schedule: cannot tidy up, again each minute", slog.Any("error", err))
			}
			failing = err != nil
		} else {
			pause = min(pause, p.s.lookEvery) // the first look tells the time
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return
		}
	}
}

// trimTo deletes entries that were written longer ago than is to be kept, after an id, which rises.
func (p *planner) trimTo(ctx context.Context, failed bool, now time.Time, keep time.Duration, after *int64) error {
	for more := keep > 0; more; {
		upTo := *after
		err := p.s.within(ctx, func(ctx context.Context) error {
			return p.s.inTx(ctx, func(tx pgx.Tx) (err error) {
				upTo, more, err = p.s.sendTrim(ctx, tx, failed, now.Add(-keep), *after)
				return err
			})
		})
		if err != nil {
			return err
		}
		*after = upTo
	}
	return nil
}

// told is the database's time, as far as it is believed, and whether it was ever told: a clock that is wrong for a moment deletes nothing.
func (p *planner) told() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.clock.at(time.Now()), p.clock.known
}

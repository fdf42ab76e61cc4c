package timeguard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	wakeEvery = 10 * time.Millisecond
	askEvery  = 50 * time.Millisecond
	// reportEvery is the interval of a probe's reports. A probe reports even if it found no spell,
	// because a missing report counts as lateness too.
	reportEvery = 100 * time.Millisecond
	// least is the smallest lateness that counts. An idle machine is late by a tenth of it. A busy
	// machine that shares its processors fairly is late by little, but all the time.
	least = time.Millisecond
)

// A Spell is a time when a process waited too long.
type Spell struct {
	What     string  // what was late
	From, To Instant // when it should have happened, and when it did
}

// Length returns the lateness.
func (s Spell) Length() time.Duration { return s.To.Sub(s.From) }

// Probe measures until ctx ends. Every 100 ms it reports the spells that it found, and the time
// until which the report is complete. url is a database without faults; if it is empty, Probe
// measures only the process. Calls of tell do not overlap.
func Probe(ctx context.Context, url string, tell func(until Instant, spells []Spell)) {
	answers := make(chan Spell, 16)
	asked := make(chan struct{})
	var asking atomic.Int64 // when the query that has no answer yet was sent; 0: no pending query
	go func() {
		defer close(asked)
		ask(ctx, url, &asking, answers)
	}()
	tick := time.NewTicker(wakeEvery)
	defer tick.Stop()
	last, reported := Now(), Now()
	var spells []Spell
	for {
		select {
		case <-ctx.Done():
			<-asked
			return
		case s := <-answers:
			spells = append(spells, s)
		case <-tick.C:
			now := Now()
			due := last + Instant(wakeEvery)
			if now.Sub(due) >= least {
				spells = append(spells, Spell{"woken", due, now})
			}
			last = now
		}
		if last.Sub(reported) >= reportEvery {
			reported = last
			until := last
			since := asking.Load()
			if since > 0 { // the answer's lateness is not known yet
				until = min(until, Instant(since))
			}
			tell(until, spells)
			spells = nil
		}
	}
}

// ask sends SELECT 1 at intervals, on a connection of its own. If the connection breaks, it
// connects again.
func ask(ctx context.Context, url string, asking *atomic.Int64, answers chan<- Spell) {
	var conn *pgx.Conn
	defer func() {
		if conn != nil {
			_ = conn.Close(context.Background())
		}
	}()
	tick := time.NewTicker(askEvery)
	defer tick.Stop()
	for url != "" && ctx.Err() == nil {
		began := Now()
		asking.Store(int64(began))
		if conn == nil {
			conn, _ = pgx.Connect(ctx, url) // nil if that failed; the next turn connects again
		} else if _, err := conn.Exec(ctx, "SELECT 1", pgx.QueryExecModeSimpleProtocol); err != nil {
			_ = conn.Close(ctx)
			conn = nil
		}
		now := Now()
		if now.Sub(began) >= least && ctx.Err() == nil {
			select {
			case answers <- Spell{"answered", began, now}:
			case <-ctx.Done():
			}
		}
		asking.Store(0)
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
	}
}

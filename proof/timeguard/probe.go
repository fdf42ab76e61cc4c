package timeguard

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/proof/oracle"
)

const (
	wakeEvery = 10 * time.Millisecond
	askEvery  = 50 * time.Millisecond
	// tellEvery is how often a probe tells what it found, if only that there was nothing: its silence is lateness too.
	tellEvery = 100 * time.Millisecond
	// least is what counts as late. An idle machine is, by a tenth of that; one that has too much to do and shares its
	// processors fairly is by little, but all the time.
	least = time.Millisecond
)

// A Spell is a time for which a process waited in vain.
type Spell struct {
	What     string         // it was not "woken", or the database had not "answered"
	From, To oracle.Instant // when it should have been, and when it was
}

// Length returns how late it was.
func (s Spell) Length() time.Duration { return s.To.Sub(s.From) }

// Probe measures until ctx ends. Every 100 ms it tells of the spells, and until when there was none else. The
// database is one that nothing befalls; without a URL only the process is measured. tell is called by one goroutine at a time.
func Probe(ctx context.Context, url string, tell func(until oracle.Instant, spells []Spell)) {
	answers := make(chan Spell, 16)
	asked := make(chan struct{})
	var asking atomic.Int64 // when the question was sent that is not answered yet; 0: none
	go func() {
		defer close(asked)
		ask(ctx, url, &asking, answers)
	}()
	tick := time.NewTicker(wakeEvery)
	defer tick.Stop()
	last, told := oracle.Now(), oracle.Now()
	var spells []Spell
	for {
		select {
		case <-ctx.Done():
			<-asked
			return
		case s := <-answers:
			spells = append(spells, s)
		case <-tick.C:
			now := oracle.Now()
			if due := last + oracle.Instant(wakeEvery); now.Sub(due) >= least {
				spells = append(spells, Spell{"woken", due, now})
			}
			last = now
		}
		if last.Sub(told) >= tellEvery {
			told = last
			until := last
			if since := asking.Load(); since > 0 { // it does not know yet
				until = min(until, oracle.Instant(since))
			}
			tell(until, spells)
			spells = nil
		}
	}
}

// ask sends SELECT 1 again and again, on a connection of its own that it makes anew when it breaks.
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
		began := oracle.Now()
		asking.Store(int64(began))
		if conn == nil {
			conn, _ = pgx.Connect(ctx, url) // nil again where that failed: another try
		} else if _, err := conn.Exec(ctx, "SELECT 1", pgx.QueryExecModeSimpleProtocol); err != nil {
			_ = conn.Close(ctx)
			conn = nil
		}
		if now := oracle.Now(); now.Sub(began) >= least && ctx.Err() == nil {
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

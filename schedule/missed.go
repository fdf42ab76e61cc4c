package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Missed says what becomes of ticks that passed while nobody could run them.
type Missed int

const (
	MissedLatest Missed = iota // the latest of them is run, however late, until the next tick; the default
	MissedNone                 // none is run
	MissedAll                  // all are run, in order, of more than 100 the latest 100
)

// maxCatchUp is how many missed ticks are run at most.
const maxCatchUp = 100

// onTime is how late a tick is still run where none that were missed are.
const onTime = time.Minute

func (m Missed) String() string {
	switch m {
	case MissedLatest:
		return "latest"
	case MissedNone:
		return "none"
	case MissedAll:
		return "all"
	default:
		return fmt.Sprintf("Missed(%d)", int(m))
	}
}

// Due is what is to be done about the ticks that have passed. Those that are not run come before those that are.
type Due struct {
	Run         []Tick // in order, at most 100
	Missed      int64  // how many are not run
	First, Last Tick   // of those that are not run
}

// Due tells what is to be done about the ticks after last, which was the last one done, up to now. Each of them is either in Run or counted in
// Missed. A tick that is later than the grace is not run; a grace of zero is no limit, but for MissedNone a minute.
// It takes no longer for many ticks than for few: a second of a rule of every minute costs as much as a day, and 200 years a few milliseconds.
func (r Rule) Due(anchor time.Time, last Tick, now time.Time, missed Missed, grace time.Duration) Due {
	atMost := 1
	switch {
	case missed == MissedAll:
		atMost = maxCatchUp
	case missed == MissedNone && grace <= 0:
		grace = onTime
	}
	var due Due
	until := now
	for len(due.Run) < atMost {
		tick, ok := r.previous(anchor, last, until)
		if !ok || grace > 0 && now.Sub(tick.At) > grace {
			break
		}
		due.Run = append(due.Run, tick)
		until = tick.At.Add(-1)
	}
	slices.Reverse(due.Run)
	if due.Missed = r.count(anchor, last, until); due.Missed > 0 {
		due.First, _ = r.Next(anchor, last)
		due.Last, _ = r.previous(anchor, last, until)
	}
	return due
}

// jitter shifts the tick of a schedule by less than d, always by the same.
func jitter(name string, tick time.Time, d time.Duration) time.Time {
	if d <= 0 {
		return tick
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(name), uint64(tick.UnixMicro())))
	return tick.Add(time.Duration(binary.BigEndian.Uint64(sum[:]) % uint64(d)).Truncate(time.Microsecond))
}

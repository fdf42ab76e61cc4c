package schedule

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"
)

// Missed says what becomes of ticks that passed while no process could run them. See WithMissed.
type Missed int

const (
	// MissedLatest, the default: the latest of them runs, until it is time for the next.
	MissedLatest Missed = iota
	// MissedNone: none runs. What is no later than a minute, or than the grace that is given, is not
	// missed but late; of several such ticks the latest runs.
	MissedNone
	// MissedAll: all run, in order; of more than 100 the latest 100.
	MissedAll
)

// maxCatchUp is how many missed ticks run at most.
const maxCatchUp = 100

// onTime is how late a tick is still run for MissedNone.
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

// Due is what is to be done about ticks that have passed: each is either run or missed, and those
// that are missed come first.
type Due struct {
	Run    []Tick // in order, at most 100
	Missed Passed // not to be run
}

// Passed is ticks that have passed and are not listed.
type Passed struct {
	Count       int64
	First, Last Tick // zero if there are none
}

// Due returns what is to be done about the ticks after last, which was the last with an outcome, up
// to now. A tick that is later than the grace is missed; a grace of zero is no limit, except for
// MissedNone a minute. See Next for last and anchor.
//
// It takes no longer for many ticks than for few: it counts days, not ticks. 100 million ticks, one
// each minute for 190 years, take 2 ms.
func (r Rule) Due(anchor time.Time, last Tick, now time.Time, missed Missed, grace time.Duration) Due {
	atMost := 1
	switch {
	case missed == MissedAll:
		atMost = maxCatchUp
	case missed == MissedNone && grace <= 0:
		grace = onTime
	}
	var due Due
	until := now // of what is missed
	for len(due.Run) < atMost {
		tick, ok := r.previous(anchor, last, until)
		if !ok || grace > 0 && now.Sub(tick.At) > grace {
			break
		}
		due.Run = append(due.Run, tick)
		until = tick.At.Add(-1)
	}
	slices.Reverse(due.Run)
	due.Missed = r.Passed(anchor, last, until)
	return due
}

// Passed counts the ticks after another, up to an instant, and returns the first and the last of
// them. It is as quick as Due.
func (r Rule) Passed(anchor time.Time, after Tick, until time.Time) Passed {
	last, ok := r.previous(anchor, after, until)
	if !ok {
		return Passed{}
	}
	first, _ := r.Next(anchor, after)
	return Passed{Count: r.count(anchor, after, until), First: first, Last: last}
}

// jitter shifts the tick of a schedule by less than d, always by the same.
func jitter(name string, tick time.Time, d time.Duration) time.Time {
	if d <= 0 {
		return tick
	}
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(name), uint64(tick.UnixMicro())))
	return tick.Add(time.Duration(binary.BigEndian.Uint64(sum[:]) % uint64(d)).Truncate(time.Microsecond))
}

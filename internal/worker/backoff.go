package worker

import (
	"fmt"
	"math/rand/v2"
	"time"
)

// A BackoffPolicy sets the pauses between attempts. Backoff returns one.
type BackoffPolicy struct {
	min, max time.Duration
	exact    bool // without the random part
}

// longestBackoff is the longest pause between two attempts.
const longestBackoff = 30 * 24 * time.Hour

// Backoff returns a policy that pauses for min after the first failed attempt, and twice as long
// after each further one, up to max.
func Backoff(min, max time.Duration) BackoffPolicy { return BackoffPolicy{min: min, max: max} }

// The functions below are no methods, so that users of the packages that name the type do not see
// them.

// CheckBackoff returns an error for a policy that is out of range.
func CheckBackoff(p BackoffPolicy) error {
	if p.min < time.Millisecond || p.max > longestBackoff || p.min > p.max {
		return fmt.Errorf("backoff from %v to %v is out of range: "+
			"from at least 1ms, to at most %v, the first no longer than the last", p.min, p.max, longestBackoff)
	}
	return nil
}

// LongestPause returns the pause that a policy ends with, without its random part.
func LongestPause(p BackoffPolicy) time.Duration { return p.max }

// WithoutJitter returns a policy whose pauses have no random part.
func WithoutJitter(p BackoffPolicy) BackoffPolicy {
	p.exact = true
	return p
}

// PauseAfter returns the pause after this number of failed attempts. It is up to 10 % longer than
// the policy says, at random. A negative number, which somebody has written by hand, counts as none.
func PauseAfter(failed int, p BackoffPolicy) time.Duration {
	d := p.max
	doublings := max(0, failed-1)
	if doublings < 62 && p.min <= p.max>>doublings {
		d = p.min << doublings
	}
	if !p.exact {
		d += rand.N(d/10 + 1)
	}
	return d.Truncate(time.Microsecond)
}

// Package show has the worker processes of examples/fleet and examples/outbox, and prints what
// happens to them.
package show

import (
	"context"
	"fmt"
	"time"
)

// A Screen prints events.
type Screen struct{ Began time.Time }

// Event prints a line with the time since the beginning.
func (s Screen) Event(format string, args ...any) {
	fmt.Printf("%5.1f s  %s\n", time.Since(s.Began).Seconds(), fmt.Sprintf(format, args...))
}

// Pause waits, not longer than ctx lasts.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// Thousands writes a number as people read it: 20,000.
func Thousands(n int) string {
	if n < 1000 {
		return fmt.Sprint(n)
	}
	return fmt.Sprintf("%s,%03d", Thousands(n/1000), n%1000)
}

// Seconds writes a duration as people read it: 2.041 s, or 21 ms.
func Seconds(d time.Duration) string {
	if d < time.Second {
		return fmt.Sprintf("%d ms", d.Round(time.Millisecond).Milliseconds())
	}
	return fmt.Sprintf("%.3f s", d.Seconds())
}

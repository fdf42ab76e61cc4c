// Package show has the display and the worker processes of examples/fleet.
package show

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A Screen shows events, which stay, and below them a table, which it redraws. If the output is no
// terminal, it writes lines only.
type Screen struct {
	Terminal bool

	began  time.Time
	chatty bool

	mu    sync.Mutex // guards out and drawn
	out   io.Writer
	drawn []string // the table's lines, as they stand on the terminal
}

// NewScreen returns a screen. A chatty one shows what the processes log.
func NewScreen(out *os.File, began time.Time, chatty bool) *Screen {
	info, err := out.Stat()
	terminal := err == nil && info.Mode()&os.ModeCharDevice != 0 &&
		runtime.GOOS != "windows" && os.Getenv("TERM") != "" && os.Getenv("TERM") != "dumb"
	return &Screen{began: began, chatty: chatty, Terminal: terminal, out: out}
}

// Interval is how often there is something new to show: a table four times a second, a line each
// second.
func (s *Screen) Interval() time.Duration {
	if s.Terminal {
		return 250 * time.Millisecond
	}
	return time.Second
}

// Event writes a line that stays.
func (s *Screen) Event(format string, args ...any) {
	s.mu.Lock()
	defer s.mu.Unlock()
	line := fmt.Sprintf("%5.1f s  ", time.Since(s.began).Seconds()) + fmt.Sprintf(format, args...)
	fmt.Fprint(s.out, s.erasure(), line, "\n", s.drawing())
}

// Verbose writes a line that stays, if that was asked for.
func (s *Screen) Verbose(line string) {
	if s.chatty {
		s.Event("%s", line)
	}
}

// Table replaces the table.
func (s *Screen) Table(lines []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	erasure := s.erasure()
	s.drawn = lines
	fmt.Fprint(s.out, erasure, s.drawing())
}

// Clear removes the table.
func (s *Screen) Clear() {
	s.mu.Lock()
	defer s.mu.Unlock()
	fmt.Fprint(s.out, s.erasure())
	s.drawn = nil
}

// erasure goes up to the table's first line and clears from there to the end of the screen.
func (s *Screen) erasure() string {
	if len(s.drawn) == 0 {
		return ""
	}
	return fmt.Sprintf("\x1b[%dA\x1b[J", len(s.drawn))
}

// drawing writes the table with the terminal's line wrap off, so that a line that is too long still
// takes one line, and moving up by the number of lines leads to the first.
func (s *Screen) drawing() string {
	if len(s.drawn) == 0 {
		return ""
	}
	return "\x1b[?7l" + strings.Join(s.drawn, "\n") + "\n\x1b[?7h"
}

// Pause waits, not longer than ctx lasts.
func Pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
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

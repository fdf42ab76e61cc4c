//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// Clock is the wall clock of a server, which can be set while that runs, apart from the machine's. All methods are
// safe for concurrent use.
type Clock struct {
	file string

	mu     sync.Mutex // guards the rest
	offset time.Duration
}

// Clock takes the server down and up again with a clock of its own, which tells the machine's time at first. What the
// server measures with the monotonic clock is left alone. The error wraps ErrNotInstalled when there is no libfaketime.
// ctx covers the restart. Nothing else may be done to the server meanwhile; its standbys have the same clock.
func (s *Server) Clock(ctx context.Context) (*Clock, error) {
	library, err := findFaketime(faketimeLibraries)
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	var c *Clock
	err = s.locked("set the clock of", func() error {
		c = &Clock{file: s.folder.file("clock")}
		if err := c.Set(0); err != nil {
			return err
		}
		bin, err := s.wrapped(library, c.file)
		if err != nil {
			return err
		}
		if s.process != nil {
			if err := s.shutdown(ctx, Fast); err != nil {
				return err
			}
		}
		s.bin = bin
		return s.up(ctx)
	})
	return c, err
}

// wrapped makes a folder with a program postgres that starts the server's own with the library.
func (s *Server) wrapped(library, file string) (string, error) {
	bin := s.folder.file("bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return "", err
	}
	quote := func(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
	// Read anew at every look at the clock.
	script := "#!/bin/sh\n" +
		"export LD_PRELOAD=" + quote(library) + " FAKETIME_TIMESTAMP_FILE=" + quote(file) + "\n" +
		"export FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1\n" +
		"exec " + quote(s.program("postgres")) + ` "$@"` + "\n"
	path := filepath.Join(bin, "postgres")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return "", err
	}
	return bin, os.Chmod(path, 0o755) // whatever the umask
}

// Set sets the clock: the machine's, plus the offset.
func (c *Clock) Set(offset time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	// By a rename: the server would read half a file as another time.
	next := c.file + ".next"
	err := os.WriteFile(next, fmt.Appendf(nil, "%+.6f\n", offset.Seconds()), 0o644)
	if err := errors.Join(err, os.Chmod(next, 0o644), os.Rename(next, c.file)); err != nil {
		return fmt.Errorf("pgserver: set the clock: %w", err)
	}
	c.offset = offset
	return nil
}

// Offset returns what the clock was set to.
func (c *Clock) Offset() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.offset
}

// Slew has the clock run at that rate, 1.1 for a tenth too fast, without a step, until ctx ends. Then it goes on from there at
// the machine's rate.
func (c *Clock) Slew(ctx context.Context, rate float64) error {
	began, from := time.Now(), c.Offset()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		if err := c.Set(from + time.Duration((rate-1)*float64(time.Since(began)))); err != nil {
			return err
		}
	}
}

//go:build unix

package pgserver

import (
	"context"
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

//go:embed clock/clock.c
var clockSource string

// Clock is the wall clock of a server. It is independent of the machine's clock, and can be set
// while the server runs. All methods are safe for concurrent use.
type Clock struct {
	micros *atomic.Int64 // in the file that the server reads; mapped until this process ends
}

// Clock restarts the server with a clock of its own, which shows the machine's time at first. The
// server's monotonic clock does not change. The error wraps NotInstalled if there is no C
// compiler, or if the system is not Linux. ctx bounds the restart. No other operation may run on
// the server meanwhile. Standbys that are started later have the same clock.
func (s *Server) Clock(ctx context.Context) (*Clock, error) {
	compiler, err := findCompiler(runtime.GOOS, os.Getenv("CC"))
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	var c *Clock
	err = s.locked("set the clock of", func() (err error) {
		file := s.folder.file("clock")
		c, err = newClock(file)
		if err != nil {
			return err
		}
		library, err := s.compiled(ctx, compiler)
		if err != nil {
			return err
		}
		bin, err := s.wrapped(library, file)
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

func newClock(path string) (*Clock, error) {
	if err := os.WriteFile(path, make([]byte, 8), 0o644); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	page, err := syscall.Mmap(int(file.Fd()), 0, 8, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	// Chmod, because of the umask.
	return &Clock{micros: (*atomic.Int64)(unsafe.Pointer(&page[0]))}, os.Chmod(path, 0o644)
}

// compiled compiles the library that gives a program the clock.
func (s *Server) compiled(ctx context.Context, compiler string) (string, error) {
	library := s.folder.file("clock.so")
	cc := exec.CommandContext(ctx, compiler, "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", library)
	cc.Stdin = strings.NewReader(clockSource)
	if said, err := cc.CombinedOutput(); err != nil {
		return "", fmt.Errorf("compile the clock: %w\n%s", err, said)
	}
	return library, os.Chmod(library, 0o755)
}

// wrapped creates a folder with a program postgres, which starts the server's own postgres with the
// library.
func (s *Server) wrapped(library, file string) (string, error) {
	bin := s.folder.file("bin")
	if err := os.Mkdir(bin, 0o755); err != nil {
		return "", err
	}
	quote := func(text string) string { return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'" }
	script := "#!/bin/sh\n" +
		"export LD_PRELOAD=" + quote(library) + " PGSERVER_CLOCK=" + quote(file) + "\n" +
		"exec " + quote(s.program("postgres")) + ` "$@"` + "\n"
	path := filepath.Join(bin, "postgres")
	if err := os.WriteFile(path, []byte(script), 0o755); err != nil {
		return "", err
	}
	return bin, os.Chmod(path, 0o755) // because of the umask
}

// Set sets the clock to the machine's time plus the offset, truncated to whole microseconds.
func (c *Clock) Set(offset time.Duration) { c.micros.Store(offset.Microseconds()) }

// Offset returns the offset that was set.
func (c *Clock) Offset() time.Duration { return time.Duration(c.micros.Load()) * time.Microsecond }

// Slew runs the clock at a rate, for example 1.1 for 10 % too fast, without a step, until ctx ends.
// After that the clock continues at the machine's rate.
func (c *Clock) Slew(ctx context.Context, rate float64) {
	began, from := time.Now(), c.Offset()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			c.Set(from + time.Duration((rate-1)*float64(time.Since(began))))
		case <-ctx.Done():
			return
		}
	}
}

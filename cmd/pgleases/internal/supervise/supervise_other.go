//go:build !unix || aix

package supervise

import (
	"context"
	"errors"
	"log/slog"
	"syscall"

	"github.com/pgleases/pgleases"
)

// The promises of run need process groups, and a parent for orphans.
type supervisor struct{ hurry chan struct{} }

// errUnsupported is the error of Run on this system.
var errUnsupported = errors.New("run does not work on Windows and AIX, " +
	"where a program cannot be asked to end with all that it started; use Lease.Run of the Go library, or WSL")

func newSupervisor(*runner) (*supervisor, error) { return nil, errUnsupported }

func (*supervisor) run(context.Context, *pgleases.Lease, pgleases.Partition, *slog.Logger) (int, error) {
	panic("not reached: there is no supervisor")
}

func signalName(sig syscall.Signal) string { return sig.String() }

func runApart() (code int, apart bool, err error) { return 0, false, nil }

// A status is never created: newSupervisor fails before.
type status struct{}

func newStatus(string) (*status, error)                 { return nil, errors.ErrUnsupported }
func (*status) serve(*pgleases.Client, *pgleases.Lease) {}
func (*status) close()                                  {}

// KeepVerb is the verb of the command that calls [Keep].
const KeepVerb = "keep-program"

// Keep returns an error: Run does not work on this system.
func Keep([]string) error { return errors.ErrUnsupported }

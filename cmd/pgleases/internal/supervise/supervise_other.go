//go:build !unix

package supervise

import (
	"context"
	"errors"

	"github.com/pgleases/pgleases"
)

// What run promises needs process groups, and a parent for orphans.
type supervisor struct{ hurry chan struct{} }

func newSupervisor(*runner) (*supervisor, error) {
	return nil, errors.New("run does not work on Windows, where a program cannot be asked to end with all that it started; use Lease.Run of the Go library, or WSL")
}

func (*supervisor) run(context.Context, *pgleases.Lease, pgleases.Partition) (int, error) {
	panic("not reached: there is no supervisor")
}

// KeepVerb is the command's verb for [Keep].
const KeepVerb = "keep-program"

// Keep does not work here, as Run does not.
func Keep([]string) error { return errors.ErrUnsupported }

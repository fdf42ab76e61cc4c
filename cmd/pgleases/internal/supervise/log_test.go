//go:build unix && !aix

package supervise

import (
	"fmt"
	"log/slog"
	"strings"
	"syscall"
	"testing"

	"github.com/pgleases/pgleases"
)

// The line of an end says what has happened, with the program's exit code, and whether it is in order.
func TestEndOfProgramSaysWhetherItIsInOrder(t *testing.T) {
	t.Parallel()
	const inOrder, notInOrder = ` exit_code=143 in_order=true`, ` exit_code=143 in_order=false`
	const noTrust = `WARN cause="trust in the ownership was lost: no heartbeat succeeded for 5.7s"`
	const another = `WARN cause="superseded by a newer process with the same client ID"`
	cut := fmt.Errorf("%w: no heartbeat succeeded for 5.7s", pgleases.ErrTrustLost)
	for name, test := range map[string]struct {
		cause  error
		signal syscall.Signal
		once   bool
		want   string
	}{
		"a signal":      {pgleases.ErrClosed, syscall.SIGTERM, false, `INFO cause="signal SIGTERM"` + inOrder},
		"another one":   {pgleases.ErrClosed, syscall.SIGHUP, true, `INFO cause="signal SIGHUP"` + inOrder},
		"its end":       {pgleases.ErrClosed, 0, false, `INFO cause="this command ends"` + inOrder},
		"a move":        {pgleases.ErrHandoff, 0, false, `INFO cause="partition is handed over"` + inOrder},
		"a move, once":  {pgleases.ErrHandoff, 0, true, `WARN cause="partition is handed over"` + notInOrder},
		"an eviction":   {pgleases.ErrEvicted, 0, false, `INFO cause="evicted by an operator"` + inOrder},
		"a second one":  {pgleases.ErrSuperseded, 0, false, another + notInOrder},
		"an outage":     {cut, 0, false, noTrust + notInOrder},
		"by its signal": {cut, syscall.SIGTERM, false, noTrust + notInOrder},
		"its own":       {nil, 0, false, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log strings.Builder
			r := &runner{Config: Config{Once: test.once}}
			r.asked.Store(int32(test.signal))
			r.logEnd(test.cause, 143, slog.New(slog.NewTextHandler(&log, nil)))
			level, line, _ := strings.Cut(log.String(), ` msg="program was ended" `)
			_, level, _ = strings.Cut(level, "level=")
			if got := strings.TrimSpace(level + " " + line); got != test.want {
				t.Errorf("it logs %q, not %q", got, test.want)
			}
		})
	}
}

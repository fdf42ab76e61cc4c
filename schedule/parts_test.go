package schedule

import (
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

// A part returns what happened, and the planner passes it on. All may read the clock.
func TestNoPartCallsAnother(t *testing.T) {
	testkit.NoPartCallsAnother(t, "planner", 4, "serverClock")
}

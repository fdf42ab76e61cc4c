package consumer

import (
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

// A part returns what happened, and the planner passes it on.
func TestNoPartCallsAnother(t *testing.T) {
	testkit.NoPartCallsAnother(t, "planner", 4)
}

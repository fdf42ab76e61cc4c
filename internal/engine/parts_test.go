package engine

import (
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

func TestNoPartCallsAnother(t *testing.T) { testkit.NoPartCallsAnother(t, "engine", 10, "Config") }

func TestNoPartWritesAnother(t *testing.T) {
	testkit.NoPartWritesAnother(t, "engine",
		"membership", "assignments", "assignment", "shared", "agenda", "planning", "release")
}

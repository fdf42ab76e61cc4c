package store

import (
	"strings"
	"testing"
)

// Each client that opens asks for the statements, and a process may open a thousand.
func TestStatementsAreWrittenOnceForASchema(t *testing.T) {
	StatementsFor("s")
	if n := testing.AllocsPerRun(10, func() { StatementsFor("s") }); n > 10 {
		t.Errorf("the statements of one schema were written again: %v allocations", n)
	}
	for _, schema := range []string{"t", "s"} {
		if got := StatementsFor(schema); !strings.Contains(got.Join, `"`+schema+`".`) {
			t.Errorf("schema %s has other statements than those written for it", schema)
		}
	}
}

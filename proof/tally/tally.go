// Package tally records what an attack did and checked, so that a verdict can show it. go test
// shows nothing of a test that passes, so the counts leave it as attributes of the test, which
// package verdict reads from the output of go test -json.
package tally

import (
	"fmt"
	"strings"
	"testing"
)

// The keys of the attributes. A value is a count, a space, and a name.
const (
	FaultKey     = "fault"
	CheckedKey   = "checked"
	ViolationKey = "violations"
)

// Fault records that a fault of a kind has hit.
func Fault(t testing.TB, kind string) {
	t.Helper()
	t.Attr(FaultKey, "1 "+line(kind))
}

// Faults records how often faults of each kind have hit.
func Faults(t testing.TB, counts map[string]int) {
	t.Helper()
	for kind, n := range counts {
		if n > 0 {
			t.Attr(FaultKey, fmt.Sprint(n, " ", line(kind)))
		}
	}
}

// Checked records how many things of a kind an oracle has looked at, for example reads of Values.
func Checked[N int | int64](t testing.TB, things string, n N) {
	t.Helper()
	t.Attr(CheckedKey, fmt.Sprint(n, " ", line(things)))
}

// Violations records how many violations of a promise an oracle has found, also if there are none.
func Violations(t testing.TB, of string, n int) {
	t.Helper()
	t.Attr(ViolationKey, fmt.Sprint(n, " ", line(of)))
}

// line keeps a name in one line, as an attribute must be.
func line(name string) string { return strings.Join(strings.Fields(name), " ") }

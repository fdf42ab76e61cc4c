// Package notes tells who runs the tests what a passing run hides: which tries a guard has repeated,
// and which tests were skipped because this machine lacks a program.
package notes

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
)

const (
	// FileVariable is the environment variable with the name of a file that gets a line for each
	// note. go test shows nothing of a package that passes.
	FileVariable = "PGLEASES_TEST_NOTES"
	// SkipVariable is the environment variable with the programs whose tests may be skipped,
	// separated by commas.
	SkipVariable = "PGLEASES_TEST_SKIP"
)

// Add logs a note on a test, and appends it to the file of FileVariable. kind is its first word.
func Add(t testing.TB, kind, text string) {
	t.Helper()
	text = strings.ReplaceAll(text, "\n", " ")
	t.Logf("%s: %s", kind, text)
	path := os.Getenv(FileVariable)
	if path == "" {
		return
	}
	file, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err == nil {
		_, err = fmt.Fprintf(file, "%s %s: %s\n", kind, t.Name(), text)
		err = errors.Join(err, file.Close())
	}
	if err != nil {
		t.Errorf("%s: %v", FileVariable, err)
	}
}

// Lacks fails a test that needs a program which this machine lacks, or skips it if SkipVariable
// names the program. why says how to install it.
func Lacks(t testing.TB, program, why string) {
	t.Helper()
	if !slices.Contains(strings.Split(os.Getenv(SkipVariable), ","), program) {
		t.Fatalf("%s; or skip its tests with %s=%s", why, SkipVariable, program)
	}
	Add(t, "skipped", why)
	t.SkipNow()
}

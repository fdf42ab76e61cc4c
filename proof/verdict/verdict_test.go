package main

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

// attacks are tests of a module that has the path of the proof, so that each has a row.
const attacks = `package proof

import "testing"

func TestFound(t *testing.T) {
	for _, name := range []string{"direct", "pooled"} {
		t.Run(name, func(t *testing.T) {
			t.Attr("fault", "2 kill")
			t.Attr("checked", "1500 reads")
			t.Attr("violations", "1 leases")
		})
	}
}

func TestHeld(t *testing.T) {
	t.Attr("fault", "3 kill")
	t.Attr("fault", "1 many clients")
	t.Attr("violations", "0 leases")
	t.Logf("repeated: %s", "the machine was late")
}

func TestSkipped(t *testing.T) {
	t.Log("something before")
	t.Skip("needs the flag -soak")
}

func TestInPart(t *testing.T) {
	t.Run("long", func(t *testing.T) { t.Skip("is long | wide") })
}
`

// events returns the output of go test -json for a module with this text.
func events(t *testing.T, text string) string {
	t.Helper()
	dir := t.TempDir()
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "go.mod"), []byte("module "+module+"\n\ngo 1.26\n"), 0o644))
	testkit.OK(t, os.WriteFile(filepath.Join(dir, "proof_test.go"), []byte(text), 0o644))
	command := exec.CommandContext(t.Context(), "go", "test", "-json", "-vet=off", ".")
	command.Dir, command.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	output, err := command.Output()
	if failed := new(exec.ExitError); err != nil && !errors.As(err, &failed) {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "events.json")
	testkit.OK(t, os.WriteFile(path, output, 0o644))
	return path
}

func TestVerdictShowsWhatAttacksDid(t *testing.T) {
	t.Parallel()
	path := events(t, attacks)
	var out bytes.Buffer
	err := run(t.Context(), []string{"-from", path}, &out, t.Output())
	if err == nil || err.Error() != "2 violations; 0 tests failed" {
		t.Errorf("the error is %v", err)
	}
	for _, want := range []string{
		"| TestFound | 0s | 4 kill | 3,000 reads | 2 | passed |",
		"| TestHeld | 0s | 3 kill, 1 many clients |  |  | passed; repeated 1 times |",
		"| TestSkipped | 0s |  |  |  | skipped: needs the flag -soak |",
		`| TestInPart | 0s |  |  |  | passed; a part skipped: is long \| wide |`,
		"8 faults of 2 kinds hit. Checked: 3,000 reads. Violations: 2. Tests failed: 0. " +
			"Repeated, because the machine was late: 1.",
	} {
		if !strings.Contains(out.String(), want+"\n") {
			t.Errorf("the table lacks the line %s:\n%s", want, &out)
		}
	}
}

// A verdict is not green if a test failed, panicked, did not compile, or did not run.
func TestVerdictIsRedUnlessAllPassed(t *testing.T) {
	t.Parallel()
	const begin = "package proof\n\nimport \"testing\"\n\nfunc TestOne(t *testing.T) { "
	exits := strings.Replace(begin, `"testing"`, `("os"; "testing")`, 1) + "os.Exit(3) }"
	for name, test := range map[string]struct{ text, wants, row string }{
		"passed":   {begin + "}", "", "| TestOne | 0s |  |  |  | passed |"},
		"failed":   {begin + "t.Error(1) }", "0 violations; 1 tests failed", "FAILED: 1 of 1"},
		"panicked": {begin + "panic(1) }", "0 violations; 1 tests failed", "FAILED: 1 of 1"},
		"exited":   {exits, "0 violations; 1 tests failed", "FAILED: 1 of 1"},
		"no Go":    {begin, "0 violations; 1 tests failed", "| proof | 0s |  |  |  | FAILED: 1 of 1"},
		"skipped":  {begin + "t.Skip(1) }", "no test ran", "skipped: 1"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var out bytes.Buffer
			err := run(t.Context(), []string{"-from", events(t, test.text)}, &out, t.Output())
			if test.wants == "" && err != nil || test.wants != "" && (err == nil || err.Error() != test.wants) {
				t.Errorf("the error is %v, not %q", err, test.wants)
			}
			if !strings.Contains(out.String(), test.row) {
				t.Errorf("the table lacks %s:\n%s", test.row, &out)
			}
		})
	}
}

// The report goes into a page between two lines, and replaces the one before.
func TestReportReplacesTheOneBefore(t *testing.T) {
	t.Parallel()
	path, page := events(t, strings.Replace(attacks, "1 leases", "0 leases", 1)), filepath.Join(t.TempDir(), "page.md")
	report := func() error {
		return run(t.Context(), []string{"-from", path, "-report", page, "-commit", "0123abc"}, t.Output(), t.Output())
	}
	testkit.OK(t, os.WriteFile(page, []byte("# Proof\n\n"+Begin+"\nold\n"+End+"\n\nmore\n"), 0o644))
	testkit.OK(t, report())
	testkit.OK(t, report())
	text := string(testkit.Must(os.ReadFile(page))(t))
	for _, want := range []string{
		"# Proof\n", "at commit `0123abc`", "| violations found | 0 |", "| kill | 7 |", "TestFound", "\nmore\n",
	} {
		if strings.Count(text, want) != 1 {
			t.Errorf("the page has %q %d times, not once:\n%s", want, strings.Count(text, want), text)
		}
	}
	if strings.Contains(text, "old\n") {
		t.Errorf("the page has the report before:\n%s", text)
	}
	testkit.OK(t, os.WriteFile(page, []byte("# Another page\n"), 0o644))
	if err := report(); err == nil || !strings.Contains(err.Error(), "has no lines") {
		t.Errorf("a page without a place for the report: %v", err)
	}
}

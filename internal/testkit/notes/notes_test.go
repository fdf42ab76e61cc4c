package notes_test

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit/notes"
)

// A verdict is a testing.TB that records how a test ended.
type verdict struct {
	testing.TB
	how string
}

func (v *verdict) SkipNow() { v.how = "skipped"; runtime.Goexit() }
func (v *verdict) Fatalf(format string, args ...any) {
	v.how = fmt.Sprintf("failed: "+format, args...)
	runtime.Goexit()
}

func TestMissingProgramFailsUnlessASkipIsAskedFor(t *testing.T) {
	file := filepath.Join(t.TempDir(), "notes")
	t.Setenv(notes.FileVariable, file)
	for skip, want := range map[string]string{
		"":                "failed: install spin; or skip its tests with PGLEASES_TEST_SKIP=spin",
		"spinning":        "failed: install spin; or skip its tests with PGLEASES_TEST_SKIP=spin",
		"patroni":         "failed: install spin; or skip its tests with PGLEASES_TEST_SKIP=spin",
		"pgbouncer,spin":  "skipped",
		"spin,etcd":       "skipped",
		"pgbouncer, spin": "failed: install spin; or skip its tests with PGLEASES_TEST_SKIP=spin",
	} {
		t.Setenv(notes.SkipVariable, skip)
		v := &verdict{TB: t}
		done := make(chan struct{})
		go func() {
			defer close(done)
			notes.Lacks(v, "spin", "install spin")
		}()
		<-done
		if v.how != want {
			t.Errorf("%s=%q: %s, want %s", notes.SkipVariable, skip, v.how, want)
		}
	}
	text, err := os.ReadFile(file)
	if line := "skipped " + t.Name() + ": install spin\n"; err != nil || string(text) != strings.Repeat(line, 2) {
		t.Errorf("the notes are %q, %v, not twice %q", text, err, line)
	}
}

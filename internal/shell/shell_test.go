//go:build linux

package shell

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

// Bash reads a word as the name, and other shells run no part of it. Plain names have no quotes.
func TestAShellReadsAWordAsTheName(t *testing.T) {
	t.Parallel()
	for name, plain := range map[string]bool{
		"orders-7/3":                 true,
		"worker-3@host.eu_1:x":       true,
		"50%":                        true,
		"":                           false,
		"~":                          false,
		"a b":                        false,
		"it's $(touch y)":            false,
		`\' "` + "`touch y`":         false,
		"w\nrm -rf x $(touch y) 'z'": false,
		"\n'; touch y; '":            false,
		"\\\r\t\u202e\x01\"":         false,
	} {
		word := Word(name)
		for _, program := range []string{"bash", "sh"} {
			c := exec.CommandContext(t.Context(), program, "-c", "printf %s "+word)
			c.Dir, c.Env = t.TempDir(), append(os.Environ(), "LC_ALL=C.UTF-8")
			read := string(testkit.Must(c.Output())(t))
			if len(testkit.Must(os.ReadDir(c.Dir))(t)) > 0 || program == "bash" && read != name {
				t.Errorf("%s reads %s as %q, want %q", program, word, read, name)
			}
			if strings.ContainsAny(word, "\n\r") || plain != (word == name) {
				t.Errorf("%q becomes the word %s: want one line, quoted: %v", name, word, !plain)
			}
		}
	}
}

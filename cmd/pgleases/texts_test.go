package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/internal/testkit"
)

var (
	recommended = regexp.MustCompile("\\bpgleases " +
		"((?:[a-z][a-z-]*|[A-Z]+|<[a-z]+>|'[^']*'|%\\S+|--?[a-z][a-z-]*(?:[= ]\\S+?)?)(?: |$|[;,.:)\"'`\n]))+")
	flagIn  = regexp.MustCompile(`(?:^|\s)--([a-z][a-z-]*)`)
	hasText = regexp.MustCompile(`\.(go|sql|txt|md|yaml|js)$`)
)

// Errors, findings, help and pages recommend commands. Each verb has the flags that they name.
func TestTextsNameFlagsThatExist(t *testing.T) {
	root, found := newRoot(), 0
	testkit.OK(t, filepath.WalkDir("../..", func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && (entry.Name() == ".git" || entry.Name() == "testdata"):
			return filepath.SkipDir
		case entry.IsDir() || strings.HasSuffix(path, "_test.go") || !hasText.MatchString(path):
			return nil
		}
		text, err := os.ReadFile(path)
		for _, command := range recommended.FindAllString(string(text), -1) {
			verb := verbOf(root, command)
			words, _, _ := strings.Cut(command, " -- ")
			for _, flag := range flagIn.FindAllStringSubmatch(words, -1) {
				found++
				if verb == nil || flag[1] == "help" {
					continue
				}
				if verb.Flags().Lookup(flag[1]) == nil && verb.InheritedFlags().Lookup(flag[1]) == nil {
					t.Errorf("%s: %q: the verb %q has no flag --%s", path, command, verb.CommandPath(), flag[1])
				}
			}
		}
		return err
	}))
	if found < 50 {
		t.Errorf("only %d flags were found in texts", found)
	}
}

// verbOf returns the verb of a command; nil: the text does not begin with one.
func verbOf(root *cobra.Command, command string) (verb *cobra.Command) {
	at := root
	for _, word := range strings.Fields(command)[1:] {
		if strings.Contains(word, "%") { // a verb that the program fills in
			return nil
		}
		next, _, err := at.Find([]string{strings.TrimRight(word, ";,.:)\"'`")})
		if err != nil || next == at {
			break
		}
		at, verb = next, next
	}
	return verb
}

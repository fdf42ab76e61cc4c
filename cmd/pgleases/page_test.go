package main

import (
	"bytes"
	"errors"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/pgleases/pgleases/internal/testkit"
)

const page = "../../docs/cli.md"

var write = flag.Bool("write", false, "write "+page+" anew")

func TestCLIPageIsTheHelp(t *testing.T) {
	text := bytes.NewBufferString("# The command pgleases\n\n" +
		"Made from the command's own help, `pgleases help`, by `go test ./cmd/pgleases -run Page -write`.\n" +
		"The options of `pgleases` are those of every verb too.\n\n")
	root := newRoot()
	root.DisableAutoGenTag = true
	var describe func(cmd *cobra.Command)
	describe = func(cmd *cobra.Command) {
		var page bytes.Buffer
		testkit.OK(t, doc.GenMarkdownCustom(cmd, &page, func(file string) string {
			return "cli.md#" + strings.ReplaceAll(strings.TrimSuffix(file, ".md"), "_", "-")
		}))
		own := page.String()
		if cmd.HasParent() { // the rest is the same for all
			own, _, _ = strings.Cut(own, "### SEE ALSO")
			own, _, _ = strings.Cut(own, "### Options inherited")
		}
		text.WriteString(strings.Replace(own, "### SEE ALSO", "### Verbs", 1))
		for _, sub := range cmd.Commands() {
			if !sub.Hidden && sub.Name() != "help" {
				describe(sub)
			}
		}
	}
	describe(root)
	if *write {
		testkit.OK(t, os.WriteFile(page, text.Bytes(), 0o644))
	}
	now := testkit.Must(os.ReadFile(page))(t)
	if !bytes.Equal(now, text.Bytes()) {
		t.Errorf("%s is not what the command's help says: go test ./cmd/pgleases -run Page -write", page)
	}
}

// What README has a reader type is what the command takes.
func TestREADMECommandsAreVerbs(t *testing.T) {
	readme := testkit.Must(os.ReadFile("../../README.md"))(t)
	lines := regexp.MustCompile(`(?m)^    (?:go run \./cmd/pgleases|pgleases) (.+)$`).FindAllStringSubmatch(string(readme), -1)
	for _, line := range lines {
		cmd, args, err := newRoot().Find(strings.Fields(line[1]))
		if err == nil && cmd.Name() != "run" { // whose arguments are another program's
			err = errors.Join(cmd.ParseFlags(args), cmd.ValidateArgs(cmd.Flags().Args()))
		}
		if err != nil || !cmd.Runnable() {
			t.Errorf("%s: %v", line[0], err)
		}
	}
	if len(lines) < 4 {
		t.Errorf("only %d commands found", len(lines))
	}
}

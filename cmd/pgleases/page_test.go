package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/testkit"
)

const page = "../../docs/cli.md"

var write = flag.Bool("write", false, "write "+page+" again")

func TestCLIPageIsTheHelp(t *testing.T) {
	want := pageOf(newRoot())
	testkit.SameAsFile(t, page, want, *write, "it is not the command's help: go test ./cmd/pgleases -run Page -args -write")
	if n := strings.Count(want, "\n"); n > 550 {
		t.Errorf("the page has %d lines, want at most 550: shorten help.txt", n)
	}
}

// pageOf returns the page: the texts, flags and examples of each verb. It has the flags and texts
// that verbs share only once.
func pageOf(root *cobra.Command) string {
	uses := make(map[string]int) // of flags, as the list of flags explains them
	for _, cmd := range verbsOf(root) {
		cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { uses[explained(f)]++ })
	}
	var flags, verbs strings.Builder
	listed := make(map[string]bool) // flags and shared texts
	list := func(f *pflag.Flag) {
		if text := explained(f); !listed[text] {
			listed[text] = true
			flags.WriteString("- " + text + "\n")
		}
	}
	root.PersistentFlags().VisitAll(list)
	for _, group := range root.Groups() {
		fmt.Fprintf(&verbs, "\n## %s\n", strings.TrimSuffix(group.Title, ":"))
		all := slices.DeleteFunc(verbsOf(root), func(cmd *cobra.Command) bool { return cmd.GroupID != group.ID && cmd.Parent().GroupID != group.ID })
		for _, cmd := range all {
			if text, _ := section("shared " + cmd.Annotations[shared]); text != "" && !listed[text] {
				listed[text] = true
				verbs.WriteString("\n" + unwrapped(text))
			}
		}
		for _, cmd := range all {
			synopsis, own := "", []string{}
			cmd.LocalFlags().VisitAll(func(f *pflag.Flag) {
				text := explained(f)
				if uses[text] > 1 {
					list(f)
				} else {
					own = append(own, text)
				}
				name := strings.Split(text, "`")[1]
				synopsis += " [" + regexp.MustCompile(`, --\S+`).ReplaceAllString(name, "") + "]"
			})
			text, example := section(strings.TrimPrefix(cmd.CommandPath(), "pgleases "))
			fmt.Fprintf(&verbs, "\n### %s\n`%s`: %s", cmd.CommandPath(), strings.Replace(cmd.UseLine(), " [flags]", synopsis, 1), unwrapped(cmd.Short+".\n"+text))
			if len(own) > 0 {
				fmt.Fprintf(&verbs, "Flags: %s.\n", strings.Join(own, "; "))
			}
			if example != "" {
				verbs.WriteString("\n" + regexp.MustCompile(`(?m)^  (.+)$`).ReplaceAllString(example, "    $1") + "\n")
			}
		}
	}
	text, _ := section("pgleases")
	return "# The command pgleases\n\nGenerated from its help: `go test ./cmd/pgleases -run Page -args -write`.\n\n" + unwrapped(text) +
		"\n## Flags\n\nAll verbs have the first 3, and `-h, --help`. The synopsis of a verb has the others.\n\n" + flags.String() + verbs.String()
}

// verbsOf returns the visible verbs of a command, with theirs.
func verbsOf(cmd *cobra.Command) (all []*cobra.Command) {
	for _, sub := range cmd.Commands() {
		if !sub.Hidden && sub.Name() != "help" {
			all = append(append(all, sub), verbsOf(sub)...)
		}
	}
	return all
}

// explained returns a flag as its help has it, with its name as code: `--for duration`: ...
func explained(f *pflag.Flag) string {
	one := pflag.NewFlagSet("", pflag.ContinueOnError)
	one.AddFlag(f)
	name, text, _ := strings.Cut(strings.TrimSpace(one.FlagUsages()), "  ")
	return "`" + name + "`: " + strings.TrimSpace(text)
}

// unwrapped returns a text of the help with a line for each paragraph and each item of a list.
func unwrapped(text string) string {
	var all []string
	for paragraph := range strings.SplitSeq(text, "\n\n") {
		if !strings.HasPrefix(paragraph, "    ") {
			paragraph = strings.ReplaceAll(strings.ReplaceAll(paragraph, "\n    ", " "), "\n  - ", "\x00")
			paragraph = strings.ReplaceAll(strings.ReplaceAll(paragraph, "\n", " "), "\x00", "\n- ")
			paragraph = strings.TrimPrefix(paragraph, "  ")
		}
		all = append(all, paragraph)
	}
	return strings.TrimSpace(strings.Join(all, "\n\n")) + "\n"
}

// A short text has at most 8 words. Each verb has an example with valid arguments and output.
func TestHelpHasAnExampleOfEachVerb(t *testing.T) {
	for _, cmd := range verbsOf(newRoot()) {
		if n := len(strings.Fields(cmd.Short)); n > 8 {
			t.Errorf("%s: its short text has %d words, at most 8: shorten Short in the source of the verb", cmd.CommandPath(), n)
		}
		lines := regexp.MustCompile(`(?m)^  \$ ((?:.+\\\n)*.+)\n  [^$ ]`).FindAllStringSubmatch(cmd.Example, -1)
		if len(lines) == 0 && !cmd.HasSubCommands() {
			t.Errorf("%s: help.txt has no example with output for it, such as\n\n  $ %s\n  done\n", cmd.CommandPath(), cmd.UseLine())
		}
		for _, line := range lines {
			expectTaken(t, strings.Split(line[1], " | ")[0], cmd)
		}
	}
	if doctor, _ := section("doctor"); !strings.Contains(strings.ReplaceAll(doctor, "\n", " "), strings.Join(admin.Checks, ", ")) {
		t.Error("the help of doctor lacks a check")
	}
}

// A table in the help has the columns of a table in the code, without those that depend on the data.
func TestHelpTablesHaveColumnsOfTheCode(t *testing.T) {
	headings := make(map[string]bool)
	for _, name := range testkit.Must(filepath.Glob("*.go"))(t) {
		source := string(testkit.Must(os.ReadFile(name))(t))
		for _, call := range regexp.MustCompile(`\btable\(((?:"[^"]*"|\w+|\+)+), `).FindAllStringSubmatch(source, -1) {
			heading := ""
			for _, text := range regexp.MustCompile(`"([^"]*)"`).FindAllStringSubmatch(strings.ReplaceAll(call[1], "shareHeading", `"`+shareHeading+`"`), -1) {
				heading += text[1]
			}
			headings[heading] = true
		}
	}
	shown := regexp.MustCompile(`(?m)^  ([A-Z ]+  [A-Z ()]+)$`).FindAllStringSubmatch(helpTexts, -1)
	for _, line := range shown {
		if heading := regexp.MustCompile(` {2,}`).ReplaceAllString(line[1], ","); !headings[heading] {
			t.Errorf("no code prints a table with this heading, which help.txt shows: %s", heading)
		}
	}
	if len(shown) < 15 {
		t.Errorf("only %d tables found in help.txt", len(shown))
	}
}

// expectTaken expects that a command line has valid flags and arguments, and does more than print
// the help. If a verb is given, the line must call it.
func expectTaken(t *testing.T, line string, want *cobra.Command) {
	t.Helper()
	var words []string
	for _, word := range regexp.MustCompile(`'[^']*'|[^\s\\]+`).FindAllString(line, -1) {
		words = append(words, strings.Trim(word, "'"))
	}
	cmd, args, err := newRoot().Find(words[1:])
	if err == nil && cmd.Name() != "run" { // its arguments belong to another program
		err = errors.Join(cmd.ParseFlags(args), cmd.ValidateArgs(cmd.Flags().Args()))
	}
	if err != nil || !cmd.Runnable() || cmd.Example == "" || words[0] != "pgleases" || want != nil && cmd.CommandPath() != want.CommandPath() {
		t.Errorf("%s: %v", line, err)
	}
}

// The commands in README are valid.
func TestREADMECommandsAreVerbs(t *testing.T) {
	readme := testkit.Must(os.ReadFile("../../README.md"))(t)
	lines := regexp.MustCompile(`(?m)^    (?:go run \./cmd/pgleases|pgleases) (.+?)(?: +#.*)?$`).FindAllStringSubmatch(string(readme), -1)
	lines = append(lines, regexp.MustCompile("`pgleases ([a-z]+ [^`]+)`").FindAllStringSubmatch(string(readme), -1)...)
	lines = append(lines, regexp.MustCompile("`pgleases (doctor|list|watch|serve)`").FindAllStringSubmatch(string(readme), -1)...)
	for _, line := range lines {
		expectTaken(t, "pgleases "+line[1], nil)
	}
	if len(lines) < 4 {
		t.Errorf("only %d commands found", len(lines))
	}
}

// Each alert begins with doctor and leads to the page. The commands in alerts are valid.
func TestAlertCommandsAreVerbs(t *testing.T) {
	rules := string(testkit.Must(os.ReadFile("../../pgleasesprom/alerts.yaml"))(t))
	rules = regexp.MustCompile(`{{ \$labels\.(\w+) }}`).ReplaceAllString(rules, "$1")
	for _, line := range regexp.MustCompile(`"(pgleases [^"]+)"`).FindAllStringSubmatch(rules[strings.Index(rules, "groups:"):], -1) {
		if strings.Contains(line[1], "explain") && !strings.Contains(line[1], "/") {
			t.Errorf("%s: it names no partition", line[1])
		}
		expectTaken(t, line[1], nil)
	}
	alerts := strings.Split(rules, "- alert: ")[1:]
	for _, alert := range alerts {
		if !regexp.MustCompile(`\n +remedy: '?Run "pgleases doctor"[^\n]+\n +runbook_url: .*(docs/troubleshooting\.md|\*troubleshooting)\n`).MatchString(alert) {
			t.Errorf("it has not both, doctor first and the page: %s", alert)
		}
	}
	if len(alerts) < 15 {
		t.Errorf("only %d alerts found", len(alerts))
	}
}

// In a table that is wider than the terminal, names lose their middle, and the text of the last column
// continues on the next lines.
func TestTablesFitTheTerminal(t *testing.T) {
	rows := [][]string{{"CLIENT", "STATE", "HOST", "REASON"}, {strings.Repeat("ab", 30), "expired", strings.Repeat("xy", 20), "it has to go, because its host is replaced"}}
	if cell := layout([][]string{{"STATE"}, {"live, drained"}}, 80, true); !strings.Contains(cell, green+"live, drained"+plain) {
		t.Errorf("a state with an override: %q", cell)
	}
	text := layout(rows, 80, false)
	if !regexp.MustCompile(`\nabab\S*…\S*abab  expired  xyxy\S*…\S*xyxy  it has to .*\n +\S.* replaced\n$`).MatchString(text) || regexp.MustCompile(`(?m)^.{81}`).MatchString(text) {
		t.Errorf("not cut, not continued, or too wide: %s", text)
	}
	now := time.Now()
	for want, at := range map[string]time.Time{"3m ago": now.Add(-3*time.Minute - 20*time.Second), "in 20s": now.Add(20 * time.Second), "5h ago": now.Add(-5 * time.Hour), "in 3d": now.Add(80 * time.Hour), "-": {}} {
		if got := relative(now, at); got != want {
			t.Errorf("%v is %q, want %q", at, got, want)
		}
	}
}

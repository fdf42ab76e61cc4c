package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"iter"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
	"golang.org/x/term"
)

// table returns a heading, whose columns have commas between, and a row of cells for each item. No
// cell contains a tab or the end of a line. On a terminal the table fits into its width.
func table[T any](heading string, items []T, row func(T) []any) string {
	rows := [][]string{strings.Split(heading, ",")}
	for _, item := range items {
		rows = append(rows, mapped(row(item), toText))
	}
	width := terminalWidth()
	return layout(rows, width, width > 0 && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
}

func toText(cell any) string { return fmt.Sprint(cell) }

func mapped[T, U any](items []T, of func(T) U) (all []U) {
	for _, item := range items {
		all = append(all, of(item))
	}
	return all
}

// terminalWidth returns the number of columns if stdout is a terminal, otherwise 0.
func terminalWidth() int {
	width, _, err := term.GetSize(int(os.Stdout.Fd()))
	if err != nil {
		return 0
	}
	return cmp.Or(width, 80)
}

// dash stands for no value.
const dash = "-"

// shown returns a name as tables show it: quoted, if it is not the same as a Go string, or could be
// taken for something else. Characters are not printable if they move the cursor, end the line or
// change the direction of writing.
func shown(name string) string {
	quoted := strconv.Quote(name)
	if name != "" && name != dash && name == strings.TrimSpace(name) && quoted == `"`+name+`"` {
		return name
	}
	return quoted
}

var withinLine = regexp.MustCompile(`[^\n\t]+`)

// lines returns a text of several lines, with other unprintable characters escaped.
func lines(text string) string { return withinLine.ReplaceAllStringFunc(text, printable) }

// printable returns a text as one line, with unprintable characters escaped.
func printable(text string) string { return escaped(strings.ReplaceAll(text, "\n", "; ")) }

// escaped returns a text with unprintable characters as in a Go string, also the ends of lines.
func escaped(text string) string {
	var b strings.Builder
	for _, r := range text {
		if unicode.IsPrint(r) {
			b.WriteRune(r)
		} else {
			b.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
		}
	}
	return b.String()
}

// firstLine returns the first line of an error.
func firstLine(text string) string { return strings.SplitN(text, "\n", 2)[0] }

// orDash returns a name as tables show it, or dash.
func orDash(name string) string {
	if name == "" {
		return dash
	}
	return shown(name)
}

// idOrDash returns the ID of a job, or dash for 0.
func idOrDash(id int64) string {
	if id == 0 {
		return dash
	}
	return strconv.FormatInt(id, 10)
}

// relative returns a time as people read it, relative to now: "3m ago", "in 20s".
func relative(now, at time.Time) string {
	switch {
	case at.IsZero():
		return dash
	case at.After(now):
		return "in " + period(at.Sub(now))
	}
	return period(now.Sub(at)) + " ago"
}

// period returns a duration in one unit, as people read it.
func period(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", d/time.Second)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", d/time.Minute)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", d/time.Hour)
	}
	return fmt.Sprintf("%dd", d/(24*time.Hour))
}

// A span is a flag for a time until now, which may be in days.
type span time.Duration

var days = regexp.MustCompile(`^([0-9]{1,5})d`)

func (s *span) Type() string { return "duration" }

// String returns the time as Set takes it; "" for no time, so that the help shows no default.
func (s *span) String() string {
	d := time.Duration(*s)
	switch {
	case d == 0:
		return ""
	case d%(24*time.Hour) == 0 && d > 24*time.Hour:
		return fmt.Sprintf("%dd", d/(24*time.Hour))
	case d%time.Hour == 0:
		return fmt.Sprintf("%dh", d/time.Hour)
	case d%time.Minute == 0:
		return strings.TrimSuffix(d.String(), "0s")
	}
	return d.String()
}

func (s *span) Set(text string) (err error) {
	var d time.Duration
	if found := days.FindStringSubmatch(text); found != nil {
		n, _ := strconv.Atoi(found[1])
		d, text = time.Duration(n)*24*time.Hour, text[len(found[0]):]
	}
	rest := time.Duration(0)
	if text != "" || d == 0 {
		rest, err = time.ParseDuration(text)
	}
	if err != nil || rest < 0 || d+rest <= 0 {
		return errors.New("give a time above 0, such as 1h or 7d")
	}
	*s = span(d + rest)
	return nil
}

// A choice is a flag that takes one of some words.
type choice struct {
	value string
	of    []string
}

func (c *choice) String() string { return c.value }
func (c *choice) Type() string   { return strings.Join(c.of, "|") }
func (c *choice) Set(text string) error {
	if !slices.Contains(c.of, text) {
		return fmt.Errorf("give one of %s", strings.Join(c.of, ", "))
	}
	c.value = text
	return nil
}

// choiceFlag adds such a flag to a verb. Its default is value.
func choiceFlag(cmd *cobra.Command, name, short, value, help string, of ...string) *choice {
	c := &choice{value, of}
	cmd.Flags().VarP(c, name, short, help)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// outputFlag adds the flag -o to a verb. It returns a function that prints a value as JSON, or the
// text, as the flag says.
func outputFlag(cmd *cobra.Command) func(value any, text string) error {
	const help = "format: table for people, or json for programs, with durations (_ns) in nanoseconds"
	output := choiceFlag(cmd, "output", "o", "table", help, "table", "json")
	return func(value any, text string) (err error) {
		if output.value == "json" {
			text, err = asJSON(value, "  ")
		}
		fmt.Fprint(cmd.OutOrStdout(), text) // empty after an error; main returns the error of writing
		return err
	}
}

// looking makes cmd a verb that prints what read returns for what open opens: a value, and the same
// as text.
func looking[S any](
	cmd *cobra.Command,
	open func(cmd *cobra.Command, use func(ctx context.Context, s S) error) error,
	read func(ctx context.Context, s S, args []string) (value any, text string, err error),
) *cobra.Command {
	cmd.Args = asUsed
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return open(cmd, func(ctx context.Context, s S) error {
			value, text, err := read(ctx, s, args)
			if err != nil {
				return err
			}
			return output(value, text)
		})
	}
	return cmd
}

// firstOf collects at most that many items of a sequence.
func firstOf[T any](seq iter.Seq2[T, error], most int) ([]T, error) {
	if most < 1 {
		return nil, fmt.Errorf("-n %d: give 1 or more", most)
	}
	all := []T{}
	for one, err := range seq {
		if err != nil {
			return nil, err
		}
		all = append(all, one)
		if len(all) == most {
			break
		}
	}
	return all, nil
}

// asJSON returns a value as JSON in which no character moves a terminal's cursor or changes the
// direction of writing.
func asJSON(value any, indent string) (string, error) {
	var plain, b strings.Builder
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return "", err
	}
	for _, r := range plain.String() {
		if r < 0x7f || unicode.IsPrint(r) {
			b.WriteRune(r)
			continue
		}
		for _, unit := range utf16.Encode([]rune{r}) {
			fmt.Fprintf(&b, `\u%04x`, unit)
		}
	}
	return b.String(), nil
}

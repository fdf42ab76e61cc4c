package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"
	"unicode/utf16"

	"github.com/spf13/cobra"
)

// table returns a heading, whose columns have commas between, and a row of cells for each item, with
// the columns aligned: no cell has a tab or the end of a line. An empty heading is left out.
func table[T any](heading string, items []T, row func(T) []any) string {
	var text strings.Builder
	columns := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	if heading != "" {
		fmt.Fprintln(columns, strings.ReplaceAll(heading, ",", "\t"))
	}
	for _, item := range items {
		cells := row(item)
		fmt.Fprintf(columns, strings.Repeat("\t%v", len(cells))[1:]+"\n", cells...)
	}
	_ = columns.Flush() // a Builder takes all
	return text.String()
}

// nothing stands for none.
const nothing = "-"

// shown is a name as a table shows it: quoted if it is no string of Go without escapes, or could be
// taken for something else. What moves the cursor, ends the line or turns the direction of writing
// around is no printable character.
func shown(name string) string {
	quoted := strconv.Quote(name)
	if name != "" && name != nothing && name == strings.TrimSpace(name) && quoted == `"`+name+`"` {
		return name
	}
	return quoted
}

var withinLine = regexp.MustCompile(`[^\n\t]+`)

// lines is a text of several lines, in which what else is no printable character is escaped.
func lines(text string) string { return withinLine.ReplaceAllStringFunc(text, printable) }

// printable is a text of one line, in which what is no printable character is escaped.
func printable(text string) string {
	var b strings.Builder
	for _, r := range text {
		switch {
		case r == '\n':
			b.WriteString("; ")
		case unicode.IsPrint(r):
			b.WriteRune(r)
		default:
			quoted := strconv.QuoteRune(r)
			b.WriteString(quoted[1 : len(quoted)-1])
		}
	}
	return b.String()
}

// orNothing is a name, or nothing.
func orNothing(name string) string {
	if name == "" {
		return nothing
	}
	return shown(name)
}

// ago is how long before now a point in time was, as people read it; nothing for none.
func ago(now, then time.Time) string {
	if then.IsZero() {
		return nothing
	}
	return period(now.Sub(then))
}

// period is a time as people read it: three digits or less of each of two units.
func period(d time.Duration) string {
	d = max(0, d)
	switch {
	case d < time.Second:
		return d.Round(time.Millisecond).String()
	case d < time.Minute:
		return d.Round(100 * time.Millisecond).String()
	case d < time.Hour:
		return d.Round(time.Second).String()
	case d < 48*time.Hour:
		return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
	}
	return fmt.Sprintf("%dd%dh", d/(24*time.Hour), d%(24*time.Hour)/time.Hour)
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

// choiceFlag gives a verb such a flag. It is value as long as it is not given.
func choiceFlag(cmd *cobra.Command, name, short, value, help string, of ...string) *choice {
	c := &choice{value, of}
	cmd.Flags().VarP(c, name, short, help)
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(of, cobra.ShellCompDirectiveNoFileComp))
	return c
}

// outputFlag gives a verb the flag -o, and returns what prints a value by it: as JSON, or as the
// text.
func outputFlag(cmd *cobra.Command) func(value any, text string) error {
	const help = "how to print: table for people; json for programs, with times in nanoseconds where a name ends in _ns"
	output := choiceFlag(cmd, "output", "o", "table", help, "table", "json")
	return func(value any, text string) (err error) {
		if output.value == "json" {
			text, err = asJSON(value, "  ")
		}
		if err == nil {
			_, err = io.WriteString(cmd.OutOrStdout(), text)
		}
		return err
	}
}

// looking makes cmd a verb that prints what read returns of what it opens: a value, and the same as
// text.
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

// firstOf collects at most that many.
func firstOf[T any](seq iter.Seq2[T, error], most int) ([]T, error) {
	if most < 1 {
		return nil, fmt.Errorf("-n %d: give 1 or more", most)
	}
	all := []T{}
	for one, err := range seq {
		if err != nil {
			return nil, err
		}
		if all = append(all, one); len(all) == most {
			break
		}
	}
	return all, nil
}

// asJSON returns JSON in which no character moves a terminal's cursor or turns the direction of
// writing around.
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

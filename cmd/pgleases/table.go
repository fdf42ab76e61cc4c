package main

import (
	"bytes"
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
	"unicode/utf8"

	"github.com/spf13/cobra"
)

// A table is rows of cells, the first of which is the heading.
type table [][]string

func (t *table) add(cells ...string) { *t = append(*t, cells) }

// write aligns the columns: no cell has a tab or the end of a line.
func (t table) write(w io.Writer) {
	columns := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for _, row := range t {
		fmt.Fprintln(columns, strings.Join(row, "\t"))
	}
	_ = columns.Flush() // w keeps its first error
}

// nothing stands for none.
const nothing = "-"

// shown is a name as a table shows it: quoted where it is not all printable characters, or could be
// taken for something else. What moves the cursor, ends the line or turns the direction of writing
// around is no printable character.
func shown(name string) string {
	plain := name != "" && name != nothing && name[0] != '"' && name == strings.TrimSpace(name) && utf8.ValidString(name)
	for _, r := range name {
		plain = plain && unicode.IsPrint(r)
	}
	if plain {
		return name
	}
	return strconv.Quote(name)
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
// tables that a function writes.
func outputFlag(cmd *cobra.Command) func(value any, tables func(w io.Writer)) error {
	const help = "how to print: table for people; json for programs, with times in nanoseconds where a name ends in _ns"
	output := choiceFlag(cmd, "output", "o", "table", help, "table", "json")
	return func(value any, tables func(w io.Writer)) error {
		if output.value == "table" {
			tables(cmd.OutOrStdout())
			return nil
		}
		text, err := asJSON(value, "  ")
		if err == nil {
			_, err = cmd.OutOrStdout().Write(text)
		}
		return err
	}
}

// looking makes cmd a verb that prints what read returns of what it opens: a value, and what writes
// it as tables.
func looking[S any](
	cmd *cobra.Command,
	open func(cmd *cobra.Command, use func(ctx context.Context, s S) error) error,
	read func(ctx context.Context, s S, args []string) (value any, tables func(w io.Writer), err error),
) *cobra.Command {
	cmd.Args, cmd.ValidArgsFunction = asUsed, complete
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return open(cmd, func(ctx context.Context, s S) error {
			value, tables, err := read(ctx, s, args)
			if err != nil {
				return err
			}
			return output(value, tables)
		})
	}
	return cmd
}

// firstOf collects at most that many; 0: all.
func firstOf[T any](seq iter.Seq2[T, error], most int) ([]T, error) {
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
func asJSON(value any, indent string) ([]byte, error) {
	var plain bytes.Buffer
	encoder := json.NewEncoder(&plain)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", indent)
	if err := encoder.Encode(value); err != nil {
		return nil, err
	}
	var b strings.Builder
	for _, r := range plain.String() {
		switch {
		case r < 0x7f || unicode.IsPrint(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\u%04x\u%04x`, 0xd800+(r-0x10000)>>10, 0xdc00+(r-0x10000)&0x3ff)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return []byte(b.String()), nil
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/ranges"
	"github.com/pgleases/pgleases/internal/shell"
)

// The verbs on consumers.

func newConsumers() *cobra.Command {
	cmd := &cobra.Command{Use: "consumers", Short: "List, show, pause and resume consumers"}
	looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, _ []string) (any, string, error) {
		all, err := a.Consumers(ctx)
		return all, consumersTable(all), err
	})
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		switch {
		case len(args) > 0 && args[0] == "list":
			return errors.New(`there is no verb "list": pgleases consumers lists them`)
		case len(args) > 0:
			return onlyVerbs(cmd, args)
		}
		return nil
	}
	cmd.AddCommand(newConsumerShow(), newConsumerTable())
	for _, v := range consumerVerbs {
		cmd.AddCommand(newConsumerChange(v))
	}
	return cmd
}

func consumersTable(all []admin.Consumer) string {
	const heading = "CONSUMER,QUEUE,OWNED,WAITING,OLDEST,BLOCKED KEYS,FOR,DEAD LETTERS,UNHANDLED,STATE"
	now := time.Now()
	return table(heading, all, func(c admin.Consumer) []any {
		oldest, blocked := dash, dash
		if c.Oldest != nil {
			oldest = period(*c.Oldest)
		}
		if c.BlockedKeys > 0 {
			blocked = period(c.BlockedFor)
		}
		owned := fmt.Sprintf("%d/%d", c.Owned, c.Partitions)
		return []any{
			shown(c.Name), shown(c.Queue), owned, counted(c.Waiting), oldest, c.BlockedKeys, blocked,
			counted(&c.DeadLetters), counted(c.Unhandled), pausedState(now, c),
		}
	})
}

// pausedState returns whether a consumer or its lease is paused, or dash.
func pausedState(now time.Time, c admin.Consumer) string {
	switch {
	case !c.PausedAt.IsZero():
		since := relative(now, c.PausedAt)
		return fmt.Sprintf("paused %s by %s: %s", since, printable(c.PausedBy), printable(c.PausedReason))
	case c.LeasePaused:
		return "lease paused"
	}
	return dash
}

// counted returns a count that stops at 1,000.
func counted(n *int) string {
	switch {
	case n == nil:
		return dash
	case *n >= 1000:
		return "1000+"
	}
	return strconv.Itoa(*n)
}

func newConsumerShow() *cobra.Command {
	cmd := &cobra.Command{Use: "show CONSUMER", Short: "Show blocked rows, dead letters and changes"}
	return looking(cmd, withAdmin, func(ctx context.Context, a *admin.Admin, args []string) (any, string, error) {
		c, err := a.Consumer(ctx, args[0])
		if err != nil {
			return nil, "", err
		}
		if c == nil {
			return nil, "", unknownConsumer(ctx, a, args[0])
		}
		text := consumersTable([]admin.Consumer{*c})
		if len(c.Blocked) > 0 {
			text += "\n" + blockedTable(c.Blocked)
		}
		if len(c.Letters) > 0 {
			text += "\n" + lettersTable(c.Letters)
		}
		if len(c.Changes) > 0 {
			text += "\n" + changesTable(c.Changes)
		}
		return c, text, nil
	})
}

func blockedTable(rows []admin.BlockedRow) string {
	now := time.Now()
	return table("ROW,KEY,PARTITION,BLOCKS FOR,ATTEMPTS,NEXT,STATE,ERROR", rows, func(b admin.BlockedRow) []any {
		state, next := "blocked", relative(now, b.Next)
		switch {
		case b.SkippedBy != "":
			state, next = "skipped by "+printable(b.SkippedBy), dash
		case b.Suspect:
			state = fmt.Sprintf("suspect, crashes: %d", b.Crashes)
		case b.Next.IsZero(): // all attempts failed
		case now.Sub(b.Next) > 10*time.Second:
			state = "overdue"
		default:
			state = "retrying"
		}
		blocks := period(now.Sub(b.Since))
		return []any{b.ID, shown(b.Key), b.Partition, blocks, b.Attempts, next, state, orDash(firstLine(b.Error))}
	})
}

func lettersTable(letters []admin.DeadLetter) string {
	return table("DEAD LETTER,KEY,PARTITION,AT,ATTEMPTS,ERROR", letters, func(d admin.DeadLetter) []any {
		return []any{d.ID, shown(d.Key), d.Partition, utc(d.At), d.Attempts, orDash(firstLine(d.Error))}
	})
}

func changesTable(changes []admin.ConsumerChange) string {
	return table("AT,CHANGE,ROW,ROWS,BY,REASON", changes, func(h admin.ConsumerChange) []any {
		row := dash
		if h.ID != nil {
			row = strconv.FormatInt(*h.ID, 10)
		}
		return []any{utc(h.At), h.Cause, row, counted(h.Rows), shown(h.Actor), shown(h.Reason)}
	})
}

func newConsumerTable() *cobra.Command {
	cmd := &cobra.Command{Use: "table CONSUMER", Short: "Print the statements for a queue table", Args: asUsed}
	var q consumer.Queue
	flags := cmd.Flags()
	flags.StringVar(&q.Table, "table", "", "the table, with its schema unless the search_path has it, as in SQL")
	flags.StringVar(&q.Key, "key", "", "column whose rows of one value are handled in order")
	flags.StringVar(&q.ID, "id", "id", "column with the IDs")
	flags.StringVar(&q.Time, "time", "created_at", "column with the time of the insert, of a new table")
	flags.IntVar(&q.Partitions, "partitions", 1024, "number of partitions of the consumer")
	existing := flags.Bool("existing", false, "print the steps for a table that exists and is in use")
	_ = cmd.MarkFlagRequired("table")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		schema, _ := cmd.Flags().GetString("schema")
		names := strings.Join([]string{args[0], schema, q.Table, q.Key, q.ID, q.Time}, "")
		switch {
		case strings.ContainsFunc(names, unicode.IsControl):
			return fmt.Errorf("a name in %q has a control character", names)
		case q.Partitions < 1 || q.Partitions > 65536:
			return fmt.Errorf("--partitions %d: give 1 to 65536", q.Partitions)
		case *existing && q.Key == "":
			return errors.New("--key is missing: a trigger computes the partition of each row from it")
		}
		text := tableOf(consumer.TableSQL(args[0], schema, q), *existing)
		_, err := io.WriteString(cmd.OutOrStdout(), text)
		return err
	}
	return cmd
}

// stepsFor begins the comment in the text of TableSQL that has the steps for an existing table.
const stepsFor = "\n-- Instead, for"

// tableOf returns the part of the text of TableSQL for a new table, or the other one, whose steps
// are then no longer a comment.
func tableOf(text string, existing bool) string {
	table, steps, _ := strings.Cut(text, stepsFor)
	if !existing {
		return strings.TrimSpace(table) + "\n"
	}
	steps = strings.ReplaceAll("-- For"+steps, "\n--   ", "\n")
	steps = strings.ReplaceAll(steps, "\n--\n", "\n\n")
	return "-- After pgleases migrate --consumers. docs/consumer.md has a shell function that repeats a step.\n" +
		strings.TrimSpace(steps) + "\n"
}

// unknownConsumer returns the error for a name that no consumer has.
func unknownConsumer(ctx context.Context, a *admin.Admin, name string) error {
	all, err := a.Consumers(ctx)
	if err != nil {
		return err
	}
	return unknown("consumer", name, mapped(all, func(c admin.Consumer) string { return c.Name }), "pgleases consumers")
}

// negative finds the error for a negative number, which is read as a flag.
var negative = regexp.MustCompile(`^unknown shorthand flag: '\d' in -\d+$`)

// A consumerVerb changes a consumer or its rows.
type consumerVerb struct {
	use, short string
	ofRow      bool // it takes the ID of a row
	ofAll      bool // or --all
	// do makes the change. id is nil for --all, and for a verb that takes no ID. It returns what to
	// print.
	do func(ctx context.Context, m *consumer.Manager, id *int64) (state string, err error)
}

var consumerVerbs = []consumerVerb{
	{use: "pause CONSUMER", short: "Pause a consumer until it is resumed", do: pauseConsumer},
	{use: "resume CONSUMER", short: "Resume a paused consumer", do: resumeConsumer},
	{use: "retry CONSUMER [ID]", short: "Retry a blocked row, or all, now", ofRow: true, ofAll: true, do: retryRows},
	{use: "skip CONSUMER ID", short: "Move a blocked row to the dead letters", ofRow: true, do: skipRow},
	{
		use: "return CONSUMER [ID]", short: "Return a dead letter to its queue table", ofRow: true, ofAll: true,
		do: returnRows,
	},
	{use: "delete CONSUMER", short: "Delete a consumer that is no longer used", do: deleteConsumer},
}

func pauseConsumer(ctx context.Context, m *consumer.Manager, _ *int64) (state string, err error) {
	changed, err := m.Pause(ctx)
	return either(changed, "done; batches in hand end first", "it is paused already"), err
}

func resumeConsumer(ctx context.Context, m *consumer.Manager, _ *int64) (state string, err error) {
	changed, err := m.Resume(ctx)
	return either(changed, "done", "it is not paused"), err
}

func skipRow(ctx context.Context, m *consumer.Manager, id *int64) (state string, err error) {
	return "recorded; its owner moves it to the dead letters, of a paused consumer after resume", m.Skip(ctx, *id)
}

func deleteConsumer(ctx context.Context, m *consumer.Manager, _ *int64) (state string, err error) {
	return "done", m.Delete(ctx)
}

// either returns one of two texts.
func either(is bool, yes, no string) string {
	if is {
		return yes
	}
	return no
}

func retryRows(ctx context.Context, m *consumer.Manager, id *int64) (state string, err error) {
	n := 1
	if id != nil {
		err = m.Retry(ctx, *id)
	} else {
		n, err = m.RetryAll(ctx)
	}
	due := ranges.Many(n, "row") + " due now; within a minute if an outage has paused its partition; " +
		"after resume if the consumer is paused"
	return either(n > 0, due, "no row is blocked"), err
}

func returnRows(ctx context.Context, m *consumer.Manager, id *int64) (state string, err error) {
	if id != nil {
		return "done; it is handled before other rows of its key, of a paused consumer after resume", m.Return(ctx, *id)
	}
	n, err := m.ReturnAll(ctx)
	returned := ranges.Many(n, "row") + " returned, each is handled before other rows of its key, " +
		"of a paused consumer after resume"
	return either(n > 0, returned, "there is no dead letter"), err
}

func newConsumerChange(v consumerVerb) *cobra.Command {
	cmd := &cobra.Command{Use: v.use, Short: v.short, Args: asUsed, Annotations: map[string]string{shared: "consumer"}}
	var reason, actor string
	reasonFlags(cmd, &reason, &actor)
	all := false
	if v.ofAll {
		cmd.Flags().BoolVar(&all, "all", false, "all blocked rows, or all dead letters")
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		if negative.MatchString(err.Error()) {
			return fmt.Errorf("%w: a negative ID comes last, after --: "+
				"pgleases consumers %s CONSUMER --reason '...' -- -5", err, cmd.Name())
		}
		return err
	})
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		id, err := rowOf(args, v, all)
		if err != nil {
			return err
		}
		if reason == "" {
			return errNoReason
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			left := ""
			if cmd.Name() == "delete" {
				left = leftOf(ctx, a, args[0])
			}
			pool, schema := a.Database()
			why := consumer.WithReason(reason, actor)
			m, err := consumer.Manage(ctx, pool, args[0], consumer.WithSchema(schema), why)
			if errors.Is(err, pgleases.ErrSchema) {
				_, err = a.Consumers(ctx) // its error has the remedy for this command
			}
			if err != nil {
				return err
			}
			state, err := v.do(ctx, m, id)
			if errors.Is(err, consumer.ErrNotFound) {
				c, other := a.Consumer(ctx, args[0])
				if c == nil && other == nil {
					return unknownConsumer(ctx, a, args[0])
				}
			}
			if err != nil {
				return err
			}
			if cmd.Name() == "resume" {
				left = leasePaused(ctx, a, args[0])
			}
			fmt.Fprint(cmd.OutOrStdout(), done(cmd, args, state+left))
			return nil
		})
	}
	return cmd
}

// rowOf returns the ID that a verb was given; nil: all rows, or none.
func rowOf(args []string, v consumerVerb, all bool) (*int64, error) {
	switch {
	case len(args) == 2 && all:
		return nil, fmt.Errorf("row %s and --all are given: leave one out", args[1])
	case len(args) == 2:
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("%q is no row: give the ID of a row that pgleases consumers show %s lists",
				args[1], args[0])
		}
		return &n, nil
	case v.ofRow && !all:
		return nil, errors.New("ID is missing: give the ID of a row, or --all")
	}
	return nil, nil
}

// leasePaused says that the lease of a consumer is paused, so that it does not go on.
func leasePaused(ctx context.Context, a *admin.Admin, name string) string {
	c, err := a.Consumer(ctx, name)
	if err != nil || c == nil || !c.LeasePaused {
		return ""
	}
	return fmt.Sprintf("; its lease is paused: pgleases resume %s --reason '...'", shell.Word("consumer/"+name))
}

// leftOf says what is left of a consumer after it is deleted.
func leftOf(ctx context.Context, a *admin.Admin, name string) (left string) {
	c, err := a.Consumer(ctx, name)
	if err == nil && c != nil {
		left = fmt.Sprintf("; its table was %s, blocked keys: %d, dead letters that stay: %d",
			shown(c.Queue), c.BlockedKeys, c.DeadLetters)
	}
	lease := "consumer/" + name
	s, err := a.Snapshot(ctx)
	if err == nil && s.Lease(lease) != nil {
		left += fmt.Sprintf("; its lease stays: pgleases drop %s --reason '...' deletes it", shell.Word(lease))
	}
	return left
}

package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/cmd/pgleases/internal/supervise"
	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/ranges"
)

// The verb that shows what matters of everything on one screen.

const (
	mostRows = 5           // of findings, leases, groups or consumers that status shows
	behind   = time.Minute // of a consumer: the age of a row
)

// A Status is what matters of everything.
type Status struct {
	Level    admin.Level     `json:"level"`    // the worst of the findings
	Findings []admin.Finding `json:"findings"` // of doctor, without those that are ok
	// The numbers of clients by state: live, expired, superseded or evicted. Null, as the next three, if
	// they cannot be read: a finding says why.
	Clients    map[string]int `json:"clients"`
	Leases     int            `json:"leases"`
	Partitions int            `json:"partition_count"` // of all leases
	Unowned    []Unowned      `json:"unowned"`         // by lease
	// The numbers of partitions that the events of the last hour concern, or of events without partitions,
	// by cause; null: they cannot be read.
	Moves map[string]int64 `json:"moves"`
	// The numbers of clients that joined or left leases, by cause. One client may do so often.
	MovedClients map[string]int64 `json:"moved_clients"`
	MovesSince   time.Time        `json:"moves_since,omitzero"` // later than an hour ago if more happened than is read
	// Null, as consumers, if there are no such tables, or they cannot be read.
	Groups    []admin.ScheduleGroup `json:"groups"`
	Consumers []admin.Consumer      `json:"consumers"`
	Unread    map[string]string     `json:"unread"` // why moves, groups or consumers cannot be read
}

// Unowned are the partitions of a lease that no live client owns, unless it was left in order.
type Unowned struct {
	Lease      string       `json:"lease"`
	Partitions admin.Ranges `json:"partitions"`
	Paused     bool         `json:"paused"` // an operator has paused it
}

func newStatus() *cobra.Command {
	cmd := &cobra.Command{Use: "status", Short: "Show health, moves and delays at once", Args: cobra.NoArgs}
	output := outputFlag(cmd)
	skip := skipFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := checkSkipped(*skip); err != nil {
			return err
		}
		return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
			s := statusOf(ctx, a, *skip)
			if ctx.Err() != nil {
				return errors.New("interrupted")
			}
			err := output(s, s.text())
			code := exitCodes[s.Level]
			if err == nil && code > 0 {
				err = supervise.Exit{Code: code}
			}
			return err
		})
	}
	return cmd
}

// statusOf reads the status. It reads the rest while doctor examines.
func statusOf(ctx context.Context, a *admin.Admin, skip []string) *Status {
	s := &Status{Level: admin.LevelOK, Unread: make(map[string]string)}
	read := make(chan struct{})
	go func() {
		defer close(read)
		s.readRest(ctx, a)
	}()
	found, snapshot := a.Examine(ctx, admin.DoctorOptions{})
	<-read
	s.setFindings(withoutChecks(found, skip))
	if snapshot != nil {
		s.setSnapshot(snapshot)
	}
	return s
}

// readRest reads what doctor does not return.
func (s *Status) readRest(ctx context.Context, a *admin.Admin) {
	unread := func(what string, err error) {
		if err != nil && !errors.Is(err, admin.ErrNoSchedules) && !errors.Is(err, admin.ErrNoConsumers) {
			s.Unread[what] = firstLine(safeText(err))
		}
	}
	moves, err := a.Moves(ctx, admin.Period{Last: time.Hour})
	unread("moves", err)
	if err == nil {
		s.MovesSince, s.Moves = moves.From, make(map[string]int64)
		s.MovedClients = moves.Clients
		for _, b := range moves.Bars {
			s.Moves[b.What] += b.Count
		}
	}
	s.Groups, err = a.ScheduleGroups(ctx)
	unread("groups", err)
	s.Consumers, err = a.Consumers(ctx)
	unread("consumers", err)
}

// levels are the levels of findings, the worst first.
var levels = []admin.Level{admin.LevelFault, admin.LevelWarning, admin.LevelNote, admin.LevelOK}

// setFindings sets the findings, the worst first, and the level.
func (s *Status) setFindings(found []admin.Finding) {
	s.Findings = []admin.Finding{}
	for _, f := range found {
		if f.Level != admin.LevelOK {
			s.Findings = append(s.Findings, f)
		}
	}
	slices.SortStableFunc(s.Findings, func(a, b admin.Finding) int {
		return cmp.Compare(slices.Index(levels, a.Level), slices.Index(levels, b.Level))
	})
	if len(s.Findings) > 0 {
		s.Level = s.Findings[0].Level
	}
}

// setSnapshot sets what a snapshot has.
func (s *Status) setSnapshot(snapshot *admin.Snapshot) {
	s.Clients, s.Unowned = make(map[string]int), []Unowned{}
	for i := range snapshot.Clients {
		word, _, _ := strings.Cut(state(snapshot, &snapshot.Clients[i]), ",")
		s.Clients[word]++
	}
	s.Leases = len(snapshot.Leases)
	for i := range snapshot.Leases {
		l := &snapshot.Leases[i]
		s.Partitions += l.Partitions
		orphans := snapshot.Orphans(l)
		if orphans.Count() > 0 && !l.Left {
			s.Unowned = append(s.Unowned, Unowned{l.Name, orphans, snapshot.Pause(l) != nil})
		}
	}
	slices.SortStableFunc(s.Unowned, func(a, b Unowned) int {
		return cmp.Compare(b.Partitions.Count(), a.Partitions.Count())
	})
}

// text returns the status for people.
func (s *Status) text() string {
	rows := slices.Concat(s.healthRows(), s.leaseRows(), s.moveRows(), s.scheduleRows(), s.consumerRows())
	return table("SUBJECT,STATE", rows, func(row []any) []any { return row })
}

// happened are the checks whose notes say what happened lately. Those of others may be meant to last.
var happened = []string{"timeline", "expired"}

// some returns rows for at most mostRows items, and one that says how many more there are.
func some[T any](items []T, verb string, row func(T) []any) (rows [][]any) {
	rows = mapped(items[:min(len(items), mostRows)], row)
	more := len(items) - mostRows
	if more > 0 {
		rows = append(rows, []any{"", fmt.Sprintf("and %d more: %s", more, verb)})
	}
	return rows
}

func (s *Status) healthRows() [][]any {
	counts := make(map[admin.Level]int)
	for _, f := range s.Findings {
		counts[f.Level]++
	}
	var parts []string
	for _, level := range levels {
		if counts[level] > 0 {
			parts = append(parts, ranges.Many(counts[level], string(level)))
		}
	}
	health := "ok"
	if len(parts) > 0 {
		health = fmt.Sprintf("%s: %s; pgleases doctor has the remedies", s.Level, strings.Join(parts, ", "))
	}
	ill := slices.DeleteFunc(slices.Clone(s.Findings), func(f admin.Finding) bool {
		return f.Level == admin.LevelNote && !slices.Contains(happened, f.Check)
	})
	return append([][]any{{"health", health}}, some(ill, "pgleases doctor", func(f admin.Finding) []any {
		const most = 150 // doctor has all of it
		return []any{"  " + f.Check, string(f.Level) + ": " + shortened(printable(f.Text), most)}
	})...)
}

// shortened returns a text without what comes after so many characters.
func shortened(text string, most int) string {
	runes := []rune(text)
	if len(runes) <= most {
		return text
	}
	return string(runes[:most]) + "…"
}

func (s *Status) leaseRows() [][]any {
	if s.Clients == nil {
		return nil
	}
	var clients []string
	for _, state := range slices.Sorted(maps.Keys(s.Clients)) {
		clients = append(clients, fmt.Sprintf("%d %s", s.Clients[state], state))
	}
	unowned := 0
	for _, u := range s.Unowned {
		unowned += u.Partitions.Count()
	}
	leases := fmt.Sprintf("%d with %s, %d without an owner", s.Leases, ranges.Many(s.Partitions, "partition"), unowned)
	rows := [][]any{{"clients", cmp.Or(strings.Join(clients, ", "), "none")}, {"leases", leases}}
	return append(rows, some(s.Unowned, "pgleases list", func(u Unowned) []any {
		text := fmt.Sprintf("%d without an owner: %s", u.Partitions.Count(), short(u.Partitions))
		return []any{"  " + shown(u.Lease), text + either(u.Paused, "; paused", "")}
	})...)
}

func (s *Status) moveRows() [][]any {
	why := s.Unread["moves"]
	if why != "" {
		return [][]any{{"last hour", "unknown: " + why}}
	}
	var moves []string
	for _, cause := range slices.SortedFunc(maps.Keys(s.Moves), func(a, b string) int {
		return cmp.Or(cmp.Compare(s.Moves[b], s.Moves[a]), cmp.Compare(a, b))
	}) {
		of := ""
		clients := int(s.MovedClients[cause])
		if clients > 0 {
			of = " of " + ranges.Many(clients, "client")
		}
		moves = append(moves, fmt.Sprintf("%s %d%s", printable(cause), s.Moves[cause], of))
	}
	return [][]any{{"last hour", cmp.Or(strings.Join(moves, ", "), "no event")}}
}

func (s *Status) scheduleRows() [][]any {
	why := s.Unread["groups"]
	if why != "" {
		return [][]any{{"schedules", "unknown: " + why}}
	}
	if s.Groups == nil {
		return nil
	}
	ill := slices.DeleteFunc(slices.Clone(s.Groups), func(g admin.ScheduleGroup) bool { return delays(g) == "" })
	well := either(len(ill) == 0, ", none late, failing, blocked or paused", "")
	read := either(len(s.Groups) == admin.GroupsMost, "the first ", "") // there may be more
	schedules := total(s.Groups, func(g admin.ScheduleGroup) int { return g.Schedules })
	state := fmt.Sprintf("%s in %s%s%s", schedules, read, ranges.Many(len(s.Groups), "group"), well)
	jobs := fmt.Sprintf("%s have not ended, %s blocked",
		total(s.Groups, func(g admin.ScheduleGroup) int { return g.Jobs }),
		total(s.Groups, func(g admin.ScheduleGroup) int { return g.Stuck }))
	rows := some(ill, "pgleases schedules groups", func(g admin.ScheduleGroup) []any {
		return []any{"  " + shown(g.Name), delays(g)}
	})
	return slices.Concat([][]any{{"schedules", state}}, rows, [][]any{{"jobs", jobs}})
}

// total returns the sum of counts that stop at 1,001, which means more than 1,000.
func total(groups []admin.ScheduleGroup, count func(admin.ScheduleGroup) int) string {
	sum, more := 0, ""
	for _, g := range groups {
		sum += min(count(g), 1000)
		if count(g) > 1000 {
			more = "+"
		}
	}
	return strconv.Itoa(sum) + more
}

// delays returns what is not as usual in a group; "" if all is.
func delays(g admin.ScheduleGroup) string {
	var all []string
	for _, one := range []struct {
		n    int
		what string
	}{
		{g.Late, "late"}, {g.Failing, "failing"}, {g.Blocked, "blocked"}, {g.Paused, "paused"},
		{g.Stuck, "jobs blocked"},
	} {
		if one.n > 0 {
			all = append(all, strings.Replace(fmt.Sprintf("%d %s", one.n, one.what), "1001 ", "1000+ ", 1))
		}
	}
	return strings.Join(all, ", ")
}

func (s *Status) consumerRows() [][]any {
	why := s.Unread["consumers"]
	if why != "" {
		return [][]any{{"consumers", "unknown: " + why}}
	}
	if s.Consumers == nil {
		return nil
	}
	now := time.Now()
	ill := slices.DeleteFunc(slices.Clone(s.Consumers), func(c admin.Consumer) bool { return obstacles(now, c) == "" })
	state := fmt.Sprintf("%d, %d of them blocked, behind or paused", len(s.Consumers), len(ill))
	unseen := 0
	for _, c := range s.Consumers {
		if c.Waiting == nil {
			unseen++
		}
	}
	if unseen > 0 {
		state += fmt.Sprintf(", %d with a table that cannot be read", unseen)
	}
	return append([][]any{{"consumers", state}}, some(ill, "pgleases consumers", func(c admin.Consumer) []any {
		return []any{"  " + shown(c.Name), obstacles(now, c)}
	})...)
}

// obstacles returns why rows of a consumer wait; "" if they do not wait for long.
func obstacles(now time.Time, c admin.Consumer) string {
	var all []string
	if c.BlockedKeys > 0 {
		keys := strings.Replace(ranges.Many(c.BlockedKeys, "key"), " ", " blocked ", 1)
		all = append(all, keys+" for "+period(c.BlockedFor))
	}
	age := c.FirstFor
	if c.Oldest != nil {
		age = *c.Oldest
	}
	if age > behind {
		all = append(all, fmt.Sprintf("behind by %s, rows: %s", period(age), counted(c.Waiting)))
	}
	if c.Unhandled != nil && *c.Unhandled > 0 {
		all = append(all, "unhandled rows: "+counted(c.Unhandled))
	}
	paused := pausedState(now, c)
	if paused != dash {
		all = append(all, paused)
	}
	return strings.Join(all, "; ")
}

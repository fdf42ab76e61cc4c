package admin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
)

// A Level is the severity of a finding.
type Level string

// The levels.
const (
	LevelOK      Level = "ok"
	LevelNote    Level = "note"    // it may be intended, or the check cannot see everything
	LevelWarning Level = "warning" // it works, but not as well as it could, or not for long
	LevelFault   Level = "fault"   // it does not work
)

// A Finding is the result of one check.
type Finding struct {
	Check  string `json:"check"` // its name, one of Checks
	Level  Level  `json:"level"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"` // empty for ok; several steps have a line each
}

// DoctorOptions configure Doctor.
type DoctorOptions struct {
	// Role is the role of the clients, whose rights are checked. If it is empty, the role that
	// connects is checked, with those of clients.
	Role string

	// Long is the minimum age of handoffs, waits, late schedules and jobs, idle transactions and
	// expired sessions that are reported, by default one minute. It is 10 times that for transactions
	// that work and rows of consumers, and 60 times that for blocked keys.
	Long time.Duration
}

// A stage is how much of the database could be read. Each stage has what the ones before it have.
type stage int

const (
	connected  stage = iota // there is a connection
	isPrimary               // the server takes notifications and writes
	hasSchema               // the schema exists, and its catalogs are read
	hasTables               // no session hides its tables
	hasContent              // the tables are those of this code, and are read
)

// checks are the checks of Doctor in their order, with the stage that each needs. The file of its
// noun has what a check looks for.
var checks = []struct {
	name    string
	needs   stage
	examine func(*doctor, context.Context)
}{
	{"connect", connected, (*doctor).connection},
	{"server", connected, (*doctor).server},
	{"pooler", isPrimary, (*doctor).pooler},
	{"notifications", isPrimary, (*doctor).notifications},
	{"round-trip", hasContent, (*doctor).roundTrip},
	{"schema", isPrimary, (*doctor).schemaVersion},
	{"functions", hasSchema, (*doctor).functions},
	{"columns", hasContent, (*doctor).columns},
	{"rights", hasSchema, (*doctor).rights},
	{"table-locks", hasSchema, (*doctor).tableLocks},
	{"row-locks", hasContent, (*doctor).rowLocks},
	{"advisory-locks", hasContent, (*doctor).advisoryLocks},
	{"timeline", hasContent, (*doctor).timeline},
	{"boot-marker", hasContent, (*doctor).bootMarker},
	{"ttl", hasContent, (*doctor).ttls},
	{"joins", hasContent, (*doctor).joins},
	{"expired", hasContent, (*doctor).expired},
	{"client-ids", hasContent, (*doctor).clientIDs},
	{"orphans", hasContent, (*doctor).orphans},
	{"ceilings", hasContent, (*doctor).ceilings},
	{"shares", hasContent, (*doctor).shares},
	{"overrides", hasContent, (*doctor).overrides},
	{"plans", hasContent, (*doctor).plans},
	{"handoffs", hasContent, (*doctor).handoffs},
	{"locks", hasContent, (*doctor).namedLocks},
	{"schedules", hasTables, (*doctor).work},
	{"jobs", hasTables, (*doctor).work},
	{"consumers", hasTables, (*doctor).work},
	{"transactions", hasSchema, (*doctor).transactions},
	{"snapshots", hasSchema, (*doctor).snapshots},
	{"autovacuum", hasSchema, (*doctor).autovacuum},
	{"connections", hasSchema, (*doctor).connections},
}

// Checks are the names of the checks of Doctor, in order.
var Checks = namesOfChecks()

func namesOfChecks() (names []string) {
	for _, c := range checks {
		names = append(names, c.name)
	}
	return names
}

// Doctor runs the checks, and returns their results in the order of Checks. If a check fails,
// checks that depend on it are missing. Doctor uses one connection of the pool for less than a
// second, or for some seconds if there is a fault. It changes no row.
func (a *Admin) Doctor(ctx context.Context, o DoctorOptions) []Finding {
	findings, _ := a.Examine(ctx, o)
	return findings
}

// Examine is like Doctor, and also returns the snapshot that the checks have read. It is nil if
// they could not read one.
func (a *Admin) Examine(ctx context.Context, o DoctorOptions) ([]Finding, *Snapshot) {
	if o.Long <= 0 {
		o.Long = time.Minute
	}
	d := &doctor{Admin: a, DoctorOptions: o, columnsOf: make(map[string]string)}
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		d.check = "connect"
		d.unreachable(err)
		return d.findings, nil
	}
	defer conn.Release()
	d.conn = conn
	reached := d.read(ctx)
	for _, c := range checks {
		if c.needs <= reached {
			d.check = c.name
			c.examine(d, ctx)
		}
	}
	if reached < hasContent {
		return d.findings, nil
	}
	return d.findings, d.snapshot
}

// A doctor is one call of Doctor: what it has read, and what its checks have found so far.
type doctor struct {
	*Admin
	DoctorOptions
	conn *pgxpool.Conn

	trip   time.Duration // the shortest of some round trips
	unwell error         // why the server cannot be examined
	*facts

	users  []user // the roles of clients
	unseen string // why they are not known
	faults []fault
	failed map[string]error // by part, why its faults cannot be read

	columnsOf map[string]string // consumers by the generated columns of their partitions
	*content
	unread error // why there is no content

	check    string // the one that is running
	findings []Finding
}

// content is what the tables have.
type content struct {
	snapshot  *Snapshot
	events    []Event // the latest
	lately    []Event // what happened lately, and may still matter: see lately.sql
	waits     []wait
	strangers []session // with advisory locks of the library
	lockers   []session // with locked rows that clients need
}

// read reads what the checks need, as far as it gets.
func (d *doctor) read(ctx context.Context) stage {
	var err error
	d.trip, err = d.shortestTrip(ctx)
	all, other := collect(ctx, d.Admin, d.conn, "doctor", pgx.RowTo[facts], d.schema, d.Role, d.Long.Seconds())
	d.unwell = cmp.Or(err, other)
	if d.unwell != nil {
		return connected
	}
	d.facts = &all[0]
	switch {
	case d.Recovery: // a standby has no LISTEN and no unlogged table
		return connected
	case !d.Schema:
		return isPrimary
	case len(d.Locked) > 0 && d.Locked[0].Hides:
		d.unseen = "a session locks a table"
		return hasSchema
	}
	d.readUsers(ctx)
	d.readFaults(ctx)
	d.content, d.unread = d.readContent(ctx)
	if d.unread != nil || d.snapshot.Version < store.Version || d.snapshot.MinCode > store.Version {
		return hasTables
	}
	return hasContent
}

func (d *doctor) readContent(ctx context.Context) (*content, error) {
	snapshot, err := d.readSnapshot(ctx, d.conn.Conn(), begin+settings)
	waits, noWaits := collect(ctx, d.Admin, d.conn, "waits", pgx.RowToStructByPos[wait], d.Long.Seconds())
	strangers, noStrangers := collect(ctx, d.Admin, d.conn, "strangers", pgx.RowToStructByPos[session])
	lockers, noLockers := collect(ctx, d.Admin, d.conn, "rowlocks", pgx.RowToStructByPos[session])
	if err := cmp.Or(err, noWaits, noStrangers, noLockers); err != nil {
		return nil, err
	}
	// The rest matters more than an error.
	events, _ := collect(ctx, d.Admin, d.conn, "events", pgx.RowTo[Event], "", eventPage)
	lately, _ := collect(ctx, d.Admin, d.conn, "lately", pgx.RowTo[Event], latelyMost)
	return &content{snapshot, events, lately, waits, strangers, lockers}, nil
}

// found adds a finding of the check that is running.
func (d *doctor) found(level Level, remedy, format string, args ...any) {
	d.findings = append(d.findings, Finding{d.check, level, fmt.Sprintf(format, args...), remedy})
}

// fine adds that all is well, if the check that is running has found nothing.
func (d *doctor) fine(format string, args ...any) {
	if !slices.ContainsFunc(d.findings, func(f Finding) bool { return f.Check == d.check }) {
		d.found(LevelOK, "", format, args...)
	}
}

// toRead returns the level and the remedy for an error of reading the tables that migrate creates
// with the flag.
func toRead(err error, flag string) (Level, string) {
	switch {
	case store.Denied(err):
		return LevelNote, "as the tables' owner, run what pgleases grants ROLE --for=reader prints"
	case !worker.Whose(err).Final(): // the tables may be in order
		return LevelWarning, "check table-locks, the load and the log of the server, and run this again"
	}
	return LevelFault, "run pgleases migrate" + flag
}

// listed returns the first 5 items, and the number of the others.
func listed(items []string) string {
	const most = 5
	slices.Sort(items)
	items = slices.Compact(items)
	if len(items) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:most], ", "), len(items)-most)
	}
	return strings.Join(items, ", ")
}

// remedies returns the first 5 of those that are own to a thing, and the first of those that are
// alike but for the names in them.
func remedies(own, alike []string) string {
	slices.Sort(own)
	slices.Sort(alike)
	own, alike = slices.Compact(own), slices.Compact(alike)
	lines := own[:min(5, len(own))]
	switch n := len(alike); {
	case n == 1:
		lines = append(lines, alike[0])
	case n == 2:
		lines = append(lines, alike[0], "likewise for the other one")
	case n > 2:
		lines = append(lines, alike[0], fmt.Sprintf("likewise for the other %d", n-1))
	}
	return strings.Join(lines, "\n")
}

// since says since when something has lasted for some seconds.
func (d *doctor) since(seconds float64) string {
	return when("since", d.Now.Add(-time.Duration(seconds*float64(time.Second))), d.Now)
}

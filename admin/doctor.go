package admin

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/admin/sql"
	"github.com/pgleases/pgleases/internal/store"
	schedulesql "github.com/pgleases/pgleases/schedule/sql"
	enginesql "github.com/pgleases/pgleases/sql"
)

// A Level is how bad a finding is.
type Level string

// The levels.
const (
	OK      Level = "ok"
	Note    Level = "note"    // nothing is wrong as far as can be seen, but not all can be seen, or it may be meant so
	Warning Level = "warning" // it works, but not as well as it could, or not for long
	Fault   Level = "fault"   // it does not work
)

// A Finding is what one check has found.
type Finding struct {
	Check  string `json:"check"` // its name, one of Checks
	Level  Level  `json:"level"`
	Text   string `json:"text"`
	Remedy string `json:"remedy,omitempty"` // what to do; empty for ok
}

// Checks are the names of what Doctor looks at, in order.
var Checks = []string{"connect", "server", "pooler", "notifications", "round-trip", "schema", "functions", "rights", "table-locks", "advisory-locks", "timeline", "mark", "ttl", "dead",
	"orphans", "wishes", "plans", "hand-overs", "locks", "schedules", "transactions", "snapshots", "autovacuum", "connections"}

// DoctorOptions say what Doctor is to look at.
type DoctorOptions struct {
	Role string // whose rights are looked at: that of the clients; empty: the one that looks
	// from when on hand-overs, waits, idle transactions and the silence of the dead are told, and ten times that for transactions that work; 0: a minute
	Long time.Duration
}

// Doctor looks for what is wrong, and returns what each check has found, in the order of Checks. Where one fails, those that cannot be made
// after it are missing. It takes one of the pool's connections for some moments, some seconds where something is amiss. It writes nothing.
func (a *Admin) Doctor(ctx context.Context, o DoctorOptions) []Finding {
	if o.Long <= 0 {
		o.Long = time.Minute
	}
	d := &doctor{Admin: a, DoctorOptions: o}
	conn, err := a.pool.Acquire(ctx)
	if err != nil {
		remedy := "set --database, DATABASE_URL or the PG* variables to a database that answers"
		if store.Full(err) {
			remedy = full
		}
		d.found("connect", Fault, remedy, "%v", err)
		return d.findings
	}
	defer conn.Release()
	d.conn = conn
	d.found("connect", OK, "", "connected")
	d.examine(ctx)
	slices.SortStableFunc(d.findings, func(a, b Finding) int { return slices.Index(Checks, a.Check) - slices.Index(Checks, b.Check) })
	return d.findings
}

type doctor struct {
	*Admin
	DoctorOptions
	conn     *pgxpool.Conn
	findings []Finding
}

func (d *doctor) found(check string, level Level, remedy, format string, args ...any) {
	d.findings = append(d.findings, Finding{check, level, fmt.Sprintf(format, args...), remedy})
}

// facts is what doctor.sql tells.
type facts struct {
	ServerVersion                int  `json:"server_version"`
	ReadOnly                     bool `json:"read_only"`
	SeesAll                      bool `json:"sees_all"`
	RoleExists                   bool `json:"role_exists"`
	Recovery, Autovacuum, Schema bool
	Backend                      uint32
	Role, Provider               string
	Room                         []struct {
		Of        string
		Most, Now int
	}
	Idle, Old []struct {
		PID                int
		Owner, Application string
		Seconds            float64
	}
	Locked []struct { // who reads or writes these tables waits
		PID                    *int // nil: a prepared transaction, whose name is Application
		Owner, Application, Of string
		Hides                  bool     // who reads waits, too
		Guards                 bool     // rows alone: a prepared transaction that was guarded
		Seconds                *float64 // nil: it is not shown to this role
	}
	Tables           map[string]struct{ Vacuums bool }
	Functions        []struct{ Name, Body string }
	Triggers, Rights []string
}

// scheduled reports whether the schema has the tables of package schedule.
func (f *facts) scheduled() bool {
	_, has := f.Tables["schedule_version"]
	return has
}

func (d *doctor) examine(ctx context.Context) {
	trip, err := d.roundTrip(ctx)
	var f facts
	if err == nil {
		err = reading(ctx, d.conn, func(tx pgx.Tx) error {
			var text string
			err := tx.QueryRow(ctx, store.Texts(sql.Files, d.options.schema)("doctor"), d.options.schema, d.Role, d.Long.Seconds()).Scan(&text)
			if err != nil {
				return err
			}
			return json.Unmarshal([]byte(text), &f)
		})
	}
	if err != nil {
		d.found("server", Fault, "see its log", "cannot look at it: %v", err)
		return
	}
	d.server(&f)
	if f.Recovery { // it takes no LISTEN, and lacks the table that is not logged
		return
	}
	d.listen(ctx, &f)
	if !f.Schema {
		d.found("schema", Fault, "name it with --schema, or run pgleases migrate", "schema %q is missing in this database", d.options.schema)
		return
	}
	d.functions(&f)
	d.rights(&f)
	d.sessions(&f)
	d.vacuum(&f)
	if d.tableLocks(&f) {
		d.state(ctx, &f, trip)
		if f.scheduled() {
			d.schedules(ctx)
		}
	}
}

// roundTrip returns the shortest of some.
func (d *doctor) roundTrip(ctx context.Context) (least time.Duration, err error) {
	for range 5 {
		began := time.Now()
		if _, err := d.conn.Conn().PgConn().Exec(ctx, "SELECT 1").ReadAll(); err != nil {
			return 0, err
		}
		if took := time.Since(began); least == 0 || took < least {
			least = took
		}
	}
	return least, nil
}

func (d *doctor) server(f *facts) {
	switch {
	case f.Recovery:
		d.found("server", Fault, "name the primary, or several hosts with target_session_attrs=read-write", "it is a standby, which takes no writes")
	case f.ReadOnly:
		d.found("server", Fault, "set it to off, unless writes are stopped on purpose", "default_transaction_read_only is on: clients cannot write")
	case f.ServerVersion < 140000:
		d.found("server", Fault, "PostgreSQL 14 is the oldest that serves", "it is PostgreSQL %d", f.ServerVersion/10000)
	default:
		d.found("server", OK, "", "PostgreSQL %d, a primary%s", f.ServerVersion/10000, strings.TrimSuffix(" at "+f.Provider, " at "))
	}
}

// listen looks whether a notification that the connection sends to itself comes back, as clients do.
func (d *doctor) listen(ctx context.Context, f *facts) {
	if pid := d.conn.Conn().PgConn().PID(); pid != f.Backend {
		d.found("pooler", Warning, "give clients a way past it with WithConnConfig, see docs/pgbouncer.md; or ignore it with --skip=pooler",
			"a connection pooler is between: clients that go this way see changes at their next heartbeat only")
		return
	}
	d.found("pooler", OK, "", "none is between")
	channel := pgx.Identifier{"pgleases_doctor_" + rand.Text()}.Sanitize()
	conn := d.conn.Conn()
	err := conn.PgConn().Exec(ctx, "LISTEN "+channel+"; NOTIFY "+channel).Close()
	if err == nil {
		late, cancel := context.WithTimeout(ctx, 3*time.Second)
		_, err = conn.WaitForNotification(late)
		cancel()
	}
	if err != nil {
		d.found("notifications", Warning, "find out what is between that does not deliver them; clients see changes at their next heartbeat only",
			"a notification did not arrive within 3 s")
	} else {
		d.found("notifications", OK, "", "they arrive")
	}
	if err := conn.PgConn().Exec(ctx, "UNLISTEN *").Close(); err != nil { // it is the pool's
		_ = conn.Close(ctx)
	}
}

// functionPattern finds the names and bodies of functions. No body is quoted otherwise than the others.
func functionPattern(schema string) *regexp.Regexp {
	return regexp.MustCompile(`(?s)CREATE OR REPLACE FUNCTION ` + regexp.QuoteMeta(pgx.Identifier{schema}.Sanitize()) +
		`\.(\w+)\(.*?\bAS \$pgleases_body_*\$(.*?)\$pgleases_body_*\$;`)
}

// functions compares the functions in the database with those of this code.
func (d *doctor) functions(f *facts) {
	// The files of package sql, run as they stand, do not quote the schema's name.
	unquoted := func(body string) string {
		return strings.ReplaceAll(body, pgx.Identifier{d.options.schema}.Sanitize()+".", d.options.schema+".")
	}
	have := make(map[string][]string)
	for _, fn := range f.Functions {
		have[fn.Name] = append(have[fn.Name], unquoted(fn.Body))
	}
	var missing, changed []string
	for name, bodies := range d.wanted(f) {
		for _, body := range bodies {
			switch {
			case len(have[name]) == 0:
				missing = append(missing, name)
			case !slices.Contains(have[name], unquoted(body)):
				changed = append(changed, name)
			}
		}
	}
	remedy := "as their owner, run what pgleases schema prints"
	switch {
	case len(missing) > 0:
		d.found("functions", Fault, remedy, "missing: %s", listed(missing))
	case !slices.Contains(f.Triggers, "changed"):
		d.found("functions", Fault, remedy+"; or ALTER TABLE leases ENABLE TRIGGER changed", "the trigger changed of leases is missing or disabled: clients do not hear of changes")
	case len(changed) > 0:
		d.found("functions", Warning, remedy+", unless newer code has made them",
			"other than this version's: %s", listed(changed))
	default:
		d.found("functions", OK, "", "they are those of this version")
	}
}

// wanted returns the bodies of the functions of this code, by their names.
func (d *doctor) wanted(f *facts) map[string][]string {
	wanted := make(map[string][]string)
	add := func(files fs.ReadFileFS) {
		read := store.Texts(files, d.options.schema)
		text := read("schema") + read("functions")
		for _, match := range functionPattern(d.options.schema).FindAllStringSubmatch(text, -1) {
			wanted[match[1]] = append(wanted[match[1]], match[2])
		}
	}
	add(enginesql.Files)
	if f.scheduled() {
		add(schedulesql.Files)
	}
	return wanted
}

var grantPattern = regexp.MustCompile(`(?m)^GRANT ([A-Z, ]+?)(?: \([\w, ]+\))? ON (?:SEQUENCE |FUNCTION )?(pgleases\.[\w., \n]+) TO`)

// rights compares what the role may with what a role that runs clients needs.
func (d *doctor) rights(f *facts) {
	wanted := []string{"USAGE"}
	for _, match := range grantPattern.FindAllStringSubmatch(grants(enginesql.Files, ForApplication), -1) {
		for name := range strings.SplitSeq(match[2], ",") {
			for kind := range strings.SplitSeq(match[1], ",") {
				wanted = append(wanted, strings.TrimPrefix(strings.TrimSpace(name), "pgleases.")+" "+strings.TrimSpace(kind))
			}
		}
	}
	writes := func(right string) bool {
		return strings.HasSuffix(right, " INSERT") || strings.HasSuffix(right, " UPDATE") || strings.HasSuffix(right, " DELETE")
	}
	lacks := slices.DeleteFunc(wanted, func(right string) bool { return slices.Contains(f.Rights, right) })
	remedy := fmt.Sprintf("as the tables' owner, run what pgleases grants %s prints", pgx.Identifier{f.Role}.Sanitize())
	switch {
	case !f.RoleExists:
		d.found("rights", Fault, "name an existing one with --role", "there is no role %q", f.Role)
	case len(lacks) == 0:
		d.found("rights", OK, "", "role %q may run clients", f.Role)
	case d.Role == "" && !slices.ContainsFunc(f.Rights, writes):
		d.found("rights", Note, "name the role of the clients with --role", "role %q may look, and cannot run clients", f.Role)
	default:
		d.found("rights", Fault, remedy, "role %q cannot run clients, it lacks %s", f.Role, listed(lacks))
	}
}

// sessions looks at who is connected.
func (d *doctor) sessions(f *facts) {
	var hidden string
	level := OK
	if !f.SeesAll {
		level, hidden = Note, fmt.Sprintf("; role %q is shown its own sessions only", f.Role)
	}
	const see = "GRANT pg_monitor to it, to see all"
	if n := len(f.Idle); n > 0 {
		s := f.Idle[0]
		d.found("transactions", Warning, "find out why it does not end; set idle_in_transaction_session_timeout",
			"%d idle for more than %v: process %d of %q (%q) for %s: a partition that it has guarded cannot move", n, d.Long, s.PID, s.Owner, s.Application, seconds(s.Seconds))
	} else {
		d.found("transactions", level, remedyOf(level, see), "none idles for more than %v%s", d.Long, hidden)
	}
	if n := len(f.Old); n > 0 {
		s := f.Old[0]
		d.found("snapshots", Warning, "run what takes long on a standby without hot_standby_feedback",
			"%d in use for more than %v: process %d of %q (%q) for %s: dead rows stay until it ends", n, 10*d.Long, s.PID, s.Owner, s.Application, seconds(s.Seconds))
	} else {
		d.found("snapshots", level, remedyOf(level, see), "none is in use for more than %v%s", 10*d.Long, hidden)
	}
	for _, r := range f.Room {
		if left := r.Most - r.Now; r.Most >= 0 && left < max(3, r.Most/20) {
			d.found("connections", Warning, "raise the limit, or have fewer: each client has one of its own besides its pool",
				"%d of %d are left for %s", max(0, left), r.Most, r.Of)
			return
		}
	}
	d.found("connections", OK, "", "%d of %d are left for the server", f.Room[0].Most-f.Room[0].Now, f.Room[0].Most)
}

// tableLocks looks whether somebody keeps others from the tables, and reports whether they can be read.
func (d *doctor) tableLocks(f *facts) bool {
	if len(f.Locked) == 0 {
		d.found("table-locks", OK, "", "nobody keeps others from the tables")
		return true
	}
	l := f.Locked[0]
	who, end := fmt.Sprintf("the prepared transaction %q of %q", l.Application, l.Owner), "COMMIT PREPARED or ROLLBACK PREPARED it"
	if l.PID != nil {
		who, end = fmt.Sprintf("process %d of %q (%q)", *l.PID, l.Owner, l.Application), fmt.Sprintf(
			"end its transaction, if need be with SELECT pg_terminate_backend(%d)", *l.PID,
		)
	}
	since := ""
	if l.Seconds != nil {
		since = ", whose transaction is open for " + seconds(*l.Seconds)
	}
	means := "nobody else can write it, so heartbeats or plans fail"
	level := Fault
	switch {
	case l.Guards:
		level, means = Warning, "what it guards keeps its owner until it ends, whatever becomes of that"
	case l.Hides:
		means = "nobody else can read or write it, so heartbeats or plans fail, and the checks that read the tables are left out"
	}
	d.found("table-locks", level, end, "%s is locked by %s%s: %s", l.Of, who, since, means)
	return !l.Hides
}

func remedyOf(level Level, remedy string) string {
	if level == OK {
		return ""
	}
	return remedy
}

// vacuum looks whether dead rows go.
func (d *doctor) vacuum(f *facts) {
	var without []string
	for name, t := range f.Tables {
		if !t.Vacuums {
			without = append(without, name)
		}
	}
	switch {
	case len(without) > 0:
		d.found("autovacuum", Warning, "ALTER TABLE ... RESET (autovacuum_enabled)", "it is off for %s: dead rows stay for ever", listed(without))
	case !f.Autovacuum:
		d.found("autovacuum", Warning, "set autovacuum and track_counts to on", "it is off on the server: dead rows stay for ever")
	default:
		d.found("autovacuum", OK, "", "it is on")
	}
}

// state looks at what the tables say.
func (d *doctor) state(ctx context.Context, f *facts, trip time.Duration) {
	type wait struct {
		Name    string
		Seconds float64
		Holder  string
	}
	type stranger struct {
		Use                string
		PID                int
		Owner, Application string
		Seconds            float64
	}
	var s *Snapshot
	var waits []wait
	var strangers []stranger
	err := reading(ctx, d.conn, func(tx pgx.Tx) (err error) {
		if s, err = d.readSnapshot(ctx, tx.Conn(), settings); err != nil {
			return err
		}
		rows, _ := tx.Query(ctx, store.Texts(sql.Files, d.options.schema)("waits"), d.Long.Seconds()) // CollectRows returns its error
		if waits, err = pgx.CollectRows(rows, pgx.RowToStructByPos[wait]); err != nil {
			return err
		}
		rows, _ = tx.Query(ctx, store.Texts(sql.Files, d.options.schema)("strangers"))
		strangers, err = pgx.CollectRows(rows, pgx.RowToStructByPos[stranger])
		return err
	})
	switch {
	case err != nil && store.Denied(err):
		d.found("schema", Fault, "as the tables' owner, run what pgleases grants ROLE --for=reader prints", "cannot read it: %v", err)
		return
	case err != nil && store.Transient(err): // the tables may be as they should
		d.found("schema", Fault, "look at table-locks, at the server's load and its log, and run this again", "cannot read it now: %v", err)
		return
	case err != nil:
		d.found("schema", Fault, "run pgleases migrate", "cannot read it: %v", err)
		return
	case s.Version < store.Version:
		d.found("schema", Fault, "run pgleases migrate", "it has version %d, this code needs %d", s.Version, store.Version)
		return
	case s.MinCode > store.Version:
		d.found(
			"schema", Fault, "run a newer version of this program",
			"it has version %d, which serves code for version %d and later, this is for %d", s.Version, s.MinCode, store.Version,
		)
		return
	}
	d.found("schema", OK, "", "version %d", s.Version)
	if len(strangers) > 0 {
		w := strangers[0]
		since := ""
		if w.Seconds >= 0 {
			since = " for " + seconds(w.Seconds)
		}
		end := fmt.Sprintf("end what it does, if need be with SELECT pg_terminate_backend(%d)", w.PID)
		if w.PID == 0 {
			end = "end the prepared transaction: pg_prepared_xacts lists them"
		}
		d.found("advisory-locks", Warning, end+"; docs/roles.md tells what waits for it",
			"%d held or awaited by strangers: that for %s by process %d of %q (%q)%s", len(strangers), w.Use, w.PID, w.Owner, w.Application, since)
	} else {
		d.found("advisory-locks", OK, "", "no stranger has those of the library")
	}
	d.timeline(ctx, s, f.Provider)
	d.clients(s, trip)
	d.leases(ctx, s)
	if len(waits) > 0 {
		w := waits[0]
		d.found("locks", Warning, "find out what the holder does; ending its process frees the lock", "%d awaited for more than %v: %q for %s, held by %q", len(waits), d.Long, w.Name, seconds(w.Seconds), w.Holder)
	} else {
		d.found("locks", OK, "", "none is awaited for more than %v", d.Long)
	}
}

// schedules finds schedules that no code declares any more.
func (d *doctor) schedules(ctx context.Context) {
	var undeclared []string
	err := reading(ctx, d.conn, func(tx pgx.Tx) error {
		var group, name string
		var registered time.Time
		rows, _ := tx.Query(ctx, store.Texts(sql.Files, d.options.schema)("undeclared")) // ForEachRow returns its error
		_, err := pgx.ForEachRow(rows, []any{&group, &name, &registered}, func() error {
			undeclared = append(undeclared, fmt.Sprintf("%q of group %q since %s", name, group, registered.UTC().Format(time.DateOnly)))
			return nil
		})
		return err
	})
	switch {
	case err != nil && store.Denied(err):
		d.found("schedules", Note, "as the tables' owner, run what pgleases grants ROLE --for=reader prints", "cannot read them: %v", err)
	case err != nil:
		d.found("schedules", Fault, "run pgleases migrate --schedules", "cannot read them: %v", err)
	case len(undeclared) > 0:
		d.found(
			"schedules", Note, "start a process that declares them, or delete them with pgleases schedules delete GROUP SCHEDULE",
			"no process has declared them for a week, and they wait: %s", listed(undeclared),
		)
	default:
		d.found("schedules", OK, "", "what code declared is declared still")
	}
}

// timeline looks whether promotions and copies are noticed.
func (d *doctor) timeline(ctx context.Context, s *Snapshot, provider string) {
	number := int64(-1) // not known: who looks may not ask for the identifier
	_ = d.conn.QueryRow(ctx, "SELECT $1 - system_identifier FROM pg_catalog.pg_control_system()", s.Server.Timeline).Scan(&number)
	own := "have a role that may execute pg_control_system() own the function timeline"
	era := "call pgleases.new_era() after each failover, and in each copy of the database"
	if provider != "" {
		own, era = own+", if "+provider+" has one; else "+era, era+": "+provider+" does not tell them"
	}
	switch now := s.Server.Timeline; {
	case now == 0:
		d.found("timeline", Warning, own, "the server does not tell it: failovers and copies are not noticed")
	case now < 1<<32: // an identifier is larger
		d.found("timeline", Warning, own, "the server does not tell its identifier: copies are not noticed")
	case number == 0:
		d.found("timeline", Warning, era, "the server does not tell it, but its identifier alone: failovers are not noticed")
	case s.Server.Settled != now:
		d.found("timeline", Warning, "wait until a client has watched the server for the longest TTL; start one, if none runs",
			"the server was promoted, or is a copy, and is not settled: nothing moves")
	default:
		d.found("timeline", OK, "", "it is settled, era %d", s.Server.Era)
	}
}

func (d *doctor) clients(s *Snapshot, trip time.Duration) {
	ttls := make(map[time.Duration]int)
	shortest := 6 * time.Second // the default
	dead, living := []string{}, 0
	for i, c := range s.Clients {
		if i == 0 || c.TTL < shortest {
			shortest = c.TTL
		}
		ttls[c.TTL]++
		if !c.Dead {
			living++
		} else if c.HeartbeatAge > c.TTL+d.Long {
			dead = append(dead, fmt.Sprintf("%q", c.ID))
		}
	}
	if !s.Server.Marked && len(s.Clients) > 0 {
		d.found("mark", Warning, "wait for a heartbeat; look at the clients, if none comes", "the server has crashed or was promoted, and no client has come since: nobody takes over from the dead")
	} else {
		d.found("mark", OK, "", "the server has not crashed since a client came")
	}
	if len(ttls) > 1 {
		var all []string
		for ttl, n := range ttls {
			all = append(all, fmt.Sprintf("%v (%d)", ttl, n))
		}
		d.found("ttl", Warning, "give all clients the same, see docs/sizing.md", "they differ: %s", listed(all))
	} else {
		d.found("ttl", OK, "", "%d clients, with one TTL", len(s.Clients))
	}
	// As the library has it: a client whose round trips are slower than half the margin cannot watch the clock.
	if most := max(shortest/20, 100*time.Millisecond) / 2; trip >= most {
		d.found("round-trip", Warning, "have clients nearer to the database, or give them a longer TTL",
			"%v from here; from %v on, for a TTL of %v, a client cannot take over from the dead", trip.Round(10*time.Microsecond), most, shortest)
	} else {
		d.found("round-trip", OK, "", "%v from here, %v would be too long", trip.Round(10*time.Microsecond), most)
	}
	if len(dead) > 0 {
		remedy := "start one, or wait until one has watched the clock for their TTL"
		if living > 0 {
			remedy = "look at the living: a round trip that is too slow has nobody take them out"
		}
		d.found("dead", Warning, remedy, "silent for %v longer than their TTL, and nobody has taken them out: %s", d.Long, listed(dead))
	} else {
		d.found("dead", OK, "", "none lies about")
	}
}

// old is from when on a wish without an end may be forgotten.
const old = 24 * time.Hour

// stays is how long orphans are waited for, that they go: a plan that is under way gives them to others in far less.
const stays = 3 * time.Second

func (d *doctor) leases(ctx context.Context, s *Snapshot) {
	var deserted, overdue, draining []string
	for i := range s.Leases {
		l := &s.Leases[i]
		if s.paused(l) {
			continue
		}
		if !works(s, l) {
			deserted = append(deserted, fmt.Sprintf("%q", l.Name))
		} else if late := s.At.Sub(l.Due); !l.Due.IsZero() && late > d.Long {
			overdue = append(overdue, fmt.Sprintf("%q for %v", l.Name, late.Round(time.Second)))
		}
		for _, h := range l.Holdings {
			if h.Moves() && s.At.Sub(h.Asked) > d.Long {
				draining = append(draining, fmt.Sprintf("%q %v of %q for %v", l.Name, h.Partitions, h.Owner, s.At.Sub(h.Asked).Round(time.Second)))
			}
		}
	}
	orphans := orphansOf(s)
	for late := time.Now().Add(stays); len(orphans) > 0 && time.Now().Before(late) && ctx.Err() == nil; {
		pause := time.NewTimer(200 * time.Millisecond)
		select {
		case <-pause.C:
		case <-ctx.Done():
		}
		pause.Stop()
		again, err := d.readSnapshot(ctx, d.conn.Conn(), begin+settings)
		if err != nil {
			break
		}
		now := orphansOf(again)
		for name, lost := range orphans {
			orphans[name] = lost.common(now[name])
			if len(orphans[name]) == 0 {
				delete(orphans, name)
			}
		}
	}
	switch {
	case len(orphans) > 0:
		var all []string
		for name, lost := range orphans {
			all = append(all, fmt.Sprintf("%q %v", name, lost))
		}
		d.found("orphans", Fault, "pgleases explain LEASE/P says what each waits for", "partitions that no living client owns, for %v: %s", stays, listed(all))
	case len(deserted) > 0:
		d.found("orphans", Note, "start a process, or forget the lease with pgleases drop LEASE", "nobody works on %s", listed(deserted))
	default:
		d.found("orphans", OK, "", "each partition has an owner")
	}
	var forgotten []string
	for _, w := range s.Wishes {
		if w.Until.IsZero() && s.At.Sub(w.Since) > old {
			forgotten = append(forgotten, fmt.Sprintf("%s of %q by %s since %s: %q", w.Verb, w.Of(), w.Actor, w.Since.UTC().Format(time.DateOnly), w.Reason))
		}
	}
	if len(forgotten) > 0 {
		d.found("wishes", Note, "take back what is not meant any more", "older than a day, without an end: %s", listed(forgotten))
	} else {
		d.found("wishes", OK, "", "%d, none of them old and without an end", len(s.Wishes))
	}
	if len(overdue) > 0 {
		d.found("plans", Warning, "look at the logs of the members for rebalance failed", "overdue: %s", listed(overdue))
	} else {
		d.found("plans", OK, "", "none is overdue")
	}
	if len(draining) > 0 {
		d.found("hand-overs", Warning, "find out what the owner's work does; WithDrainTimeout bounds it", "asked for and not handed over: %s", listed(draining))
	} else {
		d.found("hand-overs", OK, "", "none takes more than %v", d.Long)
	}
}

// works reports whether a member may own something.
func works(s *Snapshot, l *Lease) bool {
	return slices.ContainsFunc(l.Members, func(m Member) bool { return m.Weight > 0 && s.works(l.Name, s.Client(m.Session)) })
}

// paused reports whether nobody is to own the lease's partitions.
func (s *Snapshot) paused(l *Lease) bool {
	return slices.ContainsFunc(s.Wishes, func(w Wish) bool { return w.Verb == Pause && w.Lease == l.Name })
}

// orphansOf returns the orphans of leases that somebody could own, by name.
func orphansOf(s *Snapshot) map[string]Ranges {
	orphans := make(map[string]Ranges)
	for i := range s.Leases {
		l := &s.Leases[i]
		if lost := s.Orphans(l); len(lost) > 0 && works(s, l) && !s.paused(l) {
			orphans[l.Name] = lost
		}
	}
	return orphans
}

// listed lists what a sentence has room for.
func listed(items []string) string {
	const most = 5
	slices.Sort(items)
	items = slices.Compact(items)
	if len(items) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(items[:most], ", "), len(items)-most)
	}
	return strings.Join(items, ", ")
}

func seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(time.Millisecond).String()
}

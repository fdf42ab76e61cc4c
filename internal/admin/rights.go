package admin

import (
	"cmp"
	"context"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/shell"
	enginesql "github.com/pgleases/pgleases/sql"
)

// A right is a privilege on an object of the schema, which rights.sql looks for.
type right struct{ kind, name, privilege, columns string }

// updates returns the right to update a table.
func updates(table string) right { return right{"TABLE", table, "UPDATE", ""} }

func (r right) String() string {
	if r.kind == "SCHEMA" {
		r.name = "schema " + r.name
	}
	if r.columns != "" {
		r.name += " (" + r.columns + ")"
	}
	return r.privilege + " on " + r.name
}

// writes reports whether only a role that runs clients has it.
func (r right) writes() bool {
	return r.kind == "TABLE" && r.privilege != "SELECT"
}

var grantPattern = regexp.MustCompile(`(?m)^GRANT ([A-Z, ]+?)(?: \(([\w, ]+)\))?` +
	` ON (?:(SEQUENCE|FUNCTION|SCHEMA) )?(pgleases[\w., \n]*) TO`)

func (d *doctor) usage() right { return right{"SCHEMA", d.schema, "USAGE", ""} }

// needed returns the rights of a role for applications, from a file of grants.
func (d *doctor) needed(files fs.ReadFileFS) (all []right) {
	for _, match := range grantPattern.FindAllStringSubmatch(grants(files, ForApplication), -1) {
		if match[3] == "SCHEMA" {
			all = append(all, d.usage())
			continue
		}
		for name := range strings.SplitSeq(match[4], ",") {
			for privilege := range strings.SplitSeq(match[1], ",") {
				name := strings.TrimPrefix(strings.TrimSpace(name), "pgleases.")
				all = append(all, right{cmp.Or(match[3], "TABLE"), name, strings.TrimSpace(privilege), match[2]})
			}
		}
	}
	return all
}

// A user is a role that clients use.
type user struct {
	Role     string
	Runs     []string // of the workers in parts
	OfClient bool     // otherwise only a session that is named as those of clients has it
}

// readUsers reads the roles that clients use.
func (d *doctor) readUsers(ctx context.Context) {
	if d.Role != "" {
		d.unseen = "--role names another"
		return
	}
	users, err := collect(ctx, d.Admin, d.conn, "roles", pgx.RowToStructByPos[user])
	if err != nil {
		d.unseen = err.Error()
		return
	}
	d.users = users
}

// rolesOf returns the role that is examined, and those of clients.
func (d *doctor) rolesOf() []string {
	roles := []string{d.Examined}
	for _, u := range d.users {
		if u.Role != d.Examined {
			roles = append(roles, u.Role)
		}
	}
	return roles
}

// A holder is a role, with the rights that it lacks.
type holder struct {
	role   string
	exists bool
	lacks  map[right]bool
}

// of returns which of some rights the role lacks.
func (h *holder) of(rights []right) (lacks []string) {
	for _, r := range rights {
		if h.lacks[r] {
			lacks = append(lacks, r.String())
		}
	}
	return lacks
}

// holders returns roles with what they lack of some rights, in one statement.
func (d *doctor) holders(ctx context.Context, roles []string, rights []right) (map[string]holder, error) {
	var kinds, names, privileges, columns []string
	for _, r := range rights {
		kinds, names = append(kinds, r.kind), append(names, r.name)
		privileges, columns = append(privileges, r.privilege), append(columns, r.columns)
	}
	all := make(map[string]holder)
	_, err := collect(ctx, d.Admin, d.conn, "rights", func(row pgx.CollectableRow) (h holder, err error) {
		var positions []int
		err = row.Scan(&h.role, &h.exists, &positions)
		h.lacks = make(map[right]bool)
		for _, i := range positions {
			h.lacks[rights[i-1]] = true
		}
		all[h.role] = h
		return h, err
	}, d.schema, roles, kinds, names, privileges, columns)
	return all, err
}

// A need is what a role needs that runs the workers of one of parts.
type need struct {
	flag, worker string
	writes       right
	rights       []right
}

// needs returns the needs of the parts whose tables exist.
func (d *doctor) needs() (all []need) {
	for _, p := range parts {
		if slices.Contains(d.Parts, p.table) {
			all = append(all, need{p.flag, p.worker, p.writes, d.needed(p.files)})
		}
	}
	return all
}

// rights compares the rights of the role that is examined, and of those that clients use, with what
// clients need, and for schedules and consumers if their tables exist.
func (d *doctor) rights(ctx context.Context) {
	d.report()
	engine, needs := d.needed(enginesql.Files), d.needs()
	rights := slices.Clone(engine)
	for _, n := range needs {
		rights = append(rights, n.rights...)
	}
	all, err := d.holders(ctx, d.rolesOf(), rights)
	if err != nil {
		d.found(LevelWarning, "see the log of the server, and run this again", "cannot read them: %v", err)
		return
	}
	fine := []string{}
	if !slices.ContainsFunc(d.users, func(u user) bool { return u.Role == d.Examined && u.OfClient }) {
		fine = append(fine, d.rightsOfRole(d.Examined, all[d.Examined], engine, needs))
	}
	for _, u := range d.users {
		fine = append(fine, d.rightsOfUser(all[u.Role], u, engine, needs))
	}
	if d.unseen != "" {
		fine = append(fine, "the roles of clients are not checked, because "+d.unseen)
	}
	fine = slices.DeleteFunc(fine, func(text string) bool { return text == "" })
	fine = append(fine, "not checked: a pool that logs in under a different role from its client, "+
		"and what handlers use besides queue tables")
	d.fine("%s", strings.Join(fine, "; "))
}

// run returns what has to be run so that a role has the rights for a purpose.
func run(role, purpose string) string {
	if purpose != "" {
		purpose = " --for=" + purpose
	}
	return fmt.Sprintf("as the tables' owner, run what pgleases grants %s%s prints", shell.Word(role), purpose)
}

// mayWrite reports whether the role has one of the rights that only a role for clients has.
func (h *holder) mayWrite(rights []right) bool {
	return slices.ContainsFunc(rights, func(r right) bool { return r.writes() && !h.lacks[r] })
}

// mayRun returns what the role may run, and calls lacking for each part of which it lacks rights.
func (h *holder) mayRun(needs []need, lacking func(n need, lacks string)) string {
	what := "clients"
	for _, n := range needs {
		lacks := h.of(n.rights)
		if len(lacks) == 0 {
			what += " and " + n.flag
			continue
		}
		lacking(n, listed(lacks))
	}
	return what
}

// rightsOfRole finds what a role lacks that may run clients, and returns what it may do.
func (d *doctor) rightsOfRole(role string, h holder, engine []right, needs []need) string {
	lacks := h.of(engine)
	switch {
	case !h.exists:
		d.found(LevelFault, "name an existing one with --role", "there is no role %q", role)
		return ""
	case d.Role == "" && !h.mayWrite(engine) && !h.lacks[d.usage()]:
		return fmt.Sprintf("role %q is not checked, because it may write nothing: "+
			"name that of the clients with --role", role)
	case len(lacks) > 0:
		d.found(LevelFault, run(role, ""), "role %q cannot run clients, it lacks %s", role, listed(lacks))
		return ""
	}
	what := h.mayRun(needs, func(n need, lacks string) {
		if h.lacks[n.writes] { // perhaps it does not run any
			d.found(LevelNote, "if it should, "+run(role, n.flag),
				"role %q can run clients, but no %s, it lacks %s", role, n.flag, lacks)
			return
		}
		d.found(LevelFault, run(role, n.flag), "role %q cannot run %s, it lacks %s", role, n.flag, lacks)
	})
	return fmt.Sprintf("role %q may run %s", role, what)
}

// rightsOfUser finds what a role lacks that clients use, and returns what its clients may do.
func (d *doctor) rightsOfUser(h holder, u user, engine []right, needs []need) string {
	lacks := h.of(engine)
	switch {
	case !u.OfClient:
		if len(lacks) > 0 && h.mayWrite(engine) { // otherwise it may run clients of another schema
			d.found(LevelNote, "if it runs clients of this schema, "+run(u.Role, ""),
				"sessions named like those of clients use the role %q, which no known client uses; it lacks %s",
				u.Role, listed(lacks))
		}
		return ""
	case !h.exists:
		d.found(LevelFault, "create it again, or let its clients connect as another",
			"clients use the role %q, which does not exist", u.Role)
		return ""
	case len(lacks) > 0:
		d.found(LevelFault, run(u.Role, ""), "clients use the role %q, which lacks %s", u.Role, listed(lacks))
	}
	what := h.mayRun(needs, func(n need, lacks string) {
		if slices.Contains(u.Runs, n.worker) || !h.lacks[n.writes] {
			d.found(LevelFault, run(u.Role, n.flag),
				"clients use the role %q, which cannot run %s, it lacks %s", u.Role, n.flag, lacks)
		}
	})
	return fmt.Sprintf("clients use the role %q, which may run %s", u.Role, what)
}

package admin

import (
	"context"
	"fmt"
)

// A session is a session of the server that makes others wait.
type session struct {
	Of                 string // the object that it has locked
	PID                int    // 0: a prepared transaction, whose name is Application
	Owner, Application string
	Seconds            float64 // age of its transaction; negative: this role cannot see it
	Hides              bool    `db:"-"` // for a table: readers wait, too
	Guards             bool    `db:"-"` // for a table: only rows, locked by a prepared transaction that passed a guard
}

// by names a session, and says since when its transaction is open.
func (d *doctor) by(s session) string {
	text := fmt.Sprintf("process %d of %q (%q)", s.PID, s.Owner, s.Application)
	if s.PID == 0 {
		text = fmt.Sprintf("the prepared transaction %q of %q", s.Application, s.Owner)
	}
	if s.Seconds >= 0 {
		text += d.since(s.Seconds)
	}
	return text
}

// end returns the remedy that ends its lock.
func (s session) end() string {
	if s.PID == 0 {
		return "COMMIT PREPARED or ROLLBACK PREPARED it: pg_prepared_xacts lists them"
	}
	return fmt.Sprintf("end its transaction, if need be with SELECT pg_terminate_backend(%d)", s.PID)
}

// A wait is the wait for a named lock that needs somebody most.
type wait struct {
	Name    string
	Seconds float64
	Holder  string
	Lost    bool
	Awaited int // locks that are awaited for so long
}

// tableLocks checks whether a session locks tables.
func (d *doctor) tableLocks(context.Context) {
	if len(d.Locked) > 0 {
		l, level := d.Locked[0], LevelFault
		means := "others cannot write it, so heartbeats or plans fail"
		switch {
		case l.Guards:
			level = LevelWarning
			means = "the partitions that it guards keep their owner until it ends, even if that owner crashes"
		case l.Hides:
			means = "others cannot read or write it, so heartbeats or plans fail, " +
				"and the checks that read the tables are left out"
		}
		d.found(level, l.end(), "%s is locked by %s: %s", l.Of, d.by(l), means)
	}
	d.fine("no session locks the tables")
}

// rowsLocked reports whether a session is known to lock rows that clients need. If the role cannot
// see its age, it may be a client's own statement.
func (d *doctor) rowsLocked() bool { return len(d.lockers) > 0 && d.lockers[0].Seconds >= 0 }

func (d *doctor) rowLocks(context.Context) {
	if len(d.lockers) > 0 {
		level := LevelNote
		if d.rowsLocked() {
			level = LevelFault
		}
		l := d.lockers[0]
		d.found(level, l.end(), "the row of %s is locked by %s: "+
			"heartbeats, joins, plans, takeovers or evictions that need it fail", l.Of, d.by(l))
	}
	d.fine("no row that clients need is locked")
}

func (d *doctor) advisoryLocks(context.Context) {
	if len(d.strangers) > 0 {
		s := d.strangers[0]
		d.found(LevelWarning, s.end()+"; see docs/roles.md",
			"%d held or awaited by other programs: that for %s by %s", len(d.strangers), s.Of, d.by(s))
	}
	d.fine("no other program holds those of the library")
}

func (d *doctor) namedLocks(context.Context) {
	if len(d.waits) > 0 {
		w, level := d.waits[0], LevelNote // a leader may hold a lock for its lifetime
		remedy := "if the holder is a leader, ignore this; " +
			"otherwise find out what it does: ending its process frees the lock"
		if w.Holder == "" || w.Lost {
			level = LevelWarning
		}
		if w.Lost {
			remedy = "the holder has lost the lock, and has not released it: " +
				"make its program call Release when Context has ended, or end its process"
		}
		d.found(level, remedy, "%d awaited, such as %q%s, held by %q",
			w.Awaited, w.Name, d.since(w.Seconds), w.Holder)
	}
	d.fine("no lock is awaited for more than %v", d.Long)
}

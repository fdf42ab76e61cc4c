package admin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/store"
)

// A Verb is what an operator may want. docs/operations.md tells what each does.
type Verb string

// The verbs. Undrain, Uncordon, Resume and Unfreeze take a wish back.
const (
	Drain    Verb = "drain" // a client shall own nothing
	Undrain  Verb = "undrain"
	Cordon   Verb = "cordon" // a client gets nothing new
	Uncordon Verb = "uncordon"
	Pause    Verb = "pause" // nobody shall own a lease
	Resume   Verb = "resume"
	Freeze   Verb = "freeze" // only what is orphaned moves
	Unfreeze Verb = "unfreeze"
	Evict    Verb = "evict" // a client's sessions are revoked
)

var wishes, takenBack = []Verb{Drain, Cordon, Pause, Freeze}, []Verb{Undrain, Uncordon, Resume, Unfreeze}

// ErrLast is returned by Apply for a Drain, without Force, of the last client that works on a lease: its partitions would have no owner.
var ErrLast = errors.New("admin: it is the last that works on a lease")

// A Change is what an operator wants of a client, or of a lease.
type Change struct {
	Verb    Verb
	Subject string    // the client's ID; of Pause, Resume, Freeze and Unfreeze the lease's name
	Reason  string    // why: written beside the event; not empty
	Actor   string    // who wants it, besides the role that connects, which is written in any case; empty: that role alone
	Until   time.Time // of Drain, Cordon, Pause and Freeze: when it ends by itself; zero: never
	Force   bool      // of Drain: also where the client is the last that works on a lease
}

// Apply has a change made. It writes a wish, or takes it back; the clients do the rest, by a plan within a heartbeat, and partitions move as they always do: the work on
// them ends first. Evict revokes the client's sessions. It needs the rights that Grants gives for steering. The errors: a change that is none, and the database's, as where the
// name is not known.
func (a *Admin) Apply(ctx context.Context, c Change) error {
	args, statement := []any{c.Subject, c.Reason, c.Actor}, "SELECT %s.%s($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text)"
	name := string(c.Verb)
	switch {
	case c.Verb == Evict:
		name = "evict_client"
	case slices.Contains(wishes, c.Verb):
		statement = "SELECT %s.%s($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, coalesce($4::pg_catalog.timestamptz, 'infinity'))"
		until := &c.Until
		if c.Until.IsZero() {
			until = nil
		}
		if args = append(args, until); c.Verb == Drain {
			statement = "SELECT %s.%s($1::pg_catalog.text, $2::pg_catalog.text, $3::pg_catalog.text, coalesce($4::pg_catalog.timestamptz, 'infinity'), $5::boolean)"
			args = append(args, c.Force)
		}
	case !slices.Contains(takenBack, c.Verb):
		return fmt.Errorf("admin: verb %q is none of %v, %v, %v", c.Verb, wishes, takenBack, Evict)
	}
	switch {
	case c.Subject == "" || c.Reason == "":
		return fmt.Errorf("admin: %s of %q for the reason %q: give a name and a reason", c.Verb, c.Subject, c.Reason)
	case c.Force && c.Verb != Drain || !c.Until.IsZero() && !slices.Contains(wishes, c.Verb):
		return fmt.Errorf("admin: %s takes no such option: Until is of %v, Force of %v", c.Verb, wishes, Drain)
	}
	_, err := a.pool.Exec(ctx, fmt.Sprintf(statement, pgx.Identifier{a.options.schema}.Sanitize(), name), args...)
	doing := fmt.Sprintf("%s %q", c.Verb, c.Subject)
	var refused *pgconn.PgError
	switch {
	case store.Denied(err):
		return fmt.Errorf("admin: %s: %w\ngive the role what pgleases grants ROLE --for=steering prints for schema %q", doing, err, a.options.schema)
	case errors.As(err, &refused) && refused.Code == "55006":
		return fmt.Errorf("admin: %s: %w: %w", doing, ErrLast, err)
	case errors.As(err, &refused) && refused.Hint != "":
		return fmt.Errorf("admin: %s: %w\n%s", doing, err, refused.Hint)
	}
	return a.failure(doing, err)
}

package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/store"
)

// A Verb is what an operator may want. docs/operations.md tells what each does.
type Verb string

// The verbs. Undrain, Uncordon, Resume, Unfreeze and Unpin take an override back.
const (
	Drain    Verb = "drain" // a client shall own nothing
	Undrain  Verb = "undrain"
	Cordon   Verb = "cordon" // a client gets nothing new
	Uncordon Verb = "uncordon"
	Pause    Verb = "pause" // nobody shall own a lease
	Resume   Verb = "resume"
	Freeze   Verb = "freeze" // only what is orphaned moves
	Unfreeze Verb = "unfreeze"
	Pin      Verb = "pin" // a partition shall be with a client
	Unpin    Verb = "unpin"
	Evict    Verb = "evict" // a client's sessions are revoked
	Drop     Verb = "drop"  // a lease on which nobody works is forgotten
)

var overrides, takenBack = []Verb{Drain, Cordon, Pause, Freeze, Pin}, []Verb{Undrain, Uncordon, Resume, Unfreeze, Unpin}

// ErrLast is returned by Apply for a Drain, without Force, of the last client that works on a
// lease: its partitions would have no owner.
var ErrLast = errors.New("admin: it is the last that works on a lease")

// ErrRefused is what errors of DryRun and Apply are, too, where the change is none, or the database
// refuses it as things are, and errors of lists of schedules and jobs where what is asked for is
// none: the text says what would be right. Nothing was done.
var ErrRefused = errors.New("admin: refused")

// A refused error is ErrRefused, too.
type refused struct{ error }

func (r refused) Unwrap() error        { return r.error }
func (r refused) Is(target error) bool { return target == ErrRefused }

func refusef(format string, args ...any) error { return refused{fmt.Errorf(format, args...)} }

// ErrUnknown is returned by Apply where the database did not answer any more: it has made the
// change, or has not. The overrides and the events tell.
var ErrUnknown = errors.New("admin: it is not known whether that was done")

// A Change is what an operator wants of a client, or of a lease.
type Change struct {
	Verb      Verb   `json:"verb"`
	Subject   string `json:"subject"`   // the client's ID; of Pause, Resume, Freeze, Unfreeze, Pin, Unpin and Drop the lease's name
	Partition int    `json:"partition"` // of Pin and Unpin: which of the lease
	Client    string `json:"client"`    // of Pin: the ID of the client with which it shall be; a pin to another is replaced
	Reason    string `json:"reason"`    // why: written beside the event; 1 to 4,000 bytes
	// who wants it, besides the role that connects, which is written in any case; up to 255 bytes,
	// empty: that role alone
	Actor string        `json:"-"`
	Lasts time.Duration `json:"-"`     // of Drain, Cordon, Pause, Freeze and Pin: for how long it stands; 0: until it is taken back
	Next  int           `json:"-"`     // of Drop: with how many partitions the lease may be made again in the next 24 h; 0: with as many as it has
	Force bool          `json:"force"` // of Drain: also where the client is the last that works on a lease

	// IfUnchanged is what a DryRun of this change told: Apply then does what the dry run showed, or
	// fails with ErrChanged. Empty: it does it in any case.
	IfUnchanged string `json:"if_unchanged"`
}

// Apply has a change made. It writes an override, or takes it back; the clients do the rest, by a
// plan within a heartbeat, and partitions move as they always do: the work on them ends first.
// Evict revokes the client's sessions. Drop forgets the lease. It needs the rights that Grants
// gives for operating. The errors: ErrRefused for a change that is none, or that cannot be, as
// where the name is not known; ErrUnknown where the database does not answer.
//
// With IfUnchanged it calls the verb in a transaction, and reads then what a plan will read. The
// leases that the change concerns are locked from there on. Where all that the plan depends on is
// as DryRun read it, it commits; else it rolls back, and returns ErrChanged. So the next plan is
// the one that the dry run showed, unless something comes between that transaction and the plan, as
// a member that joins then, or between what it read and its commit, of a lease that it does not
// concern but that shares a member with one.
func (a *Admin) Apply(ctx context.Context, c Change) error {
	if c.IfUnchanged != "" {
		if !fingerprints.MatchString(c.IfUnchanged) {
			return refusef("admin: %s of %q: fingerprint %q is none: give the one that DryRun returns, as 0123456789abcdef", c.Verb, c.Subject, c.IfUnchanged)
		}
		_, err := a.try(ctx, c)
		return err
	}
	statement, args, err := a.call(c)
	if err != nil {
		return err
	}
	sent := false
	err = a.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		_, err := conn.Exec(ctx, statement, args...)
		sent = !pgconn.SafeToRetry(err)
		return err
	})
	return a.refusal(c, doubted(sent, err))
}

// doubted is err, which is ErrUnknown too where the commit was sent, and no answer says that it has
// failed.
func doubted(sent bool, err error) error {
	var told *pgconn.PgError
	switch {
	case !sent, err == nil, errors.Is(err, pgx.ErrTxCommitRollback):
		return err
	// and not a connection that ends otherwise, as that of a pooler
	case errors.As(err, &told) && (told.SeverityUnlocalized == "ERROR" || told.Code == "25P03"):
		return err
	}
	return fmt.Errorf("%w: %w", ErrUnknown, err)
}

// functions are the SQL functions of the verbs that have another name.
var functions = map[Verb]string{Evict: "evict_client", Drop: "drop_lease"}

func (c *Change) overrides() bool   { return slices.Contains(overrides, c.Verb) }
func (c *Change) ofPartition() bool { return c.Verb == Pin || c.Verb == Unpin }
func (c *Change) ofClient() bool {
	return slices.Contains([]Verb{Drain, Undrain, Cordon, Uncordon, Evict}, c.Verb)
}

// check returns why a change is none.
func (c *Change) check() error {
	switch {
	case !c.overrides() && !slices.Contains(takenBack, c.Verb) && functions[c.Verb] == "":
		return refusef("admin: verb %q is none of %v, %v, %v, %v", c.Verb, overrides, takenBack, Evict, Drop)
	case c.Subject == "" || c.Reason == "":
		return refusef("admin: %s of %q for the reason %q: give a name and a reason", c.Verb, c.Subject, c.Reason)
	case (c.Verb == Pin) != (c.Client != ""):
		return refusef("admin: %s of %q with client %q: Pin takes a client, and no other verb does", c.Verb, c.Subject, c.Client)
	case c.misplaced():
		return refusef("admin: %s takes no such option: Lasts is of %v, Force of %v, Partition of %v and %v, Next of %v",
			c.Verb, overrides, Drain, Pin, Unpin, Drop)
	case c.Lasts < 0:
		return refusef("admin: %s for %v: give a time above 0, or 0 for one that stands until it is taken back", c.Verb, c.Lasts)
	case c.Partition < 0 || c.Partition > math.MaxInt32:
		return refusef("admin: %s of partition %d: partitions are numbered from 0", c.Verb, c.Partition)
	}
	return nil
}

// misplaced reports whether a change has an option of another verb.
func (c *Change) misplaced() bool {
	return c.Force && c.Verb != Drain || c.Lasts != 0 && !c.overrides() || c.Partition != 0 && !c.ofPartition() || c.Next != 0 && c.Verb != Drop
}

// call returns the call of the verb's SQL function, whose parameters all have the type of
// their value. The error: a change that is none.
func (a *Admin) call(c Change) (call string, args []any, err error) {
	if err := c.check(); err != nil {
		return "", nil, err
	}
	var lasts any // null: for ever
	if c.Lasts > 0 {
		lasts = c.Lasts.Seconds()
	}
	var words []string
	for _, p := range []struct {
		is    bool
		word  string
		value any
	}{
		{true, "$%d::pg_catalog.text", c.Subject},
		{c.ofPartition(), "$%d::pg_catalog.int4", c.Partition},
		{c.Verb == Pin, "$%d::pg_catalog.text", c.Client},
		{true, "$%d::pg_catalog.text", c.Reason},
		{true, "$%d::pg_catalog.text", c.Actor},
		{c.overrides(),
			"coalesce(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) pg_catalog.make_interval(secs => $%d::pg_catalog.float8), 'infinity')",
			lasts},
		{c.Verb == Drain, "$%d::pg_catalog.bool", c.Force},
		{c.Next != 0, "$%d::pg_catalog.int4", c.Next},
	} {
		if p.is {
			args = append(args, p.value)
			words = append(words, fmt.Sprintf(p.word, len(args)))
		}
	}
	return fmt.Sprintf("SELECT %s.%s(%s)", pgx.Identifier{a.schema}.Sanitize(), cmp.Or(functions[c.Verb], string(c.Verb)), strings.Join(words, ", ")), args, nil
}

// refusals are the codes by which the SQL functions of the verbs say that they do nothing: bad
// input, something else comes first, a lease with members, an unknown name; and of a program that
// was too slow to commit.
var refusals = []string{"22023", "55000", "55006", "42704", "25P03"}

// refusal says what to do about an error of a verb.
func (a *Admin) refusal(c Change, err error) error {
	doing := fmt.Sprintf("%s %q", c.Verb, c.Subject)
	if c.ofPartition() {
		doing = fmt.Sprintf("%s %q", c.Verb, fmt.Sprintf("%s/%d", c.Subject, c.Partition))
	}
	var told *pgconn.PgError
	switch {
	case store.Denied(err):
		return fmt.Errorf("admin: %s: %w\ngive the role what pgleases grants ROLE --for=%s prints for schema %q", doing, err, ForOperator, a.schema)
	case errors.As(err, &told) && told.Code == "55006" && c.Verb == Drain:
		return refusef("admin: %s: %w: %w", doing, ErrLast, err)
	case errors.As(err, &told) && told.Hint != "":
		err = fmt.Errorf("admin: %s: %w\n%s", doing, err, told.Hint)
	default:
		err = a.failure(doing, err)
	}
	if told != nil && slices.Contains(refusals, told.Code) {
		return refused{err}
	}
	return err
}

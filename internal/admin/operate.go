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

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/worker"
	"github.com/pgleases/pgleases/internal/wrap"
)

// A Verb is a kind of change by an operator. docs/operations.md explains each.
type Verb string

// The verbs. Undrain, Uncordon, Resume, Unfreeze and Unpin take an override back.
const (
	VerbDrain    Verb = "drain" // the client owns no partitions
	VerbUndrain  Verb = "undrain"
	VerbCordon   Verb = "cordon" // the client gets no new partitions
	VerbUncordon Verb = "uncordon"
	VerbPause    Verb = "pause" // the partitions of the lease have no owner
	VerbResume   Verb = "resume"
	VerbFreeze   Verb = "freeze" // only partitions without a live owner move
	VerbUnfreeze Verb = "unfreeze"
	VerbPin      Verb = "pin" // the client owns the partition
	VerbUnpin    Verb = "unpin"
	VerbEvict    Verb = "evict"   // revokes the sessions of a client
	VerbDrop     Verb = "drop"    // deletes a lease without members
	VerbReplace  Verb = "replace" // closes a lease without members for good, and creates the lease that replaces it
)

var (
	overrides = []Verb{VerbDrain, VerbCordon, VerbPause, VerbFreeze, VerbPin}
	takenBack = []Verb{VerbUndrain, VerbUncordon, VerbResume, VerbUnfreeze, VerbUnpin}
)

// ErrLast is returned by Apply for a Drain without Force of the last client that works on a lease,
// because the partitions of the lease would have no owner.
var ErrLast = errors.New("pgleases: partitions would have no owner")

// ErrRefused matches errors of DryRun and Apply if the change is invalid, or the database refuses
// it in its present state. The text of the error names the remedy. The change was not made.
var ErrRefused = errors.New("pgleases: refused")

// A refused error matches ErrRefused.
type refused struct{ error }

func (r refused) Unwrap() error        { return r.error }
func (r refused) Is(target error) bool { return target == ErrRefused }

func refusef(format string, args ...any) error { return refused{wrap.Errorf(format, args...)} }

// ErrUnknown is returned by Apply if the connection failed after the change was sent, so the change
// may or may not have been made. The overrides and the events show which.
var ErrUnknown = errors.New("pgleases: it is not known whether that was done")

// A Change is an operator's change to a client or to a lease.
type Change struct {
	Verb Verb `json:"verb"`
	// The client's ID; of Pause, Resume, Freeze, Unfreeze, Pin, Unpin, Drop and Replace the lease's
	// name.
	Subject   string `json:"subject"`
	Partition int    `json:"partition"` // of Pin and Unpin: the number of the partition
	// Of Pin: the ID of the client that will own it; a pin to another client is replaced.
	Client string `json:"client"`
	By     string `json:"by"`     // of Replace: the name of the lease that replaces the subject
	Reason string `json:"reason"` // recorded with the event; 1 to 4,000 bytes
	// The person who makes the change, up to 255 bytes. It is recorded beside the role that connects;
	// empty: only that role is recorded.
	Actor string `json:"-"`
	// Of Drain, Cordon, Pause, Freeze and Pin: the duration of the override; 0: until it is taken
	// back.
	Lasts time.Duration `json:"-"`
	// Of Drop: the only number of partitions for a new lease of that name in the next 24 h; 0: the
	// same number. Of Replace: the number of partitions of the lease By.
	Next  int  `json:"-"`
	Force bool `json:"force"` // of Drain: even if the client is the last that works on a lease
}

// Apply makes a change. It writes an override, or takes it back. The clients then re-plan within
// one heartbeat, and partitions move as always: the work on them ends first. Evict revokes the
// client's sessions. Drop deletes the lease. Replace closes it, so that an old process that comes
// back cannot join it again: docs/changing-n.md explains when to use it. Apply needs the rights
// that Grants returns for ForOperator. It returns ErrRefused for a change that is invalid or
// impossible, for example of an unknown name, and ErrUnknown if the connection fails before the
// commit is answered.
func (a *Admin) Apply(ctx context.Context, c Change) error {
	statement, args, err := a.call(c)
	if err != nil {
		return err
	}
	err = worker.Change(ctx, a.pool, ErrUnknown, func(ctx context.Context, tx pgx.Tx) error {
		_, err := tx.Exec(ctx, statement, args...)
		return err
	})
	return a.refusal(c, err)
}

// functions are the SQL functions of the verbs whose function has another name.
var functions = map[Verb]string{VerbEvict: "evict_client", VerbDrop: "drop_lease", VerbReplace: "replace_lease"}

func (c *Change) overrides() bool { return slices.Contains(overrides, c.Verb) }

// closes reports whether a change leaves a lease without partitions.
func (c *Change) closes() bool { return c.Verb == VerbDrop || c.Verb == VerbReplace }

func (c *Change) ofPartition() bool { return c.Verb == VerbPin || c.Verb == VerbUnpin }
func (c *Change) ofClient() bool {
	return slices.Contains([]Verb{VerbDrain, VerbUndrain, VerbCordon, VerbUncordon, VerbEvict}, c.Verb)
}

// hasOptionOfAnother reports whether a change has an option that its verb does not take.
func (c *Change) hasOptionOfAnother() bool {
	return c.Force && c.Verb != VerbDrain ||
		c.Lasts != 0 && !c.overrides() ||
		c.Partition != 0 && !c.ofPartition() ||
		c.Next != 0 && !c.closes()
}

// check returns an error if a change is invalid.
func (c *Change) check() error {
	switch {
	case !c.overrides() && !slices.Contains(takenBack, c.Verb) && functions[c.Verb] == "":
		return refusef("pgleases: verb %q is none of %v, %v, %v, %v, %v",
			c.Verb, overrides, takenBack, VerbEvict, VerbDrop, VerbReplace)
	case c.Subject == "" || c.Reason == "":
		return refusef("pgleases: %s of %q for the reason %q: give a name and a reason", c.Verb, c.Subject, c.Reason)
	case (c.Verb == VerbPin) != (c.Client != ""):
		return refusef("pgleases: %s of %q with client %q: Pin takes a client, and no other verb does",
			c.Verb, c.Subject, c.Client)
	case (c.Verb == VerbReplace) != (c.By != ""):
		return refusef("pgleases: %s of %q by lease %q: "+
			"Replace takes the name of another lease, and no other verb does", c.Verb, c.Subject, c.By)
	case c.Verb == VerbReplace && c.Next < 1:
		return refusef("pgleases: %s of %q by %q with %d partitions: "+
			"give the number of partitions of %[3]q, 1 to 65536", c.Verb, c.Subject, c.By, c.Next)
	case c.hasOptionOfAnother():
		return refusef("pgleases: %s has an option of another verb: Lasts is for %v, Force for %v, "+
			"Partition for %v and %v, Next for %v and %v",
			c.Verb, overrides, VerbDrain, VerbPin, VerbUnpin, VerbDrop, VerbReplace)
	case c.Lasts < 0:
		return refusef("pgleases: %s for %v: give a time above 0, or 0 for an override until it is taken back",
			c.Verb, c.Lasts)
	case c.Partition < 0 || c.Partition > math.MaxInt32:
		return refusef("pgleases: %s of partition %d: partitions are numbered from 0", c.Verb, c.Partition)
	}
	return nil
}

// untilThen is the end of an override that lasts some seconds; null: it has no end.
const untilThen = "coalesce(pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) " +
	"pg_catalog.make_interval(secs => $%d::pg_catalog.float8), 'infinity')"

// call returns the call of the verb's SQL function, with a cast of each parameter to its type. It
// returns an error if the change is invalid.
func (a *Admin) call(c Change) (call string, args []any, err error) {
	if err := c.check(); err != nil {
		return "", nil, err
	}
	var lasts any // null: no end
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
		{c.Verb == VerbPin, "$%d::pg_catalog.text", c.Client},
		{c.Verb == VerbReplace, "$%d::pg_catalog.text", c.By},
		{c.Verb == VerbReplace, "$%d::pg_catalog.int4", c.Next},
		{true, "$%d::pg_catalog.text", c.Reason},
		{true, "$%d::pg_catalog.text", c.Actor},
		{c.overrides(), untilThen, lasts},
		{c.Verb == VerbDrain, "$%d::pg_catalog.bool", c.Force},
		{c.Verb == VerbDrop && c.Next != 0, "$%d::pg_catalog.int4", c.Next},
	} {
		if p.is {
			args = append(args, p.value)
			words = append(words, fmt.Sprintf(p.word, len(args)))
		}
	}
	schema := pgx.Identifier{a.schema}.Sanitize()
	function := cmp.Or(functions[c.Verb], string(c.Verb))
	return fmt.Sprintf("SELECT %s.%s(%s)", schema, function, strings.Join(words, ", ")), args, nil
}

// refusals are the codes of errors that left the tables unchanged: invalid input, another change
// must come first, a lease with members, and an unknown name.
var refusals = []string{"22023", "55000", "55006", "42704"}

// refusal adds a remedy to an error of a verb.
func (a *Admin) refusal(c Change, err error) error {
	doing := fmt.Sprintf("%s %q", c.Verb, c.Subject)
	if c.ofPartition() {
		doing = fmt.Sprintf("%s %q", c.Verb, fmt.Sprintf("%s/%d", c.Subject, c.Partition))
	}
	var told *pgconn.PgError
	switch {
	case store.Denied(err):
		return wrap.Errorf("pgleases: %s: %w\ngive the role what pgleases grants ROLE --for=%s prints for schema %q",
			doing, err, ForOperator, a.schema)
	case errors.As(err, &told) && told.Code == "55006" && c.Verb == VerbDrain:
		return refusef("pgleases: %s: %w: %w", doing, ErrLast, err)
	case errors.As(err, &told) && told.Hint != "":
		err = wrap.Errorf("pgleases: %s: %w\n%s", doing, err, told.Hint)
	default:
		err = a.failure(doing, err)
	}
	if told != nil && slices.Contains(refusals, told.Code) {
		return refused{err}
	}
	return err
}

package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/internal/connect"
)

// A Fault says who or what caused an error. All code of this module that decides whether to repeat
// something, or whom to charge with a failure, asks Whose.
type Fault int

const (
	None       Fault = iota
	Handler          // the application's code, or ours: no error of the database
	Refused          // the server refuses the statement, and would refuse it again
	Conflict         // the server broke the transaction off in favor of another one
	Lock             // another transaction has kept a lock for too long
	Limit            // a time limit, or an administrator, ended the statement or the transaction
	Connection       // the connection failed, or could not be opened
	Standby          // the server cannot write, because it is a standby
	Server           // the server lacks something that it may have again, such as space on its disk
	Internal         // an error inside the server: it may be concurrent DDL, or damaged data
	NotOwner         // the partition, or the lock, is not owned any longer
	Ended            // the handler ended its transaction itself
	Setting          // somebody must change a setting or a right first
	Closed           // the application has closed the pool, so nothing will work again
	Away             // the handler says that something that it needs is away, see Unavailable
	Snoozed          // the handler says that its work is to be done later, see Snooze
	Discarded        // the handler says that another attempt would fail too, see Discard
)

var faults = []string{
	"none", "handler", "refused", "conflict", "lock", "limit", "connection", "standby", "server", "internal",
	"not owner", "ended", "setting", "closed", "unavailable", "snoozed", "discarded",
}

func (f Fault) String() string { return faults[f] }

// Passes reports whether a statement of this module, which is right as it is, may succeed if it is
// repeated later, or on another connection.
func (f Fault) Passes() bool { return f.Blameless() || f == Limit }

// Blameless reports whether a handler is not at fault, though its transaction failed. A transaction
// that reached a time limit is the handler's fault, because it took that time.
func (f Fault) Blameless() bool {
	return slices.Contains([]Fault{Conflict, Lock, Connection, Standby, Server, Internal}, f)
}

// Final reports whether all repetitions fail, until somebody changes something.
func (f Fault) Final() bool { return slices.Contains([]Fault{Refused, Setting, Closed}, f) }

// A code is a row of the table of SQLSTATEs. It stands for one SQLSTATE, or for a class of them, of
// which it has the first two characters.
type code struct {
	state  string
	fault  Fault
	reason string
}

// codes is the table. A SQLSTATE is searched before its class. What is not in the table is refused.
var codes = []code{
	{"08", Connection, "connection exception; PgBouncer reports all its own errors as 08P01"},
	{"25006", Standby, "read-only transaction: a standby, or default_transaction_read_only"},
	{"25P03", Limit, "idle_in_transaction_session_timeout"},
	{"25P04", Limit, "transaction_timeout"},
	{"40", Conflict, "serialization failure or deadlock: another transaction came first"},
	{"53", Server, "insufficient resources: full disk, no memory, too many connections"},
	{"53400", Limit, "a limit on resources such as temp_file_limit: another attempt needs as much"},
	{"55006", Server, "object in use"},
	{"55P03", Lock, "lock not available, or lock_timeout"},
	{"57", Connection, "operator intervention: the server ends the session, or does not accept one yet"},
	{"57014", Limit, "query canceled: statement_timeout, or pg_cancel_backend"},
	{"58", Server, "system error: I/O, or a file that is missing"},
	{"XX", Internal, "internal error, such as a tuple that was concurrently updated"},
	{"PL001", NotOwner, "raised by guard and guard_lock"},
	{"PS003", Ended, "raised when a run ends, if its handler ended the transaction"},
	{"PC002", Ended, "raised when a batch ends, if its handler ended the transaction"},
}

// logins are the errors of opening a connection that last until somebody changes something. All
// other errors of opening a connection may pass.
var logins = []code{
	{"28", Setting, "the server refuses the login"},
	{"3D000", Setting, "the database does not exist"},
	{"42501", Setting, "the role may not connect to the database"},
}

// standbys are the functions of the server that report 0A000 only, or mostly, because the server is
// a standby. The others report it for something that is not supported.
var standbys = []string{
	"call_bool_check_hook",               // BEGIN READ WRITE
	"call_enum_check_hook",               // BEGIN ISOLATION LEVEL SERIALIZABLE
	"GetSerializableTransactionSnapshot", // a default isolation level of SERIALIZABLE
	"get_relation_info",                  // an unlogged table
}

// WhoseOfHandler is Whose for an error that a handler has returned. A handler may talk to others
// than the database, so an error of some connection does not say much.
func WhoseOfHandler(err error) Fault {
	f := Whose(err)
	if f == Connection && !ofDatabase(err) {
		return Handler
	}
	return f
}

func ofDatabase(err error) bool {
	return pgconn.SafeToRetry(err) ||
		errors.As(err, new(*pgconn.PgError)) ||
		errors.As(err, new(*pgconn.ConnectError)) ||
		errors.As(err, new(sayer))
}

// Whose returns who or what caused an error. An error may say that itself, see Says. A handler's
// Snooze, Discard or Unavailable comes first.
func Whose(err error) Fault {
	if err == nil {
		return None // first, because every statement asks, and each target of errors.As is allocated
	}
	verdict, _ := Verdict(err)
	var says sayer
	var refused *pgconn.PgError
	coded := errors.As(err, &refused) && refused != nil // an application's error may be a nil pointer of this type
	opening := errors.As(err, new(*pgconn.ConnectError))
	switch {
	case verdict != None:
		return verdict
	case closed(err):
		return Closed
	case errors.As(err, &says):
		return says.fault()
	case errors.Is(err, connect.ErrSetting):
		return Setting
	case opening && coded && find(logins, refused.Code) != Refused:
		return Setting
	case opening:
		return Connection
	case coded && onStandby(refused):
		return Standby
	case coded:
		return find(codes, refused.Code)
	case EndedContext(err):
		return Limit
	case failedConnection(err):
		return Connection
	}
	return Handler
}

// EndedContext reports whether an error comes from the end of a context.
func EndedContext(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

func find(table []code, state string) Fault {
	class := state[:min(2, len(state))]
	for _, of := range []string{state, class} {
		i := slices.IndexFunc(table, func(c code) bool { return c.state == of })
		if i >= 0 {
			return table[i].fault
		}
	}
	return Refused
}

func onStandby(err *pgconn.PgError) bool {
	switch err.Code {
	case "0A000": // a pooler may leave the function out, but not the message
		return slices.Contains(standbys, err.Routine) || strings.Contains(err.Message, "recovery")
	case "55000":
		return strings.Contains(err.Message, "recovery is in progress")
	}
	return false
}

// failedConnection reports whether an error without a SQLSTATE is one of the connection.
func failedConnection(err error) bool {
	return pgconn.SafeToRetry(err) || errors.As(err, new(net.Error)) ||
		errors.Is(err, net.ErrClosed) || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// closed reports whether the pool is closed. Only the text of this error can be compared, because
// pgx does not export it.
func closed(err error) bool {
	for ; err != nil; err = errors.Unwrap(err) {
		if many, ok := err.(interface{ Unwrap() []error }); ok {
			return slices.ContainsFunc(many.Unwrap(), closed)
		}
		if reflect.TypeOf(err) == plain && err.Error() == "closed pool" {
			return true
		}
	}
	return false
}

// EndsRun returns why a Run ends, though its context and its lease have not ended. It is nil if the
// Run goes on after err.
func EndsRun(err error) error {
	if Whose(err) != Closed {
		return nil
	}
	return fmt.Errorf("the pool is closed: %w; close it after Run has returned", err)
}

// plain is the type of errors.New. The methods of other types may panic.
var plain = reflect.TypeOf(errors.New(""))

// A sayer is an error that says itself who or what caused it.
type sayer interface {
	error
	fault() Fault
}

type says struct {
	error
	of Fault
}

func (s says) fault() Fault  { return s.of }
func (s says) Unwrap() error { return s.error }

// Says returns an error that says who or what caused it, whatever the error that it wraps.
func Says(f Fault, err error) error { return says{err, f} }

// Lost returns the error of a transaction whose connection has failed meanwhile, whatever the last
// statement returned.
func Lost(err error) error { return Says(Connection, err) }

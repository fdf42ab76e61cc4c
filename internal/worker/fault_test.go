package worker

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/connect"
)

// Each row names the errors of one cause, and what follows from it.
var causes = []struct {
	fault             Fault
	passes, blameless bool
	states            []string
}{
	{Refused, false, false, []string{
		"", "0A000", "21000", "22023", "22P02", "23505", "23514", "25001", "25P01", "25P02", "26000", "28000", "28P01",
		"3D000", "42501", "42601", "42P01", "42P05", "54000", "55000", "P0001", "P0002", "PL002", "PL003", "PS001",
		"PS002", "PC001", "HV000",
	}},
	{Conflict, true, true, []string{"40001", "40P01"}},
	{Lock, true, true, []string{"55P03"}},
	{Limit, true, false, []string{"25P03", "25P04", "53400", "57014"}},
	{Connection, true, true, []string{
		"08000", "08003", "08006", "08P01", "57000", "57P01", "57P02", "57P03", "57P04", "57P05",
	}},
	{Standby, true, true, []string{"25006"}},
	{Server, true, true, []string{"53000", "53100", "53200", "53300", "55006", "58000", "58030", "58P01"}},
	{Internal, true, true, []string{"XX000", "XX001", "XX002"}},
	{NotOwner, false, false, []string{"PL001"}},
	{Ended, false, false, []string{"PS003", "PC002"}},
}

func TestFaultOfEachState(t *testing.T) {
	tested := make(map[string]bool)
	for _, c := range causes {
		for _, state := range c.states {
			err := fmt.Errorf("wrapped: %w", &pgconn.PgError{Code: state})
			if f := Whose(err); f != c.fault || f.Passes() != c.passes || f.Blameless() != c.blameless {
				t.Errorf("%q: %v (passes %v, blameless %v), want %v", state, f, f.Passes(), f.Blameless(), c.fault)
			}
			tested[state], tested[state[:min(2, len(state))]] = true, true
		}
	}
	for _, row := range codes {
		if !tested[row.state] || row.reason == "" {
			t.Errorf("the row %q has no test, or no reason", row.state)
		}
	}
}

func TestFaultWithoutConnection(t *testing.T) {
	for state, want := range map[string]Fault{
		"28000": Setting, "28P01": Setting, "3D000": Setting, "42501": Setting,
		"53300": Connection, "55000": Connection, "57P03": Connection, "08P01": Connection,
	} {
		err := errors.Join(new(pgconn.ConnectError), &pgconn.PgError{Code: state})
		if f := Whose(err); f != want || f.Passes() != (want == Connection) {
			t.Errorf("connecting: %q: %v, want %v", state, f, want)
		}
	}
	for _, row := range logins {
		if row.reason == "" {
			t.Errorf("the row %q has no reason", row.state)
		}
	}
}

// The errors are those of PostgreSQL 15 in recovery.
func TestFaultInRecovery(t *testing.T) {
	for _, c := range []struct {
		err  pgconn.PgError
		want Fault
	}{
		{pgconn.PgError{Code: "25006", Routine: "PreventCommandDuringRecovery"}, Standby},
		{pgconn.PgError{Code: "0A000", Routine: "call_bool_check_hook"}, Standby},
		{pgconn.PgError{Code: "0A000", Routine: "call_enum_check_hook"}, Standby},
		{pgconn.PgError{Code: "0A000", Routine: "get_relation_info"}, Standby},
		{pgconn.PgError{Code: "0A000", Message: "cannot set transaction read-write mode during recovery"}, Standby},
		{pgconn.PgError{Code: "55000", Message: "recovery is in progress"}, Standby},
		{pgconn.PgError{
			Code: "0A000", Message: "cached plan must not change result type", Routine: "RevalidateCachedQuery",
		}, Refused},
	} {
		if f := Whose(&c.err); f != c.want {
			t.Errorf("%+v: %v, want %v", c.err, f, c.want)
		}
	}
}

func TestFaultWithoutState(t *testing.T) {
	own := errors.New("own")
	var noError *pgconn.PgError
	network := &net.OpError{Op: "read", Err: own}
	for want, errs := range map[Fault][]error{
		None:       {nil},
		Handler:    {own, noError, fmt.Errorf("%w: %w", own, own)},
		Limit:      {context.DeadlineExceeded, fmt.Errorf("wrapped: %w", context.Canceled)},
		Connection: {new(pgconn.ConnectError), io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, network, Lost(own)},
		Setting:    {fmt.Errorf("wrapped: %w", connect.ErrSetting)},
		NotOwner:   {Says(NotOwner, own), fmt.Errorf("wrapped: %w", Says(NotOwner, own))},
	} {
		for _, err := range errs {
			if f := Whose(err); f != want {
				t.Errorf("%v: %v, want %v", err, f, want)
			}
		}
	}
	for _, err := range []error{io.EOF, io.ErrUnexpectedEOF, net.ErrClosed, &net.OpError{Op: "read", Err: own}} {
		if f := WhoseOfHandler(err); f != Handler {
			t.Errorf("of a handler: %v: %v", err, f)
		}
	}
	for _, err := range []error{new(pgconn.ConnectError), Lost(own), &pgconn.PgError{Code: "08006"}} {
		if f := WhoseOfHandler(err); f != Connection {
			t.Errorf("of a handler: %v: %v", err, f)
		}
	}
	if err := Lost(&pgconn.PgError{Code: "23505"}); Whose(err) != Connection || !errors.As(err, new(*pgconn.PgError)) {
		t.Errorf("%v: %v, or it hides its cause", err, Whose(err))
	}
}

func TestFaultOfClosedPool(t *testing.T) {
	pool, err := pgxpool.New(t.Context(), "host=/nonexistent")
	if err != nil {
		t.Fatal(err)
	}
	pool.Close()
	_, err = pool.Exec(t.Context(), "SELECT 1")
	lost, canceled := Lost(fmt.Errorf("acquire: %w", err)), fmt.Errorf("%w: %w", context.Canceled, err)
	for _, err := range []error{err, lost, canceled} {
		if f := Whose(err); f != Closed || f.Passes() || f.Blameless() || !f.Final() {
			t.Errorf("%v: %v, want %v", err, f, Closed)
		}
	}
}

func TestFaultsHaveNames(t *testing.T) {
	for f := None; f <= Discarded; f++ {
		if f.String() == "" {
			t.Errorf("fault %d has no name", f)
		}
	}
	if len(faults) != int(Discarded)+1 {
		t.Errorf("%d names for %d faults", len(faults), Discarded+1)
	}
}

//go:build unix

package pgserver

import (
	"context"
	"errors"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit/notes"
)

// Private returns a server that only this test uses. The server is stopped when the test ends, and
// if the test failed, the end of its log is logged. Private fails the test if the server cannot be
// started.
func Private(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := Start(context.Background(), opts...)
	Required(tb, err)
	tb.Cleanup(func() {
		if tb.Failed() {
			tb.Logf("%s, the end of its log:\n%s", s.Describe(), s.Log())
		}
		if err := s.Stop(); err != nil {
			tb.Errorf("pgserver: stop PostgreSQL: %v", err)
		}
	})
	return s
}

// Required ends a test if there is an error. If the error is that a program is missing, the test
// fails or is skipped as notes.Lacks says.
func Required(tb testing.TB, err error) {
	tb.Helper()
	var lacks NotInstalled
	if errors.As(err, &lacks) {
		notes.Lacks(tb, lacks.Program, err.Error())
	}
	if err != nil {
		tb.Fatal(err)
	}
}

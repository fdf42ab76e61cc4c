//go:build unix

package pgserver

import (
	"context"
	"testing"
)

// Private returns a server that only this test uses. The server is stopped when the test ends, and
// if the test failed, the end of its log is logged. Private fails the test if the server cannot be
// started.
func Private(tb testing.TB, opts ...Option) *Server {
	tb.Helper()
	s, err := Start(context.Background(), opts...)
	if err != nil {
		tb.Fatal(err)
	}
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

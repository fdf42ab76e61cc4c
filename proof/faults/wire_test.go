//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// notifying returns the connection string of a server that sends a notification before every
// answer. It counts the statements, and fails a statement that contains FAIL.
func notifying(t *testing.T, answered *atomic.Int32) string {
	return serverOf(t, func(conn net.Conn) {
		b := pgproto3.NewBackend(conn, conn)
		if _, err := b.ReceiveStartupMessage(); err != nil {
			return
		}
		b.Send(&pgproto3.AuthenticationOk{})
		b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		text := ""
		for b.Flush() == nil {
			m, err := b.Receive()
			if err != nil {
				return
			}
			switch m := m.(type) {
			case *pgproto3.Parse:
				text = m.Query
				continue
			case *pgproto3.Query:
				text = m.String
			case *pgproto3.Sync:
			default:
				continue
			}
			answered.Add(1)
			b.Send(&pgproto3.NotificationResponse{Channel: "c", Payload: fmt.Sprint(answered.Load())})
			if strings.Contains(text, "FAIL") {
				b.Send(&pgproto3.ErrorResponse{Severity: "ERROR", Code: "55P03"})
			} else {
				b.Send(&pgproto3.CommandComplete{CommandTag: []byte("SELECT 1")})
			}
			b.Send(&pgproto3.ReadyForQuery{TxStatus: 'I'})
		}
	})
}

func TestWireBreaksOnlyAtTheStatement(t *testing.T) {
	join := store.StatementsFor("s").Join
	simple := strings.NewReplacer("$1", " 7 ", "$2", " 'l' ", "$3", " 8 ", "$4", " 1 ", "$5", " 83 ").Replace(join)
	for _, test := range []struct {
		kind     Breach
		answered int32 // statements that reach the server
		killed   int
	}{{KillBefore, 4, 1}, {KillAfter, 5, 1}, {CutBefore, 4, 0}, {CutAfter, 5, 0}} {
		for _, extended := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v, extended %v", test.kind, extended), func(t *testing.T) {
				var answered atomic.Int32
				wire := testkit.Must(NewWire(notifying(t, &answered), "s"))(t)
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				config := testkit.Must(pgconn.ParseConfig(wire.URL()))(t)
				var notified atomic.Int32
				config.OnNotification = func(*pgconn.PgConn, *pgconn.Notification) { notified.Add(1) }
				conn := testkit.Must(pgconn.ConnectConfig(ctx, config))(t)
				defer conn.Close(ctx)
				send := func(text string) error {
					if extended {
						return conn.ExecParams(ctx, text, nil, nil, nil, nil).Read().Err
					}
					return conn.Exec(ctx, text).Close()
				}
				text := simple
				if extended {
					text = join
				}
				killed := 0
				done := wire.Arm("join", 2, test.kind, func() { killed++ })
				for _, other := range []string{"SELECT 1", text, store.StatementsFor("other").Join} {
					if err := send(other); err != nil {
						t.Fatalf("%s: %v", other, err)
					}
				}
				// An error does not count as the answer that is lost.
				var failed *pgconn.PgError
				if test.answered == 5 {
					if err := send(text + "FAIL"); !errors.As(err, &failed) || failed.Code != "55P03" {
						t.Fatalf("the server's error came as %v", err)
					}
				} else if err := send("SELECT 2"); err != nil {
					t.Fatal(err)
				}
				if err := send(text); err == nil || errors.As(err, &failed) {
					t.Errorf("the statement that was breached: %v", err)
				}
				select {
				case <-done:
				case <-ctx.Done():
					t.Error("the breach was not reported")
				}
				if answered.Load() != test.answered || killed != test.killed || notified.Load() != 4 {
					t.Errorf("the server answered %d, of which %d came; killed %d times",
						answered.Load(), notified.Load(), killed)
				}
				if err := wire.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestWireRecognizesEveryStatement(t *testing.T) {
	wire := testkit.Must(NewWire("postgres://somebody@127.0.0.1:1/database?sslmode=disable", "s"))(t)
	for name, pieces := range wire.texts {
		for _, value := range []string{" 7 ", "$1", " '{\"a\",\"b\"}' "} {
			if got := wire.recognize(strings.Join(pieces, value)); got != name {
				t.Errorf("%s was taken for %q", name, got)
			}
		}
	}
	if got := wire.recognize("LISTEN s"); got != "" {
		t.Errorf("LISTEN was taken for %q", got)
	}
	if err := wire.Close(); err != nil {
		t.Error(err)
	}
}

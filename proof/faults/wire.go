//go:build unix

package faults

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgproto3"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/schedule/sql"
)

// A Breach is what a Wire does at a statement.
type Breach int

const (
	// KillBefore kills the client before the statement reaches the server.
	KillBefore Breach = iota
	// KillAfter kills the client when the server has answered, before the answer reaches the
	// client.
	KillAfter
	// CutBefore breaks the connection before the statement reaches the server.
	CutBefore
	// CutAfter breaks the connection when the server has answered: the statement was applied, but
	// its answer is lost.
	CutAfter
)

func (b Breach) String() string {
	return [...]string{"killed before", "killed after", "cut before", "answer lost"}[b]
}

// A Wire is a proxy that recognizes the statements of the protocol, and kills the client or breaks
// the connection at one of them. It forwards everything else byte for byte, except that it declines
// TLS, which would hide the statements. All methods are safe for concurrent use.
type Wire struct {
	relay
	texts map[string][]string // by name: the pieces of the statement between its parameters

	// relay.mu guards what follows.
	seen  map[string]int
	armed *breach
	errs  []error
}

// A breach is a requested Breach.
type breach struct {
	statement string
	left      int // it is done at the statement of that name that counts this down to 0
	kind      Breach
	kill      func()
	done      chan time.Time
}

const (
	// OfSchedules is the prefix of the names of package schedule's statements.
	OfSchedules = "schedule/"
	commitRun   = OfSchedules + "commit a run"
)

// Besides has a text of each statement that package schedule has no name for.
var Besides = map[string]string{
	OfSchedules + "begin a run":  "begin isolation level read committed",
	commitRun:                    "commit",
	OfSchedules + "flush a call": "SET LOCAL synchronous_commit = on",
	OfSchedules + "write":        "INSERT INTO ticks (",
	OfSchedules + "channel":      "::pg_catalog.text), pg_catalog.pg_backend_pid()",
	OfSchedules + "listen":       "LISTEN pgleases_notify_",
}

// NewWire returns a wire on a free port of 127.0.0.1, in front of the server that the connection
// string names. It knows the statements for the schema: those of the engine by their files' names,
// and those of package schedule by their names after OfSchedules, including some without a file.
func NewWire(connString, schema string) (*Wire, error) {
	w := &Wire{texts: make(map[string][]string), seen: make(map[string]int)}
	statements := reflect.ValueOf(store.StatementsFor(schema))
	for i := range statements.NumField() {
		// A field has the name of its file.
		w.texts[strings.ToLower(statements.Type().Field(i).Name)] = parameter.Split(statements.Field(i).String(), -1)
	}
	text := store.Texts(sql.Files, schema)
	for _, name := range sql.Statements() {
		w.texts[OfSchedules+name] = parameter.Split(text(name), -1)
	}
	for name, text := range Besides {
		w.texts[name] = []string{text}
	}
	return w, w.listen(connString, w.serve)
}

var parameter = regexp.MustCompile(`\$[0-9]+`)

// Arm requests a breach at the n-th statement with that name from now on. A statement that the
// server answers with an error does not count for KillAfter and CutAfter. kill must kill the client
// and return when it has ended. The channel receives the time of the breach. A later call replaces
// a breach that has not happened yet.
func (w *Wire) Arm(statement string, n int, kind Breach, kill func()) <-chan time.Time {
	b := &breach{statement, n, kind, kill, make(chan time.Time, 1)}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.texts[statement] == nil {
		w.errs = append(w.errs, fmt.Errorf("faults: no statement %q", statement))
	}
	w.armed = b
	return b.done
}

// Disarm cancels a breach that has not happened yet.
func (w *Wire) Disarm() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.armed = nil
}

// Seen returns how many statements with that name have passed.
func (w *Wire) Seen(statement string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.seen[statement]
}

// Close breaks all connections, and returns what the wire did not understand.
func (w *Wire) Close() error {
	w.close()
	return errors.Join(w.errs...)
}

// serve serves one connection.
func (w *Wire) serve(client net.Conn) {
	var startup []byte
	for startup == nil {
		m, err := readMessage(client, 0)
		if err != nil {
			return
		}
		switch code := binary.BigEndian.Uint32(m[4:]); code {
		case sslRequest, gssRequest:
			if _, err := client.Write([]byte{'N'}); err != nil {
				return
			}
		default: // also a cancel request: the server answers by closing the connection
			startup = m
		}
	}
	server, err := net.Dial(w.network, w.address)
	if err != nil || !w.holds(server) {
		return
	}
	defer w.drop(server)
	if _, err := server.Write(startup); err != nil {
		return
	}
	l := &link{wire: w, client: client, server: server, asked: 1} // the startup ends with ReadyForQuery too
	w.wait.Go(func() {
		l.down()
		l.cut()
	})
	l.up()
	l.cut()
}

const (
	sslRequest = 80877103
	gssRequest = 80877104
	// No message of these tests comes near this size; a longer message is an error.
	maxMessage = 1 << 26
)

// readMessage reads one message. kind is the size of its type field: 0 before the startup, then 1.
func readMessage(r io.Reader, kind int) ([]byte, error) {
	head := make([]byte, kind+4)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(head[kind:]))
	if n < 4 || n > maxMessage || kind == 0 && n < 8 {
		return nil, fmt.Errorf("faults: a message of %d bytes", n)
	}
	m := slices.Grow(head, n-4)[:kind+n]
	_, err := io.ReadFull(r, m[kind+4:])
	return m, err
}

// A link is one connection of a client through the wire.
type link struct {
	wire           *Wire
	client, server net.Conn

	// mu guards what follows.
	mu    sync.Mutex
	asked int     // the number of ReadyForQuery to expect in all
	ready int     // the number of ReadyForQuery that have arrived
	held  *breach // the breach to do when at answers have arrived; nil: no breach
	at    int
}

func (l *link) cut() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// up forwards the client's messages.
func (l *link) up() {
	r := bufio.NewReader(l.client)
	for {
		m, err := readMessage(r, 1)
		if err != nil {
			return
		}
		text := ""
		switch m[0] {
		case 'Q':
			var q pgproto3.Query
			err = q.Decode(m[5:])
			text = q.String
		case 'P':
			var p pgproto3.Parse
			err = p.Decode(m[5:])
			text = p.Query
		}
		if err != nil {
			l.wire.misunderstood(err)
			return
		}
		if text != "" {
			if b := l.wire.due(text); b != nil {
				if b.kind == KillBefore || b.kind == CutBefore {
					l.do(b)
					return
				}
				l.mu.Lock()
				l.held, l.at = b, l.asked+1
				l.mu.Unlock()
			}
		}
		switch m[0] {
		case 'Q', 'S', 'F': // the server answers each with a ReadyForQuery
			l.mu.Lock()
			l.asked++
			l.mu.Unlock()
		}
		if _, err := l.server.Write(m); err != nil {
			return
		}
	}
}

// down forwards the server's messages, but holds back the answer to a statement with a breach.
func (l *link) down() {
	r := bufio.NewReader(l.server)
	var kept []byte
	failed := false
	for {
		m, err := readMessage(r, 1)
		if err != nil {
			return
		}
		l.mu.Lock()
		held := l.held
		if held != nil && l.ready < l.at-1 {
			held = nil // an answer to an earlier statement
		}
		if m[0] == 'Z' {
			l.ready++
			if held != nil {
				l.held = nil
			}
		}
		l.mu.Unlock()
		if held != nil {
			kept = append(kept, m...)
			failed = failed || m[0] == 'E'
			if m[0] != 'Z' {
				continue
			}
			if !failed {
				l.do(held)
				return
			}
			l.wire.again(held)
			m, kept = kept, nil
			failed = false
		}
		if _, err := l.client.Write(m); err != nil {
			return
		}
	}
}

// do does the breach.
func (l *link) do(b *breach) {
	if b.kind == KillBefore || b.kind == KillAfter {
		b.kill()
	}
	l.cut()
	b.done <- time.Now()
}

// due counts a statement, and returns its breach, if any.
func (w *Wire) due(text string) *breach {
	name := w.recognize(text)
	if name == "" {
		return nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen[name]++
	b := w.armed
	if b == nil || b.statement != name {
		return nil
	}
	b.left--
	if b.left > 0 {
		return nil
	}
	w.armed = nil
	return b
}

// again arms a breach whose statement failed, unless another breach is armed by now.
func (w *Wire) again(b *breach) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.armed == nil {
		b.left = 1
		w.armed = b
	}
}

func (w *Wire) misunderstood(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.errs = append(w.errs, err)
}

// recognize returns the name of a statement by its text, with parameters or, in the simple
// protocol, with values in their places. The statement may be anywhere in the text. It returns ""
// for a statement that is not part of the protocol.
func (w *Wire) recognize(text string) string {
	if text == Besides[commitRun] {
		return commitRun
	}
	var names []string
	for name, pieces := range w.texts {
		if name == commitRun { // other statements contain this word too
			continue
		}
		rest, found := text, true
		for _, piece := range pieces {
			_, rest, found = strings.Cut(rest, piece)
			if !found {
				break
			}
		}
		if found {
			names = append(names, name)
		}
	}
	if len(names) > 1 {
		w.misunderstood(fmt.Errorf("faults: statements %v are ambiguous", names))
	}
	if len(names) == 0 {
		return ""
	}
	return names[0]
}

package pgtest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

// A relay is between the tests of this process and a server that trusts all connections. It keeps a
// session whose client has ended for the next client of that database, in the same test or another:
// a new session, and its first plans, cost the server more than most tests do afterwards.
type relay struct {
	listener net.Listener
	server   string // its host and port

	mu       sync.Mutex
	sessions map[*session]bool // those that live
	changed  map[string]bool   // databases where a client has sent one of the definitions
}

// definitions are words of statements that change more than rows, in upper or lower case.
var definitions = func() (all [][]byte) {
	for word := range strings.FieldsSeq("CREATE ALTER DROP GRANT REVOKE ANALYZE COMMENT EXECUTE") {
		all = append(all, []byte(word), []byte(strings.ToLower(word)))
	}
	return all
}()

// defines reports whether a client's message may have such a statement.
func defines(message []byte) bool {
	kind := message[0]
	if kind != 'Q' && kind != 'P' {
		return false
	}
	return slices.ContainsFunc(definitions, func(d []byte) bool { return bytes.Contains(message, d) })
}

// defined reports whether such a statement may have been sent to a database since the last call.
// Finding out what it changed takes longer than restoring the rows.
func (r *relay) defined(database string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	defer delete(r.changed, database)
	return r.changed[database]
}

// Goroutines are the functions that run as goroutines of a relay.
var Goroutines = []string{relayName + "(*relay).accept", relayName + "(*relay).serve", relayName + "(*session).answer"}

const relayName = "github.com/pgleases/pgleases/internal/pgtest."

func newRelay(server string) (*relay, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	r := &relay{listener: listener, server: server, sessions: make(map[*session]bool), changed: make(map[string]bool)}
	go r.accept()
	return r, nil
}

func (r *relay) accept() {
	for {
		client, err := r.listener.Accept()
		if err != nil {
			return
		}
		go r.serve(client)
	}
}

// close ends all sessions.
func (r *relay) close() {
	r.listener.Close()
	for _, s := range r.of("") {
		s.end()
	}
}

// of returns the sessions of a database; "": all sessions.
func (r *relay) of(database string) (found []*session) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for s := range r.sessions {
		if database == "" || s.database == database {
			found = append(found, s)
		}
	}
	return found
}

// rest ends the sessions of a database whose clients do not end, and returns the server processes
// of the others.
func (r *relay) rest(database string) (pids []string) {
	for looks := 0; ; looks++ { // not a time limit: a busy machine takes long to end a session properly
		pids = nil
		sessions := r.of(database)
		for _, s := range sessions {
			s.mu.Lock()
			kept, pid := s.kept, s.pid
			s.mu.Unlock()
			if kept {
				pids = append(pids, fmt.Sprint(pid))
			} else if looks > 200 {
				s.end()
			}
		}
		if len(pids) == len(sessions) {
			return pids
		}
		time.Sleep(time.Millisecond)
	}
}

// Codes of a first message.
const (
	codeCancel = 80877102
	codeTLS    = 80877103
	codeGSS    = 80877104
)

// serve serves a client, until it or its session ends.
func (r *relay) serve(client net.Conn) {
	defer client.Close()
	in := bufio.NewReader(client)
	var first []byte
	for {
		var err error
		first, err = readMessage(in, 0)
		if err != nil || len(first) < 8 {
			return
		}
		code := binary.BigEndian.Uint32(first[4:])
		if code != codeTLS && code != codeGSS {
			break
		}
		_, _ = client.Write([]byte{'N'}) // an error: the next read has it too
	}
	if binary.BigEndian.Uint32(first[4:]) == codeCancel {
		if server, err := net.Dial("tcp", r.server); err == nil {
			defer server.Close()
			_, _ = server.Write(first)
			_, _ = io.Copy(client, server)
		}
		return
	}
	if s := r.session(string(first), client); s != nil {
		s.serve(in)
	}
}

// session returns a session for a client: a kept one, or a new one; nil: the server cannot be
// reached.
func (r *relay) session(startup string, client net.Conn) *session {
	settings := make(map[string]string)
	for words := strings.Split(startup[8:], "\x00"); len(words) > 1; words = words[2:] {
		settings[words[0]] = words[1]
	}
	database, name := settings["database"], settings["application_name"]
	delete(settings, "application_name") // tests give each client its own
	for _, s := range r.of(database) {
		if maps.Equal(s.settings, settings) && s.greet(client, name) {
			return s
		}
	}
	server, err := net.Dial("tcp", r.server)
	if err != nil {
		return nil
	}
	s := &session{relay: r, server: server, settings: settings, database: database, client: client, pending: 1}
	s.quiet.L = &s.mu
	r.mu.Lock()
	r.sessions[s] = true
	r.mu.Unlock()
	go s.answer()
	_, _ = io.WriteString(server, startup) // an error ends the session
	return s
}

// A session is a session of the server.
type session struct {
	relay    *relay
	server   net.Conn
	settings map[string]string // in the first message, except the name
	database string
	pid      uint32 // the server process
	greeting []byte // the server's answer to the first message

	mu      sync.Mutex
	client  net.Conn // nil: there is no client
	pending int      // messages that the server has not answered completely
	open    bool     // the client has begun a message sequence that needs a further message to end
	status  byte     // the server's last status: I, T or E
	failed  bool     // a statement of ours failed
	ended   bool
	quiet   sync.Cond // pending is 0, or the session has ended
	kept    bool      // for the next client
}

// end ends the session, and its client's connection.
func (s *session) end() {
	s.server.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.client != nil {
		s.client.Close()
	}
	s.ended = true
	s.quiet.Broadcast()
	s.relay.mu.Lock()
	defer s.relay.mu.Unlock()
	delete(s.relay.sessions, s)
}

// answer forwards the server's messages until the session ends.
func (s *session) answer() {
	defer s.end()
	in := bufio.NewReader(s.server)
	var out bytes.Buffer
	for greeted := false; ; {
		message, err := readMessage(in, 1)
		if err != nil {
			return
		}
		if !greeted {
			s.greeting = append(s.greeting, message...)
		}
		s.mu.Lock()
		switch message[0] {
		case 'K':
			s.pid = binary.BigEndian.Uint32(message[5:])
		case 'E':
			s.failed = true
		case 'Z':
			greeted = true
			s.status = message[5]
			s.pending--
			if s.pending == 0 {
				s.quiet.Broadcast()
			}
		}
		client := s.client
		s.mu.Unlock()
		out.Write(message)
		if in.Buffered() > 0 && out.Len() < 1<<16 {
			continue
		}
		if client != nil {
			if _, err := client.Write(out.Bytes()); err != nil {
				return
			}
		}
		out.Reset()
	}
}

// greet takes the session for a client, if it is kept.
func (s *session) greet(client net.Conn, name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.kept || s.ended {
		return false
	}
	s.kept = false
	if !s.ask("SET application_name = '" + strings.ReplaceAll(name, "'", "''") + "'" + asDefault) {
		return false
	}
	s.client = client
	_, _ = client.Write(s.greeting)
	return true
}

// serve forwards a client's messages until the client ends.
func (s *session) serve(in *bufio.Reader) {
	var out bytes.Buffer
	for {
		message, err := readMessage(in, 1)
		if err != nil {
			s.end()
			return
		}
		if defines(message) {
			s.relay.mu.Lock()
			s.relay.changed[s.database] = true
			s.relay.mu.Unlock()
		}
		if message[0] == 'X' && s.keep() {
			return // otherwise the server ends the session when it is idle, or when the client's connection is closed
		}
		s.mu.Lock()
		switch message[0] {
		case 'Q', 'S', 'F':
			s.pending++
			s.open = false
		case 'd', 'c', 'f', 'X':
		default:
			s.open = true
		}
		s.mu.Unlock()
		out.Write(message)
		if in.Buffered() > 0 && out.Len() < 1<<16 {
			continue
		}
		if _, err := s.server.Write(out.Bytes()); err != nil {
			s.end()
			return
		}
		out.Reset()
	}
}

// asDefault fails if a new session would have other settings than the server's.
const asDefault = `; SELECT 1 / (count(*) = 0)::int FROM pg_catalog.pg_db_role_setting AS s
	WHERE s.setdatabase IN (0, (SELECT d.oid FROM pg_catalog.pg_database AS d WHERE d.datname = current_database()))
	AND s.setrole IN (0, current_user::regrole)`

// asNew undoes what a client has done to its session, except its plans, because the session is kept
// for them.
const asNew = `SET SESSION AUTHORIZATION DEFAULT; RESET ALL; DEALLOCATE ALL; CLOSE ALL; UNLISTEN *; DISCARD SEQUENCES;
	SELECT pg_catalog.pg_advisory_unlock_all(); SET application_name = 'kept by pgtest'`

// keep keeps the session when its client has ended it, and reports whether it could.
func (s *session) keep() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.open || s.pending != 0 || s.status != 'I' || s.ended {
		return false
	}
	s.client = nil
	s.kept = s.ask(asNew)
	return s.kept
}

// ask makes the server execute statements of ours, and reports whether it did. The caller holds mu;
// there is no client.
func (s *session) ask(statements string) bool {
	message := append([]byte{'Q', 0, 0, 0, 0}, statements+"\x00"...)
	binary.BigEndian.PutUint32(message[1:], uint32(len(message)-1))
	s.failed, s.pending = false, 1
	_, err := s.server.Write(message)
	for err == nil && s.pending > 0 && !s.ended {
		s.quiet.Wait()
	}
	return err == nil && !s.failed && !s.ended
}

// readMessage reads a message, whose length follows after the given number of bytes.
func readMessage(in *bufio.Reader, before int) ([]byte, error) {
	head, err := in.Peek(before + 4)
	if err != nil {
		return nil, err
	}
	length := binary.BigEndian.Uint32(head[before:])
	if length < 4 || length > 1<<30 {
		return nil, errors.New("not a message")
	}
	message := make([]byte, before+int(length))
	_, err = io.ReadFull(in, message)
	return message, err
}

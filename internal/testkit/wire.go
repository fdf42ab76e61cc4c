package testkit

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// A Wire carries connections to a server. It can be cut, and lose or delay single messages. It
// recognizes a message by a text in it.
type Wire struct {
	ReadBuffer int // the number of bytes that arrive before they are read; 0: the system's default

	mu      sync.Mutex // guards the fields below, and trips and asked of connections
	cut     bool
	conns   []*wired
	next    instruction
	counts  string // the text that is counted; empty: count all messages
	counted int
	records bool
	delayed atomic.Int32 // answers that have arrived, and are not delivered yet
}

// An instruction says how messages with a text are handled.
type instruction struct {
	left  int // the number of such messages to come
	text  string
	meet  func(c *wired, message []byte) (send bool)
	first string // the text of a message that comes before, on the same connection; empty: none
	on    *wired // that connection; nil: any
}

// Carry makes the connections of a pool go over the wire, with statements that it recognizes by
// their text.
func (w *Wire) Carry(config *pgxpool.Config) {
	config.ConnConfig.DialFunc, config.ConnConfig.DefaultQueryExecMode = w.Dial, pgx.QueryExecModeExec
}

// Dial connects to a server, unless the wire is cut.
func (w *Wire) Dial(ctx context.Context, network, address string) (net.Conn, error) {
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	tcp, is := conn.(*net.TCPConn)
	if is && w.ReadBuffer > 0 {
		_ = tcp.SetReadBuffer(w.ReadBuffer)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.cut {
		_ = conn.Close()
		return nil, errors.New("the wire is cut")
	}
	c := &wired{Conn: conn, wire: w}
	c.void, c.never = net.Pipe()
	w.conns = append(w.conns, c)
	return c, nil
}

// Cut closes all connections, and refuses new ones.
func (w *Wire) Cut() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = true
	for _, c := range w.conns {
		_ = c.void.Close()
		_ = c.Conn.Close()
	}
}

// Mend allows new connections again.
func (w *Wire) Mend() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.cut = false
}

// Lose loses the next messages with a text, each with its connection. With after it loses the
// answers instead.
func (w *Wire) Lose(times int, text string, after bool) {
	if after {
		w.meets(times, text, loseAnswer)
		return
	}
	w.meets(times, text, func(c *wired, _ []byte) bool {
		_ = c.Conn.Close()
		return false
	})
}

// LoseAfter loses the answer to the next message with a text, with its connection, once that
// connection has sent the text first in another message.
func (w *Wire) LoseAfter(first, text string) {
	w.instruct(instruction{left: 1, text: text, meet: loseAnswer, first: first})
}

func loseAnswer(c *wired, _ []byte) bool {
	c.state.Store(deaf)
	return true
}

// Mute loses the next message with a text. Its connection stays, and transfers no more data in
// either direction, nor the news that the server has ended it.
func (w *Wire) Mute(text string) { w.meets(1, text, loseAll) }

// MuteEach is Mute for each message with a text from now on.
func (w *Wire) MuteEach(text string) { w.meets(math.MaxInt, text, loseAll) }

func loseAll(c *wired, _ []byte) bool {
	c.state.Store(mute)
	return false
}

// Silence mutes all connections that are open. Unlike after Mute, who gives one up has to wait until
// pgx does not expect any longer that the server ends it.
func (w *Wire) Silence() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.state.Store(silent)
	}
}

// Before calls a function before the next message with a text is sent.
func (w *Wire) Before(text string, do func()) {
	w.meets(1, text, func(*wired, []byte) bool {
		do()
		return true
	})
}

// Delay delays the answer to the next message with a text until deliver is called.
func (w *Wire) Delay(text string) (deliver func()) {
	late := make(chan struct{})
	w.meets(1, text, func(c *wired, _ []byte) bool {
		c.late.Store(&late)
		return true
	})
	return sync.OnceFunc(func() { close(late) })
}

// LoseLate loses the answer to the next message with a text, with its connection, when lose is
// called.
func (w *Wire) LoseLate(text string) (lose func()) {
	late := make(chan struct{})
	w.meets(1, text, func(c *wired, _ []byte) bool {
		c.late.Store(&late)
		c.state.Store(deaf)
		return true
	})
	return sync.OnceFunc(func() { close(late) })
}

// Delayed reports whether an answer has arrived that is not delivered yet.
func (w *Wire) Delayed() bool { return w.delayed.Load() > 0 }

// Strand delays the next message with a text until deliver is called, which returns when the answer
// contains the text answered. For its sender the connection is lost at once.
func (w *Wire) Strand(text, answered string) (deliver func() error) {
	arrive := make(chan func() error, 1)
	w.meets(1, text, func(c *wired, message []byte) bool {
		c.state.Store(stranded)
		message = bytes.Clone(message)
		arrive <- func() (err error) {
			defer c.Conn.Close()
			_ = c.Conn.SetDeadline(time.Now().Add(Patience))
			answer, n := make([]byte, 1<<10), 0
			// Until the sender's attempt to cancel it has passed.
			for err == nil && !bytes.Contains(answer[:n], []byte(answered)) {
				_, err = c.Conn.Write(message)
				if err == nil {
					n, err = c.Conn.Read(answer)
				}
			}
			if err != nil {
				return fmt.Errorf("no answer with %q: %w", answered, err)
			}
			return nil
		}
		return false
	})
	return sync.OnceValue(func() error {
		select {
		case f := <-arrive:
			return f()
		default:
			return fmt.Errorf("no message with %q", text)
		}
	})
}

func (w *Wire) meets(times int, text string, meet func(*wired, []byte) bool) {
	w.instruct(instruction{left: times, text: text, meet: meet})
}

func (w *Wire) instruct(next instruction) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.next = next
}

// Left returns the number of messages that the last instruction still applies to.
func (w *Wire) Left() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.next.left
}

// Count begins to count how often a text is sent.
func (w *Wire) Count(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts, w.counted = text, 0
}

// Counted returns how often the text was sent since then. Without Count, it returns the number of
// all messages, or of parts of large ones.
func (w *Wire) Counted() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.counted
}

// Record begins to record round trips.
func (w *Wire) Record() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.records = true
	for _, c := range w.conns {
		c.trips, c.asked = nil, false
	}
}

// Recorded returns what was sent in each round trip since Record, for each connection that sent the
// text.
func (w *Wire) Recorded(text string) (of [][]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		if slices.ContainsFunc(c.trips, func(sent string) bool { return strings.Contains(sent, text) }) {
			of = append(of, c.trips)
		}
	}
	return of
}

// sent notes a message, and returns the function that handles it, or nil.
func (w *Wire) sent(c *wired, message []byte) func(*wired, []byte) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.counts == "" {
		w.counted++
	} else {
		w.counted += bytes.Count(message, []byte(w.counts))
	}
	if w.records {
		if !c.asked {
			c.trips = append(c.trips, "")
		}
		c.asked = true
		c.trips[len(c.trips)-1] += string(message)
	}
	next := &w.next
	switch {
	case next.left == 0:
		return nil
	case next.first != "" && next.on == nil:
		if bytes.Contains(message, []byte(next.first)) {
			next.on = c
		}
		return nil
	case next.on != nil && next.on != c || !bytes.Contains(message, []byte(next.text)):
		return nil
	}
	next.left--
	return next.meet
}

// States of a connection.
const (
	deaf     = iota + 1 // the next answer is lost
	mute                // nothing arrives, until the statement is given up
	silent              // nothing arrives, and the connection never ends
	stranded            // the sender has lost the connection, and a message is on its way
)

type wired struct {
	net.Conn
	wire  *Wire
	state atomic.Int32
	// A mute or silent connection reads from the void, whose other end never writes.
	void, never net.Conn

	late  atomic.Pointer[chan struct{}] // the next answer is delayed until it is closed
	trips []string
	asked bool // a message was sent and not answered
}

// Close does not close a connection that a message is still on its way on.
func (c *wired) Close() error {
	if c.state.Load() == stranded {
		return nil
	}
	_ = c.void.Close()
	return c.Conn.Close()
}

// SetDeadline is that of a net.Conn, also for the void.
func (c *wired) SetDeadline(at time.Time) error {
	_ = c.void.SetReadDeadline(at)
	return c.Conn.SetDeadline(at)
}

// SetReadDeadline is that of a net.Conn, also for the void.
func (c *wired) SetReadDeadline(at time.Time) error {
	_ = c.void.SetReadDeadline(at)
	return c.Conn.SetReadDeadline(at)
}

func (c *wired) Write(b []byte) (int, error) {
	switch c.state.Load() {
	case mute, silent:
		return len(b), nil
	case stranded: // the message that ends the connection
		return 0, net.ErrClosed
	}
	meet := c.wire.sent(c, b)
	if meet != nil && !meet(c, b) {
		return len(b), nil
	}
	return c.Conn.Write(b)
}

func (c *wired) Read(b []byte) (int, error) {
	if c.state.Load() == stranded {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.read(b)
	c.wire.mu.Lock()
	c.asked = c.asked && n == 0
	c.wire.mu.Unlock()
	if late := c.late.Swap(nil); late != nil {
		c.wire.delayed.Add(1)
		<-*late
		c.wire.delayed.Add(-1)
	}
	switch state := c.state.Load(); {
	case state == deaf: // the server has executed it
		_ = c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	case state == mute && err != nil:
		// The statement was given up. Otherwise its user would wait for the server to end the connection.
		_ = c.Close()
	}
	return n, err
}

// read reads what the state of the connection lets arrive.
func (c *wired) read(b []byte) (int, error) {
	says := func() bool { state := c.state.Load(); return state != mute && state != silent }
	if says() {
		n, err := c.Conn.Read(b)
		if says() {
			return n, err
		}
	}
	return c.void.Read(b)
}

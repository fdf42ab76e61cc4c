//go:build unix

package faults

import (
	"math/rand/v2"
	"net"
	"time"
)

// A Proxy is a way to a database that can be frozen, slowed and cut. All methods are safe for
// concurrent use, and take effect at once, whatever the connections do.
type Proxy struct {
	relay

	// relay.mu guards what follows.
	loses   [2]bool // by direction
	resets  bool
	delay   time.Duration
	era     int           // how often the network took another way
	changed chan struct{} // closed at the next change of the above
}

// The directions through a proxy.
const (
	requests = iota
	answers
)

// NewProxy creates a proxy on a free port of 127.0.0.1, in front of the server that the connection
// string names.
func NewProxy(connString string) (*Proxy, error) {
	p := &Proxy{changed: make(chan struct{})}
	return p, p.listen(connString, p.serve)
}

// Close breaks all connections, and ends the proxy.
func (p *Proxy) Close() {
	p.Thaw() // so that no bytes wait
	p.close()
}

// Freeze drops all bytes in both directions, without an error to either side.
func (p *Proxy) Freeze() { p.change(func() { p.loses = [2]bool{true, true} }) }

// LoseRequests drops all bytes from the client.
func (p *Proxy) LoseRequests() { p.change(func() { p.loses[requests] = true }) }

// LoseAnswers drops all bytes from the server: statements are executed, but their answers do not
// arrive.
func (p *Proxy) LoseAnswers() { p.change(func() { p.loses[answers] = true }) }

// Reset resets the connections, and each new connection too.
func (p *Proxy) Reset() {
	p.change(func() {
		p.resets = true
		for c := range p.open {
			willReset(c) // each before any is closed, because its end closes the other side
		}
		p.breakAll()
	})
}

// Slow delays every packet in both directions by delay, plus or minus half of it.
func (p *Proxy) Slow(delay time.Duration) { p.change(func() { p.delay = delay }) }

// Thaw ends the effect of the methods above. It breaks all connections if bytes were lost.
func (p *Proxy) Thaw() {
	p.change(func() {
		if p.loses[requests] || p.loses[answers] {
			p.breakAll()
		}
		p.loses, p.resets = [2]bool{}, false
		p.delay = 0
	})
}

// Reroute ends the effect of Freeze for new connections. Those that there are get no bytes any more,
// and do not end, as if their server had vanished.
func (p *Proxy) Reroute() {
	p.change(func() {
		p.loses = [2]bool{}
		p.era++
	})
}

// Cut breaks all connections. New connections succeed at once.
func (p *Proxy) Cut() { p.change(p.breakAll) }

func (p *Proxy) change(do func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	do()
	close(p.changed)
	p.changed = make(chan struct{})
}

// willReset makes the connection's Close a reset.
func willReset(c net.Conn) {
	if tcp, ok := c.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0) // an error means that it has ended
	}
}

// serve serves one connection.
func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	resets, era := p.resets, p.era
	p.mu.Unlock()
	if resets {
		willReset(client)
		return
	}
	server, err := net.DialTimeout(p.network, p.address, 10*time.Second)
	if err != nil || !p.holds(server) {
		return
	}
	p.wait.Go(func() { p.forward(server, client, answers, era) })
	p.forward(client, server, requests, era)
}

// A packet is what one read returned.
type packet struct {
	bytes   []byte
	arrived time.Time
}

// forward forwards one direction of a connection of an era until from ends, and then closes to.
func (p *Proxy) forward(from, to net.Conn, direction, era int) {
	defer p.drop(to)
	packets := make(chan packet, 1024)
	p.wait.Go(func() {
		defer close(packets)
		for {
			bytes := make([]byte, 8<<10)
			n, err := from.Read(bytes)
			if n > 0 {
				packets <- packet{bytes[:n], time.Now()}
			}
			if err != nil {
				return
			}
		}
	})
	for packet := range packets {
		if p.lost(packet, direction, era) {
			continue
		}
		if _, err := to.Write(packet.bytes); err != nil {
			p.drop(to) // this ends the other direction, which then ends this one
		}
	}
}

// lost delays a packet, and reports whether the proxy drops it.
func (p *Proxy) lost(packet packet, direction, era int) bool {
	share := 0.5 + rand.Float64()
	for {
		p.mu.Lock()
		lost := p.loses[direction] || era != p.era
		delay, changed := p.delay, p.changed
		p.mu.Unlock()
		rest := time.Until(packet.arrived.Add(time.Duration(share * float64(delay))))
		if lost || rest <= 0 {
			return lost
		}
		select {
		case <-time.After(rest):
		case <-changed:
		}
	}
}

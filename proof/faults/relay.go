//go:build unix

package faults

import (
	"errors"
	"net"
	"net/url"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// A relay listens on a free port of 127.0.0.1, in front of a server.
type relay struct {
	url              string
	network, address string // of the server
	listener         net.Listener
	wait             sync.WaitGroup

	// mu guards what follows.
	mu     sync.Mutex
	open   map[net.Conn]struct{}
	closed bool
}

// listen starts the relay in front of the server that the connection string names. It calls serve
// for each connection of a client, and then closes the connection.
func (r *relay) listen(connString string, serve func(client net.Conn)) error {
	config, err := pgx.ParseConfig(connString)
	if err != nil {
		return err
	}
	r.open = make(map[net.Conn]struct{})
	r.network, r.address = pgconn.NetworkAddress(config.Host, config.Port)
	r.listener, err = net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	r.url, err = at(connString, r.listener.Addr().String())
	if err != nil {
		return errors.Join(err, r.listener.Close())
	}
	r.wait.Go(func() {
		for {
			client, err := r.listener.Accept()
			if err != nil {
				return
			}
			if r.holds(client) {
				r.wait.Go(func() {
					defer r.drop(client)
					serve(client)
				})
			}
		}
	})
	return nil
}

// at returns the connection string, a URL or keywords and values, with another address.
func at(connString, address string) (string, error) {
	if strings.HasPrefix(connString, "postgres://") || strings.HasPrefix(connString, "postgresql://") {
		u, err := url.Parse(connString)
		if err != nil {
			return "", err
		}
		u.Host = address
		query := u.Query()
		query.Del("host") // parameters override the host of the URL
		query.Del("port")
		u.RawQuery = query.Encode()
		return u.String(), nil
	}
	host, port, err := net.SplitHostPort(address)
	return connString + " host=" + host + " port=" + port, err // the last value of a keyword counts
}

// URL is the connection string of the same database through the relay.
func (r *relay) URL() string { return r.url }

// close breaks all connections, and waits until the relay has ended.
func (r *relay) close() {
	r.mu.Lock()
	r.closed = true
	_ = r.listener.Close()
	r.breakAll()
	r.mu.Unlock()
	r.wait.Wait()
}

// breakAll breaks all connections. The caller holds mu.
func (r *relay) breakAll() {
	for c := range r.open {
		_ = c.Close()
	}
}

// holds registers a connection, so that close closes it. It returns false if the relay is closed
// already.
func (r *relay) holds(c net.Conn) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		_ = c.Close()
		return false
	}
	r.open[c] = struct{}{}
	return true
}

func (r *relay) drop(c net.Conn) {
	_ = c.Close()
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.open, c)
}

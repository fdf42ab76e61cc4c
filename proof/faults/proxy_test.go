//go:build unix

package faults

import (
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

// newProxy returns a proxy in front of an echo server.
func newProxy(t *testing.T) *Proxy {
	t.Helper()
	return proxyTo(t, echo(t))
}

func proxyTo(t *testing.T, connString string) *Proxy {
	t.Helper()
	proxy := testkit.Must(NewProxy(connString))(t)
	t.Cleanup(proxy.Close)
	return proxy
}

// echo returns the connection string of a server that sends back whatever it receives.
func echo(t *testing.T) string {
	return serverOf(t, func(conn net.Conn) { _, _ = io.Copy(conn, conn) })
}

// serverOf returns the connection string of a server that calls serve for each connection, and then
// closes it.
func serverOf(t *testing.T, serve func(net.Conn)) string {
	t.Helper()
	l := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				serve(conn)
			}()
		}
	}()
	return "postgres://somebody@" + l.Addr().String() + "/database?sslmode=prefer"
}

func dial(t *testing.T, proxy *Proxy) net.Conn {
	t.Helper()
	u := testkit.Must(url.Parse(proxy.URL()))(t)
	conn := testkit.Must(net.Dial("tcp", u.Host))(t)
	t.Cleanup(func() { conn.Close() })
	return conn
}

// passes reports whether sent bytes come back within a time. The error means that the connection
// has ended.
func passes(conn net.Conn, within time.Duration) (bool, error) {
	if _, err := conn.Write([]byte("x")); err != nil {
		return false, err
	}
	_ = conn.SetReadDeadline(time.Now().Add(within))
	_, err := conn.Read(make([]byte, 1))
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil, err
}

// connected returns a connection through which bytes pass.
func connected(t *testing.T, proxy *Proxy) net.Conn {
	t.Helper()
	conn := dial(t, proxy)
	if ok, err := passes(conn, 5*time.Second); !ok || err != nil {
		t.Fatalf("nothing passes: %v", err)
	}
	return conn
}

func TestAFrozenProxyKeepsConnectionsAndLetsNothingPass(t *testing.T) {
	proxy := newProxy(t)
	before := connected(t, proxy)
	proxy.Freeze()
	during := dial(t, proxy)
	for _, conn := range []net.Conn{before, during} {
		if ok, err := passes(conn, 100*time.Millisecond); ok || err != nil {
			t.Errorf("frozen, but passes %v, %v", ok, err)
		}
	}
	proxy.Thaw()
	if ok, err := passes(before, 5*time.Second); ok || err == nil {
		t.Error("a connection that lost bytes goes on")
	}
	if ok, err := passes(dial(t, proxy), 5*time.Second); !ok || err != nil {
		t.Errorf("thawed, but nothing passes: %v", err)
	}
}

func TestASlowProxyDelaysBothWays(t *testing.T) {
	proxy := newProxy(t)
	conn := dial(t, proxy)
	proxy.Slow(100 * time.Millisecond)
	began := time.Now()
	// At least half of the delay in each direction.
	if ok, err := passes(conn, 5*time.Second); !ok || err != nil || time.Since(began) < 100*time.Millisecond {
		t.Errorf("passes %v, %v after %v", ok, err, time.Since(began))
	}
	const text = "in this order"
	for _, c := range []byte(text) {
		_, _ = conn.Write([]byte{c}) // an error: the read has it too
	}
	proxy.Thaw()
	_ = conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	came := make([]byte, len(text))
	if _, err := io.ReadFull(conn, came); err != nil || string(came) != text {
		t.Errorf("the connection did not survive: %q, %v", came, err)
	}
}

func TestAProxyLosesOneDirection(t *testing.T) {
	for _, test := range []struct {
		lose    func(*Proxy)
		arrives bool
	}{{(*Proxy).LoseRequests, false}, {(*Proxy).LoseAnswers, true}} {
		arrived, served := make(chan byte, 2), make(chan struct{})
		proxy := proxyTo(t, serverOf(t, func(conn net.Conn) {
			defer close(served)
			for b := make([]byte, 1); ; arrived <- b[0] {
				if _, err := conn.Read(b); err != nil {
					return
				}
				_, _ = conn.Write(b) // an error: the next read has it too
			}
		}))
		conn := dial(t, proxy)
		if ok, err := passes(conn, 5*time.Second); !ok || err != nil {
			t.Fatalf("nothing passes: %v", err)
		}
		<-arrived
		test.lose(proxy)
		if ok, err := passes(conn, 100*time.Millisecond); ok || err != nil {
			t.Errorf("passes %v, %v", ok, err)
		}
		if test.arrives {
			<-arrived
		}
		proxy.Close()
		<-served
		if len(arrived) > 0 {
			t.Error("the server received a request")
		}
	}
}

func TestAProxyResetsConnections(t *testing.T) {
	proxy := newProxy(t)
	before := connected(t, proxy)
	proxy.Reset()
	if _, err := before.Read(make([]byte, 1)); !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset, but %v", err)
	}
	during, err := net.Dial("tcp", proxy.listener.Addr().String())
	if err == nil {
		defer during.Close()
		_, err = during.Read(make([]byte, 1))
	}
	if !errors.Is(err, syscall.ECONNRESET) {
		t.Errorf("reset, but %v", err)
	}
	proxy.Thaw()
	if ok, err := passes(dial(t, proxy), 5*time.Second); !ok || err != nil {
		t.Errorf("thawed, but nothing passes: %v", err)
	}
}

func TestACutProxyBreaksConnectionsAndTakesNewOnes(t *testing.T) {
	proxy := newProxy(t)
	conn := connected(t, proxy)
	address := proxy.URL()
	proxy.Cut()
	if ok, err := passes(conn, 5*time.Second); ok || err == nil {
		t.Error("a connection outlived the cut")
	}
	if proxy.URL() != address {
		t.Errorf("%s became %s", address, proxy.URL())
	}
	if ok, err := passes(dial(t, proxy), 5*time.Second); !ok || err != nil {
		t.Errorf("nothing passes after the cut: %v", err)
	}
}

func TestAddressIsReplacedInAnyConnectionString(t *testing.T) {
	for connString, want := range map[string]string{
		"postgres://u:p@db.example:5432/d?sslmode=disable": "postgres://u:p@127.0.0.1:9/d?sslmode=disable",
		"postgres:///d?host=db.example&port=5432":          "postgres://127.0.0.1:9/d",
		"host=db.example port=5432 dbname=d":               "host=db.example port=5432 dbname=d host=127.0.0.1 port=9",
	} {
		if got, err := at(connString, "127.0.0.1:9"); err != nil || got != want {
			t.Errorf("%s: %s, %v", connString, got, err)
		}
	}
}

func TestReroutedProxyLeavesOldConnectionsSilent(t *testing.T) {
	proxy := newProxy(t)
	before := connected(t, proxy)
	proxy.Freeze()
	during := dial(t, proxy)
	if ok, err := passes(during, 100*time.Millisecond); ok || err != nil {
		t.Errorf("frozen, but passes %v, %v", ok, err)
	}
	proxy.Reroute()
	for _, conn := range []net.Conn{before, during} {
		if ok, err := passes(conn, 100*time.Millisecond); ok || err != nil {
			t.Errorf("it is of before, but passes %v, %v", ok, err)
		}
	}
	connected(t, proxy)
}

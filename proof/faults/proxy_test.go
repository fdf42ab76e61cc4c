//go:build unix

package faults

import (
	"errors"
	"io"
	"net"
	"net/url"
	"os"
	"testing"
	"time"
)

// This test binary is also the program of the proxies' process.
func init() { Main() }

// newProxy returns a proxy in front of an echo server.
func newProxy(t *testing.T) *Proxy {
	t.Helper()
	proxies, err := StartProxies()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(proxies.Close)
	proxy, err := proxies.New(echo(t))
	if err != nil {
		t.Fatal(err)
	}
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
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
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
	u, err := url.Parse(proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	conn, err := net.Dial("tcp", u.Host)
	if err != nil {
		t.Fatal(err)
	}
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

func TestAFrozenProxyKeepsConnectionsAndLetsNothingPass(t *testing.T) {
	proxy := newProxy(t)
	before := dial(t, proxy)
	if ok, err := passes(before, 5*time.Second); !ok || err != nil {
		t.Fatalf("nothing passes: %v", err)
	}
	if err := proxy.Freeze(); err != nil {
		t.Fatal(err)
	}
	during := dial(t, proxy)
	for _, conn := range []net.Conn{before, during} {
		if ok, err := passes(conn, 100*time.Millisecond); ok || err != nil {
			t.Errorf("frozen, but passes %v, %v", ok, err)
		}
	}
	if err := proxy.Thaw(); err != nil {
		t.Fatal(err)
	}
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
	if err := proxy.Slow(100 * time.Millisecond); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	// At least half of the delay in each direction.
	if ok, err := passes(conn, 5*time.Second); !ok || err != nil || time.Since(began) < 100*time.Millisecond {
		t.Errorf("passes %v, %v after %v", ok, err, time.Since(began))
	}
	if err := proxy.Thaw(); err != nil {
		t.Fatal(err)
	}
	if ok, err := passes(conn, 5*time.Second); !ok || err != nil {
		t.Errorf("the connection did not survive: %v, %v", ok, err)
	}
}

func TestACutProxyBreaksConnectionsAndTakesNewOnes(t *testing.T) {
	proxy := newProxy(t)
	conn := dial(t, proxy)
	if ok, err := passes(conn, 5*time.Second); !ok || err != nil {
		t.Fatalf("nothing passes: %v", err)
	}
	address := proxy.URL()
	if err := proxy.Cut(); err != nil {
		t.Fatal(err)
	}
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

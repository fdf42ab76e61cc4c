//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

// Connections of requests that do not come take files that other viewers need.
func TestServeClosesRequestsThatDoNotCome(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, http.NotFoundHandler(), 100*time.Millisecond) }()
	for _, sent := range []string{
		"",
		"GET /data/poll HTTP/1.1\r\n",
		"GET /data/poll HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n",
		"POST /data/apply HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n{",
	} {
		conn := testkit.Must(net.Dial("tcp", listener.Addr().String()))(t)
		defer conn.Close()
		_ = testkit.Must(fmt.Fprint(conn, sent))(t)
		testkit.OK(t, conn.SetReadDeadline(time.Now().Add(testkit.Patience)))
		if _, err := io.ReadAll(conn); err != nil {
			t.Errorf("%q: the connection stays open: %v", sent, err)
		}
	}
	cancel()
	testkit.OK(t, <-ended)
}

// Strangers that hold connections, idle ones and ones with half a request, keep no viewer out.
func TestServeLimitsItsConnections(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	listener := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	ended := make(chan error, 1)
	go func() { ended <- serve(ctx, listener, http.NotFoundHandler(), time.Hour) }()
	const more = 10
	closed := make(chan error, mostConnections+more)
	for n := range cap(closed) {
		conn := testkit.Must(net.Dial("tcp", listener.Addr().String()))(t)
		defer conn.Close()
		_ = testkit.Must(fmt.Fprint(conn, "GET /"[:n%3]))(t)
		go func() {
			_, err := conn.Read(make([]byte, 1))
			closed <- err
		}()
	}
	for range more {
		_ = testkit.Receive(t, "a connection is closed", closed)
	}
	for range 3 { // its connection stays open
		response := testkit.Must(http.Get("http://" + listener.Addr().String()))(t)
		_, _ = io.Copy(io.Discard, response.Body) // otherwise the client does not keep the connection
		if response.Body.Close(); response.StatusCode != http.StatusNotFound {
			t.Errorf("a viewer got status %d", response.StatusCode)
		}
	}
	_ = testkit.Receive(t, "another one is closed for the viewer", closed)
	select {
	case <-closed:
		t.Error("more connections were closed than had to be")
	default:
	}
	cancel()
	testkit.OK(t, <-ended)
}

// A stuck writer is the connection of a reader that has stopped.
type stuckWriter struct {
	http.ResponseWriter
	begun, released chan struct{}
}

func (w stuckWriter) Write(text []byte) (int, error) {
	close(w.begun)
	<-w.released
	return len(text), nil
}

func TestScraperThatDoesNotReadStopsNoOther(t *testing.T) {
	t.Parallel()
	e := &exposition{text: []byte("a 1\n"), read: time.Now().Add(time.Hour)}
	scrape := httptest.NewRequest(http.MethodGet, "/metrics", nil)
	stuck := stuckWriter{httptest.NewRecorder(), make(chan struct{}), make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		e.ServeHTTP(stuck, scrape)
	}()
	<-stuck.begun
	answered := make(chan string, 1)
	go func() {
		w := httptest.NewRecorder()
		e.ServeHTTP(w, scrape)
		answered <- w.Body.String()
	}()
	if text := testkit.Receive(t, "the answer to another scraper", answered); text != "a 1\n" {
		t.Errorf("another scraper got %q", text)
	}
	close(stuck.released)
	<-ended
}

// Clients with IDs that are new with each start would make new series for each deployment.
func TestServeCanLeaveOutTheSeriesOfClients(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	for flag, want := range map[string]bool{"--client-series=true": true, "--client-series=false": false} {
		c := command.Run(t, command.Database(database), "serve", "--listen", "127.0.0.1:0", flag)
		address := regexp.MustCompile(`Open (http://\S+/)\n`)
		testkit.Until(t, "it says where it listens", func() bool { return address.MatchString(c.Printed()) })
		response := testkit.Must(http.Get(address.FindStringSubmatch(c.Printed())[1] + "metrics"))(t)
		text := string(testkit.Must(io.ReadAll(response.Body))(t))
		response.Body.Close()
		if strings.Contains(text, `client="a"`) != want {
			t.Errorf("%s: metrics %s", flag, text)
		}
		if !strings.Contains(text, `pgleases_database_partitions{lease="l"} 2`) {
			t.Errorf("%s: metrics %s", flag, text)
		}
	}
}

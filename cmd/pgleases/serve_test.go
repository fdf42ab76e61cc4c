//go:build linux

package main

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/command"
)

func TestTheDashboardIsServedToThisMachineOnly(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	c := command.Run(t, command.Database(database),
		"serve", "--listen", "127.0.0.1:0", "--title", "Test & trial", "--host", "leases.example,Other.Example:8443")
	address := regexp.MustCompile(`Open (http://(127\.0\.0\.1:\d+)/)\n`)
	testkit.Until(t, "it says where it listens", func() bool { return address.MatchString(c.Printed()) })
	found := address.FindStringSubmatch(c.Printed())
	ask := func(method, path, host string) (int, string) {
		r := testkit.Must(http.NewRequestWithContext(t.Context(), method, found[1]+path, nil))(t)
		r.Host = host
		response := testkit.Must(http.DefaultClient.Do(r))(t)
		defer response.Body.Close()
		return response.StatusCode, string(testkit.Must(io.ReadAll(response.Body))(t))
	}
	for host, want := range map[string]int{
		"":                       200,
		"localhost":              200,
		"localhost:8080":         200,
		"[::1]:80":               200,
		"leases.example":         200,
		"LEASES.example.:8080":   200,
		"other.example":          200,
		"evil.example":           421,
		"evil.example:8080":      421,
		"localhost.evil.example": 421,
		"192.0.2.1":              421,
	} {
		code, body := ask("GET", "", host)
		if code != want || (want == 200) != strings.Contains(body, "<title>Test &amp; trial</title>") {
			t.Errorf("host %q: %d, want %d", host, code, want)
		}
	}
	if code, _ := ask("POST", "", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	testkit.Until(t, "a poll tells whose the partitions are", func() bool {
		_, told := ask("GET", "data/poll", "")
		return strings.Contains(told, `"name":"l","partitions":2`) && strings.Contains(told, `"owner":"a"`)
	})

	code, body := ask("GET", "metrics", "")
	if code != 200 || !strings.Contains(body, "\npgleases_database_partitions{lease=\"l\"} 2\n") {
		t.Errorf("metrics: %d, %s", code, body)
	}
	if code, _ := ask("GET", "metrics", "evil.example"); code != 421 {
		t.Errorf("metrics for another site: %d", code)
	}

	// Its address is in use.
	fails(t, database, "serve --listen "+found[2], "Give --listen an address of this machine and a port that is free")
	for listen, want := range map[string]int{"0.0.0.0:0": 200, "0.0.0.0:0 --host leases.example": 421} {
		args := append([]string{"serve", "--listen"}, strings.Fields(listen)...)
		open := command.Run(t, command.Database(database), args...)
		port := regexp.MustCompile(`Open http://\S+:(\d+)/\n`)
		testkit.Until(t, "it says where it listens", func() bool { return port.MatchString(open.Printed()) })
		found[1] = "http://127.0.0.1:" + port.FindStringSubmatch(open.Printed())[1] + "/"
		if code, _ := ask("GET", "", "evil.example"); code != want {
			t.Errorf("listening on %s: %d, want %d", listen, code, want)
		}
	}
	c.Signal(syscall.SIGINT)
	if code := c.ExitCode(); code != 0 {
		t.Errorf("exit code %d after Ctrl-C", code)
	}
}

// An empty variable in a script does not open the dashboard to all, and a name that no request can have is refused.
func TestServeRefusesFlagsThatSayNothing(t *testing.T) {
	t.Parallel()
	for args, want := range map[string]string{
		"--listen=":                            "--listen is empty: give it an address and a port",
		"--listen :0 --host=":                  `--host "" is not the name of a host, such as leases.example`,
		"--listen :0 --host a,,b":              `--host "" is not the name of a host`,
		"--listen :0 --host https://a.example": `--host "https://a.example" is not the name of a host`,
		"--listen :0 --host *.example":         `--host "*.example" is not the name of a host`,
	} {
		fails(t, "postgres://127.0.0.1:1/none", "serve "+args, want)
	}
}

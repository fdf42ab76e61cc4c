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

// request asks a server, by a name that it may have.
func request(t *testing.T, method, url, host, body string) (int, string) {
	t.Helper()
	r := testkit.Must(http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body)))(t)
	r.Header.Set("Content-Type", "application/json")
	r.Host = host
	response := testkit.Must(http.DefaultClient.Do(r))(t)
	defer response.Body.Close()
	return response.StatusCode, string(testkit.Must(io.ReadAll(response.Body))(t))
}

func TestTheDashboardIsServedToThisMachineOnly(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, sound)
	c := command.Run(t, command.Database(database), "serve", "--listen", "127.0.0.1:0", "--title", "Test & trial", "--host", "leases.example")
	address := regexp.MustCompile(`Open (http://(127\.0\.0\.1:\d+)/)\n`)
	testkit.Until(t, "it says where it listens", func() bool { return address.MatchString(c.Printed()) })
	found := address.FindStringSubmatch(c.Printed())
	ask := func(method, path, host string) (int, string) {
		t.Helper()
		return request(t, method, found[1]+path, host, "")
	}
	for host, want := range map[string]int{"": 200, "localhost": 200, "localhost:8080": 200, "[::1]:80": 200, "leases.example": 200,
		"evil.example": 421, "evil.example:8080": 421, "localhost.evil.example": 421, "192.0.2.1": 421} {
		if code, body := ask("GET", "", host); code != want || (want == 200) != strings.Contains(body, "<title>Test &amp; trial</title>") {
			t.Errorf("host %q: %d, want %d", host, code, want)
		}
	}
	if code, _ := ask("POST", "", ""); code != http.StatusMethodNotAllowed {
		t.Errorf("POST: %d", code)
	}
	testkit.Until(t, "a poll tells whose the partitions are", func() bool {
		_, told := ask("GET", "poll", "")
		return strings.Contains(told, `"name":"l","partitions":2`) && strings.Contains(told, `"owner":"a"`)
	})

	fails(t, database, "serve --listen "+found[2], "Give --listen an address of this machine and a port that is free") // it is in use
	for listen, want := range map[string]int{"0.0.0.0:0": 200, "0.0.0.0:0 --host leases.example": 421} {
		open := command.Run(t, command.Database(database), append([]string{"serve", "--listen"}, strings.Fields(listen)...)...)
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

func TestOnlyTheSecretMakesAnOperator(t *testing.T) {
	t.Parallel()
	database := pgtest.MigratedDatabase(t)
	execute(t, database, "INSERT INTO pgleases.leases VALUES ('l', 2, 5, 1, 0, 'infinity', now())")
	c := command.Run(t, command.Database(pgtest.OwnerURL(database)), "serve", "--listen", "127.0.0.1:0", "--operate", "--actor", "maria")
	address := regexp.MustCompile(`Open (http://127\.0\.0\.1:\d+/)\nTo operate, open (http://127\.0\.0\.1:\d+/[A-Z2-7]{26}/) and`)
	testkit.Until(t, "it says where it listens", func() bool { return address.MatchString(c.Printed()) })
	found := address.FindStringSubmatch(c.Printed())
	post := func(url, path, body, host string) (int, string) {
		t.Helper()
		return request(t, http.MethodPost, url+path, host, body)
	}
	const freeze = `{"verb":"freeze","subject":"l","reason":"why","if_unchanged":"FINGERPRINT"}`
	for url, want := range map[string]int{found[1]: 403, found[1] + strings.Repeat("A", 26) + "/": 405, found[2]: 200} {
		if code, text := post(url, "preview", `{"verb":"freeze","subject":"l"}`, ""); code != want {
			t.Errorf("%s: %d %s, want %d", url, code, text, want)
		}
	}
	if code, _ := post(found[2], "preview", `{"verb":"freeze","subject":"l"}`, "evil.example"); code != http.StatusMisdirectedRequest {
		t.Errorf("by the name of another: %d", code)
	}
	_, text := post(found[2], "preview", `{"verb":"freeze","subject":"l"}`, "")
	fingerprint := regexp.MustCompile(`"fingerprint":"([^"]*)"`).FindStringSubmatch(text)
	if len(fingerprint) != 2 {
		t.Fatalf("a dry run: %s", text)
	}
	if code, text := post(found[2], "apply", strings.Replace(freeze, "FINGERPRINT", fingerprint[1], 1), ""); code != 200 {
		t.Errorf("apply: %d %s", code, text)
	}
	if overrides := output1(t, database, "overrides"); !strings.Contains(overrides, "maria (") {
		t.Errorf("overrides: %s", overrides)
	}
	fails(t, database, "serve --listen :0 --operate", "Listen on this machine alone")
}

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func names(ways []way) string {
	var names []string
	for _, w := range ways {
		names = append(names, w.name)
	}
	return strings.Join(names, " ")
}

func TestWaysAreTriedInOrderUnlessOneIsForced(t *testing.T) {
	for _, test := range []struct {
		forced  string
		private bool
		want    string
	}{
		{"", false, "docker programs embedded"},
		{"docker", false, "docker"},
		{"programs", false, "programs"},
		{"embedded", false, "embedded"},
		{"", true, "programs embedded"},
		{"docker", true, "programs embedded"}, // whoever forces it must still be able to run tests that kill servers
		{"programs", true, "programs"},
		{"embedded", true, "embedded"},
	} {
		ways, err := chooseWays(test.forced, test.private)
		if got := names(ways); err != nil || got != test.want {
			t.Errorf("forced %q, private %v: %q, %v; want %q", test.forced, test.private, got, err, test.want)
		}
	}
}

func TestForcedByTheEnvironment(t *testing.T) {
	for _, test := range []struct{ way, bin, want string }{
		{"", "", ""},
		{"embedded", "", "embedded"},
		{"", "/some/bin", "programs"},
		{"docker", "/some/bin", "docker"},
	} {
		t.Setenv(EnvPostgres, test.way)
		t.Setenv(EnvPostgresBin, test.bin)
		if got := forcedWay(); got != test.want {
			t.Errorf("%s=%s %s=%s force %q, want %q", EnvPostgres, test.way, EnvPostgresBin, test.bin, got, test.want)
		}
	}
}

func TestNoSuchWay(t *testing.T) {
	t.Setenv(EnvDatabaseURL, "")
	t.Setenv(EnvFallbackURL, "")
	t.Setenv(EnvPostgres, "dokcer")
	for _, opts := range [][]Option{nil, {WithPrivate()}} {
		_, err := Start(t.Context(), opts...)
		if err == nil || errors.Is(err, ErrNotInstalled) {
			t.Fatalf("error %v", err)
		}
		for _, part := range []string{EnvPostgres, "dokcer", "docker, programs, embedded"} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%q is not in: %v", part, err)
			}
		}
	}
}

func TestTheFirstWayThatWorksIsTaken(t *testing.T) {
	absent := func(name string) way {
		return way{name: name, start: func(context.Context, options) (*Server, error) {
			return nil, &unusable{name, fmt.Errorf("no %s\n\there", name)}
		}}
	}
	broken := way{name: "broken", start: func(context.Context, options) (*Server, error) { return nil, errors.New("bad setting") }}
	good := way{name: "good", start: func(context.Context, options) (*Server, error) { return &Server{describe: "good"}, nil }}
	for _, test := range []struct {
		ways         []way
		err, notices string
	}{
		{[]way{good, broken}, "", ""},
		{[]way{absent("a"), absent("b"), good, broken}, "", "pgtest: a: no a here; trying b\npgtest: b: no b here; trying good\n"},
		// What is there and does not start is not hidden by another.
		{[]way{absent("a"), broken, good}, "pgtest: bad setting", "pgtest: a: no a here; trying broken\n"},
		{[]way{absent("a")}, "pgtest: a: no a here", ""},
		{[]way{absent("a"), absent("b")}, "pgtest: no PostgreSQL server:\na: no a here\nb: no b here", "pgtest: a: no a here; trying b\n"},
	} {
		var notices strings.Builder
		s, err := provide(t.Context(), test.ways, options{}, &notices)
		switch {
		case test.err == "" && (err != nil || s.Describe() != "good"), test.err != "" && (err == nil || err.Error() != test.err):
			t.Errorf("%s: error %v, want %q", names(test.ways), err, test.err)
		case err != nil && errors.Is(err, ErrNotInstalled) == strings.Contains(test.err, "bad"):
			t.Errorf("%s: %v is not what it should be to errors.Is", names(test.ways), err)
		}
		if notices.String() != test.notices {
			t.Errorf("%s: notices %q, want %q", names(test.ways), notices.String(), test.notices)
		}
	}
}

func TestNothingIsTriedAfterTheEndOfTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	ending := way{"ending", func(context.Context, options) (*Server, error) { cancel(); return nil, &unusable{"ending", ctx.Err()} }, false}
	never := way{"never", func(context.Context, options) (*Server, error) { t.Error("tried"); return nil, nil }, false}
	if _, err := provide(ctx, []way{ending, never}, options{}, t.Output()); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
}

func TestNoEngineIsFoundOutAtOnce(t *testing.T) {
	for _, host := range []string{"unix:///no/docker.sock", "tcp://127.0.0.1:1", "tcp://docker.invalid:2375"} {
		t.Setenv("DOCKER_HOST", host)
		begin := time.Now()
		_, err := startDocker(t.Context(), newOptions(nil))
		if took := time.Since(begin); took > time.Second {
			t.Errorf("%s: took %v", host, took)
		}
		wantError(t, err, "docker: ", host)
		if strings.Contains(err.Error(), "\n") {
			t.Errorf("more than one line: %v", err)
		}
	}
}

func TestAnEngineThatDoesNotAnswerIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Skip(err)
	}
	defer listener.Close()
	begin := time.Now()
	if _, err := connectEngine(t.Context(), "unix://"+socket); err == nil {
		t.Error("no error")
	}
	if took := time.Since(begin); took > engineTimeout+5*time.Second {
		t.Errorf("took %v", took)
	}
}

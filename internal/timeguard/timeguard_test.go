//go:build unix

package timeguard

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/notes"
)

// A verdict is a testing.TB that records the result.
type verdict struct {
	testing.TB
	failed bool
	text   string
}

func (v *verdict) Helper()             {}
func (v *verdict) Logf(string, ...any) {}
func (v *verdict) Failed() bool        { return v.failed }
func (v *verdict) FailNow()            { v.failed = true; runtime.Goexit() }
func (v *verdict) Errorf(format string, args ...any) {
	v.failed, v.text = true, v.text+fmt.Sprintf(format, args...)
}
func (v *verdict) Fatalf(format string, args ...any) { v.Errorf(format, args...); v.FailNow() }

// judge runs a scenario on a machine with a given lateness in each try, and returns how often the
// scenario was begun.
func judge(t *testing.T, late []time.Duration, scenario func(*Try)) (v *verdict, begun int) {
	v = &verdict{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		run(v, func(Instant, Instant) (time.Duration, string) {
			return late[begun-1], fmt.Sprintf("late by %v", late[begun-1])
		}, func(try *Try) { begun++; scenario(try) })
	}()
	<-done
	return v, begun
}

func TestDeadlineIsJudgedIfMachineKeptTime(t *testing.T) {
	const ms = time.Millisecond
	miss := func(try *Try) { try.Missed(time.Now(), time.Second, "too slow") }
	brief := func(try *Try) { try.Brief(time.Second); try.Errorf("overlap"); try.Fatal("and more") }
	overlap := func(try *Try) { try.Fatalf("overlap") }
	overlapAndMiss := func(try *Try) { try.Errorf("overlap"); miss(try) }
	always := []time.Duration{200 * ms, 300 * ms, 400 * ms, 500 * ms, 600 * ms}
	for _, test := range []struct {
		name     string
		late     []time.Duration
		scenario func(*Try)
		begun    int
		says     string // text of the failure; empty: it passes
	}{
		{"met", []time.Duration{0}, func(*Try) {}, 1, ""},
		{"met by a machine that was late", []time.Duration{time.Hour}, func(*Try) {}, 1, ""},
		{"missed on time", []time.Duration{0}, miss, 1, "too slow"},
		{"missed, and late by a twentieth of what was allowed", []time.Duration{50 * ms}, miss, 1, "too slow"},
		{"missed on time after being late", []time.Duration{200 * ms, 200 * ms, 0}, miss, 3, "too slow"},
		{"always late", always, miss, 5, "late in each of 5 tries"},
		{"safety, on a machine that was late", []time.Duration{time.Hour}, overlap, 1, "overlap"},
		{"brief, on time", []time.Duration{0}, brief, 1, "overlap"},
		{"brief, late once", []time.Duration{200 * ms, 0}, brief, 2, "overlap"},
		{"brief, always late", always, brief, 5, "late in each of 5 tries"},
		{"safety, then a deadline", []time.Duration{time.Hour}, overlapAndMiss, 1, "overlap"},
	} {
		t.Run(test.name, func(t *testing.T) {
			v, begun := judge(t, test.late, test.scenario)
			if begun != test.begun || v.failed != (test.says != "") || !strings.Contains(v.text, test.says) {
				t.Errorf("begun %d times, not %d; failed %v: %q; want %q",
					begun, test.begun, v.failed, v.text, test.says)
			}
		})
	}
	missed := 0
	v, begun := judge(t, []time.Duration{200 * ms, 200 * ms}, func(try *Try) {
		if missed++; missed == 1 {
			miss(try)
		}
	})
	if begun != 2 || v.failed {
		t.Errorf("late once, then met: begun %d times, failed: %q", begun, v.text)
	}
	v, _ = judge(t, []time.Duration{200 * ms, 201 * ms, 202 * ms, 203 * ms, 204 * ms}, miss)
	for _, by := range []string{"200ms", "204ms"} {
		if !strings.Contains(v.text, by) {
			t.Errorf("it does not say how late the machine was, %s: %q", by, v.text)
		}
	}
}

func TestRepeatsAreNotedInTheFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "repeats")
	t.Setenv(notes.FileVariable, path)
	judge(t, []time.Duration{time.Hour, time.Hour, 0}, func(try *Try) {
		try.Missed(time.Now(), time.Second, "too\nslow")
	})
	line := "repeated " + t.Name() + ": too slow: late by 1h0m0s\n"
	if text := string(testkit.Must(os.ReadFile(path))(t)); text != line+line {
		t.Errorf("the file has %q", text)
	}
}

func TestTryIsCleanedUpBeforeTheNext(t *testing.T) {
	open, most, order := 0, 0, ""
	judge(t, []time.Duration{time.Hour, time.Hour, 0, 0, 0}, func(try *Try) {
		open++
		most = max(most, open)
		ctx := try.Context()
		try.Cleanup(func() { open--; order += "1" })
		try.Cleanup(func() {
			if ctx.Err() == nil {
				t.Error("its context goes on")
			}
			order += "2"
			runtime.Goexit()
		})
		try.Missed(time.Now(), time.Second, "too slow")
	})
	if open != 0 || most != 1 || order != "212121" {
		t.Errorf("%d open, %d at once, cleaned up in the order %s", open, most, order)
	}
}

func TestRecordCountsUnintendedDelaysInTheWindow(t *testing.T) {
	now := Now()
	at := func(ms int) Instant {
		return now - Instant(time.Hour) + Instant(time.Duration(ms)*time.Millisecond)
	}
	r := &Record{name: "it", until: now}
	r.Add(now, []Spell{
		{"woken", at(100), at(150)},
		{"woken", at(200), at(230)},
		{"answered", at(100), at(140)},
		{"woken", at(900), at(1900)},
	})
	r.excess = []Spell{{From: at(1000), To: at(1800)}}
	for window, want := range map[[2]int]time.Duration{{0, 2000}: 80, {120, 210}: 40, {300, 900}: 0, {240, 2000}: 0} {
		if got, text := r.late(Spell{From: at(window[0]), To: at(window[1])}); got != want*time.Millisecond {
			t.Errorf("in %v late by %v, not %v ms: %s", window, got, want, text)
		}
	}
}

// With an environment variable, a process of this binary only probes.
func TestMain(m *testing.M) {
	_ = os.Unsetenv(notes.FileVariable) // the tries of these tests are no repeats
	if os.Getenv("PUNCTUAL_TEST_PROBE") != "" {
		Probe(context.Background(), "", func(until Instant, spells []Spell) {
			_ = json.NewEncoder(os.Stdout).Encode(reported{until, spells})
		})
	}
	os.Exit(m.Run())
}

type reported struct {
	Until  Instant
	Spells []Spell
}

func TestStoppedProcessIsLateUnlessOnPurpose(t *testing.T) {
	probe := exec.Command(os.Args[0])
	probe.Env = append(os.Environ(), "PUNCTUAL_TEST_PROBE=1")
	output := testkit.Must(probe.StdoutPipe())(t)
	testkit.OK(t, probe.Start())
	r := NewRecord("the probe")
	defer r.End()
	first, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		var one sync.Once
		for events := json.NewDecoder(output); ; {
			var e reported
			if events.Decode(&e) != nil {
				return
			}
			r.Add(e.Until, e.Spells)
			one.Do(func() { close(first) })
		}
	}()
	defer func() { _ = probe.Process.Kill(); <-gone; _ = probe.Wait() }()
	<-first
	const stopped = 400 * time.Millisecond
	pause := func() (from, to Instant) {
		from = Now()
		_ = probe.Process.Signal(syscall.SIGSTOP)
		<-time.After(stopped) // this is the lateness
		_ = probe.Process.Signal(syscall.SIGCONT)
		return from, Now()
	}
	from, to := pause()
	if by, text := Late(from, to); by < stopped-50*time.Millisecond || !strings.Contains(text, "the probe") {
		t.Errorf("stopped for %v, but late by %v: %s", stopped, by, text)
	}
	r.Stop()
	from, to = pause()
	r.Continue()
	Late(from, to) // waits for all reports
	if by, text := r.late(Spell{From: from, To: to}); by > stopped/2 {
		t.Errorf("stopped on purpose, but late by %v: %s", by, text)
	}
}

func TestADatabaseThatDoesNotAnswerIsLate(t *testing.T) {
	silent := testkit.Must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer silent.Close()
	ctx, cancel := context.WithCancel(t.Context())
	r := NewRecord("this process")
	defer r.End()
	done := make(chan struct{})
	go func() {
		defer close(done)
		Probe(ctx, "postgres://somebody@"+silent.Addr().String()+"/database?sslmode=disable", r.Add)
	}()
	defer func() { cancel(); <-done }()
	conn := testkit.Must(silent.Accept())(t)
	defer conn.Close()
	from := Now()
	<-time.After(300 * time.Millisecond) // this is the lateness
	if by, text := Late(from, Now()); by < 100*time.Millisecond {
		t.Errorf("late by %v: %s", by, text)
	}
}

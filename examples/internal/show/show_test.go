package show

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

func TestScreen(t *testing.T) {
	var out bytes.Buffer
	s := &Screen{Terminal: true, began: time.Now(), out: &out}
	s.Table([]string{"one", "two"})
	s.Event("it rains")
	s.Clear()
	const table = "\x1b[?7lone\ntwo\n\x1b[?7h"
	const gone = "\x1b[2A\x1b[J"
	if want := table + gone + "  0.0 s  it rains\n" + table + gone; out.String() != want {
		t.Errorf("wrote %q, want %q", out.String(), want)
	}
}

func TestTailKeepsTheLastLines(t *testing.T) {
	var lines int
	l := tail{line: func(string) { lines++ }}
	for _, part := range []string{strings.Repeat("early\n", 100), "in two ", "parts\nnot ended"} {
		testkit.Must(l.Write([]byte(part)))(t)
	}
	text := l.String()
	if lines != 101 || strings.Count(text, "\n") != tailLines || !strings.HasSuffix(text, "  in two parts\n") {
		t.Errorf("%d lines, kept %q", lines, text)
	}
}

func TestNumbersAsPeopleReadThem(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 20_004: "20,004", 1_000_050: "1,000,050"} {
		if got := Thousands(n); got != want {
			t.Errorf("Thousands(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{12_600 * time.Microsecond: "13 ms", 2041 * time.Millisecond: "2.041 s"} {
		if got := Seconds(d); got != want {
			t.Errorf("Seconds(%v) = %q, want %q", d, got, want)
		}
	}
}

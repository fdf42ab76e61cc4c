package show

import (
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

func TestTailKeepsTheLastLines(t *testing.T) {
	var l tail
	for _, part := range []string{strings.Repeat("early\n", 100), "in two ", "parts\n"} {
		testkit.Must(l.Write([]byte(part)))(t)
	}
	if text := l.String(); strings.Count(text, "\n") != 30 || !strings.HasSuffix(text, "\nin two parts\n") {
		t.Errorf("kept %q", text)
	}
}

func TestNumbersAsPeopleReadThem(t *testing.T) {
	for n, want := range map[int]string{0: "0", 999: "999", 1000: "1,000", 20_004: "20,004", 1_000_050: "1,000,050"} {
		if got := Thousands(n); got != want {
			t.Errorf("Thousands(%d) = %q, want %q", n, got, want)
		}
	}
	for d, want := range map[time.Duration]string{
		12_600 * time.Microsecond: "13 ms", 2041 * time.Millisecond: "2.041 s",
	} {
		if got := Seconds(d); got != want {
			t.Errorf("Seconds(%v) = %q, want %q", d, got, want)
		}
	}
}

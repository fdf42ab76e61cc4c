package consumer

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/pgleases/pgleases"
)

// The end of a pause is logged once for all partitions, with its length.
func TestEndOfPauseIsLoggedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		o := outage{log: slog.New(slog.NewTextHandler(&log, nil))}
		lines := func(want ...string) {
			t.Helper()
			got := strings.Split(strings.TrimSuffix(log.String(), "\n"), "\n")
			if log.Len() == 0 {
				got = nil
			}
			if log.Reset(); len(got) != len(want) {
				t.Fatalf("logged %q, want %q", got, want)
			}
			for i := range want {
				if !strings.Contains(got[i], want[i]) {
					t.Errorf("logged %q, want %q", got[i], want[i])
				}
			}
		}
		of := func(number int) *part {
			return &part{ownership: &ownership{Partition: pgleases.Partition{Number: number}}}
		}
		pause := func(number int) {
			o.paused(of(number), errors.New("no broker"))
			time.Sleep(10 * time.Second)
		}
		pause(1)
		pause(1)
		lines(`level=WARN msg="consumer: partition paused, no attempt is counted" partition=1`)
		pause(2)
		o.succeeded(of(3), false) // it needs something else
		lines()
		o.succeeded(of(2), true)
		lines(`level=INFO msg="consumer: pause of partitions ended" partition=2 for=30s`)
		o.succeeded(of(1), true)
		lines()
		pause(1)
		o.left(1) // another process owns it
		pause(2)
		lines("partition paused", "partition paused")
		o.succeeded(of(2), true)
		lines("partition=2 for=10s")
	})
}

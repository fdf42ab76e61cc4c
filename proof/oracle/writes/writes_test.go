package writes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/testkit"
)

// An operation is a write to one partition, and when its commit returned; 0: that is not known.
type operation struct {
	number, epoch, called, returned int64
}

func TestOnlyFencedWritesPass(t *testing.T) {
	for _, test := range []struct {
		what         string
		operations   []operation
		linearizable bool
		late         int
	}{
		{"in order", []operation{{1, 1, 0, 10}, {2, 1, 20, 30}, {3, 2, 25, 40}}, true, 0},
		{"overlapping", []operation{{2, 1, 0, 30}, {1, 1, 20, 25}}, true, 0},
		{"one never returned", []operation{{2, 1, 0, 0}, {1, 1, 20, 25}, {3, 1, 30, 35}}, true, 0},
		{"returned before what it follows was called", []operation{{2, 1, 0, 10}, {1, 1, 20, 25}}, false, 0},
		{"a zombie", []operation{{1, 2, 0, 10}, {2, 1, 5, 20}}, false, 1},
		{"a zombie that writes twice", []operation{{1, 2, 0, 10}, {2, 1, 5, 20}, {3, 1, 25, 30}}, false, 2},
		{"one is missing", []operation{{1, 1, 0, 10}, {3, 1, 20, 30}}, false, 0},
	} {
		t.Run(test.what, func(t *testing.T) {
			dir := t.TempDir()
			var ledger Ledger
			var lines strings.Builder
			for _, o := range test.operations {
				name := fmt.Sprintf("write-%d", o.number)
				ledger.Writes = append(ledger.Writes, Write{
					Partition: 1, Number: o.number, Epoch: o.epoch, Name: name, Called: o.called,
				})
				if o.returned > 0 {
					fmt.Fprintln(&lines, name, o.returned)
				}
			}
			lines.WriteString("write-9 incompl")
			testkit.OK(t, os.WriteFile(filepath.Join(dir, "a.log"+Suffix), []byte(lines.String()), 0o600))
			if err := ledger.Linearizable(dir, time.Minute); (err == nil) != test.linearizable {
				t.Errorf("linearizable: %v", err)
			}
			if late := ledger.Check(); len(late) != test.late {
				t.Errorf("late writes: %q, not %d", late, test.late)
			}
		})
	}
}

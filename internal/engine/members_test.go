package engine

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/store"
)

func TestMoreLeasesThanAdvisedAreLoggedOnce(t *testing.T) {
	var lines bytes.Buffer
	e, _ := idleEngine(1, slog.NewTextHandler(&lines, nil))
	for i := range AdvisedLeases + 10 {
		if i == AdvisedLeases-1 && strings.Contains(lines.String(), "advised") {
			t.Fatalf("with %d leases it logs %s", e.members.agenda.inDatabase, lines.String())
		}
		m := e.members.add(fmt.Sprint("tenant-", i), 1, LeaseOptions{Weight: 1})
		if err := e.joined(m, store.Join{Alive: true, Joined: true, Claimed: true}, nil, 1, nil); err != nil {
			t.Fatal(err)
		}
	}
	text := lines.String()
	n := strings.Count(text, "client joined more leases than advised")
	if n != 1 || !strings.Contains(text, "leases=10001 advised=10000") {
		t.Errorf("it logs %s", text)
	}
}

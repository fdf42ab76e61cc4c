package locks

import (
	"context"
	"path/filepath"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/proof/oracle"
)

// The recorded interval is within the true one: not before the first answer that the lock is held,
// and not after the last question with that answer.
func TestAKeeperWritesHowLongALockWasHeld(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.locks")
	keeper := testkit.Must(Create(path))(t)
	ctx, cancel := context.WithCancel(t.Context())
	asked := 0
	var began, ended, over oracle.Instant
	for _, err := range []error{
		keeper.Keep(ctx, 3, 7, true, func() bool { // ends because the lock is lost
			switch asked++; asked {
			case 1:
				began = oracle.Now()
			case 5:
				ended = oracle.Now()
			}
			return asked < 6
		}),
		keeper.Keep(ctx, 4, 8, false, func() bool { // ends because the holder wants to
			if over = oracle.Now(); asked == 10 {
				cancel()
			}
			asked++
			return true
		}),
		keeper.Keep(t.Context(), 5, 9, false, func() bool { return false }), // was never held
		keeper.Close(),
	} {
		testkit.OK(t, err)
	}
	log := testkit.Must(oracle.Read(path))(t)
	if len(log.Intervals) != 2 || log.Client != "a" {
		t.Fatalf("%+v", log)
	}
	first, second := log.Intervals[0], log.Intervals[1]
	within := first.First >= began && first.First <= first.Last && first.Last <= ended
	if first.Partition != 3 || first.Epoch != 7 || !first.Shared || !within || first.Open {
		t.Errorf("%+v, asked from %d to %d", first, began, ended)
	}
	within = second.First >= ended && second.Last <= over
	if second.Partition != 4 || second.Epoch != 8 || second.Shared || !within || second.Open {
		t.Errorf("%+v, asked until %d", second, over)
	}
}

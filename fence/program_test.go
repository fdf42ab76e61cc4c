package fence_test

import (
	"context"
	"errors"
	"testing"

	"github.com/pgleases/pgleases/fence"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
)

// The work of the example's program, which the example itself does not run.
func TestProgramOfExampleIsFenced(t *testing.T) {
	t.Parallel()
	data := testkit.Pool(t, pgtest.OwnerURL(pgtest.Database(t)))
	testkit.Execute(t, data, "CREATE TABLE beats (partition int, at timestamptz)")
	client := clients.New(t, testkit.Pool(t, pgtest.MigratedDatabase(t)))
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- beat(ctx, client, data) }()
	testkit.Becomes(t, data, "all partitions beat", 4, "SELECT count(DISTINCT partition) FROM beats")
	stop()
	if err := testkit.Receive(t, "it ends", ended); !errors.Is(err, context.Canceled) {
		t.Errorf("it ended with %v", err)
	}
	lease := testkit.Must(client.Lease(t.Context(), "beats", 4))(t)
	testkit.OK(t, lease.Wait(t.Context()))
	p, _ := lease.Partition(0)
	testkit.OK(t, writeBeat(t.Context(), data, lease, p))
	newer := p
	newer.Epoch++ // as after a takeover
	testkit.OK(t, writeBeat(t.Context(), data, lease, newer))
	if err := writeBeat(t.Context(), data, lease, p); !errors.Is(err, fence.ErrFenced) {
		t.Errorf("a write of the owner before: %v", err)
	}
}

package seam

import (
	"context"

	"github.com/jackc/pgx/v5"
)

// QueueGuard queues the guard of a partition, a pgleases.Partition, of its lease, a *pgleases.Lease, in a batch that begins the transaction, or is sent in
// it. Where the guard refuses, the batch's Close returns the error that Guard does. An error of QueueGuard is that too: then nothing is queued. ctx
// is that of the batch. Package pgleases sets it.
var QueueGuard func(ctx context.Context, batch *pgx.Batch, lease, partition any) error

// QueueGuarded queues a statement that calls the function guard itself. Its first arguments are the lease, the partition and the epoch;
// args are the others. Read reads its row. Otherwise it is QueueGuard.
var QueueGuarded func(batch *pgx.Batch, lease, partition any, statement string, args []any, read func(pgx.Row) error) error

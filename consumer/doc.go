// Package consumer handles the rows of a queue table of your application, for example an outbox
// in which your transactions leave messages for other systems. It handles the rows of one key in
// order, on any number of processes, and deletes a row when it is handled. A row that fails holds
// up only its own key. The package works with pgx.
//
//	type Order struct{ Payload struct{ Amount int } } // a field for each column that the handler needs
//	queue := consumer.Queue{Table: "outbox", Key: "customer", Time: "created_at"}
//	c, err := consumer.New(ctx, client, pool, "orders", queue,
//		consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
//			_, err := tx.Exec(ctx, `INSERT INTO customers VALUES ($1, $2)
//				ON CONFLICT (name) DO UPDATE SET total = customers.total + excluded.total`, row.Key, row.Value.Payload.Amount)
//			return err
//		}))
//	if err != nil {
//		return err
//	}
//	return c.Run(ctx) // until ctx ends
//
// [Each] and [InTx] are handlers that write in this database. [AtLeastOnce] is for brokers, HTTP
// and mail. [TableSQL] returns the DDL of such a table. The page docs/consumer.md has a whole
// program, and says which handler to use.
//
// # Promises
//
// Each row has one reader, which is the owner of the row's partition. What a handler of [Each] or
// [InTx] writes in its transaction commits together with the deletion of the row and with the
// check of the epoch. So its effects in this database exist exactly once for each row.
//
// Rows of one key are handled one after the other, in the order of their IDs. This holds across
// handoffs, crashes and retries. If each writer locks the key's own row before it inserts, and
// the insert draws the ID, this is the order of their commits. With [AtLeastOnce], a process that
// lost its partition may still publish the rows that it has in hand. A receiver that refuses
// lower epochs of a partition sees the order.
//
// A row that fails blocks its key, and the other keys of its partition continue. The row is tried
// again after pauses that grow. After the last attempt the key stays blocked, or the row moves to
// the dead letters, as [WithOnFailure] says. If a system that handlers need is away, no key is
// blocked for that. If three keys fail without a success in between, or the handler returns
// [Unavailable], the partition pauses and no attempt is counted. A handler can also return
// [Discard], which ends the attempts of a row at once, or [Snooze], which lets it wait.
//
// A row that crashes its process is found. After a crash the next owner notes which rows it has
// in hand. If it crashes too, these rows are handled one by one, and a row that was alone in
// three crashes has failed. The crashes are no attempts of the rows beside it.
//
// A handoff waits for the batch in hand, within the lease's drain timeout. A frozen process
// cannot commit after another process owns the partition.
//
// A process without rows sends a poll every 5 s if notifications arrive, and every second if they
// do not, for up to 5,000 partitions. A process with rows needs two round trips for each batch
// besides the statements of the handler, or four with AtLeastOnce. A batch has rows of as many
// partitions as it takes.
//
// # Limits of the promises
//
//   - Effects elsewhere may happen more than once. With [AtLeastOnce] this happens after a crash,
//     and with the other handlers whenever their transaction is rolled back and the rows are
//     handled again.
//   - An ID may come again after a failover that lost transactions, although its row was
//     published. Give the table a uuid column, and use the uuid as the idempotency key.
//   - If writers do not lock the key, two transactions may insert rows of it at once. The one
//     with the higher ID may commit first, and its row is then handled first.
//   - Notifications do not arrive through a pooler in transaction mode. Rows are then found by
//     the poll, within about a second.
//   - Rows whose partition is out of range are never handled.
package consumer

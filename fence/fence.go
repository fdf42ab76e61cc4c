// Package fence refuses the writes of former owners in a PostgreSQL that does not have the leases.
//
// Lease.Guard works only in the database that has the leases. If your data are in another one,
// create a fence there, which is one table and one function. [Schema.SQL] returns their text. Then
// begin each transaction with the name of its partition and with the epoch (fencing token) under
// which this process owns the partition. The fence refuses an epoch that is lower than the highest
// one that it has seen for this name:
//
//	const fences = fence.Schema("pgleases")
//
//	err := pgx.BeginFunc(ctx, elsewhere, func(tx pgx.Tx) error {
//		if err := fences.Check(ctx, tx, fence.Name(lease.Name(), p.Number), p.Epoch); err != nil {
//			return err
//		}
//		_, err := tx.Exec(ctx, "UPDATE ...")
//		return err
//	})
//
// The page docs/fence.md says what a fence promises, and has recipes for Redis, S3, Kafka and HTTP.
package fence

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/wrap"
)

// ErrFenced is returned by Check and CheckSQL if the fence has seen a higher epoch: a newer owner
// has begun to write. Roll back, and leave the work to that owner.
var ErrFenced = errors.New("pgleases: fenced by a newer owner")

// codeFenced is the SQLSTATE that the SQL function fence raises.
const codeFenced = "PL004"

//go:embed schema.sql
var files embed.FS

// Schema is the name of the schema that has the table and the function of a fence. It may be the
// schema of the application's own tables.
type Schema string

// SQL returns the statements that create the schema, the table fences and the function fence, for
// one Exec without arguments, or for a migration tool. They are idempotent: the table with its
// epochs stays as it is. They fail if the table belongs to another role than the function. Roles
// need more: see docs/fence.md.
func (s Schema) SQL() string { return store.DDL(files, string(s)) }

// Name returns the name of a partition at a fence: "orders/7". Epochs of different partitions are
// not comparable, so each partition needs a name of its own.
func Name(lease string, partition int) string { return fmt.Sprintf("%s/%d", lease, partition) }

// Check fences a transaction. It passes if the fence has seen no higher epoch for this name, and
// remembers this one if tx commits. Otherwise it returns ErrFenced: roll back. Call it before the
// reads and writes that it protects, and outside of savepoints: ROLLBACK TO undoes it. An epoch is
// above 0.
//
// Check first waits until each open transaction of the same name has ended, also of the same owner,
// and locks the name until tx ends. So what an older owner writes is committed before Check
// returns, or never. A process may freeze in its transaction, and the next owner waits for it. So
// the server ends tx if it idles for 6 s between two statements: Check lowers
// idle_in_transaction_session_timeout to that, for this transaction only. In a REPEATABLE READ or
// SERIALIZABLE transaction that began before another one of the name has ended, the database
// reports a serialization failure (SQLSTATE 40001).
func (s Schema) Check(ctx context.Context, tx pgx.Tx, name string, epoch int64) error {
	return s.check(store.InTx(ctx, tx), name, epoch)
}

// CheckSQL is Check for a database/sql transaction of any PostgreSQL driver that takes $1 as
// placeholder.
func (s Schema) CheckSQL(ctx context.Context, tx *sql.Tx, name string, epoch int64) error {
	return s.check(store.InSQLTx(ctx, tx), name, epoch)
}

func (s Schema) check(query store.Query, name string, epoch int64) error {
	function := pgx.Identifier{string(s), "fence"}.Sanitize()
	err := query("SELECT "+function+"($1::pg_catalog.text, $2::bigint)::pg_catalog.text", name, epoch)
	if err == nil {
		return nil
	}
	if store.Raised(err, codeFenced) {
		err = wrap.Errorf("%w: %w", ErrFenced, err)
	} else if store.Undefined(err) {
		err = fmt.Errorf("%w; run the statements that Schema.SQL returns in this database", err)
	}
	return wrap.Errorf("pgleases: fence %q under epoch %d: %w", name, epoch, err)
}

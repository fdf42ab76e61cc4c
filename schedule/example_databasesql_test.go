package schedule_test

import (
	"context"
	"database/sql"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pgleases/pgleases/schedule"
)

// takeOrderSQL inserts an order and enqueues a job, in one transaction of pgx on a connection of
// database/sql.
func takeOrderSQL(ctx context.Context, db *sql.DB, mails *schedule.Jobs[Welcome], customer string) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }() // gives it back to db
	return conn.Raw(func(driver any) error {
		return pgx.BeginFunc(ctx, driver.(*stdlib.Conn).Conn(), func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "INSERT INTO orders (customer) VALUES ($1)", customer)
			if err != nil {
				return err
			}
			_, err = mails.EnqueueTx(ctx, tx, Welcome{customer})
			return err
		})
	})
}

// An application that uses database/sql with the driver of pgx can enqueue on its own connections.
func ExampleJobs_EnqueueTx_databaseSQL() {
	ctx, url := context.Background(), exampleURL("CREATE TABLE orders (customer text)")
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := schedule.Migrate(ctx, pool); err != nil {
		log.Fatal(err)
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = db.Close() }()
	e, err := schedule.NewEnqueuer(pool, "shop") // sends no statement
	if err != nil {
		log.Fatal(err)
	}
	if err := takeOrderSQL(ctx, db, schedule.JobsOf[Welcome](e, "mail"), "ada@example.com"); err != nil {
		log.Fatal(err)
	}
	var orders, jobs int
	const counts = "SELECT (SELECT count(*) FROM orders), (SELECT count(*) FROM pgleases.jobs)"
	err = db.QueryRowContext(ctx, counts).Scan(&orders, &jobs)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(orders, jobs)
	// Output: 1 1
}

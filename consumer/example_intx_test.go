package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

// A Reading is what the handler needs of a row.
type Reading struct {
	Payload struct{ Celsius float64 }
}

// A handler of a batch, in its transaction: 100 rows with one statement. One row is at fault.
// RowError names it: it is moved to the dead letters, and the others are stored.
func ExampleInTx() {
	ctx := context.Background()
	queue := consumer.Queue{Table: "readings", Key: "sensor"}
	const celsius = "CREATE TABLE celsius (sensor text, id bigint, value float8)"
	pool, err := pgxpool.New(ctx, exampleURL(consumer.TableSQL("readings", "", queue), celsius))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	c, err := consumer.New(ctx, client, pool, "readings", queue,
		consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[Reading]) error {
			var values [][]any
			for i, row := range rows {
				if row.Value.Payload.Celsius < -273.15 {
					return consumer.RowError(i, errors.New("colder than possible"))
				}
				values = append(values, []any{row.Key, row.ID, row.Value.Payload.Celsius})
			}
			columns := []string{"sensor", "id", "value"}
			_, err := tx.CopyFrom(ctx, pgx.Identifier{"celsius"}, columns, pgx.CopyFromRows(values))
			return err
		}),
		consumer.WithMaxAttempts(1, consumer.BackoffPolicy{}), consumer.WithOnFailure(consumer.OnFailureDeadLetter))
	if err != nil {
		log.Fatal(err)
	}
	_, err = pool.Exec(ctx, `INSERT INTO readings (sensor, payload)
		SELECT 'sensor-' || i % 10, jsonb_build_object('celsius', CASE i WHEN 77 THEN -300 ELSE i % 30 END) FROM generate_series(1, 1000) AS i`)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.RunUntilEmpty(ctx))
	var stored int
	err = pool.QueryRow(ctx, "SELECT count(*) FROM celsius").Scan(&stored)
	fmt.Println(stored, "stored", err)
	var dead int64
	err = pool.QueryRow(ctx, "SELECT id FROM pgleases.consumer_dead_letters WHERE consumer = 'readings'").Scan(&dead)
	fmt.Println("dead:", dead, err, client.Close(ctx))
	// Output:
	// <nil>
	// 999 stored <nil>
	// dead: 77 <nil> <nil>
}

package consumer_test

import (
	"context"
	"fmt"
	"log"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

// A Booking is what the handler needs of a row: a field for each column. pgx reads the jsonb.
type Booking struct {
	Payload struct{ Amount int }
}

// The table is what TableSQL returns, and one for the sums.
var bookingTables = consumer.TableSQL("bookings", "", consumer.Queue{Table: "bookings", Key: "account"}) + `
CREATE TABLE accounts (name text PRIMARY KEY, total int NOT NULL);
INSERT INTO accounts VALUES ('ada', 0), ('bob', 0);`

// A handler of one row. What it writes in the transaction exists exactly once for each row, because
// the row is deleted in that transaction.
func ExampleEach() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL(bookingTables))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	c, err := consumer.New(ctx, client, pool, "bookings", consumer.Queue{Table: "bookings", Key: "account"},
		consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Booking]) error {
			_, err := tx.Exec(ctx, `INSERT INTO accounts VALUES ($1, $2)
				ON CONFLICT (name) DO UPDATE SET total = accounts.total + excluded.total`, row.Key, row.Value.Payload.Amount)
			return err
		}))
	if err != nil {
		log.Fatal(err)
	}

	// A writer locks the row of the key before it inserts: IDs then have the order of the commits.
	book := func(account string, amount int) error {
		return pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, "SELECT FROM accounts WHERE name = $1 FOR NO KEY UPDATE", account); err != nil {
				return err
			}
			_, err := tx.Exec(ctx, "INSERT INTO bookings (account, payload) VALUES ($1, $2)",
				account, map[string]any{"amount": amount})
			return err
		})
	}
	for i := range 10 {
		if err := book([]string{"ada", "bob"}[i%2], i); err != nil {
			log.Fatal(err)
		}
	}

	fmt.Println(c.RunUntilEmpty(ctx)) // a real program calls Run, which goes on until ctx ends
	var ada, bob int
	err = pool.QueryRow(ctx, `
		SELECT a.total, b.total FROM accounts AS a, accounts AS b WHERE a.name = 'ada' AND b.name = 'bob'
	`).Scan(&ada, &bob)
	fmt.Println("ada", ada, "bob", bob, err, client.Close(ctx))
	// Output:
	// <nil>
	// ada 20 bob 25 <nil> <nil>
}

package consumer_test

import (
	"context"
	"fmt"
	"log"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

// The steps for a table that exists and is in use, here one after the other by a program: those
// that TableSQL returns as a comment.
func ExampleTableSQL() {
	ctx := context.Background()
	queue := consumer.Queue{Table: "events", Key: "customer", Partitions: 1024} // not read from a plain column
	text := consumer.TableSQL("events", "", queue)                              // for the consumer "events"

	pool, err := pgxpool.New(ctx, exampleURL(`
		CREATE TABLE events (id serial PRIMARY KEY, customer uuid NOT NULL, what text);
		INSERT INTO events (customer, what)
		SELECT md5((n % 100)::text)::uuid, 'event ' || n FROM generate_series(1, 20000) AS n`))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}

	_, comment, _ := strings.Cut(text, "-- Instead,")
	lines := regexp.MustCompile(`(?m)^--   .*\n`).FindAllString(comment, -1)
	steps := strings.Split(strings.ReplaceAll("\n"+strings.Join(lines, ""), "\n--   ", "\n"), ";\n")
	err = pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error { // all in one session
		var step string
		for _, line := range steps {
			if step += line + ";\n"; strings.Count(step, "$pgleases$")%2 == 1 || strings.TrimSpace(line) == "" {
				continue // inside of a function
			}
			if _, err := conn.Exec(ctx, step, pgx.QueryExecModeSimpleProtocol); err != nil {
				return fmt.Errorf("%w:\n%s", err, step)
			}
			step = ""
		}
		return nil
	})
	if err != nil {
		log.Fatal(err)
	}

	type event struct{ What string }
	handled := 0
	handle := consumer.InTx(func(_ context.Context, _ pgx.Tx, rows []consumer.Row[event]) error {
		handled += len(rows)
		return nil
	})
	c, err := consumer.New(ctx, client, pool, "events", queue, handle, consumer.WithMaxRunning(1))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(c.RunUntilEmpty(ctx), handled, client.Close(ctx))
	// Output: <nil> 20000 <nil>
}

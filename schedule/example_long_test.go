package schedule_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/schedule"
)

const sales = `
CREATE TABLE sales (region text NOT NULL, amount bigint NOT NULL);
INSERT INTO sales VALUES ('east', 1), ('north', 2), ('south', 3), ('west', 4);
CREATE TABLE totals (report text, region text, total bigint NOT NULL, PRIMARY KEY (report, region));`

// Sales is what the handler gets.
type Sales struct{ Regions []string }

// makeReport computes a report region by region. A call that is made again goes on after the last
// region whose total was stored.
func makeReport(ctx context.Context, pool *pgxpool.Pool, r schedule.Run[Sales]) error {
	for _, region := range r.Args.Regions {
		var stored bool
		err := pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM totals WHERE report = $1 AND region = $2)",
			r.IdempotencyKey(), region).Scan(&stored)
		if err != nil {
			return err
		}
		if stored {
			continue
		}
		total, err := totalOf(ctx, pool, region) // takes a few minutes, and no transaction of ours is open
		if err != nil {
			return err
		}
		err = r.Guarded(ctx, func(tx pgx.Tx) error { // refused if another process has the job by now
			_, err := tx.Exec(ctx, "INSERT INTO totals VALUES ($1, $2, $3)", r.IdempotencyKey(), region, total)
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func totalOf(ctx context.Context, pool *pgxpool.Pool, region string) (total int64, err error) {
	err = pool.QueryRow(ctx, "SELECT sum(amount) FROM sales WHERE region = $1", region).Scan(&total)
	return total, err
}

// A job that takes long stores each step that is done. Here its process ends in the middle, and the
// next one goes on after the last step. This is not another attempt.
func Example_longJob() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, exampleURL(sales))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	// process works until its handler calls stop; a real program until a signal arrives.
	process := func(handler func(ctx context.Context, stop func(), r schedule.Run[Sales]) error) error {
		return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
			ctx, stop := context.WithCancel(ctx)
			defer stop()
			s, err := schedule.New(ctx, client, pool, "reports", schedule.WithDrainTimeout(time.Millisecond))
			if err != nil {
				return err
			}
			reports := schedule.AtLeastOnce(s, "report", func(ctx context.Context, r schedule.Run[Sales]) error {
				return handler(ctx, stop, r)
			}, schedule.WithTimeout(30*time.Minute), schedule.WithMaxConcurrent(2))
			all := Sales{[]string{"east", "north", "south", "west"}}
			_, err = reports.Enqueue(ctx, all, schedule.WithUnique("2026", schedule.OnConflictIgnore))
			if err != nil {
				return err
			}
			err = s.Run(ctx)
			if errors.Is(err, context.Canceled) {
				return nil
			}
			return err
		})
	}
	err = process(func(ctx context.Context, stop func(), r schedule.Run[Sales]) error {
		r.Args.Regions = r.Args.Regions[:2]
		err := makeReport(ctx, pool, r)
		stop()
		<-ctx.Done() // the drain timeout has passed
		return errors.Join(err, context.Cause(ctx))
	})
	fmt.Println("the first process ended:", err)
	err = process(func(ctx context.Context, stop func(), r schedule.Run[Sales]) error {
		defer stop()
		return makeReport(ctx, pool, r)
	})
	fmt.Println("the second process ended:", err)
	var totals, attempts int
	var outcome string
	err = pool.QueryRow(ctx, "SELECT (SELECT count(*) FROM totals), outcome, attempts FROM pgleases.history").
		Scan(&totals, &outcome, &attempts)
	fmt.Println(totals, "totals;", outcome, "in attempts:", attempts, err)
	// Output:
	// the first process ended: <nil>
	// the second process ended: <nil>
	// 4 totals; succeeded in attempts: 1 <nil>
}

package schedule_test

import (
	"context"
	"fmt"
	"log"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/schedule"
)

// exampleURL is the URL of a database in which DDL has run.
func exampleURL(ddl ...string) string { return pgtest.ExampleURL(ddl...) }

func ExampleWithUnique() {
	type Mail struct{ To string }
	// In a transaction that orders something:
	order := func(ctx context.Context, mail *schedule.Kind[Mail], tx pgx.Tx) error {
		later := schedule.WithDelay(time.Minute)
		latest := schedule.WithUnique("inv-7", schedule.OnConflictReplace)
		id, err := mail.EnqueueTx(ctx, tx, Mail{"ada@example.com"}, later, latest)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "UPDATE invoices SET mail = $1 WHERE id = 7", id)
		return err
	}
	_ = order
	// Output:
}

func ExampleJobsOf() {
	type Mail struct{ To string }
	// In a process that does not run the group:
	welcome := func(ctx context.Context, pool *pgxpool.Pool, to string) error {
		e, err := schedule.NewEnqueuer(pool, "billing") // sends no statement
		if err != nil {
			return err
		}
		mail := schedule.JobsOf[Mail](e, "mail")
		_, err = mail.Enqueue(ctx, Mail{to})
		return err
	}
	_ = welcome
	// Output:
}

func ExampleJobs_EnqueueTx() {
	type Report struct{ Of string }
	type handler = func(context.Context, pgx.Tx, schedule.Run[Report]) error
	register := func(s *schedule.Scheduler, makeReport handler) error {
		// At most 3 at once, in all processes:
		reports := schedule.InTx(s, "reports", makeReport, schedule.WithMaxConcurrent(3))
		enqueue := func(ctx context.Context, tx pgx.Tx, r schedule.Run[Report]) error {
			_, err := reports.EnqueueTx(ctx, tx, r.Args, schedule.WithTime(r.At)) // its Run has the same At
			return err
		}
		hourly := schedule.InTx(s, "reports.hourly", enqueue)
		all := schedule.WithMissed(schedule.MissedAll)
		return hourly.Add("sales", Report{"sales"}, schedule.Cron("0 * * * *", "UTC"), all)
	}
	_ = register
	// Output:
}

func ExampleCron() {
	rule := schedule.Cron("30 2 * * *", "Europe/Berlin") // each day at 2:30
	if err := rule.Err(); err != nil {
		log.Fatal(err)
	}
	// On 29 March the clocks go from 2:00 to 3:00.
	var anchor time.Time // of no use to Cron
	after := schedule.Tick{At: time.Date(2026, 3, 28, 0, 0, 0, 0, time.UTC)}
	for _, tick := range rule.Preview(anchor, after, 3) {
		fmt.Println(tick.At.Format(time.RFC3339), "when the clocks show", tick.Local.Format("15:04"))
	}
	// Output:
	// 2026-03-28T01:30:00Z when the clocks show 02:30
	// 2026-03-29T01:00:00Z when the clocks show 03:00
	// 2026-03-30T00:30:00Z when the clocks show 02:30
}

func ExampleCron_error() {
	fmt.Println(schedule.Cron("0 24 * * *", "UTC").Err())
	// Output:
	// schedule: cron expression "0 24 * * *": field 2, the hour, is "24": 24 is out of range; want 0 to 23, as in *, 5, 1-5, */2, 1-5/2, or a list of these
}

func ExampleEvery() {
	rule := schedule.Every(40 * time.Minute)
	anchor := time.Date(2026, 6, 1, 12, 0, 7, 0, time.UTC) // when the schedule was first made
	after := schedule.Tick{At: time.Date(2026, 6, 1, 13, 0, 0, 0, time.UTC)}
	for _, tick := range rule.Preview(anchor, after, 3) {
		fmt.Println(tick.At.Format(time.TimeOnly))
	}
	// Output:
	// 13:20:07
	// 14:00:07
	// 14:40:07
}

func ExampleParse() {
	rule, err := schedule.Parse("CRON_TZ=Europe/Berlin 0 2 * * *")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(rule)
	fmt.Println(schedule.Every(90 * time.Second))
	// Output:
	// CRON_TZ=Europe/Berlin 0 2 * * *
	// @every 1m30s
}

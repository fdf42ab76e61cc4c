package main

import (
	"context"
	"time"

	"github.com/pgleases/pgleases/consumer"
)

const insertSessions = 8

// measureInserts measures what the trigger that wakes consumers costs those who insert, in turns with
// inserts into a table that lacks the trigger and is the same otherwise.
func measureInserts(ctx context.Context, l *lab, out *part) {
	d := l.newDatabase(ctx, l.durable, insertSessions)
	defer d.end()
	check(consumer.Migrate(ctx, d.Pool))
	plain := queueOfOrders
	plain.Table = "public.plain"
	d.all(ctx,
		consumer.TableSQL("orders", "", queueOfOrders),
		consumer.TableSQL("plain", "", plain),
		"DROP TRIGGER consumer_inserted ON public.plain")
	rows := l.pick(80, 400)
	// into inserts rows. The first of its sides is the pace, and the second the server's processor time.
	into := func(table, name string) (pace, cost side) {
		query := "INSERT INTO " + table + " (customer, payload) VALUES ('c', '{}')"
		var used time.Duration
		pace = side{name, perSecond, func() float64 {
			before, began := processorTimes(d.postmaster), time.Now()
			together(insertSessions, func(int) {
				for range rows / insertSessions {
					must(d.Exec(ctx, query))
				}
			})
			span := time.Since(began)
			used = processorTimes(d.postmaster).server - before.server
			return float64(rows) / span.Seconds()
		}}
		return pace, side{name, nanoseconds, func() float64 { return float64(used) / float64(rows) }}
	}
	pace, cost := into("public.orders", "")
	paceWithout, costWithout := into("public.plain", "without the trigger")
	took := l.alternatePairs(50, []pair{{0, 2}, {1, 3}}, pace, cost, paceWithout, costWithout)
	out.compare("inserts of 8 sessions, each in a transaction, with the trigger", took[0], took[2]).atLeast(0.95)
	out.compare("server's processor time for such an insert", took[1], took[3])
	out.note("The trigger looks whether its consumer was notified in these 200 ms already, and notifies it if not. "+
		"An insert has one row, and waits for the disk. The two tables take turns, with %d rows each time.", rows)
}

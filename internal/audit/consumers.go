package audit

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
)

// A queue is a consumer's table.
type queue struct {
	consumer, table, id, partition string
	readable                       bool
}

func (a *auditor) checkConsumers(ctx context.Context, part *Part) error {
	part.From = a.period.now.UTC()
	queues := []queue{}
	blocked, letters := int64(0), int64(0)
	err := a.each(ctx, "consumers", func(rows pgx.Rows) error {
		q := queue{}
		var moreBlocked, moreLetters int64
		err := rows.Scan(&q.consumer, &q.table, &q.id, &q.partition, &q.readable, &moreBlocked, &moreLetters)
		if err != nil {
			return err
		}
		blocked += moreBlocked
		letters += moreLetters
		queues = append(queues, q)
		return nil
	})
	if err == nil {
		err = a.checkDuties(ctx)
	}
	for _, q := range queues {
		if err == nil && q.readable {
			err = a.checkLetters(ctx, q)
		}
		if !q.readable {
			const text = "dead letters of consumer %q: this role cannot read all rows of its table %s"
			part.unchecked(text, q.consumer, q.table)
		}
	}
	part.count(int64(len(queues)), "consumers")
	part.count(blocked, "blocked rows")
	part.count(letters, "dead letters")
	part.unchecked("rows that were handled: they are deleted, and leave no record")
	return err
}

// checkDuties compares the epochs that consumers have recorded with each other and with those of
// the partitions.
func (a *auditor) checkDuties(ctx context.Context) error {
	return a.each(ctx, "duties", func(rows pgx.Rows) error {
		var consumer string
		var number int32
		var begun, ended, crashed, blocked, highest int64
		if err := rows.Scan(&consumer, &number, &begun, &ended, &crashed, &blocked, &highest); err != nil {
			return err
		}
		lease := "consumer/" + consumer
		if max(ended, crashed) > begun {
			record := fmt.Sprintf("table consumer_owners: begun %d, ended %d, crashed %d", begun, ended, crashed)
			subject := fmt.Sprintf("partition %d of lease %q", number, lease)
			return violated(subject, "an owner ended before it began", record)
		}
		if err := notAbove(lease, number, "an owner that has begun", begun, highest); err != nil {
			return err
		}
		return notAbove(lease, number, "the owner of a blocked row", blocked, highest)
	})
}

// checkLetters checks that no row is a dead letter and in its queue table. Its names are those of a
// table and its columns.
func (a *auditor) checkLetters(ctx context.Context, q queue) error {
	names := strings.NewReplacer("{table}", q.table,
		"{id}", pgx.Identifier{q.id}.Sanitize(), "{partition}", pgx.Identifier{q.partition}.Sanitize())
	rows, err := a.tx.Query(ctx, names.Replace(a.text("letters")), q.consumer)
	if err != nil {
		return err
	}
	defer rows.Close()
	if !rows.Next() {
		return rows.Err()
	}
	var id int64
	var partition int32
	var died time.Time
	if err := rows.Scan(&id, &partition, &died); err != nil {
		return err
	}
	record := fmt.Sprintf("table consumer_dead_letters: row %d of partition %d, %s", id, partition, stamp(died))
	text := fmt.Sprintf("it is a dead letter, and is in its table %s", q.table)
	return violated(fmt.Sprintf("row %d of consumer %q", id, q.consumer), text, record)
}

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

// queue is the table. consumer.TableSQL returns its DDL, for a migration.
var queue = consumer.Queue{Table: "outbox", Key: "customer", Time: "created_at"}

// A row has a field for each column that the broker gets.
type row struct {
	UID     string
	Payload json.RawMessage
}

// A message is what the broker gets. It must drop a UID that it has, and a lower epoch of a
// partition than it has seen: then it has each row once, and those of a customer in order.
type message struct {
	UID, Customer string
	Partition     int
	Epoch         int64
	Payload       json.RawMessage
}

// run publishes rows to the broker until ctx ends.
func run(ctx context.Context, databaseURL, brokerURL string, options ...pgleases.Option) error {
	pool, err := pgxpool.New(ctx, databaseURL)
	if err != nil {
		return fmt.Errorf("DATABASE_URL: %w", err)
	}
	defer pool.Close()
	return pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		send := func(ctx context.Context, rows []consumer.Row[row]) error { return publish(ctx, brokerURL, rows) }
		c, err := consumer.New(ctx, client, pool, "outbox", queue, consumer.AtLeastOnce(send),
			// a row that the broker refuses must not stop its customer
			consumer.WithOnFailure(consumer.OnFailureDeadLetter))
		if err != nil {
			return err
		}
		return c.Run(ctx)
	}, options...)
}

// publish sends a batch. If the broker refuses a row, it answers with the number of those before it.
func publish(ctx context.Context, brokerURL string, rows []consumer.Row[row]) error {
	var messages []message
	for _, r := range rows {
		messages = append(messages, message{r.Value.UID, r.Key, r.Partition, r.Epoch, r.Value.Payload})
	}
	body, err := json.Marshal(messages)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, brokerURL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return consumer.Unavailable(err) // no row is at fault
	}
	defer response.Body.Close()
	var taken int
	switch response.StatusCode {
	case http.StatusOK:
		return nil
	case http.StatusUnprocessableEntity:
		if _, err := fmt.Fscan(response.Body, &taken); err != nil {
			return err
		}
		return consumer.RowError(taken, consumer.Discard(errors.New("the broker refuses it"))) // it will never take it
	}
	return consumer.Unavailable(errors.New(response.Status))
}

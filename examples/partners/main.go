// Command partners sends the rows of an outbox to partners over HTTP. Each partner gets its rows in
// order, and a partner that is down holds up no other one. docs/consumer.md shows this program, and
// the tables that it needs.
//
// Start it in as many terminals as you like, and insert rows into deliveries:
//
//	DATABASE_URL=postgres://localhost/postgres go run ./examples/partners
//
// Behind PgBouncer in transaction mode, add default_query_exec_mode=exec to DATABASE_URL.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/consumer"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	err = pgleases.Run(ctx, pool, func(ctx context.Context, client *pgleases.Client) error {
		return deliverAll(ctx, client, pool)
	})
	if err != nil {
		log.Fatal(err)
	}
}

// A Delivery is what the handler needs of a row. The key of the row is the name of the partner.
type Delivery struct {
	UID       string // the same in each call for the row, so the partner recognizes a repeated call
	Payload   json.RawMessage
	CreatedAt time.Time
}

// deliverAll sends rows until ctx ends.
func deliverAll(ctx context.Context, client *pgleases.Client, pool *pgxpool.Pool) error {
	queue := consumer.Queue{Table: "deliveries", Key: "partner", Time: "created_at"}
	handler := consumer.AtLeastOnce(func(ctx context.Context, rows []consumer.Row[Delivery]) error {
		return deliver(ctx, pool, rows[0]) // a batch has one row, by WithBatch
	})
	c, err := consumer.New(ctx, client, pool, "deliveries", queue, handler,
		consumer.WithBatch(1, 1<<20),
		consumer.WithTimeout(10*time.Second),                                        // for each call
		consumer.WithMaxAttempts(870, consumer.Backoff(time.Second, 5*time.Minute)), // for about three days
		// Then go on without the row, so the partner gets its later rows without this one. Leave this out
		// to keep the order: then the row stays, and the partner's rows wait for an operator.
		consumer.WithOnFailure(consumer.OnFailureDeadLetter))
	if err != nil {
		return err
	}
	return c.Run(ctx)
}

// direct follows no redirect, because that may turn a POST into a GET without the body, and the 200 of that
// GET is no delivery. It needs no timeout, because the context of each call has one.
var direct = &http.Client{
	CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
}

// deliver makes the call for one row. Its error says what becomes of the row.
func deliver(ctx context.Context, pool *pgxpool.Pool, row consumer.Row[Delivery]) error {
	var url string
	err := pool.QueryRow(ctx, "SELECT url FROM partners WHERE name = $1", row.Key).Scan(&url)
	if err != nil {
		return err
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(row.Value.Payload))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	request.Header.Set("Idempotency-Key", row.Value.UID)
	answer, err := direct.Do(request)
	if err != nil {
		return err // refused, not found, or no answer in time: a failed attempt
	}
	defer func() { _ = answer.Body.Close() }()
	return verdict(row, answer)
}

// verdict returns what an answer means for its row: nil, if the partner has taken it.
func verdict(row consumer.Row[Delivery], answer *http.Response) error {
	failure := fmt.Errorf("partner %s answered %s", row.Key, answer.Status)
	switch code := answer.StatusCode; {
	case code < 300:
		return nil
	case code == 429:
		if row.Attempt == 1 && time.Since(row.Value.CreatedAt) > time.Hour {
			return failure // only once, so that the key counts as blocked, and an operator is alerted
		}
		return fmt.Errorf("%v: %w", failure, consumer.Snooze(retryAfter(answer.Header)))
	case code == 400, code == 404, code == 410, code == 422:
		return consumer.Discard(failure) // the partner will never take this row
	}
	return failure // 3xx, 401, 403, 5xx and the rest: a failed attempt
}

// retryAfter returns how long the partner asks to wait, between 1 s and 10 min. If it does not say
// that, it is 1 min.
func retryAfter(header http.Header) time.Duration {
	text, wait := header.Get("Retry-After"), time.Minute
	seconds, err := strconv.Atoi(text)
	if err == nil {
		wait = time.Duration(seconds) * time.Second
	}
	at, err := http.ParseTime(text)
	if err == nil {
		wait = time.Until(at)
	}
	return min(max(wait, time.Second), 10*time.Minute)
}

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/examples/internal/show"
	"github.com/pgleases/pgleases/schedule"
)

// maxRunning is how many handlers of a process run at once.
const maxRunning = 4

// The command starts itself once more as a worker, with what it needs to know in the environment.
const (
	envWorker = "PGLEASES_SCHEDULE_WORKER" // its ID
	envURL    = "PGLEASES_SCHEDULE_URL"
	envSize   = "PGLEASES_SCHEDULE_SIZE"
)

func environment(id, url string, z size) []string {
	text, err := json.Marshal(z)
	if err != nil {
		panic(err)
	}
	return []string{envWorker + "=" + id, envURL + "=" + url, envSize + "=" + string(text)}
}

// worker makes this process a worker, and does not return, if it was started as one.
func worker() {
	id := os.Getenv(envWorker)
	if id == "" {
		return
	}
	var z size
	err := json.Unmarshal([]byte(os.Getenv(envSize)), &z)
	if err == nil {
		err = work(id, os.Getenv(envURL), z)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// perSecond is the name of a schedule of each second.
func perSecond(n int) string { return fmt.Sprintf("second/%03d", n) }

// zones have a schedule of each minute.
var zones = []string{"Europe/Berlin", "Asia/Kathmandu", "America/St_Johns", "Australia/Lord_Howe"}

// ticksTable is where the handlers write. It has no unique key on purpose: a tick that was done twice shall be seen, not prevented.
const ticksTable = `
CREATE SCHEMA pgleases_example;
CREATE TABLE pgleases_example.ticks (
    name      text NOT NULL,
    at        timestamptz NOT NULL,
    worker    text NOT NULL,
    partition int NOT NULL,
    epoch     bigint NOT NULL,
    ran_at    timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX ticks_by_name ON pgleases_example.ticks (name, ran_at);
CREATE INDEX ticks_by_time ON pgleases_example.ticks (ran_at)`

// work is a process of an application that has schedules.
func work(id, url string, z size) (err error) {
	slog.SetDefault(slog.New(slog.NewTextHandler(os.Stderr, nil)))
	ctx, stop := show.Told()
	defer stop()

	pool, err := connect(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pgleases.NewClient(ctx, pool, pgleases.WithClientID(id), pgleases.WithTTL(z.TTL))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()
	s, err := schedule.New(ctx, client, pool, "example", schedule.WithMaxRunning(maxRunning))
	if err != nil {
		return err
	}

	tick := schedule.InTx(s, "tick", func(ctx context.Context, tx pgx.Tx, r schedule.Run[struct{}]) error {
		_, err := tx.Exec(ctx, "INSERT INTO pgleases_example.ticks (name, at, worker, partition, epoch) VALUES ($1, $2, $3, $4, $5)",
			r.Name, r.At, id, r.Partition, r.Epoch)
		return err
	}, schedule.Idle(time.Second)) // so long a process that is frozen in a handler delays the next owner

	for n := range z.Schedules {
		policy := schedule.MissedLatest // of late ticks the latest, and the others are missed
		if n%2 == 1 {
			policy = schedule.MissedAll // each
		}
		if err := tick.Add(perSecond(n), struct{}{}, schedule.Every(time.Second), policy); err != nil {
			return err
		}
	}
	for _, zone := range zones {
		if err := tick.Add("minute/"+zone, struct{}{}, schedule.Cron("* * * * *", zone)); err != nil {
			return err
		}
	}
	if err := s.Run(ctx); ctx.Err() == nil {
		return err
	}
	return nil
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/connect"
	"github.com/pgleases/pgleases/internal/store"
)

// databaseURL returns the connection string of the flag --database, or of the environment. If it is
// "", pgx uses the PG* variables.
func databaseURL(flag string) string { return cmp.Or(flag, os.Getenv("DATABASE_URL")) }

// unreachable adds a remedy to an error if no database answers, or the server refuses the login. A
// server without a free connection does answer.
func unreachable(err error) error {
	remedy := store.LoginRemedy(err)
	if remedy != "" {
		return fmt.Errorf("%w\n%s", err, remedy)
	}
	if !store.Full(err) && store.Unconnected(err) {
		return fmt.Errorf("%w\nSet --database, DATABASE_URL or the PG* variables to a database that answers", err)
	}
	return err
}

// withPool calls use with a pool. A signal that asks the command to end cancels its context.
func withPool(cmd *cobra.Command, use func(ctx context.Context, pool *pgxpool.Pool, schema string) error) error {
	flag, _ := cmd.Flags().GetString("database")
	schema, _ := cmd.Flags().GetString("schema")
	config, err := connect.ParseConfig(databaseURL(flag))
	if err != nil {
		return err
	}
	// These work through any pooler, and with any encoding of the database.
	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	params := config.ConnConfig.RuntimeParams
	params["client_encoding"] = "UTF8"
	params["application_name"] = cmp.Or(params["application_name"], "pgleases "+cmd.Name())
	config.ConnConfig.ConnectTimeout = cmp.Or(config.ConnConfig.ConnectTimeout, 5*time.Second)
	config.MaxConns, config.MinConns = 2, 0
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return err
	}
	defer closeSoon(pool)
	return unreachable(use(ctx, pool, schema))
}

// closeSoon closes a pool. It leaves the farewell to the end of the process if the server takes
// longer than a second for it, because that one may hang, and the driver waits for 15 s.
func closeSoon(pool *pgxpool.Pool) {
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		pool.Close()
	}()
	select {
	case <-closed:
	case <-time.After(time.Second):
	}
}

// withAdmin is like withPool, with an Admin.
func withAdmin(cmd *cobra.Command, use func(ctx context.Context, a *admin.Admin) error) error {
	return withPool(cmd, func(ctx context.Context, pool *pgxpool.Pool, schema string) error {
		a, err := admin.New(pool, admin.WithSchema(schema))
		if err != nil {
			return err
		}
		return use(ctx, a)
	})
}

// withSnapshot is like withAdmin, with a snapshot.
func withSnapshot(cmd *cobra.Command, use func(ctx context.Context, s *admin.Snapshot) error) error {
	return withAdmin(cmd, func(ctx context.Context, a *admin.Admin) error {
		s, err := a.Snapshot(ctx)
		if err != nil {
			return err
		}
		return use(ctx, s)
	})
}

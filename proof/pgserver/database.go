//go:build unix

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// dropTimeout bounds the drop of a database. The drop runs after its test's context has ended.
const dropTimeout = 20 * time.Second

// CreateDatabase creates an empty database with a unique name on the server of a URL. It returns
// the database's URL, and a function that drops the database with the sessions in it, in at most 20
// s. Both work through a pooler in transaction mode too. It is safe for concurrent use. ctx bounds
// only the call.
func CreateDatabase(ctx context.Context, server string) (databaseURL string, drop func() error, err error) {
	name := "pgleases_" + strings.ToLower(rand.Text())
	databaseURL, err = withDatabase(server, name)
	if err != nil {
		return "", nil, fmt.Errorf("pgserver: create database: %w", err)
	}
	// template0, because sessions in another template would make the copy fail, and template0
	// accepts no connections.
	if err := execute(ctx, server, "CREATE DATABASE "+name+" TEMPLATE template0"); err != nil {
		return "", nil, fmt.Errorf("pgserver: create database: %w", err)
	}
	drop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		retry := time.NewTicker(50 * time.Millisecond)
		defer retry.Stop()
		for {
			err := execute(ctx, server, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)")
			var refused *pgconn.PgError
			if err == nil {
				return nil
			}
			// Others may connect faster than the drop ends their sessions. For all other errors a
			// retry does not help.
			if errors.As(err, &refused) && refused.Code == "55006" {
				select {
				case <-retry.C:
					continue
				case <-ctx.Done():
				}
			}
			return fmt.Errorf("pgserver: drop database %s: %w", name, err)
		}
	}
	return databaseURL, drop, nil
}

// maintain runs fn on a connection of its own. It uses the simple protocol, which works through a
// pooler in transaction mode.
func maintain(ctx context.Context, databaseURL string, fn func(*pgx.Conn) error) error {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return err
	}
	config.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, config)
	if err != nil {
		return err
	}
	err = fn(conn)
	// The work is done, so an error of Close does not matter.
	_ = conn.Close(ctx)
	return err
}

// execute sends each statement as one message, all on one connection.
func execute(ctx context.Context, databaseURL string, statements ...string) error {
	return maintain(ctx, databaseURL, func(conn *pgx.Conn) error {
		for _, statement := range statements {
			if _, err := conn.PgConn().Exec(ctx, statement).ReadAll(); err != nil {
				return err
			}
		}
		return nil
	})
}

// withDatabase returns the URL with another database.
func withDatabase(server, name string) (string, error) {
	u, err := parse(server)
	if err != nil {
		return "", err
	}
	u.Path, u.RawPath = "/"+name, ""
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx does not decode a plus sign
	return u.String(), nil
}

func parse(connString string) (*url.URL, error) {
	u, err := url.Parse(connString)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("the connection string is not a URL such as postgres://user@host:5432/database")
	}
	return u, nil
}

// sameDatabase returns the URL server with the database of databaseURL.
func sameDatabase(server, databaseURL string) (string, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return "", err
	}
	return withDatabase(server, config.Database)
}

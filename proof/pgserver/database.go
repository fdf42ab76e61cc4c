//go:build unix

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// dropTimeout bounds the drop of a database, which runs when its test's context has ended already.
const dropTimeout = 20 * time.Second

// CreateDatabase makes an empty database with a unique name on the server that a URL leads to. It returns its URL, and what
// drops it again, together with the sessions in it; drop takes at most 20 s. Both work through a pooler in transaction mode
// too. It is safe for concurrent use; ctx covers only the call.
func CreateDatabase(ctx context.Context, server string) (databaseURL string, drop func() error, err error) {
	name := "pgleases_" + strings.ToLower(rand.Text())
	if databaseURL, err = withDatabase(server, name); err != nil {
		return "", nil, fmt.Errorf("pgserver: create database: %w", err)
	}
	// template0: nobody can be connected to it, which would make the copy fail.
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
			// Others may connect faster than their sessions can be ended; all else is no matter of time.
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

// maintain runs fn on a connection of its own. The simple protocol is what passes a pooler in transaction mode.
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
	// The work is done, and a connection that does not close in good order closes nevertheless.
	_ = conn.Close(ctx)
	return err
}

// execute sends each of the statements as one message, all on one connection.
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

// withDatabase returns a URL with another database in it.
func withDatabase(server, name string) (string, error) {
	u, err := parse(server)
	if err != nil {
		return "", err
	}
	u.Path, u.RawPath = "/"+name, ""
	query := u.Query()
	query.Del("dbname")
	u.RawQuery = strings.ReplaceAll(query.Encode(), "+", "%20") // pgx takes a plus as it stands
	return u.String(), nil
}

// withUser returns a URL with another user in it, who needs no password.
func withUser(databaseURL, name string) (string, error) {
	u, err := parse(databaseURL)
	if err != nil {
		return "", err
	}
	u.User = url.User(name)
	return u.String(), nil
}

func parse(connString string) (*url.URL, error) {
	u, err := url.Parse(connString)
	if err != nil || u.Scheme != "postgres" && u.Scheme != "postgresql" {
		return nil, errors.New("the connection string is not a URL such as postgres://user@host:5432/database")
	}
	return u, nil
}

// sameDatabase returns server with the database that databaseURL names.
func sameDatabase(server, databaseURL string) (string, error) {
	config, err := pgx.ParseConfig(databaseURL)
	if err != nil {
		return "", err
	}
	return withDatabase(server, config.Database)
}

// DirectURL returns the URL of the same database past the pooler, and true, when databaseURL leads through the pooler of
// DATABASE_URL. Else it returns databaseURL itself, and false.
func DirectURL(databaseURL string) (string, bool) {
	direct := os.Getenv(EnvDirectURL)
	config, err := pgx.ParseConfig(databaseURL)
	pooler, err2 := pgx.ParseConfig(os.Getenv(EnvDatabaseURL))
	if direct == "" || err != nil || err2 != nil || config.Host != pooler.Host || config.Port != pooler.Port {
		return databaseURL, false
	}
	if direct, err = withDatabase(direct, config.Database); err != nil {
		return databaseURL, false
	}
	if role := os.Getenv(EnvRole); role != "" && config.User == role {
		if direct, err = withUser(direct, role); err != nil {
			return databaseURL, false
		}
	}
	return direct, true
}

// OwnerURL returns the URL of the same database, past any pooler, as a role that may do everything in it: for what a test does
// besides running clients. It is databaseURL itself where clients connect as such a role.
func OwnerURL(databaseURL string) string {
	config, err := pgx.ParseConfig(databaseURL)
	if role := os.Getenv(EnvRole); err != nil || role == "" || config.User != role {
		return databaseURL
	}
	owners := os.Getenv(EnvDirectURL)
	if owners == "" {
		owners = os.Getenv(EnvDatabaseURL)
	}
	if owners, err = withDatabase(owners, config.Database); err != nil {
		return databaseURL
	}
	return owners
}

package pgserver

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// dropTimeout bounds the drop of a database, which runs when its test's context has ended already.
const dropTimeout = 20 * time.Second

// CreateDatabase makes an empty database with a unique name that begins with prefix. It returns its connection string,
// the server's own with another database in it, and what drops it again, together with the sessions in it; drop may be
// called more than once and takes at most 20 s. Both work through a pooler in transaction mode too. Safe for
// concurrent use; ctx covers only the call.
func (s *Server) CreateDatabase(ctx context.Context, prefix string) (url string, drop func() error, err error) {
	// PostgreSQL would cut a name at 63 bytes, and with it what makes it unique.
	name := prefix[:min(len(prefix), 36)] + "_" + strings.ToLower(rand.Text())
	url, err = withDatabase(s.url, name)
	if err != nil {
		return "", nil, fmt.Errorf("pgtest: create database: %w", err)
	}
	quoted := pgx.Identifier{name}.Sanitize()
	err = s.maintain(ctx, func(conn *pgx.Conn) error {
		// template0: nobody can be connected to it, which would make the copy fail.
		_, err := conn.Exec(ctx, "CREATE DATABASE "+quoted+" TEMPLATE template0")
		return err
	})
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Code == "42501" {
		err = fmt.Errorf("%w; ALTER ROLE ... CREATEDB allows it, or connect as another user", err)
	}
	if err != nil {
		return "", nil, fmt.Errorf("pgtest: create database %s: %w", name, err)
	}
	drop = func() error {
		ctx, cancel := context.WithTimeout(context.Background(), dropTimeout)
		defer cancel()
		if err := s.drop(ctx, quoted); err != nil {
			return fmt.Errorf("pgtest: drop database %s: %w", name, err)
		}
		return nil
	}
	return url, drop, nil
}

// drop tries again while others connect faster than their sessions can be ended, or while the connection breaks, as
// it does when a test has just restarted the server or the pooler.
func (s *Server) drop(ctx context.Context, quoted string) error {
	retry := time.NewTicker(50 * time.Millisecond)
	defer retry.Stop()
	for {
		err := s.maintain(ctx, func(conn *pgx.Conn) error {
			_, err := conn.Exec(ctx, "DROP DATABASE IF EXISTS "+quoted+" WITH (FORCE)")
			return err
		})
		var refused *pgconn.PgError
		if err == nil || errors.As(err, &refused) && !passing(refused.Code) {
			return err
		}
		if s.isDown() {
			return err // a test left it so: nobody brings it up while we wait
		}
		select {
		case <-retry.C:
		case <-ctx.Done():
			return err
		}
	}
}

// passing reports whether an error with that SQLSTATE may be over soon.
func passing(code string) bool {
	return strings.HasPrefix(code, "08") || // connection
		strings.HasPrefix(code, "53") || // too many of them
		strings.HasPrefix(code, "57") || // shutting down, starting up
		code == "55006" // database in use
}

// maintain runs fn on a connection of its own to the maintenance database. The simple protocol is what passes a pooler
// in transaction mode.
func (s *Server) maintain(ctx context.Context, fn func(*pgx.Conn) error) error {
	config, err := pgx.ParseConfig(s.url)
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

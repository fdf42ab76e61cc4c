//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/pgserver"
)

// A Database is the database of a fleet, for faults that hit all of its workers at once.
type Database struct {
	Server  *pgserver.Server  // nil: the server has no faults
	Bouncer *pgserver.Bouncer // in front of the server; nil: no pooler
	Behind  *Proxy            // between the pooler and the server
	URL     string            // of the server itself, not of the pooler
	// A directory on the server's disk, which a fault may fill; empty: no such fault.
	Disk string
	// Statements that take rights from the workers' role, and one that gives all of them back; empty:
	// no such fault.
	Revokes []string
	Grants  string
}

// databaseFaults happen one at a time.
var databaseFaults = []Fault{
	// All backends end, and the server recovers as after a crash. Neither its start time nor its
	// timeline shows that.
	database("kill -9 of a backend", func(f *Fleet, ctx context.Context) error {
		if err := f.Database.KillBackend(ctx); !errors.Is(err, pgx.ErrNoRows) {
			return err
		}
		return nil
	}),
	database("kill -9 of the server", func(f *Fleet, ctx context.Context) error {
		return errors.Join(f.Database.Server.Kill(), f.Database.Server.Up(ctx))
	}),
	database("immediate restart", restart(pgserver.Immediate)),
	database("fast restart", restart(pgserver.Fast)),
	database("frozen server", (*Fleet).freezeServer),
	database("terminated backends", (*Fleet).terminate),
	database("locked table", (*Fleet).lockTable),
	database("connections exhausted", (*Fleet).exhaust),
	database("read-only server", (*Fleet).readOnly),
	{openTransaction, 2, (*Fleet).openTransaction},
}

// restart returns what restarts the server in a mode.
func restart(mode pgserver.Mode) func(*Fleet, context.Context) error {
	return func(f *Fleet, ctx context.Context) error { return f.Database.Server.Restart(ctx, mode) }
}

// poolerFaults hit the pooler, and the connections between the pooler and the server.
var poolerFaults = []Fault{
	database("pooler restart", func(f *Fleet, ctx context.Context) error { return f.Database.Bouncer.Restart(ctx) }),
	database("cut behind the pooler", func(f *Fleet, _ context.Context) error {
		f.Database.Behind.Cut()
		return nil
	}),
	behind("frozen behind the pooler", func(f *Fleet) { f.Database.Behind.Freeze() }),
	behind("answers lost behind the pooler", func(f *Fleet) { f.Database.Behind.LoseAnswers() }),
	behind("slow behind the pooler", func(f *Fleet) { f.Database.Behind.Slow(f.Config.TTL / 4) }),
}

// behind returns a fault between the pooler and the server that lasts a while.
func behind(name string, do func(*Fleet)) Fault {
	return database(name, func(f *Fleet, ctx context.Context) error {
		do(f)
		f.lasts(ctx)
		f.Database.Behind.Thaw()
		return nil
	})
}

// openTransaction is the only fault of the database that leaves the database as it is.
const openTransaction = "open transaction"

// Befall adds the database's faults to the faults of a fleet.
func (d *Database) Befall(f *Fleet) {
	f.Database = d
	f.Faults = slices.Clip(f.Faults)
	if d.Server != nil {
		f.Faults = append(f.Faults, databaseFaults...)
	}
	if d.Disk != "" {
		f.Faults = append(f.Faults, database("disk full", (*Fleet).fillDisk))
	}
	if d.Bouncer != nil {
		f.Faults = append(f.Faults, poolerFaults...)
	}
	for _, revoke := range d.Revokes {
		do := func(f *Fleet, ctx context.Context) error { return f.revoke(ctx, revoke) }
		f.Faults = append(f.Faults, database(revoke, do))
	}
}

// revoke takes rights from the workers' role for a while.
func (f *Fleet) revoke(ctx context.Context, statement string) error {
	return f.Database.connected(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, statement)
		if err != nil {
			return err
		}
		f.lasts(ctx)
		_, err = conn.Exec(ctx, f.Database.Grants, pgx.QueryExecModeSimpleProtocol)
		return err
	})
}

// database returns a fault that runs in the background, while the database has no other fault.
func database(name string, do func(*Fleet, context.Context) error) Fault {
	return Fault{name, 1, func(f *Fleet, ctx context.Context) (bool, error) {
		f.mu.Lock()
		busy := f.disturbed || time.Now().Before(f.calm)
		if !busy {
			f.disturbed = true
			f.note(nil, Incident{Fault: name})
		}
		f.mu.Unlock()
		if busy {
			return false, nil
		}
		wait, calm := f.span(3*f.Config.TTL/2), f.span(2*f.Config.TTL)
		f.waits.Go(func() {
			const most = time.Minute
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), most)
			defer cancel()
			began := oracle.Now()
			err := do(f, context.WithValue(ctx, lengthKey{}, wait))
			f.mu.Lock()
			defer f.mu.Unlock()
			f.note(nil, Incident{Fault: name, Over: true})
			f.disturbed, f.mended = false, time.Now()
			f.calm = f.mended.Add(calm) // sometimes long enough for an eviction
			if err == nil {
				return
			}
			err = fmt.Errorf("faults: %s: %w", name, err)
			if errors.Is(err, context.DeadlineExceeded) {
				f.Overdue = append(f.Overdue, Overdue{began, oracle.Now(), most, err.Error()})
			} else {
				f.errs = append(f.errs, err)
			}
		})
		return true, nil
	}}
}

// lengthKey is the context key of a fault's length. The driver draws the length, because its random
// numbers are not safe for concurrent use.
type lengthKey struct{}

// lasts waits for the fault's length, or until Run ends.
func (f *Fleet) lasts(ctx context.Context) {
	select {
	case <-time.After(ctx.Value(lengthKey{}).(time.Duration)):
	case <-f.thaw.Done():
	}
}

// KillBackend kills the process of one of the server's other sessions, and waits until the server
// is back. The error wraps pgx.ErrNoRows if the server has no other session.
func (d *Database) KillBackend(ctx context.Context) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for killed := false; !killed; { // the session that was picked may have ended
		var pid int
		err := conn.QueryRow(ctx, `SELECT pid FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid() ORDER BY random() LIMIT 1`).Scan(&pid)
		if err != nil {
			return err
		}
		killed = d.Server.Signal(pid, syscall.SIGKILL) == nil
	}
	for err == nil { // this connection breaks when the server notices
		_, err = conn.Exec(ctx, "SELECT 1")
	}
	back, err := d.connect(ctx)
	if err != nil {
		return err
	}
	return back.Close(ctx)
}

// connect connects, and retries until the server accepts: a fault before this one may have effects
// for a moment longer.
func (d *Database) connect(ctx context.Context) (*pgx.Conn, error) {
	for {
		conn, err := pgx.Connect(ctx, d.URL)
		if err == nil || !pause(ctx, 20*time.Millisecond) {
			return conn, err
		}
	}
}

// connected calls do with a connection of its own.
func (d *Database) connected(ctx context.Context, do func(*pgx.Conn) error) error {
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return do(conn)
}

func (f *Fleet) freezeServer(ctx context.Context) error {
	if err := f.Database.Server.Pause(); err != nil {
		return err
	}
	f.lasts(ctx)
	return f.Database.Server.Resume()
}

// terminate ends all sessions, several times.
func (f *Fleet) terminate(ctx context.Context) error {
	return f.Database.connected(ctx, func(conn *pgx.Conn) error {
		for range 5 {
			_, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()`)
			if err != nil {
				return err
			}
			pause(ctx, ctx.Value(lengthKey{}).(time.Duration)/5)
		}
		return nil
	})
}

func (f *Fleet) lockTable(ctx context.Context) error {
	tables := []string{"clients", "leases", "members", "partitions", "server", "identities"}
	table := tables[int(ctx.Value(lengthKey{}).(time.Duration)/time.Microsecond)%len(tables)]
	return f.Database.connected(ctx, func(conn *pgx.Conn) error {
		_, err := conn.Exec(ctx, "BEGIN; LOCK TABLE pgleases."+table, pgx.QueryExecModeSimpleProtocol)
		if err == nil {
			f.lasts(ctx)
		}
		return err
	})
}

// exhaust takes all remaining connections of the server.
func (f *Fleet) exhaust(ctx context.Context) error {
	var conns []*pgx.Conn
	defer func() {
		for _, conn := range conns {
			_ = conn.Close(context.WithoutCancel(ctx))
		}
	}()
	for {
		conn, err := pgx.Connect(ctx, f.Database.URL)
		if err != nil {
			break
		}
		conns = append(conns, conn)
	}
	f.lasts(ctx)
	return nil
}

// readOnly makes the server refuse writes, as a demoted server does.
func (f *Fleet) readOnly(ctx context.Context) error {
	set := func(value string) error {
		return f.Database.connected(ctx, func(conn *pgx.Conn) error {
			for _, statement := range []string{
				"SET default_transaction_read_only = off",
				"ALTER SYSTEM SET default_transaction_read_only = " + value,
				"SELECT pg_reload_conf()",
			} {
				if _, err := conn.Exec(ctx, statement); err != nil {
					return err
				}
			}
			return nil
		})
	}
	err := set("on")
	f.lasts(ctx)
	return errors.Join(err, set("off"))
}

// fillDisk fills the server's disk, and then makes it write more log than fits, so that it crashes.
// Without free space the server cannot recover either.
func (f *Fleet) fillDisk(ctx context.Context) (err error) {
	d := f.Database
	// Before the disk is full: a server that has just recovered needs space to accept a connection.
	conn, err := d.connect(ctx)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	filler, err := os.Create(filepath.Join(d.Disk, "filler"))
	if err != nil {
		return err
	}
	defer func() {
		err = errors.Join(err, filler.Close(), os.Remove(filler.Name()), d.up(ctx))
	}()
	// A full disk is an error of the writer, and is the only error expected here.
	if _, err := io.Copy(filler, zeros{}); !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	half, cancel := context.WithTimeout(ctx, ctx.Value(lengthKey{}).(time.Duration)/2)
	defer cancel()
	<-half.Done() // heartbeats still fit into the log files that exist
	for err == nil {
		_, err = conn.Exec(ctx, "SELECT pg_logical_emit_message(false, 'filler', 'x'), pg_switch_wal()")
	}
	var refused *pgconn.PgError
	if errors.As(err, &refused) && refused.Severity != "PANIC" && refused.Code != diskFull {
		return err
	}
	f.lasts(ctx)
	return nil
}

const diskFull = "53100"

// up waits for a server that may recover automatically, or may have given up and needs a start.
func (d *Database) up(ctx context.Context) error {
	for {
		if err := d.Server.Up(ctx); err != nil {
			return err
		}
		conn, err := pgx.Connect(ctx, d.URL)
		if err == nil {
			return conn.Close(ctx)
		}
		if !pause(ctx, 20*time.Millisecond) {
			return err
		}
	}
}

// zeros is an endless reader of zeros.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

// openTransaction leaves a guarded transaction open, on a partition that a client may own: idle, in
// a savepoint, or in a statement that takes long.
func (f *Fleet) openTransaction(ctx context.Context) (bool, error) {
	partition, kind := f.random.IntN(f.Config.Partitions), f.random.IntN(3)
	length := f.span(3 * f.Config.TTL)
	f.tell(nil, Incident{Fault: openTransaction})
	f.waits.Go(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
		defer cancel()
		defer f.tell(nil, Incident{Fault: openTransaction, Over: true})
		conn, err := f.Database.connect(ctx)
		if err != nil {
			return // the next fault of the database reports the error
		}
		defer conn.Close(context.WithoutCancel(ctx))
		_ = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			var err error
			if kind == 1 {
				tx, err = tx.Begin(ctx)
				if err != nil {
					return err
				}
			}
			if _, err := tx.Exec(ctx, `SELECT pgleases.guard(lease, partition, epoch) FROM pgleases.partitions
WHERE lease = $1 AND partition = $2`, f.Config.Lease, partition); err != nil {
				return err
			}
			if kind == 2 {
				_, err := tx.Exec(ctx, "SELECT pg_sleep($1)", length.Seconds())
				return err
			}
			f.lasts(context.WithValue(ctx, lengthKey{}, length))
			return nil
		})
	})
	return true, nil
}

//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/jackc/pgx/v5"
)

// Standby starts a standby of a running server, in about half a second. The standby is a server of
// its own that streams this server's log asynchronously, and accepts reads. It may still lag behind
// when Standby returns. It has this server's settings, replaced by those of the options: for
// example, another primary_conninfo makes it stream through a proxy. ctx bounds only the start,
// which takes at most a minute. The standby is stopped, and ends with this process, like any other
// server.
func (s *Server) Standby(ctx context.Context, opts ...Option) (*Server, error) {
	o := options{settings: map[string]string{
		"primary_conninfo": fmt.Sprintf("host=127.0.0.1 port=%d user=postgres sslmode=disable", s.port),
		// With the default, tests would wait 5 s if the upstream server is down for a moment.
		"wal_retrieve_retry_interval": "100ms",
	}}
	for _, opt := range opts {
		opt(&o)
	}
	return start(ctx, s.bin, o, func(ctx context.Context, standby *Server, data string) error {
		if err := s.backUp(ctx, data); err != nil {
			return fmt.Errorf("copy the data of %s: %w", s.describe, err)
		}
		return s.folder.account.write(filepath.Join(data, "standby.signal"), "")
	})
}

// backUp copies the server's data into an empty folder while the server runs. It does not use
// pg_basebackup, because that program may be missing.
func (s *Server) backUp(ctx context.Context, to string) error {
	return maintain(ctx, s.url, func(conn *pgx.Conn) error {
		start, stop := "pg_backup_start('pgserver', true)", "pg_backup_stop(false)"
		var version int
		if err := conn.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&version); err != nil {
			return err
		}
		if version < 150000 {
			start, stop = "pg_start_backup('pgserver', true, false)", "pg_stop_backup(false, false)"
		}
		if _, err := conn.Exec(ctx, "SELECT "+start); err != nil {
			return err
		}
		if err := s.folder.account.copyData(ctx, s.folder.file(dataName), to, notBackedUp); err != nil {
			return err // the end of the session ends the backup
		}
		var label string
		if err := conn.QueryRow(ctx, "SELECT labelfile FROM "+stop).Scan(&label); err != nil {
			return err
		}
		return s.folder.account.write(filepath.Join(to, "backup_label"), label)
	})
}

// ofARun are the files that belong to one run of a server.
var ofARun = map[string]bool{"postmaster.pid": true, "postmaster.opts": true}

// notBackedUp are the files that a backup leaves out, and the folders whose content it leaves out:
// they belong to the running server, or are created again. The write-ahead log is streamed instead.
var notBackedUp = map[string]bool{
	"postmaster.pid": true, "postmaster.opts": true, "standby.signal": true, "backup_label": true,
	"pg_wal/": true, "pg_replslot/": true, "pg_dynshmem/": true, "pg_notify/": true, "pg_serial/": true,
	"pg_snapshots/": true, "pg_stat_tmp/": true, "pg_subtrans/": true,
}

// controlFile is copied last: in a copy of a standby, it says how far the log must be read until
// all copied files are consistent.
const controlFile = "global/pg_control"

// copyData copies a data folder for the account. It ignores files that disappear meanwhile, because
// the log covers them.
func (a *account) copyData(ctx context.Context, from, to string, without map[string]bool) error {
	err := filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(path, from), string(filepath.Separator)))
		target := filepath.Join(to, filepath.FromSlash(name))
		switch parent, _, nested := strings.Cut(name, "/"); {
		case name == "" || name == controlFile || without[name] || strings.HasPrefix(entry.Name(), "pgsql_tmp"):
			return nil
		case entry.IsDir():
			if err := os.Mkdir(target, 0o700); err != nil {
				return err
			}
			return a.own(target)
		case nested && without[parent+"/"]:
			return nil
		}
		if err := a.copyFile(path, target); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	})
	if err != nil {
		return err
	}
	return a.copyFile(filepath.Join(from, controlFile), filepath.Join(to, controlFile))
}

func (a *account) copyFile(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close(), a.own(to))
}

// Promote promotes a standby to a primary, on a new timeline, and returns when it accepts writes.
// The log that it has not received by then is lost. The server that it followed does not change.
// ctx bounds the wait, which is at most a minute.
func (s *Server) Promote(ctx context.Context) error {
	return s.locked("promote", func() error {
		ctx, cancel := context.WithTimeout(ctx, startTimeout)
		defer cancel()
		return maintain(ctx, s.url, func(conn *pgx.Conn) error {
			var promoted bool
			promote := fmt.Sprintf("SELECT pg_promote(true, %d)", int(startTimeout.Seconds()))
			err := conn.QueryRow(ctx, promote).Scan(&promoted)
			if err == nil && !promoted {
				err = errors.New("it is a standby still")
			}
			return err
		})
	})
}

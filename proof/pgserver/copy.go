//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
)

// Copy starts a server on a copy of this server's files. This server must be down. The copy is the
// same cluster, with the same system identifier and timeline. ctx bounds only the start, which
// takes at most a minute. The copy is stopped, and ends with this process, like any other server.
func (s *Server) Copy(ctx context.Context) (*Server, error) {
	return s.inherited(ctx, options{}, func(ctx context.Context, _ *Server, data string) error {
		return s.folder.account.copyData(ctx, s.folder.file(dataName), data, ofARun)
	})
}

// Upgrade starts the server that pg_upgrade creates from this one, which must be down: a new
// cluster with the same tables, a system identifier of its own, and timeline 1. It has the same
// version, because most machines have one version installed. In all other ways it is like Copy.
func (s *Server) Upgrade(ctx context.Context, opts ...Option) (*Server, error) {
	return s.inherited(ctx, newOptions(opts), func(ctx context.Context, upgraded *Server, data string) error {
		if err := initialize(ctx, upgraded, data); err != nil {
			return err
		}
		// pg_upgrade needs a directory that it can write to, for sockets too.
		work := upgraded.folder.file("work")
		if err := errors.Join(os.Mkdir(work, 0o700), upgraded.folder.account.own(work)); err != nil {
			return err
		}
		return upgraded.run(ctx, work, "pg_upgrade", "--old-bindir="+s.bin, "--new-bindir="+s.bin,
			"--old-datadir="+s.folder.file(dataName), "--new-datadir="+data, "--username=postgres", "--socketdir="+work)
	})
}

// inherited starts a server that fill creates from this one while this one is down.
func (s *Server) inherited(ctx context.Context, o options, fill filler) (*Server, error) {
	var made *Server
	err := s.locked("copy", func() (err error) {
		if s.process != nil {
			return errors.New("it is up")
		}
		made, err = start(ctx, s.bin, o, fill)
		return err
	})
	return made, err
}

// Restored starts a server that has one schema of this server's database postgres, copied with
// pg_dump and pg_restore. This server must be up. In all other ways it is like Copy.
func (s *Server) Restored(ctx context.Context, schema string, opts ...Option) (*Server, error) {
	restored, err := start(ctx, s.bin, newOptions(opts), initialize)
	if err != nil {
		return nil, err
	}
	dump := restored.folder.file("dump")
	for _, line := range [][]string{
		{"pg_dump", "--format=custom", "--schema=" + schema, "--file=" + dump, s.url},
		{"pg_restore", "--exit-on-error", "--dbname=" + restored.url, dump},
	} {
		text, err := exec.CommandContext(ctx, s.program(line[0]), line[1:]...).CombinedOutput()
		if err != nil {
			return nil, errors.Join(fmt.Errorf("pgserver: %s: %w: %s", line[0], err, text), restored.Stop())
		}
	}
	return restored, nil
}

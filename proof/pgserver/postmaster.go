package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// initialise makes the data folder.
func (s *Server) initialise(ctx context.Context, settings map[string]string) error {
	data, err := s.folder.mkdir(dataName, s.account)
	if err != nil {
		return err
	}
	log, err := s.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := newCommand(s.folder.path, log, s.program("initdb"), "--pgdata="+data, "--username=postgres",
		"--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
	initdb, err := launch(cmd, s.account, sigKill)
	if err != nil {
		return fmt.Errorf("initdb: %w", err)
	}
	select {
	case <-initdb.done:
	case <-ctx.Done():
		signal(initdb.pid(), sigKill)
		<-initdb.done
		return fmt.Errorf("initdb: %w", context.Cause(ctx))
	}
	if initdb.err != nil {
		return fmt.Errorf("initdb: %w", initdb.err)
	}
	return appendSettings(filepath.Join(data, "postgresql.conf"), settings)
}

func appendSettings(file string, settings map[string]string) error {
	quote := strings.NewReplacer(`\`, `\\`, `'`, `''`)
	var text strings.Builder
	for _, name := range slices.Sorted(maps.Keys(settings)) {
		fmt.Fprintf(&text, "%s = '%s'\n", name, quote.Replace(settings[name]))
	}
	conf, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = conf.WriteString("\n" + text.String())
	return errors.Join(err, conf.Close())
}

func (s *Server) openLog() (*os.File, error) {
	return os.OpenFile(s.folder.file(logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
}

// launch starts the postmaster on the server's port and waits until it accepts connections. The error is errPortTaken
// when another program has the port.
func (s *Server) launch(ctx context.Context) error {
	log, err := s.openLog()
	if err != nil {
		return err
	}
	defer log.Close()
	before, err := log.Stat()
	if err != nil {
		return err
	}
	cmd := newCommand(s.folder.path, log, s.program("postgres"),
		"-D", s.folder.file(dataName),
		"-p", strconv.Itoa(s.port),
		"-c", "listen_addresses=127.0.0.1",
		"-c", "unix_socket_directories=",
		"-c", "cluster_name="+s.folder.name(), // heads the titles of its processes: see belongs
	)
	postmaster, err := launch(cmd, s.account, sigImmediate)
	if err != nil {
		return err
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for !s.ready(postmaster) {
		select {
		case <-poll.C:
		case <-postmaster.done:
			if text, err := os.ReadFile(log.Name()); err == nil &&
				strings.Contains(string(text[before.Size():]), "could not bind") {
				return errPortTaken
			}
			return fmt.Errorf("the server ended before it was ready: %v", postmaster.err)
		case <-ctx.Done():
			s.folder.evacuate()
			<-postmaster.done
			return fmt.Errorf("the server was not ready in time: %w", context.Cause(ctx))
		}
	}
	s.process = postmaster
	return nil
}

// ready reports whether the postmaster accepts connections, by what it tells in its file: an attempt to connect might
// reach another server.
func (s *Server) ready(postmaster *process) bool {
	lines := s.folder.postmasterFile()
	return len(lines) >= 8 && lines[0] == strconv.Itoa(postmaster.pid()) && strings.TrimSpace(lines[7]) == "ready"
}

// shutdown stops the postmaster in that mode and waits for its end. s.process is not nil.
func (s *Server) shutdown(ctx context.Context, mode Mode) error {
	sig := sigFast
	if mode == Immediate {
		sig = sigImmediate
	}
	if !s.process.ended() {
		if err := signal(s.process.pid(), sig); err != nil {
			return err
		}
	}
	select {
	case <-s.process.done:
	case <-ctx.Done():
		return fmt.Errorf("the server has not stopped yet: %w", context.Cause(ctx))
	}
	s.folder.evacuate() // if it had been killed, its children may live on for a moment
	s.process = nil
	return nil
}

// signalAll sends a signal to all of the server's processes, the postmaster first, so that it starts no others.
func (s *Server) signalAll(sig syscall.Signal) error {
	var errs []error
	for _, pid := range s.pids() {
		errs = append(errs, signal(pid, sig))
	}
	return errors.Join(errs...)
}

// isDown reports whether this is an own server that does not run.
func (s *Server) isDown() bool {
	if !s.Owned() {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process == nil || s.process.ended()
}

func (s *Server) pids() []int {
	pids := s.folder.processes()
	if s.process != nil {
		if i := slices.Index(pids, s.process.pid()); i > 0 {
			pids = slices.Insert(slices.Delete(pids, i, i+1), 0, s.process.pid())
		}
	}
	return pids
}

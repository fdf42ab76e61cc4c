//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

const (
	bouncerConfig = "pgbouncer.ini"
	bouncerUsers  = "users.txt"
)

// BouncerOption changes how PgBouncer is started.
type BouncerOption func(*Bouncer)

// WithPoolSize sets how many server connections there are per database; default 20.
func WithPoolSize(n int) BouncerOption {
	return WithBouncerSettings(map[string]string{"default_pool_size": strconv.Itoa(n)})
}

// WithBouncerSettings adds settings (section [pgbouncer] of its configuration) to the defaults, or replaces them.
// Where it listens cannot be changed.
func WithBouncerSettings(settings map[string]string) BouncerOption {
	return func(b *Bouncer) { maps.Copy(b.settings, settings) }
}

// WithUsers has it log in as the user that the client names, one of these, none of whom needs a password.
func WithUsers(users ...string) BouncerOption {
	return func(b *Bouncer) { b.users, b.settings["auth_type"] = users, "trust" }
}

// Bouncer is a PgBouncer that this process started. All methods are safe for concurrent use.
type Bouncer struct {
	upstream string
	describe string
	program  string
	folder   *folder
	settings map[string]string
	users    []string // none: it logs in as upstream's
	port     int

	mu      sync.Mutex // guards the life of the pooler: process, stopped
	process *process   // nil when it could not be restarted
	stopped bool
}

// PgBouncer starts a PgBouncer in transaction mode on a free port of 127.0.0.1, in front of the server that the
// connection string upstream leads to. It passes every database through, as the user of that connection string (but see
// WithUsers), and asks nobody for a password. Nothing is set in favour of its clients: prepared statements do not work
// unless its version makes them work by itself. ctx covers the start only; it runs until Stop or until this process
// ends. The error wraps ErrNotInstalled when there is no PgBouncer.
func PgBouncer(ctx context.Context, upstream string, opts ...BouncerOption) (_ *Bouncer, err error) {
	program, err := findBouncer(os.Getenv("PATH"), bouncerDirs)
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	b := &Bouncer{
		upstream: upstream,
		program:  program,
		settings: map[string]string{
			"pool_mode":                 "transaction",
			"default_pool_size":         "20",
			"max_client_conn":           "2000",
			"auth_type":                 "any",
			"ignore_startup_parameters": "extra_float_digits",
		},
	}
	for _, opt := range opts {
		opt(b)
	}
	if err := b.start(ctx); err != nil {
		return nil, fmt.Errorf("pgserver: start PgBouncer: %w", err)
	}
	return b, nil
}

func (b *Bouncer) start(ctx context.Context) (err error) {
	if b.folder, err = newFolder("", true); err != nil {
		return err
	}
	b.port, err = onFreePort(func(port int) error {
		b.port = port
		if err := b.configure(); err != nil {
			return err
		}
		return b.launch(ctx)
	})
	if err != nil {
		return errors.Join(err, b.Stop())
	}
	b.describe = fmt.Sprintf("PgBouncer %s from %s on 127.0.0.1:%d", programVersion(b.program), b.program, b.port)
	return nil
}

// configure writes the configuration, which only its user may read: the server's password is in it.
func (b *Bouncer) configure() error {
	config, err := pgx.ParseConfig(b.upstream)
	if err != nil {
		return err
	}
	quote := strings.NewReplacer("'", "''")
	var text strings.Builder
	fmt.Fprintf(&text, "[databases]\n* = host=%s port=%d", config.Host, config.Port)
	if b.users == nil {
		fmt.Fprintf(&text, " user='%s'", quote.Replace(config.User))
	}
	if config.Password != "" {
		fmt.Fprintf(&text, " password='%s'", quote.Replace(config.Password))
	}
	fmt.Fprintf(&text, "\n\n[pgbouncer]\n")
	for _, name := range slices.Sorted(maps.Keys(b.settings)) {
		fmt.Fprintf(&text, "%s = %s\n", name, b.settings[name])
	}
	fmt.Fprintf(&text, "listen_addr = 127.0.0.1\nlisten_port = %d\nunix_socket_dir =\n", b.port)

	if b.users != nil {
		var users strings.Builder
		for _, name := range b.users {
			fmt.Fprintf(&users, "\"%s\" \"\"\n", name)
		}
		path := b.folder.file(bouncerUsers)
		if err := b.folder.account.write(path, users.String()); err != nil {
			return err
		}
		fmt.Fprintf(&text, "auth_file = %s\n", path)
	}
	return b.folder.account.write(b.folder.file(bouncerConfig), text.String())
}

// launch starts the program on its port and waits until it listens.
func (b *Bouncer) launch(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	// A signal that lets it save nothing: there is nothing to save.
	p, err := b.folder.launch(syscall.SIGKILL, b.program, b.folder.file(bouncerConfig))
	if err != nil {
		return err
	}
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	// By its log: an attempt to connect might reach another pooler.
	for !b.logged(p, fmt.Sprintf("listening on 127.0.0.1:%d", b.port)) {
		select {
		case <-poll.C:
		case <-p.done:
			if b.logged(p, "cannot listen on") {
				return errPortTaken
			}
			return fmt.Errorf("it ended before it was ready: %v, the end of its log:\n%s", p.err, b.folder.logTail())
		case <-ctx.Done():
			_ = signal(p.pid(), syscall.SIGKILL)
			<-p.done
			return fmt.Errorf("not ready in time: %w, the end of its log:\n%s", context.Cause(ctx), b.folder.logTail())
		}
	}
	b.process = p
	return nil
}

// logged reports whether the process has logged something, in a log that those before it wrote to as well.
func (b *Bouncer) logged(p *process, what string) bool {
	return slices.ContainsFunc(strings.Split(b.folder.logTail(), "\n"), func(line string) bool {
		return strings.Contains(line, fmt.Sprintf("[%d]", p.pid())) && strings.Contains(line, what)
	})
}

// URL returns the connection string of the maintenance database, through the pooler.
func (b *Bouncer) URL() string {
	url, err := b.Through(b.upstream)
	if err != nil { // configure has parsed it already
		panic("pgserver: " + err.Error())
	}
	return url
}

// Through returns the URL of the same database as databaseURL's, through the pooler. It asks pgx for a query mode that
// prepares nothing, as an application behind a PgBouncer before 1.24 has to by default.
func (b *Bouncer) Through(databaseURL string) (string, error) {
	// auth_type any ignores the user, but a client has to name one.
	return sameDatabase(fmt.Sprintf("postgres://postgres@127.0.0.1:%d/?sslmode=disable&default_query_exec_mode=exec", b.port), databaseURL)
}

// Describe says in one line which PgBouncer this is.
func (b *Bouncer) Describe() string { return b.describe }

// Log returns the end of its log, and how it ended if it did so by itself.
func (b *Bouncer) Log() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	log := b.folder.logTail()
	if b.process != nil && b.process.ended() {
		log += fmt.Sprintf("\nit ended by itself: %v", b.process.err)
	}
	return log
}

// Restart kills the pooler, with all connections through it, and starts it again on the same port. ctx covers the
// wait until it listens.
func (b *Bouncer) Restart(ctx context.Context) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return errors.New("pgserver: restart PgBouncer: it was stopped")
	}
	b.kill()
	if err := b.launch(ctx); err != nil {
		return fmt.Errorf("pgserver: restart PgBouncer: %w", err)
	}
	return nil
}

// Stop ends the pooler, with all connections through it, and removes what it left. It is idempotent.
func (b *Bouncer) Stop() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stopped {
		return nil
	}
	b.stopped = true
	b.kill()
	return b.folder.remove()
}

func (b *Bouncer) kill() {
	if b.process != nil {
		_ = signal(b.process.pid(), syscall.SIGKILL)
		<-b.process.done
		b.process = nil
	}
}

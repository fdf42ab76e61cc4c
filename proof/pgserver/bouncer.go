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

	"github.com/jackc/pgx/v5"
)

const (
	bouncerConfig = "pgbouncer.ini"
	bouncerUsers  = "users.txt"
)

// BouncerOption changes how PgBouncer is started.
type BouncerOption func(*Bouncer)

// WithPoolSize sets the number of server connections per database. The default is 20.
func WithPoolSize(n int) BouncerOption {
	return WithBouncerSettings(map[string]string{"default_pool_size": strconv.Itoa(n)})
}

// WithBouncerSettings adds settings to section [pgbouncer] of the configuration, or replaces the
// defaults. The listen address and port cannot be changed.
func WithBouncerSettings(settings map[string]string) BouncerOption {
	return func(b *Bouncer) { maps.Copy(b.settings, settings) }
}

// WithUsers lets clients log in as any of these users, without a password. PgBouncer then logs in
// to the server as the client's user.
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
	users    []string // nil: it logs in as the user of upstream
	port     int

	mu      sync.Mutex // guards process and stopped
	process *process   // nil while the pooler is not running
	stopped bool
}

// PgBouncer starts a PgBouncer in transaction mode on a free port of 127.0.0.1, in front of the
// server that the connection string upstream names. It forwards every database, as the user of
// upstream (but see WithUsers), and requires no password. It has no settings that help clients:
// prepared statements work only if they work with its version's defaults. ctx bounds the start
// only. The pooler runs until Stop, or until this process ends. The error wraps NotInstalled if
// PgBouncer is not installed.
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
	b.folder, err = newFolder("", true)
	if err != nil {
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

// configure writes the configuration. Only the pooler's user may read it, because it contains the
// server's password.
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
	// SIGKILL, because the pooler has no state to save.
	p, err := b.folder.launch(syscall.SIGKILL, b.program, b.folder.file(bouncerConfig))
	if err != nil {
		return err
	}
	// Checked in its log, because a connection might reach another pooler.
	err = b.folder.await(ctx, p, func() bool { return b.logged(p, fmt.Sprintf("listening on 127.0.0.1:%d", b.port)) })
	switch {
	case err == nil:
		b.process = p
	case b.logged(p, "cannot listen on"):
		return errPortTaken
	default:
		err = fmt.Errorf("%w, the end of its log:\n%s", err, b.folder.logTail())
	}
	return err
}

// logged reports whether this process has logged a text. Earlier processes wrote to the same log.
func (b *Bouncer) logged(p *process, what string) bool {
	return slices.ContainsFunc(strings.Split(b.folder.logTail(), "\n"), func(line string) bool {
		return strings.Contains(line, fmt.Sprintf("[%d]", p.pid())) && strings.Contains(line, what)
	})
}

// URL returns the connection string of the maintenance database, through the pooler.
func (b *Bouncer) URL() string {
	url, _ := b.Through(b.upstream) // configure has parsed it already
	return url
}

// Through returns the URL of databaseURL's database, through the pooler. It requests a query mode
// of pgx without prepared statements, as an application needs by default behind a PgBouncer before
// 1.24.
func (b *Bouncer) Through(databaseURL string) (string, error) {
	// auth_type any ignores the user, but a client must name one.
	const pooled = "postgres://postgres@127.0.0.1:%d/?sslmode=disable&default_query_exec_mode=exec"
	return sameDatabase(fmt.Sprintf(pooled, b.port), databaseURL)
}

// Describe returns one line with the version, program and address of the pooler.
func (b *Bouncer) Describe() string { return b.describe }

// Log returns the end of the pooler's log, and its exit status if it ended on its own.
func (b *Bouncer) Log() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	log := b.folder.logTail()
	if b.process != nil && b.process.ended() {
		log += fmt.Sprintf("\nit ended on its own: %v", b.process.err)
	}
	return log
}

// Restart kills the pooler, with all connections through it, and starts it again on the same port.
// ctx bounds the wait until it listens.
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

// Stop kills the pooler, with all connections through it, and removes its files. It is idempotent.
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

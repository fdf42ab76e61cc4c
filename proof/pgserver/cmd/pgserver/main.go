//go:build unix

// Command pgserver runs a command with a PostgreSQL server of its own, which ends with the command:
//
//	go run ./pgserver/cmd/pgserver [-bouncer] [-app] -- go test ./...
//
// The command gets the server's URL in DATABASE_URL. With -bouncer, this URL leads through a
// PgBouncer in transaction mode, and PGLEASES_TEST_DIRECT_URL is the URL of the server itself. With
// -app, PGLEASES_TEST_ROLE is the role of the tests' clients. It has only the rights of
// sql/grants/application.sql.
//
// The exit status is the command's; 128 plus the signal if a signal ended the command; 2 if the
// command could not be run.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"github.com/pgleases/pgleases/proof/pgserver"
)

func main() {
	bouncer := flag.Bool("bouncer", false, "start PgBouncer in transaction mode in front of the server")
	app := flag.Bool("app", false, "let tests connect as a role with only the rights of sql/grants/application.sql")
	flag.Parse()
	if flag.NArg() == 0 {
		flag.Usage()
		os.Exit(2)
	}
	code, err := run(*bouncer, *app, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 2)
	}
	os.Exit(code)
}

func run(withBouncer, asApp bool, args []string) (code int, err error) {
	// From the beginning, because a signal must not end this process before the server is stopped.
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer signal.Stop(signals)

	ctx := context.Background()
	// A pooler keeps up to its pool size of connections to each of the tests' databases.
	server, err := pgserver.Start(ctx, pgserver.WithSettings(map[string]string{"max_connections": "500"}))
	if err != nil {
		return 2, err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	fmt.Fprintln(os.Stderr, "pgserver:", server.Describe())

	url := server.URL()
	env := os.Environ() // if a variable occurs twice, the last one counts
	var users []pgserver.BouncerOption
	if asApp {
		const app = "pgleases_app" // internal/pgtest creates it with the first database
		env = append(env, "PGLEASES_TEST_ROLE="+app)
		users = append(users, pgserver.WithUsers("postgres", app))
	}
	if withBouncer {
		bouncer, startErr := pgserver.PgBouncer(ctx, url, users...)
		if startErr != nil {
			return 2, startErr
		}
		defer func() { err = errors.Join(err, bouncer.Stop()) }()
		fmt.Fprintln(os.Stderr, "pgserver:", bouncer.Describe())
		env = append(env, "PGLEASES_TEST_DIRECT_URL="+url)
		url = bouncer.URL()
	}
	return command(args, append(env, "DATABASE_URL="+url), signals)
}

// command runs the command, passes signals on to it, and returns its status.
func command(args, env []string, signals <-chan os.Signal) (int, error) {
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = env
	cmd.Stdin = os.Stdin
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Start(); err != nil {
		return 2, err
	}
	go func() {
		for sig := range signals {
			_ = cmd.Process.Signal(sig) // an error means that it has just ended
		}
	}()
	var exit *exec.ExitError
	if err := cmd.Wait(); err != nil && !errors.As(err, &exit) {
		return 2, err
	}
	status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus)
	if ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

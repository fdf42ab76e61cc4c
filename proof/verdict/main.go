// Command verdict runs the proof and prints what it has shown:
//
//	go run ./verdict [-report FILE] [-from PATTERN] [-- ARGUMENT ...]
//
// The arguments are those of go test, by default all packages of the proof, one after the other. At
// the end it prints a table with the faults that have hit in each attack, what was checked, the
// violations, and what was skipped and why. It exits with 1 if a test failed, if a violation was
// found, or if no test ran. A test whose program is missing fails, unless PGLEASES_TEST_SKIP names
// the program.
//
// With -report it writes the verdict to a file. In a file that has the lines Begin and End, it
// replaces what is between them. With -from it runs no tests, and reads files with the output of go
// test -json. A pattern may name several, and -commit says which commit they are of.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "verdict:", err)
		os.Exit(1)
	}
}

// run is main without the process's arguments and output, for the test.
func run(ctx context.Context, args []string, out, progress io.Writer) error {
	flags := flag.NewFlagSet("verdict", flag.ContinueOnError)
	flags.SetOutput(progress)
	report := flags.String("report", "", "write the verdict to this `file`")
	from := flags.String("from", "", "read the output of go test -json from files that match this `pattern`")
	tested := flags.String("commit", "", "the `commit` that was tested, if it is not that of the working tree")
	if err := flags.Parse(args); err != nil {
		return err
	}
	v := newVerdict(progress)
	v.commit = *tested
	if v.commit == "" {
		v.commit = commit(ctx)
	}
	var err error
	if *from != "" {
		err = v.readFiles(*from)
	} else {
		err = v.test(ctx, flags.Args())
	}
	if err != nil {
		return err
	}
	fmt.Fprint(out, v.table(listed))
	if *report != "" {
		if err := write(*report, v.page()); err != nil {
			return err
		}
	}
	return v.err()
}

// test runs go test and reads its events.
func (v *verdict) test(ctx context.Context, args []string) error {
	if len(args) == 0 {
		args = []string{"-p=1", "-count=1", "-timeout=3h", "./..."}
	}
	command := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	command.Stderr = v.progress
	output, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return err
	}
	read := v.read(output)
	err = command.Wait()
	var failed *exec.ExitError
	tested := errors.As(err, &failed) && len(v.rows) > 0 // the events say which test failed
	if err != nil && !tested {
		return errors.Join(read, fmt.Errorf("go test: %w", err))
	}
	return read
}

func (v *verdict) readFiles(pattern string) error {
	paths, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(paths) == 0 {
		return fmt.Errorf("-from %s: no such file", pattern)
	}
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		err = errors.Join(v.read(file), file.Close())
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
	}
	return nil
}

// commit returns the commit of the working tree.
func commit(ctx context.Context) string {
	text, err := exec.CommandContext(ctx, "git", "describe", "--always", "--dirty").Output()
	if err != nil {
		return "unknown"
	}
	return strings.TrimSpace(string(text))
}

// write replaces the report in a file, or creates the file.
func write(path, page string) error {
	page = Begin + "\n\n" + page + "\n" + End + "\n"
	old, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		return os.WriteFile(path, []byte(page), 0o644)
	case err != nil:
		return err
	}
	before, rest, begins := strings.Cut(string(old), Begin+"\n")
	_, after, ends := strings.Cut(rest, End+"\n")
	if !begins || !ends {
		return fmt.Errorf("%s has no lines %q and %q between which the report could go", path, Begin, End)
	}
	return os.WriteFile(path, []byte(before+page+after), 0o644)
}

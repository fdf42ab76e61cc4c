package pgtest

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
)

// startTimeout bounds the start of a server, downloads included.
const startTimeout = 5 * time.Minute

// Without DATABASE_URL, tests have a server of their own, and what the environment says about
// another one is not for it.
func init() {
	if os.Getenv("DATABASE_URL") != "" {
		return
	}
	for _, name := range ofAnotherServer {
		_ = os.Unsetenv(name)
	}
}

var ofAnotherServer = []string{
	"PGSERVICE", "PGSERVICEFILE", "PGTARGETSESSIONATTRS", "PGOPTIONS", "PGTZ", "PGAPPNAME",
}

// A server is the server of the tests of this process.
type server struct {
	url, description string
	// Makes CREATE DATABASE copy files, which takes half the time on a server of ours, and is slow on
	// one with fsync.
	copies string
}

// shared returns the server of this process, and prints once which it is.
var shared = sync.OnceValues(func() (server, error) {
	s, err := given()
	if err == nil {
		fmt.Fprintln(os.Stderr, "pgtest:", s.description)
	}
	return s, err
})

// given returns the server at DATABASE_URL, or one of our own.
func given() (server, error) {
	url := os.Getenv("DATABASE_URL")
	if url == "" {
		return join()
	}
	s, err := describe(url, "at DATABASE_URL")
	if err != nil {
		err = fmt.Errorf("%w; correct DATABASE_URL, or unset it to have a server started", err)
	}
	return s, err
}

// describe connects to a server, and returns it with its version.
func describe(url, from string) (server, error) {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	if _, err := withDatabase(url, ""); err != nil {
		return server{}, err
	}
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return server{}, err
	}
	defer conn.Close(ctx)
	version, _, _ := strings.Cut(conn.PgConn().ParameterStatus("server_version"), " ")
	return server{url: url, description: "PostgreSQL " + version + " " + from}, nil
}

// Files in the folder that the processes of a user share.
const (
	gateFile    = "gate"    // locked by the process that starts, joins or ends the server
	membersFile = "members" // locked in common by the processes that use the server, until they end
	keeperFile  = "keeper"  // locked by the keeper, until it ends
	serverFile  = "server"  // contains the URL and the description
)

// held are locked until this process ends. Without a reference they would be collected, and closed.
var held []*os.File

// join returns the server that all processes of this user share. If no server runs, it starts a
// keeper: a process that starts the server, and removes it and the folder when the last process
// that uses it has ended. So there is one server at a time, however many packages are tested side
// by side, and no server remains of a test that was killed.
//
// The locks need no cleanup: the kernel releases them with the process.
func join() (server, error) {
	folder, err := sharedFolder(os.Environ())
	if err != nil {
		return server{}, err
	}
	for {
		if err := makeFolder(folder); err != nil {
			return server{}, err
		}
		s, err := joinIn(folder)
		if !errors.Is(err, errGone) {
			return s, err
		}
	}
}

// errGone says that the server of a folder, and the folder, were removed before they could be
// joined.
var errGone = errors.New("the server has ended")

func joinIn(folder string) (server, error) {
	gate, err := openLocked(filepath.Join(folder, gateFile), exclusive)
	if errors.Is(err, fs.ErrNotExist) {
		return server{}, errGone
	} else if err != nil {
		return server{}, err
	}
	defer gate.Close()
	if !isAt(gate, folder) {
		return server{}, errGone
	}
	members, err := openLocked(filepath.Join(folder, membersFile), inCommon)
	if err != nil {
		return server{}, err
	}
	held = append(held, members)
	keeperPath := filepath.Join(folder, keeperFile)
	if _, err := os.Stat(keeperPath); errors.Is(err, fs.ErrNotExist) {
		if err := startKeeper(folder, gate); err != nil {
			return server{}, err
		}
	} else if _, err := openLocked(keeperPath, exclusive|atOnce); err == nil {
		// The keeper was killed. A server whose files are missing ends automatically within a minute.
		return server{}, cmp.Or(discard(folder), errGone)
	}
	text, err := os.ReadFile(filepath.Join(folder, serverFile))
	if err != nil {
		return server{}, err
	}
	var s server
	s.url, s.description, _ = strings.Cut(string(text), "\n")
	var version int
	if _, err := fmt.Sscanf(s.description, "PostgreSQL %d", &version); err != nil {
		return server{}, fmt.Errorf("version in %q: %w", s.description, err)
	}
	if version >= 15 { // older servers have no other strategy
		s.copies = " STRATEGY file_copy"
	}
	return s, nil
}

// isAt reports whether a gate is still the one of the folder. It is not if the server ended while
// this process waited for the lock.
func isAt(gate *os.File, folder string) bool {
	ours, err := gate.Stat()
	now, err2 := os.Stat(filepath.Join(folder, gateFile))
	return err == nil && err2 == nil && os.SameFile(ours, now)
}

// discard removes the folder. It first renames the folder, so that the next process creates a new
// one.
func discard(folder string) error {
	old := fmt.Sprintf("%s-old-%d", folder, os.Getpid())
	if err := os.Rename(folder, old); err != nil {
		return err
	}
	return os.RemoveAll(old)
}

// sharedFolder returns the folder of a server with these settings, for the processes whose
// variables ask for the same. It is in memory if there is enough: with slow files a start took 2.0
// s instead of 0.9 s, and a database 280 ms instead of 25 ms.
func sharedFolder(environ []string) (string, error) {
	if _, err := allowedWay(); err != nil {
		return "", err
	}
	root := MemoryFolder()
	switch {
	case root != "":
	case os.Geteuid() == 0:
		root = "/tmp" // root's TMPDIR may be closed to the user that runs the server
	default:
		root = os.TempDir()
	}
	variables := slices.DeleteFunc(slices.Clone(environ), func(entry string) bool {
		return !strings.HasPrefix(entry, "PGLEASES_TEST_")
	})
	slices.Sort(variables)
	hash := fnv.New32()
	fmt.Fprint(hash, settings, variables)
	return filepath.Join(root, fmt.Sprintf("pgleases-pgtest-%d-%08x", os.Geteuid(), hash.Sum32())), nil
}

// startKeeper runs this program again, as the keeper of a folder (see init), and waits until the
// server is ready. The gate stays locked until then, even if this process ends. startKeeper prints
// the keeper's reports meanwhile.
func startKeeper(folder string, gate *os.File) error {
	program, err := os.Executable()
	if err != nil {
		return err
	}
	keeper := exec.Command(program)
	keeper.Dir = folder
	keeper.ExtraFiles = []*os.File{gate}
	keeper.SysProcAttr = ownSession() // Ctrl-C is for the tests: the keeper ends after them
	// Variables such as PGDATA and LC_ALL change how PostgreSQL starts.
	keeper.Env = slices.DeleteFunc(os.Environ(), func(entry string) bool {
		return strings.HasPrefix(entry, "PG") && !strings.HasPrefix(entry, "PGLEASES_") ||
			strings.HasPrefix(entry, "LC_") || strings.HasPrefix(entry, "LANG")
	})
	keeper.Env = append(keeper.Env, "LC_ALL=C", "TMPDIR="+folder, keeperVariable+"="+folder)
	output, err := keeper.StdoutPipe()
	if err != nil {
		return err
	}
	if err := keeper.Start(); err != nil {
		return err
	}
	var failure []string
	for lines := bufio.NewScanner(output); lines.Scan(); {
		switch kind, text, _ := strings.Cut(lines.Text(), " "); kind {
		case "ready":
			output.Close()
			return keeper.Process.Release()
		case "notice":
			fmt.Fprintln(os.Stderr, "pgtest:", text)
		default:
			failure = append(failure, lines.Text())
		}
	}
	ended := fmt.Sprint("the process that starts the server ended: ", keeper.Wait())
	return errors.New(cmp.Or(strings.Join(failure, "\n"), ended))
}

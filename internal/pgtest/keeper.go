package pgtest

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	keeperVariable = "PGLEASES_TEST_KEEPER" // only startKeeper sets it
	wayVariable    = "PGLEASES_TEST_POSTGRES"
	binVariable    = "PGLEASES_TEST_POSTGRES_BIN"
)

// settings make a server small and fast, for data that need not survive a crash of the machine.
var settings = map[string]string{
	"max_connections":            "600",
	"max_prepared_transactions":  "10",
	"shared_buffers":             "32MB",
	"fsync":                      "off",
	"full_page_writes":           "off",
	"autovacuum":                 "off", // it would visit each of the many databases
	"jit":                        "off",
	"deadlock_timeout":           "100ms",   // instead of a second for each deadlock that a test makes
	"shared_preload_libraries":   "plpgsql", // otherwise each session loads it
	"timezone":                   "UTC",
	"dynamic_shared_memory_type": "mmap", // in the folder, not in /dev/shm, where it would outlive a killed server
}

// init makes this process a keeper if startKeeper started it as one, before the rest of the program
// runs.
func init() {
	folder := os.Getenv(keeperVariable)
	if folder == "" {
		return
	}
	if err := keep(folder, inherited(3)); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	os.Exit(0)
}

// keep starts a server, waits until no process uses it any more, and removes it with its folder.
// The process that started this one has locked the gate, and it stays locked until the server is
// ready.
func keep(folder string, gate *os.File) (err error) {
	defer func() { err = errors.Join(err, discard(folder)) }()
	signal.Ignore(syscall.SIGPIPE) // if the other process was killed, the output of this one has no reader
	lock, err := openLocked(filepath.Join(folder, keeperFile), exclusive|atOnce)
	if err != nil {
		return err
	}
	held = append(held, lock)
	s, stop, err := start(folder)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, stop()) }()
	if err := os.WriteFile(filepath.Join(folder, serverFile), []byte(s.url+"\n"+s.description), 0o600); err != nil {
		return err
	}
	gate.Close()
	fmt.Println("ready")
	for {
		members, err := openLocked(filepath.Join(folder, membersFile), exclusive)
		if err != nil {
			return err
		}
		members.Close() // no process uses the server; behind the gate none can begin to
		gate, err := openLocked(filepath.Join(folder, gateFile), exclusive)
		if err != nil {
			return err
		}
		if _, err := openLocked(filepath.Join(folder, membersFile), exclusive|atOnce); err == nil {
			held = append(held, gate)
			return nil
		}
		gate.Close() // another process joined in between
	}
}

// notice makes startKeeper print that something takes long.
func notice(format string, args ...any) { fmt.Printf("notice "+format+"\n", args...) }

// ways are the ways to a server, in their order. Docker gives the same server on every machine. A
// download is slow the first time, and may not be allowed. Each way returns a function that stops
// the server. Its error is errMissing if another way should be tried.
var ways = []struct {
	name  string
	start func(folder string) (s server, stop func() error, err error)
}{{"docker", startDocker}, {"programs", startPrograms}, {"embedded", startEmbedded}}

// errMissing says that this machine lacks a requirement of a way.
var errMissing = errors.New("cannot be used")

// allowedWay returns the name of the only way to try, "" for all.
func allowedWay() (string, error) {
	name := os.Getenv(wayVariable)
	if name == "" && os.Getenv(binVariable) != "" {
		return "programs", nil
	}
	for _, way := range ways {
		if name == way.name {
			return name, nil
		}
	}
	if name != "" {
		return "", fmt.Errorf("%s=%s: it must be docker, programs or embedded", wayVariable, name)
	}
	return "", nil
}

var errNoServer = errors.New("no PostgreSQL server: set DATABASE_URL to the URL of one, start Docker, or install the " +
	"server programs (Debian, Ubuntu: apt-get install postgresql; Fedora: dnf install postgresql-server; " +
	"Alpine: apk add postgresql; macOS: brew install postgresql@17)")

// start starts a server in the first way whose requirements this machine has.
func start(folder string) (s server, stop func() error, err error) {
	allowed, err := allowedWay()
	if err != nil {
		return server{}, nil, err
	}
	missing := []error{errNoServer}
	for _, way := range ways {
		if allowed != "" && allowed != way.name {
			continue
		}
		s, stop, err := way.start(folder)
		if err == nil || !errors.Is(err, errMissing) {
			return s, stop, err
		}
		missing = append(missing, fmt.Errorf("%s: %w", way.name, err))
	}
	return server{}, nil, errors.Join(missing...)
}

// programFolders are the folders where distributions install the server programs, often not on
// PATH. The last existing one is the newest version.
var programFolders = []string{
	"/usr/lib/postgresql/[1-9][0-9]/bin", // Debian, Ubuntu
	"/usr/pgsql-[1-9][0-9]/bin",          // RPMs of PostgreSQL's own
	"/usr/libexec/postgresql[1-9][0-9]",  // Alpine
	"/opt/homebrew/opt/postgresql@[1-9][0-9]/bin",
	"/usr/local/opt/postgresql@[1-9][0-9]/bin",
	"/Applications/Postgres.app/Contents/Versions/[1-9][0-9]/bin",
}

// FindPrograms returns the folder of the server programs: of PGLEASES_TEST_POSTGRES_BIN if it is
// set, otherwise on PATH or where distributions install them.
func FindPrograms() (string, error) {
	folders := []string{os.Getenv(binVariable)}
	if folders[0] == "" {
		folders = filepath.SplitList(os.Getenv("PATH"))
		for _, pattern := range programFolders {
			found, _ := filepath.Glob(pattern)
			slices.Reverse(found)
			folders = append(folders, found...)
		}
	}
	for _, folder := range folders {
		// PATH may have links to some of the programs; the others are beside the targets of the links.
		initdb, err := filepath.EvalSymlinks(filepath.Join(folder, "initdb"))
		if err != nil {
			continue
		}
		if _, err := exec.LookPath(filepath.Join(filepath.Dir(initdb), "pg_ctl")); err == nil {
			return filepath.Dir(initdb), nil
		}
	}
	return "", fmt.Errorf("%w: neither %s nor PATH nor any of %s has initdb and pg_ctl",
		errMissing, binVariable, strings.Join(programFolders, ", "))
}

// startPrograms starts a server from installed programs.
func startPrograms(folder string) (server, func() error, error) {
	bin, err := FindPrograms()
	if err != nil {
		return server{}, nil, err
	}
	if err := dropRoot(folder); err != nil {
		return server{}, nil, err
	}
	// The library requires a folder with the name bin, which not every distribution has.
	programs := filepath.Join(folder, "programs")
	if err := errors.Join(os.Mkdir(programs, 0o700), os.Symlink(bin, filepath.Join(programs, "bin"))); err != nil {
		return server{}, nil, err
	}
	return run(folder, embeddedpostgres.DefaultConfig().BinariesPath(programs), bin)
}

// startEmbedded starts a server from programs that it downloads once.
func startEmbedded(folder string) (server, func() error, error) {
	cache := os.Getenv("XDG_CACHE_HOME")
	var err error
	switch {
	case cache != "":
	case os.Geteuid() == 0:
		cache = "/var/cache" // root's own cache is closed to the user that runs the server
	default:
		cache, err = os.UserCacheDir()
	}
	cache = filepath.Join(cache, "pgleases-postgres")
	if err == nil {
		err = os.MkdirAll(cache, 0o755)
	}
	if err == nil {
		err = dropRoot(folder, cache)
	}
	if err != nil {
		return server{}, nil, fmt.Errorf("%w: %w", errMissing, err)
	}
	const version = embeddedpostgres.V18
	programs := filepath.Join(cache, string(version))
	complete := filepath.Join(programs, "complete")
	if _, err := os.Stat(complete); err != nil {
		notice("fetching PostgreSQL %s into %s, for at most three minutes", version, cache)
		if err := os.RemoveAll(programs); err != nil {
			return server{}, nil, err
		}
	}
	http.DefaultClient.Timeout = 3 * time.Minute // the library uses it
	config := embeddedpostgres.DefaultConfig().Version(version).CachePath(cache).BinariesPath(programs)
	s, stop, err := run(folder, config, "embedded-postgres in "+programs)
	if _, missing := os.Stat(programs); missing != nil {
		return server{}, nil, fmt.Errorf("%w: %w", errMissing, err)
	}
	if err != nil {
		return server{}, nil, err
	}
	return s, stop, os.WriteFile(complete, nil, 0o644)
}

// run makes the library create and start a server in the folder. The server writes only there:
// TMPDIR is the folder too.
func run(folder string, config embeddedpostgres.Config, from string) (server, func() error, error) {
	// The library asks for the password, "postgres", in a way that takes half of the server's time for
	// a connection.
	access := filepath.Join(folder, "access")
	if err := os.WriteFile(access, []byte("host all all 127.0.0.1/32 trust\n"), 0o600); err != nil {
		return server{}, nil, err
	}
	parameters := map[string]string{"listen_addresses": "127.0.0.1", "unix_socket_directories": "", "hba_file": access}
	maps.Copy(parameters, settings)
	config = config.RuntimePath(filepath.Join(folder, "run")).Locale("C").Encoding("UTF8").
		StartParameters(parameters).StartTimeout(time.Minute).Logger(io.Discard)
	for tries := 1; ; tries++ {
		free, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return server{}, nil, err
		}
		port := free.Addr().(*net.TCPAddr).Port
		free.Close()
		database := embeddedpostgres.NewDatabase(config.Port(uint32(port)))
		if err := database.Start(); err != nil {
			taken, dialErr := net.Dial("tcp", free.Addr().String())
			if dialErr == nil {
				taken.Close()
			}
			if dialErr == nil && tries < 5 {
				continue // another program was faster
			}
			return server{}, nil, fmt.Errorf("start PostgreSQL from %s: %w", from, err)
		}
		s, err := describe(fmt.Sprintf("postgres://postgres:postgres@127.0.0.1:%d/postgres?sslmode=disable", port),
			fmt.Sprintf("from %s on 127.0.0.1:%d", from, port))
		if err != nil {
			return server{}, nil, errors.Join(err, database.Stop())
		}
		return s, database.Stop, nil
	}
}

package pgserver

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"time"

	embeddedpostgres "github.com/fergusstrange/embedded-postgres"
)

const (
	embeddedVersion = embeddedpostgres.V18

	downloadTimeout = 2 * time.Minute
)

// startEmbedded starts a server from programs that embedded-postgres downloads. It starts no server of its own for us:
// that could neither be run by root nor be killed and frozen.
func startEmbedded(ctx context.Context, o options) (*Server, error) {
	bin, err := embeddedPrograms(ctx)
	if err != nil {
		return nil, &unusable{"embedded", err}
	}
	return startFrom(ctx, bin, "embedded-postgres in "+bin, o)
}

// embeddedCache returns the directory that keeps the download and the programs, for all who come later.
func embeddedCache() (string, error) {
	account, err := unprivileged()
	if err != nil {
		return "", err
	}
	cache := os.Getenv("XDG_CACHE_HOME")
	switch {
	case cache != "":
	case account != nil:
		cache = "/var/cache" // root's home is closed to the user that the server runs as
	default:
		if cache, err = os.UserCacheDir(); err != nil {
			return "", err
		}
	}
	cache = filepath.Join(cache, "pgleases-postgres")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return "", err
	}
	if account != nil && !reachable(cache) {
		return "", fmt.Errorf("%s cannot be reached by other users: set XDG_CACHE_HOME to a directory that can", cache)
	}
	return cache, nil
}

// embeddedPrograms returns the directory of the programs, and has the library fetch and unpack them where they are not
// there yet.
func embeddedPrograms(ctx context.Context) (string, error) {
	cache, err := embeddedCache()
	if err != nil {
		return "", err
	}
	final := filepath.Join(cache, string(embeddedVersion)+"-embedded")
	if hasPrograms(final) {
		return filepath.Join(final, "bin"), nil
	}
	// In a folder of its own, so that one who is interrupted leaves nothing that looks complete.
	folder, err := newFolder(nil, cache, false)
	if err != nil {
		return "", err
	}
	fmt.Fprintf(os.Stderr, "pgtest: fetching PostgreSQL %s into %s, for at most %v\n", embeddedVersion, cache, downloadTimeout)
	ctx, cancel := context.WithTimeout(ctx, downloadTimeout)
	defer cancel()
	unpacked := folder.file("programs")
	done := make(chan error, 1)
	go func() { done <- unpack(cache, unpacked, folder.file("runtime")) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		// The library cannot be interrupted. Its folder stays as long as it may write there: the next start removes it.
		return "", fmt.Errorf("not fetched in time: %w", context.Cause(ctx))
	}
	defer folder.remove()
	if err != nil {
		return "", err
	}
	if err := os.Rename(unpacked, final); err != nil && !hasPrograms(final) { // else another was faster
		return "", err
	}
	return filepath.Join(final, "bin"), nil
}

// unpack has the library put the programs into a directory, which it does before it starts a server from them. That
// start fails for root; here, the programs are what counts.
func unpack(cache, directory, runtime string) error {
	defer http.DefaultClient.CloseIdleConnections() // the library's, which leak detectors would find
	port, err := freePort()
	if err != nil {
		return err
	}
	server := embeddedpostgres.NewDatabase(embeddedpostgres.DefaultConfig().Version(embeddedVersion).
		CachePath(cache).BinariesPath(directory).RuntimePath(runtime).Port(uint32(port)).Locale("C").Logger(io.Discard))
	if err := server.Start(); err != nil {
		if hasPrograms(directory) {
			return nil
		}
		return err
	}
	return server.Stop()
}

func hasPrograms(directory string) bool {
	return isProgram(filepath.Join(directory, "bin", exe("postgres"))) && isProgram(filepath.Join(directory, "bin", exe("initdb")))
}

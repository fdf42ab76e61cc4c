//go:build !(darwin || freebsd || linux || windows)

package pgtest

import (
	"fmt"
	"runtime"
)

// startDocker returns an error, because the library for Docker does not build for this system.
func startDocker(string) (server, func() error, error) {
	return server{}, nil, fmt.Errorf("%w: tests do not use Docker on %s", errMissing, runtime.GOOS)
}

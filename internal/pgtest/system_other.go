//go:build !unix || aix || solaris

package pgtest

import (
	"errors"
	"os"
	"syscall"
)

// Here no server is started: the system has no way to end it with its tests.
const exclusive, inCommon, atOnce = 0, 0, 0

var errUnsupported = errors.New("this system has no file locks: set DATABASE_URL to the URL of a PostgreSQL server")

func makeFolder(string) error                  { return errUnsupported }
func openLocked(string, int) (*os.File, error) { return nil, errUnsupported }
func inherited(uintptr) *os.File               { return nil }
func ownSession() *syscall.SysProcAttr         { return nil }
func dropRoot(...string) error                 { return errUnsupported }

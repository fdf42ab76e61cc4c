//go:build unix && !aix && !solaris

package pgtest

import (
	"errors"
	"fmt"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// How openLocked locks: waiting for others unless atOnce.
const (
	exclusive = syscall.LOCK_EX
	inCommon  = syscall.LOCK_SH
	atOnce    = syscall.LOCK_NB
)

// openLocked opens a file, creates it if it is missing, and locks it until it is closed. Programs
// that this process starts do not inherit it.
func openLocked(path string, how int) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	_ = f.Chmod(0o644) // whatever the umask is: root's processes and the server's user open it; its owner may
	for {
		err := syscall.Flock(int(f.Fd()), how)
		if err == nil {
			return f, nil
		}
		if err != syscall.EINTR {
			return nil, errors.Join(os.NewSyscallError("flock "+path, err), f.Close())
		}
	}
}

// inherited returns a file that the process inherited.
func inherited(descriptor uintptr) *os.File {
	syscall.CloseOnExec(int(descriptor)) // the server would keep it open, and locked
	return os.NewFile(descriptor, "inherited")
}

func ownSession() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setsid: true} }

// makeFolder creates the folder unless it exists. In a shared /tmp, another user may have created
// it.
func makeFolder(path string) error {
	if err := os.Mkdir(path, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	info, err := os.Lstat(path)
	if err != nil {
		return nil // its server ended just now, which joinIn detects too
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	uid, _, err := Account()
	isOurs := err == nil && (owner == uid || owner == os.Geteuid())
	if !isOurs || !info.IsDir() {
		return errors.Join(err, fmt.Errorf("%s is not a folder of this user's: remove it", path))
	}
	return nil
}

var errNoAccount = errors.New("PostgreSQL refuses to run as root, and there is neither a user postgres nor nobody")

// Account returns the user that runs a server: the user of this process, unless that is root, which
// PostgreSQL refuses.
func Account() (uid, gid int, err error) {
	if os.Geteuid() != 0 {
		return os.Geteuid(), os.Getegid(), nil
	}
	u, err := user.Lookup("postgres")
	if err != nil {
		u, err = user.Lookup("nobody")
	}
	if err != nil {
		return 0, 0, errNoAccount
	}
	uid, err = strconv.Atoi(u.Uid)
	gid, err2 := strconv.Atoi(u.Gid)
	return uid, gid, errors.Join(err, err2)
}

// dropRoot changes the user of this process from root to that of Account, which gets the folders.
func dropRoot(folders ...string) error {
	uid, gid, err := Account()
	if err != nil || uid == os.Geteuid() {
		return err
	}
	for _, folder := range folders {
		err = errors.Join(err, os.Chown(folder, uid, gid))
	}
	return errors.Join(err, syscall.Setgroups([]int{gid}), syscall.Setgid(gid), syscall.Setuid(uid))
}

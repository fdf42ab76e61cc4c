package pgserver

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// folder is a temporary folder that belongs to this process for as long as that lives: it holds a lock on a file
// inside, which the kernel releases when the process ends, so that others can tell that the folder was abandoned.
type folder struct {
	path string
	lock *os.File
}

const (
	lockName    = "lock"
	lockPending = "lock.new"
)

// newFolder makes a folder that others may enter but not write to. It also removes what died processes left behind.
// It is in dir; where that is empty, see tempRoot.
func newFolder(a *account, dir string, inMemory bool) (*folder, error) {
	root := cmp.Or(dir, tempRoot(a, inMemory))
	prefix := fmt.Sprintf("pgleases-pgtest-%d-", os.Getuid())
	sweep(root, prefix)

	path, err := os.MkdirTemp(root, prefix)
	if err != nil {
		return nil, err
	}
	f := &folder{path: path}
	if err := f.claim(); err != nil {
		f.remove()
		return nil, err
	}
	return f, nil
}

func (f *folder) claim() error {
	if err := os.Chmod(f.path, 0o755); err != nil {
		return err
	}
	// The file gets its name once it is locked: a sweep that sees it unlocked may trust that its owner is gone.
	pending := filepath.Join(f.path, lockPending)
	lock, err := os.OpenFile(pending, os.O_CREATE|os.O_EXCL|os.O_RDWR, 0o600)
	if err != nil {
		return err
	}
	f.lock = lock
	if !tryLock(lock) {
		return fmt.Errorf("cannot lock %s", pending)
	}
	return rename(pending, filepath.Join(f.path, lockName))
}

// name is unique among folders; the processes that work in a folder have it in their command line (see belongs).
func (f *folder) name() string { return filepath.Base(f.path) }

func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

// mkdir makes a folder inside that belongs to the account alone.
func (f *folder) mkdir(name string, a *account) (string, error) {
	path := f.file(name)
	if err := os.Mkdir(path, 0o700); err != nil {
		return "", err
	}
	if a != nil {
		if err := os.Chown(path, a.uid, a.gid); err != nil {
			return "", err
		}
	}
	return path, nil
}

// remove deletes the folder and, last, gives up the lock.
func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		f.lock.Close()
	}
	return err
}

// sweep removes the abandoned folders in root whose names begin with prefix, and ends the processes that still work
// in them. It does what it can; a failure is no reason not to start.
func sweep(root, prefix string) {
	paths, _ := filepath.Glob(filepath.Join(root, prefix+"*"))
	for _, path := range paths {
		info, err := os.Lstat(path)
		if err != nil || !info.IsDir() || !ownedByUs(info) { // in a shared /tmp, anybody may have made it
			continue
		}
		lock, err := os.OpenFile(filepath.Join(path, lockName), os.O_RDWR, 0)
		switch {
		case err == nil && tryLock(lock):
			f := &folder{path, lock}
			if f.evacuate() > 0 { // else the id in an old file may be somebody else's by now
				removeSegment(f.segment())
			}
			f.remove()
		case err == nil:
			lock.Close() // in use
		case os.IsNotExist(err) && time.Since(info.ModTime()) > time.Minute:
			os.RemoveAll(path) // its owner died before it had claimed it
		}
	}
}

// evacuate kills all processes that work in the folder, waits until they are gone, and returns how many it found.
func (f *folder) evacuate() int {
	first := f.processes()
	for pids, deadline := first, time.Now().Add(5*time.Second); len(pids) > 0 && time.Now().Before(deadline); {
		for _, pid := range pids {
			signal(pid, sigKill)
		}
		time.Sleep(pollInterval)
		pids = f.processes() // with those that were just being forked
	}
	return len(first)
}

// processes returns the ids of all living processes that work in the folder, ascending.
func (f *folder) processes() []int {
	var pids []int
	for pid, command := range processTable() {
		if belongs(command, f.path) {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	return pids
}

// belongs reports whether a process with that command line works in the folder at path. PostgreSQL's own children are
// known by the cluster name that heads their titles, everything else by its arguments.
func belongs(command, path string) bool {
	if strings.HasPrefix(command, "postgres: "+filepath.Base(path)+": ") {
		return true
	}
	program, args, _ := strings.Cut(command, " ")
	switch strings.TrimSuffix(filepath.Base(program), ".exe") {
	case "postgres", "initdb", "pgbouncer":
		return strings.Contains(args, path+string(filepath.Separator))
	}
	return false
}

// segment returns the id of the System V shared memory segment of the server in this folder, "" if it has none. A
// server removes it, and the file that names it, when it stops, but not when it is killed.
func (f *folder) segment() string {
	lines := f.postmasterFile()
	if len(lines) < 7 {
		return ""
	}
	if fields := strings.Fields(lines[6]); len(fields) == 2 {
		return fields[1]
	}
	return ""
}

// postmasterFile returns the lines of the file in which a server tells its pid (the first line), its segment (the
// seventh) and its state (the eighth); none when there is no such file.
func (f *folder) postmasterFile() []string {
	text, err := os.ReadFile(filepath.Join(f.path, dataName, "postmaster.pid"))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\n")
}

// logTail returns the end of the program's log, for error messages.
func (f *folder) logTail() string {
	text, err := os.ReadFile(f.file(logName))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

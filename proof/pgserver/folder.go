//go:build unix

package pgserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/pgleases/pgleases/internal/pgtest"
)

// account is the user that started programs run as; nil means the user of this process.
type account struct{ uid, gid int }

// own changes the owner of a file or folder to the account.
func (a *account) own(path string) error {
	if a == nil {
		return nil
	}
	return os.Chown(path, a.uid, a.gid)
}

// write writes a file that the account owns.
func (a *account) write(path, text string) error {
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return err
	}
	return a.own(path)
}

// folder is a temporary folder of this process. The process holds a lock on it, which the kernel
// releases when the process ends. So other processes can detect abandoned folders.
type folder struct {
	path    string
	account *account // of the programs that run in it
	lock    *os.File
}

const folderPrefix = "pgleases-pgserver-"

// newFolder creates a folder that others may enter but not write to. It is in dir, or in tempRoot
// if dir is empty. newFolder also removes the folders that killed processes left there.
func newFolder(dir string, inMemory bool) (*folder, error) {
	var a *account
	if uid, gid, err := pgtest.Account(); err != nil {
		return nil, err
	} else if uid != os.Geteuid() { // PgBouncer refuses to run as root too
		a = &account{uid, gid}
	}
	if dir == "" {
		dir = tempRoot(inMemory)
	}
	sweep(dir)
	path, err := os.MkdirTemp(dir, folderPrefix)
	if err != nil {
		return nil, err
	}
	f := &folder{path: path, account: a}
	f.lock, err = os.Open(path)
	if err == nil {
		err = errors.Join(os.Chmod(path, 0o755), lock(f.lock))
	}
	if err != nil {
		return nil, errors.Join(err, f.remove())
	}
	return f, nil
}

// tempRoot returns a directory for temporary files that the account can reach; root's TMPDIR may be
// unreachable. If inMemory is set, TMPDIR is not, and there is enough memory, the directory is in
// memory. On a disk that creates files slowly, a start took 1.3 s instead of 0.35 s, and a database
// 280 ms instead of 25 ms.
func tempRoot(inMemory bool) string {
	if inMemory && os.Getenv("TMPDIR") == "" {
		dir := pgtest.MemoryFolder()
		if dir != "" {
			return dir
		}
	}
	if os.Geteuid() == 0 {
		return "/tmp"
	}
	return os.TempDir()
}

// lock locks an open folder. It returns an error if another process has the lock.
func lock(f *os.File) error { return syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) }

// sweep removes the abandoned folders in root, and kills the processes that still run in them. It
// ignores errors, because they should not prevent a start.
func sweep(root string) {
	paths, _ := filepath.Glob(filepath.Join(root, folderPrefix+"*"))
	for _, path := range paths {
		info, err := os.Lstat(path)
		// A young folder may not be locked yet.
		if err != nil || !info.IsDir() || time.Since(info.ModTime()) < time.Minute {
			continue
		}
		// Any user may create such a folder.
		stat, ok := info.Sys().(*syscall.Stat_t)
		if !ok || int(stat.Uid) != os.Getuid() {
			continue
		}
		f := &folder{path: path}
		f.lock, err = os.Open(path)
		if err != nil {
			continue
		}
		if lock(f.lock) != nil {
			f.lock.Close() // in use
			continue
		}
		if f.evacuate() > 0 { // else the id in an old file may belong to another segment by now
			removeSegment(f.segment())
		}
		_ = f.remove()
	}
}

func (f *folder) file(name string) string { return filepath.Join(f.path, name) }

// remove deletes the folder, and then releases the lock.
func (f *folder) remove() error {
	err := os.RemoveAll(f.path)
	if f.lock != nil {
		f.lock.Close()
	}
	return err
}

// evacuate kills all processes of the folder, waits until they have ended, and returns how many it
// found.
func (f *folder) evacuate() int {
	first := f.processes()
	for pids, deadline := first, time.Now().Add(5*time.Second); len(pids) > 0 && time.Now().Before(deadline); {
		for _, pid := range pids {
			_ = signal(pid, syscall.SIGKILL)
		}
		time.Sleep(pollInterval)
		pids = f.processes() // includes processes that were just being forked
	}
	return len(first)
}

// processes returns the ids of all live processes of the folder, in ascending order.
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

// belongs reports whether a process with that command line belongs to the folder at path.
// PostgreSQL's child processes are recognized by the cluster name at the beginning of their titles,
// and other processes by their arguments.
func belongs(command, path string) bool {
	if strings.HasPrefix(command, "postgres: "+filepath.Base(path)+": ") {
		return true
	}
	program, args, _ := strings.Cut(command, " ")
	switch filepath.Base(program) {
	case "postgres", "initdb", "pgbouncer":
		return strings.Contains(args, path+"/")
	}
	return false
}

// segment returns the id of the System V shared memory segment of the server in this folder, or ""
// if the server has no segment. A server removes the segment and the file with its id when it
// stops, but not when it is killed.
func (f *folder) segment() string {
	lines := f.postmasterFile()
	if len(lines) < 7 {
		return ""
	}
	fields := strings.Fields(lines[6])
	if len(fields) != 2 {
		return ""
	}
	return fields[1]
}

// postmasterFile returns the lines of postmaster.pid: line 1 is the server's pid, line 7 its
// segment, and line 8 its state. It returns nil if there is no such file.
func (f *folder) postmasterFile() []string {
	text, err := os.ReadFile(f.file(dataName + "/postmaster.pid"))
	if err != nil {
		return nil
	}
	return strings.Split(string(text), "\n")
}

// log returns the output of the programs in the folder.
func (f *folder) log() string {
	text, err := os.ReadFile(f.file(logName))
	if err != nil {
		return ""
	}
	return string(text)
}

// logTail returns the end of the log, for error messages.
func (f *folder) logTail() string {
	lines := strings.Split(strings.TrimSpace(f.log()), "\n")
	return strings.Join(lines[max(0, len(lines)-30):], "\n")
}

// launch starts a program in the folder. The program writes to the log there.
func (f *folder) launch(death syscall.Signal, program string, args ...string) (*process, error) {
	return f.launchIn(f.path, death, program, args...)
}

// await waits until a program of the folder is ready. If it is not ready before ctx ends, await kills
// all programs of the folder.
func (f *folder) await(ctx context.Context, p *process, ready func() bool) error {
	poll := time.NewTicker(pollInterval)
	defer poll.Stop()
	for !ready() {
		select {
		case <-poll.C:
		case <-p.done:
			return fmt.Errorf("it ended before it was ready: %v", p.err)
		case <-ctx.Done():
			f.evacuate()
			<-p.done
			return fmt.Errorf("it was not ready in time: %w", context.Cause(ctx))
		}
	}
	return nil
}

// launchIn is launch with another working directory.
func (f *folder) launchIn(dir string, death syscall.Signal, program string, args ...string) (*process, error) {
	log, err := os.OpenFile(f.file(logName), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	cmd := command(program, args...)
	cmd.Dir = dir
	// A file, because with a pipe, Wait would wait for every grandchild.
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = attributes(death)
	if f.account != nil {
		cmd.SysProcAttr.Credential = &syscall.Credential{Uid: uint32(f.account.uid), Gid: uint32(f.account.gid)}
	}
	p, err := launch(cmd)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Base(program), err)
	}
	return p, nil
}

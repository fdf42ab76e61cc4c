//go:build unix && !linux

package pgserver

import "syscall"

// attributes leaves the program in our process group: without a death signal, Ctrl-C should at least reach it.
func attributes(a *account, _ syscall.Signal) *syscall.SysProcAttr {
	if a == nil {
		return nil
	}
	return &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(a.uid), Gid: uint32(a.gid)}}
}

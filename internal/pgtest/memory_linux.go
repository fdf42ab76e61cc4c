package pgtest

import "syscall"

// MemoryFolder returns a file system in memory with enough space for a server; "" if there is no
// such file system.
func MemoryFolder() string {
	const folder, tmpfs, enough = "/dev/shm", 0x01021994, 4 << 30
	var fs syscall.Statfs_t
	err := syscall.Statfs(folder, &fs)
	if err != nil || fs.Type != tmpfs || fs.Bavail*uint64(fs.Bsize) < enough {
		return ""
	}
	return folder
}

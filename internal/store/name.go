package store

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf8"
)

// MaxNameBytes is the maximum length of the name of a client, a lease or a lock.
const MaxNameBytes = 255

// CheckName returns an error if a name is not valid; what says which kind of name it is.
func CheckName(what, name string) error {
	switch {
	case name == "":
		return fmt.Errorf(`pgleases: %s "" is empty: 1 to %d bytes`, what, MaxNameBytes)
	case len(name) > MaxNameBytes:
		return fmt.Errorf("pgleases: %s %.20q... has %d bytes: 1 to %d", what, name, len(name), MaxNameBytes)
	case !utf8.ValidString(name):
		return fmt.Errorf("pgleases: %s %q is not valid UTF-8", what, name)
	case strings.ContainsRune(name, 0):
		return fmt.Errorf("pgleases: %s %q contains a NUL", what, name)
	}
	return nil
}

// PartitionFor is the partition of a key among n: the first 8 bytes of SHA-256 of its UTF-8,
// big-endian, without the sign bit, modulo n. Users' data depends on it: it never changes, and the
// SQL function partition_for is the same.
func PartitionFor(key string, n int) int { return int(KeyHash(key) % int64(n)) }

// KeyHash is what PartitionFor divides.
func KeyHash(key string) int64 {
	sum := sha256.Sum256([]byte(key))
	return int64(binary.BigEndian.Uint64(sum[:8]) & (1<<63 - 1))
}

package pgleases

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
)

// A Partition is one ownership of a partition of a lease: the same number under another epoch is another ownership.
// It is a small value, to be copied freely, also beyond the ownership's end.
type Partition struct {
	Number int   // 0 to the lease's number of partitions - 1
	Epoch  int64 // the fencing token: higher than that of every earlier ownership of this partition

	ownership *ownership
}

// Context returns the context of this ownership. It ends when the ownership does, with the cause: ErrHandover after a
// hand-over, ErrTrustLost, ErrDrainTimeout, ErrSuperseded or ErrClosed. While the partition drains, after its owner was asked
// to hand it over, it goes on. A Partition that was not got from a lease returns a context that has ended.
func (p Partition) Context() context.Context {
	if p.ownership == nil {
		ctx, cancel := context.WithCancelCause(context.Background())
		cancel(ErrNotOwner)
		return ctx
	}
	return p.ownership.ctx
}

// String returns number and epoch: "7@4294967298".
func (p Partition) String() string { return fmt.Sprintf("%d@%d", p.Number, p.Epoch) }

// partitionFor is the partition of a key among n: the first 8 bytes of SHA-256 of its UTF-8, big-endian, without the sign
// bit, modulo n. Users' data depends on it: it never changes, and the SQL function partition_for is the same.
func partitionFor(key string, n int) int {
	sum := sha256.Sum256([]byte(key))
	return int(binary.BigEndian.Uint64(sum[:8]) & (1<<63 - 1) % uint64(n))
}

// FormatPartitions writes partition numbers as people read them: runs as ranges, "0-4,7"; none as "-". The numbers may
// come in any order; the slice is not changed.
func FormatPartitions(numbers []int) string {
	if len(numbers) == 0 {
		return "-"
	}
	numbers = slices.Sorted(slices.Values(numbers))
	var b strings.Builder
	for i := 0; i < len(numbers); {
		j := i
		for j+1 < len(numbers) && numbers[j+1] <= numbers[j]+1 {
			j++
		}
		if i > 0 {
			b.WriteByte(',')
		}
		fmt.Fprint(&b, numbers[i])
		if numbers[j] > numbers[i] {
			fmt.Fprintf(&b, "-%d", numbers[j])
		}
		i = j + 1
	}
	return b.String()
}

// listed is FormatPartitions for logs and errors: of very many, the first, and how many there are.
func listed(numbers []int) string {
	const most = 200
	text := FormatPartitions(numbers)
	if len(text) <= most {
		return text
	}
	return fmt.Sprintf("%s,... (%d in all)", text[:strings.LastIndexByte(text[:most], ',')], len(numbers))
}

package oracle

import (
	"context"
	"time"
)

// A Keeper writes which locks one goroutine held, one after the other. It is for that goroutine.
type Keeper struct {
	file  *file
	began Instant
	reads int64
}

// CreateKeeper creates the log at the path, whose base name names the goroutine. Nothing may be there.
func CreateKeeper(path string) (*Keeper, error) {
	f, err := createFile(path)
	return &Keeper{file: f}, err
}

// Keep notes a lock that was acquired, and asks whether it is held still, again and again, until it is not, or ctx ends. What it returns is
// what writing the log failed of, if it did.
func (k *Keeper) Keep(ctx context.Context, number int, token int64, shared bool, held func() bool) error {
	begin := Now()
	if !held() {
		return nil
	}
	first := Now()
	if k.began == 0 { // the header comes before any record: the log may be read meanwhile
		k.began = first
		if err := k.file.header(k.began, begin, 0, 0, 0); err != nil {
			return err
		}
	}
	record, err := k.file.open(number, token, shared, first)
	if err != nil {
		return err
	}
	for last := begin; ; last = begin {
		k.reads++
		// Where the process is killed now, the interval ends here.
		if err := k.file.header(k.began, last, k.reads, 0, 0); err != nil {
			return err
		}
		select {
		case <-time.After(defaultPause):
		case <-ctx.Done():
		}
		if begin = Now(); ctx.Err() != nil || !held() {
			return k.file.close(record, last)
		}
	}
}

// Close ends the log.
func (k *Keeper) Close() error { return k.file.f.Close() }

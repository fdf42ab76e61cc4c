package oracle

import (
	"context"
	"time"
)

// A Keeper records which locks one goroutine held, one after the other. Only that goroutine may use
// it.
type Keeper struct {
	file  *file
	began Instant
	reads int64
}

// CreateKeeper creates the log at path, whose base name is the goroutine's name. The file must not
// exist.
func CreateKeeper(path string) (*Keeper, error) {
	f, err := createFile(path)
	return &Keeper{file: f}, err
}

// Keep records an acquired lock. It polls whether the lock is still held, until it is not, or until
// ctx ends. It returns an error if it cannot write the log.
func (k *Keeper) Keep(ctx context.Context, number int, token int64, shared bool, held func() bool) error {
	begin := Now()
	if !held() {
		return nil
	}
	first := Now()
	if k.began == 0 { // the header comes before any record, because the log may be read meanwhile
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
		// If the process is killed now, the interval ends here.
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

// Close closes the log.
func (k *Keeper) Close() error { return k.file.f.Close() }

// Package locks is the oracle of named locks. A [Keeper] writes to a file which locks one
// goroutine held. [Read] reads the files of all goroutines, and oracle.Check returns the
// violations. Shared holds of a lock may overlap.
package locks

import (
	"context"
	"path/filepath"
	"time"

	"github.com/pgleases/pgleases/proof/oracle"
)

// Suffix ends the names of the files.
const Suffix = ".locks"

// Read reads what all goroutines have written in a folder.
func Read(dir string) ([]oracle.Log, error) { return oracle.ReadAll(filepath.Join(dir, "*"+Suffix)) }

const poll = time.Millisecond // between two looks at a held lock

// A Keeper records which locks one goroutine held, one after the other. Only that goroutine may use
// it.
type Keeper struct {
	file  *oracle.Writer
	began oracle.Instant
	reads int64
}

// Create creates the log at path, whose base name is the goroutine's name. The file must not
// exist.
func Create(path string) (*Keeper, error) {
	f, err := oracle.NewWriter(path)
	return &Keeper{file: f}, err
}

// Keep records an acquired lock. It polls whether the lock is still held, until it is not, or until
// ctx ends. It returns an error if it cannot write the log.
func (k *Keeper) Keep(ctx context.Context, number int, token int64, shared bool, held func() bool) error {
	begin := oracle.Now()
	if !held() {
		return nil
	}
	first := oracle.Now()
	if k.began == 0 { // the header comes before any record, because the log may be read meanwhile
		k.began = first
		if err := k.file.Header(k.began, begin, 0, 0, 0); err != nil {
			return err
		}
	}
	record, err := k.file.Begin(number, token, shared, first)
	if err != nil {
		return err
	}
	for last := begin; ; last = begin {
		k.reads++
		// If the process is killed now, the interval ends here.
		if err := k.file.Header(k.began, last, k.reads, 0, 0); err != nil {
			return err
		}
		select {
		case <-time.After(poll):
		case <-ctx.Done():
		}
		begin = oracle.Now()
		if ctx.Err() != nil || !held() {
			return k.file.End(record, last)
		}
	}
}

// Close closes the log.
func (k *Keeper) Close() error { return k.file.Close() }

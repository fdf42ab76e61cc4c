package lock

import (
	"cmp"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/pgleases/pgleases/internal/store"
)

// Info is what is known of a lock that somebody holds or awaits.
type Info struct {
	Name    string
	Shared  bool     // its holders share it
	Holders []Holder // in the order in which they got it; none: it is on its way to the first that waits
	Waiting int      // how many wait
}

// Holder is a client that holds a lock.
type Holder struct {
	Client       string        // its ID; empty: it was evicted, and a guarded transaction under the lock is open
	Host         string        // on which its process runs
	PID          int           // of that process
	Token        int64         // of its acquisition
	Since        time.Time     // it holds the lock, by the database's clock
	HeartbeatAge time.Duration // since its last heartbeat
	TimeLeft     time.Duration // until it may be evicted, if it falls silent; negative: it may be already
}

// pageNames is how many names List reads at once.
const pageNames = 1000

// List returns the locks whose names begin with prefix, ordered by name, byte by byte; an empty prefix: all. It reads some at a time, on a
// connection of the pool, so they are not of one instant. An error is the last pair. ctx covers all of it.
func (l *Locks) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		if l.misuse != nil {
			yield(Info{}, l.misuse)
			return
		}
		for after := ""; ; {
			page, err := l.table.List(ctx, prefix, after, pageNames)
			if err != nil {
				yield(Info{}, fmt.Errorf("pgleases: list locks with prefix %q: %w", prefix, err))
				return
			}
			for _, row := range page {
				if !yield(infoOf(row), nil) {
					return
				}
				after = row.Name
			}
			if len(page) < pageNames {
				return
			}
		}
	}
}

// Get returns what is known of one lock. Of one that nobody holds or awaits that is the name alone.
func (l *Locks) Get(ctx context.Context, name string) (Info, error) {
	if err := cmp.Or(l.misuse, store.CheckName("lock name", name)); err != nil {
		return Info{}, err
	}
	page, err := l.table.List(ctx, name, "", 1) // of all names with this prefix, it is the first
	if err != nil {
		return Info{}, fmt.Errorf("pgleases: get lock %q: %w", name, err)
	}
	if len(page) == 0 || page[0].Name != name {
		return Info{Name: name}, nil
	}
	return infoOf(page[0]), nil
}

func infoOf(row store.LockRow) Info {
	info := Info{Name: row.Name, Shared: row.Shared, Waiting: row.Waiting, Holders: make([]Holder, len(row.IDs))}
	for i := range row.IDs {
		info.Holders[i] = Holder{
			Client: row.IDs[i], Host: row.Hosts[i], PID: row.PIDs[i], Token: row.Tokens[i], Since: time.UnixMicro(row.Since[i]),
			HeartbeatAge: time.Duration(row.Silent[i]) * time.Microsecond, TimeLeft: time.Duration(row.Lives[i]) * time.Microsecond,
		}
	}
	return info
}

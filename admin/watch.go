package admin

import (
	"context"
	"iter"
	"sync"
	"time"
)

// shared is what all that watch have in common: one goroutine, which looks while at least one watches.
type shared struct {
	mu       sync.Mutex // guards what follows
	watchers int
	stop     context.CancelFunc
	latest   *look
}

// A look is one, or is to be one.
type look struct {
	seen     chan struct{} // closed when the next two are set
	snapshot *Snapshot
	err      error
	next     *look
}

// Watch looks once a second, see WithInterval, and yields what it sees, until ctx ends or the loop does. All that watch one Admin share these looks: the
// database is asked once a second, however many they are. The first is at once, or up to a second old. Who is slow gets the latest only.
//
// An error is that of one look, as those of Snapshot, with a nil Snapshot; Watch looks again. So say since when what you show is old, and go on.
func (a *Admin) Watch(ctx context.Context) iter.Seq2[*Snapshot, error] {
	return func(yield func(*Snapshot, error) bool) {
		l := a.shared.enter(a)
		defer a.shared.leave()
		for {
			select {
			case <-l.seen:
			case <-ctx.Done():
				return
			}
			l = a.shared.newest(l)
			if ctx.Err() != nil || !yield(l.snapshot, l.err) {
				return
			}
			l = l.next
		}
	}
}

// enter returns the first look for one more that watches.
func (s *shared) enter(a *Admin) *look {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watchers++
	if s.watchers == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		s.stop, s.latest = cancel, &look{seen: make(chan struct{})}
		go s.look(ctx, a, s.latest)
	}
	return s.latest
}

func (s *shared) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watchers--; s.watchers == 0 {
		s.stop()
	}
}

// newest returns the last look at or after l that has been made. l has.
func (s *shared) newest(l *look) *look {
	for {
		select {
		case <-l.next.seen:
			l = l.next
		default:
			return l
		}
	}
}

// look looks until ctx ends. l is the look to be made.
func (s *shared) look(ctx context.Context, a *Admin, l *look) {
	tick := time.NewTicker(a.options.interval)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, answers+a.options.interval)
		l.snapshot, l.err = a.Snapshot(limited)
		cancel()
		if ctx.Err() != nil {
			return
		}
		next := &look{seen: make(chan struct{})}
		l.next = next
		close(l.seen)
		s.mu.Lock()
		if ctx.Err() == nil {
			s.latest = l
		}
		s.mu.Unlock()
		l = next
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

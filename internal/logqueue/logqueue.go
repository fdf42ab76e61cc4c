// Package logqueue keeps whoever logs from waiting for whoever reads the log. A log handler may
// block: a pipe is full because its reader has stopped, a disk hangs, or the handler belongs to a
// user and waits for a lock. What only informs must not stop the work.
package logqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/pgleases/pgleases/internal/wrap"
)

// Dropped is the message of the record that tells how many records were dropped.
const Dropped = "log records dropped"

// Waiting is a length of the queue that suffices for what a client or a worker logs while the log's
// reader is away for some seconds.
const Waiting = 1000

// FlushFor is how long the end of a client or a worker waits for its last records.
const FlushFor = time.Second

// A Handler passes records to another handler in their order, in a goroutine of its own. While that
// handler is behind by more than a number of records, the oldest of them is dropped for each new
// one, so the last one is kept. A record with the message Dropped then gives their count. All
// methods of the other handler are called in that goroutine. A record at which it panics, or ends
// the goroutine, counts as dropped.
type Handler struct {
	to    func() slog.Handler
	queue *queue
}

// A queue belongs to a handler and to all that WithAttrs and WithGroup have derived from it.
type queue struct {
	most int
	base slog.Handler // handles the record of the dropped ones

	mu      sync.Mutex // guards the rest
	waiting []entry
	dropped int
	idle    chan struct{} // closed when all records are handled; nil: they are
}

type entry struct {
	to     func() slog.Handler
	ctx    context.Context
	record slog.Record
}

// New returns a handler that passes records to another one, and lets up to most of them wait. If
// that is a Handler already, it is returned itself.
func New(to slog.Handler, most int) *Handler {
	if h, is := to.(*Handler); is {
		return h
	}
	return &Handler{func() slog.Handler { return to }, &queue{most: most, base: to}}
}

// Logger returns a logger that passes the records of another one on through a queue.
func Logger(to *slog.Logger) *slog.Logger { return slog.New(New(to.Handler(), Waiting)) }

// Flush waits for the records of a logger that Logger has returned, or that was derived from it.
func Flush(log *slog.Logger) {
	if h, is := log.Handler().(*Handler); is {
		h.Flush(FlushFor)
	}
}

// Enabled returns true: the other handler is asked in the goroutine of the queue, because it may
// block.
func (h *Handler) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs returns a handler that shares the queue, so that the order of records is kept.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{sync.OnceValue(func() slog.Handler { return h.to().WithAttrs(attrs) }), h.queue}
}

// WithGroup returns a handler that shares the queue, so that the order of records is kept.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{sync.OnceValue(func() slog.Handler { return h.to().WithGroup(name) }), h.queue}
}

// Handle lets a record wait. It never blocks, and returns no error.
func (h *Handler) Handle(ctx context.Context, record slog.Record) error {
	q := h.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= q.most {
		q.dropOldest()
	}
	q.waiting = append(q.waiting, entry{h.to, context.WithoutCancel(ctx), record.Clone()})
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.work()
	}
	return nil
}

// bare returns a copy of a record. The errors in its fields have no name of a package, because the
// message begins with one. It calls methods of errors of the application, which may hang, so only the
// goroutine of work calls it.
func bare(record slog.Record) slog.Record {
	copied := slog.NewRecord(record.Time, record.Level, record.Message, record.PC)
	record.Attrs(func(field slog.Attr) bool {
		err, is := field.Value.Any().(error)
		if is && wrap.Named(err) {
			field.Value = slog.AnyValue(wrap.Bare(err))
		}
		copied.AddAttrs(field)
		return true
	})
	return copied
}

// dropOldest drops the record that has waited longest. The caller has mu.
func (q *queue) dropOldest() {
	q.waiting[0] = entry{} // its record must not live as long as the slice
	q.waiting = q.waiting[1:]
	q.dropped++
}

// Flush waits until the other handler has handled all records, for at most limit.
func (h *Handler) Flush(limit time.Duration) {
	h.queue.mu.Lock()
	idle := h.queue.idle
	h.queue.mu.Unlock()
	if idle == nil {
		return
	}
	late := time.NewTimer(limit)
	defer late.Stop()
	select {
	case <-idle:
	case <-late.C:
	}
}

// work hands over the records until none waits. The goroutine ends then, so nothing needs to be
// closed. If the other handler ends it, another goroutine continues.
func (q *queue) work() {
	handled := false
	defer func() {
		if !handled {
			_ = recover()
			q.lose()
			go q.work()
		}
	}()
	for {
		next, dropped, more := q.next()
		if !more {
			handled = true
			return
		}
		if dropped > 0 {
			record := slog.NewRecord(time.Now(), slog.LevelWarn, Dropped, 0)
			record.AddAttrs(slog.Int("count", dropped))
			handle(q.base, context.Background(), record)
		}
		handle(next.to(), next.ctx, bare(next.record))
	}
}

func handle(to slog.Handler, ctx context.Context, record slog.Record) {
	if to.Enabled(ctx, record.Level) {
		_ = to.Handle(ctx, record) // an error is that the log has no reader
	}
}

// lose counts a record at which the other handler has failed.
func (q *queue) lose() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.dropped++
}

// next takes the record that has waited longest, and returns how many were dropped since the last
// call.
func (q *queue) next() (first entry, dropped int, more bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) == 0 {
		close(q.idle)
		q.idle = nil
		return first, 0, false
	}
	first, dropped = q.waiting[0], q.dropped
	q.waiting[0] = entry{} // its record must not live as long as the slice
	q.waiting = q.waiting[1:]
	q.dropped = 0
	return first, dropped, true
}

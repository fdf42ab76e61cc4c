// Package logqueue keeps whoever logs from waiting for whoever reads the log. A log handler may
// block: a pipe is full because its reader has stopped, a disk hangs, or the handler belongs to a
// user and waits for a lock. What only informs must not stop the work.
package logqueue

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Dropped is the message of the record that tells how many records were dropped.
const Dropped = "log records dropped"

// A Handler passes records to another handler in their order, in a goroutine of its own. While that
// handler is behind by more than a number of records, further ones are dropped. A record with the
// message Dropped then gives their count.
type Handler struct {
	to    slog.Handler
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
	to     slog.Handler
	ctx    context.Context
	record slog.Record
}

// New returns a handler that passes records to another one, and lets up to most of them wait.
func New(to slog.Handler, most int) *Handler {
	return &Handler{to, &queue{most: most, base: to}}
}

// Enabled asks the other handler, which must not block here.
func (h *Handler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.to.Enabled(ctx, level)
}

// WithAttrs returns a handler that shares the queue, so that the order of records is kept.
func (h *Handler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &Handler{h.to.WithAttrs(attrs), h.queue}
}

// WithGroup returns a handler that shares the queue, so that the order of records is kept.
func (h *Handler) WithGroup(name string) slog.Handler {
	return &Handler{h.to.WithGroup(name), h.queue}
}

// Handle lets a record wait, or drops it. It never blocks, and returns no error.
func (h *Handler) Handle(ctx context.Context, record slog.Record) error {
	q := h.queue
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= q.most {
		q.dropped++
		return nil
	}
	q.waiting = append(q.waiting, entry{h.to, context.WithoutCancel(ctx), record.Clone()})
	if q.idle == nil {
		q.idle = make(chan struct{})
		go q.work()
	}
	return nil
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
// closed.
func (q *queue) work() {
	for {
		next, dropped, more := q.next()
		if !more {
			return
		}
		if dropped > 0 {
			record := slog.NewRecord(time.Now(), slog.LevelWarn, Dropped, 0)
			record.AddAttrs(slog.Int("count", dropped))
			_ = q.base.Handle(context.Background(), record) // an error is that the log has no reader
		}
		_ = next.to.Handle(next.ctx, next.record)
	}
}

// next returns the record that has waited longest, and how many were dropped since the last call:
// none if no record waits, because records are dropped only behind others.
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

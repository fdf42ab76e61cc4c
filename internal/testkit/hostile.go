package testkit

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync"

	"github.com/jackc/pgx/v5"
)

// Misbehaves are the ways in which code of the application does not return.
var Misbehaves = []string{"panic", "Goexit", "hang"}

// Misbehave does what code of the application may do. It hangs until hang is closed, and returns at
// once if the way is none of Misbehaves.
func Misbehave(way string, hang <-chan struct{}) {
	switch way {
	case "panic":
		panic("at the disco")
	case "Goexit":
		runtime.Goexit()
	case "hang":
		<-hang
	}
}

// A HostileTracer misbehaves once in each way, at statements with a text.
type HostileTracer struct {
	hang <-chan struct{}
	text string

	mu   sync.Mutex // guards the following field
	left []string
}

// NewHostileTracer returns a tracer that hangs until hang is closed.
func NewHostileTracer(text string, hang <-chan struct{}) *HostileTracer {
	return &HostileTracer{hang: hang, text: text, left: Misbehaves}
}

// Done reports whether it has misbehaved in all ways.
func (h *HostileTracer) Done() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.left) == 0
}

func (h *HostileTracer) seen(text string) {
	if !strings.Contains(text, h.text) {
		return
	}
	h.mu.Lock()
	way := ""
	if len(h.left) > 0 {
		way, h.left = h.left[0], h.left[1:]
	}
	h.mu.Unlock()
	Misbehave(way, h.hang)
}

// TraceQueryStart is of a pgx.QueryTracer.
func (h *HostileTracer) TraceQueryStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData,
) context.Context {
	h.seen(data.SQL)
	return ctx
}

// TraceQueryEnd is of a pgx.QueryTracer.
func (h *HostileTracer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart is of a pgx.BatchTracer.
func (h *HostileTracer) TraceBatchStart(
	ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData,
) context.Context {
	for _, q := range data.Batch.QueuedQueries {
		h.seen(q.SQL)
	}
	return ctx
}

// TraceBatchQuery is of a pgx.BatchTracer.
func (h *HostileTracer) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd is of a pgx.BatchTracer.
func (h *HostileTracer) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

// A HostileLog misbehaves at each record: at the first ones in one way each, then in the last way.
type HostileLog struct {
	hang <-chan struct{}

	mu sync.Mutex // guards the following field
	n  int        // records
}

// NewHostileLog returns a handler that hangs until hang is closed.
func NewHostileLog(hang <-chan struct{}) *HostileLog { return &HostileLog{hang: hang} }

// Enabled is of a slog.Handler, as are the other methods.
func (h *HostileLog) Enabled(context.Context, slog.Level) bool { return true }

// WithAttrs returns the handler itself.
func (h *HostileLog) WithAttrs([]slog.Attr) slog.Handler { return h }

// WithGroup returns the handler itself.
func (h *HostileLog) WithGroup(string) slog.Handler { return h }

// Handle misbehaves.
func (h *HostileLog) Handle(context.Context, slog.Record) error {
	h.mu.Lock()
	way := Misbehaves[min(h.n, len(Misbehaves)-1)]
	h.n++
	h.mu.Unlock()
	Misbehave(way, h.hang)
	return nil
}

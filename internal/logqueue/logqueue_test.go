package logqueue

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A gate is a handler whose records wait until the test opens it.
type gate struct {
	slog.Handler
	open chan struct{}
}

func (g gate) Handle(ctx context.Context, r slog.Record) error {
	<-g.open
	return g.Handler.Handle(ctx, r)
}

func (g gate) Enabled(ctx context.Context, level slog.Level) bool {
	<-g.open
	return g.Handler.Enabled(ctx, level)
}

func (g gate) WithAttrs(attrs []slog.Attr) slog.Handler {
	<-g.open
	return gate{g.Handler.WithAttrs(attrs), g.open}
}

func text(to *bytes.Buffer) slog.Handler {
	return slog.NewTextHandler(to, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey || a.Key == slog.LevelKey {
			return slog.Attr{}
		}
		return a
	}})
}

// A line of the log begins with the name of a package, so the errors in its fields do not repeat one.
func TestErrorsInFieldsLoseTheirPrefix(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := New(text(&out), 100)
		var none *fault
		closed := errors.New("pgleases: closed")
		broken := errors.New("broken")
		fields := []any{"reason", closed, "lease", "pgleases: orders", "other", broken, "none", none}
		slog.New(h).Info("pgleases: client ended", fields...)
		h.Flush(time.Hour)
		want := `msg="pgleases: client ended" reason=closed lease="pgleases: orders" other=broken none=<nil>` + "\n"
		if out.String() != want {
			t.Errorf("handled %q, want %q", out.String(), want)
		}
	})
}

// A fault is an error whose nil pointer has no text.
type fault struct{ text string }

func (f *fault) Error() string { return f.text }

func TestRecordsKeepTheirOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := New(text(&out), 100)
		log := slog.New(h)
		derived := log.With("of", "derived").WithGroup("g")
		log.Info("1")
		derived.Info("2", "x", 2)
		log.Info("3")
		h.Flush(time.Hour)
		want := "msg=1\nmsg=2 of=derived g.x=2\nmsg=3\n"
		if out.String() != want {
			t.Errorf("handled %q, want %q", out.String(), want)
		}
	})
}

func TestRecordsBehindAFullQueueAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		open := make(chan struct{})
		h := New(gate{text(&out), open}, 2)
		log := slog.New(h)
		log.Info("in hand")
		synctest.Wait()
		for _, message := range []string{"dropped", "dropped", "dropped", "1", "2"} {
			log.With("a", "b").Info(message)
		}
		began := time.Now()
		if h.Flush(time.Second); time.Since(began) != time.Second {
			t.Errorf("Flush took %v beside a handler that blocks, want %v", time.Since(began), time.Second)
		}
		close(open)
		h.Flush(time.Hour)
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		want := []string{`msg="in hand"`, `msg="log records dropped" count=3`, "msg=1 a=b", "msg=2 a=b"}
		if !slices.Equal(lines, want) {
			t.Errorf("handled %q, want %q", lines, want)
		}
		log.Info("later")
		h.Flush(time.Hour)
		if !strings.HasSuffix(out.String(), "msg=2 a=b\nmsg=later\n") {
			t.Errorf("after the queue was empty: %q", out.String())
		}
	})
}

func TestFlushWithoutRecordsReturns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if New(slog.DiscardHandler, 1).Flush(time.Hour); time.Since(began) > 0 {
			t.Errorf("it took %v", time.Since(began))
		}
	})
}

// A failing handler panics, or ends its goroutine, as its records say.
type failing struct{ slog.Handler }

func (f failing) Handle(ctx context.Context, r slog.Record) error {
	switch r.Message {
	case "panics":
		panic("a fault of the application")
	case "exits":
		runtime.Goexit()
	}
	return f.Handler.Handle(ctx, r)
}

func TestHandlerThatFailsLosesItsRecordOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := New(failing{text(&out)}, 100)
		log := slog.New(h)
		for _, message := range []string{"1", "panics", "2", "exits", "3"} {
			log.Info(message)
		}
		h.Flush(time.Hour)
		want := "msg=1\nmsg=\"log records dropped\" count=1\nmsg=2\nmsg=\"log records dropped\" count=1\nmsg=3\n"
		if out.String() != want {
			t.Errorf("handled %q, want %q", out.String(), want)
		}
	})
}

func TestRecordsBelowTheLevelAreNotHandled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		log := Logger(slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelWarn})))
		log.Info("details")
		Flush(log.With("a", "b"))
		if out.Len() > 0 {
			t.Errorf("handled %q", out.String())
		}
	})
}

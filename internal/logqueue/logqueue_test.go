package logqueue

import (
	"bytes"
	"context"
	"log/slog"
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

func (g gate) WithAttrs(attrs []slog.Attr) slog.Handler {
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
		for _, message := range []string{"1", "2", "dropped", "dropped", "dropped"} {
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

package lock

import (
	"context"
	"log/slog"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/locks"
)

// A caller that gives up when it gets the lock gives it to the next one. If that was the last, or
// the one after it wants another mode, no caller can take what the request under way asks for.
func TestRequestEndsWithoutCallersThatCanTakeIt(t *testing.T) {
	t.Parallel()
	exclusive, shared := mode{waits: true}, mode{waits: true, shared: true}
	for name, c := range map[string]struct {
		further []mode
		ends    bool
	}{
		"the last gave up": {nil, true},
		"a reader":         {[]mode{shared}, true},
		"another writer":   {[]mode{exclusive}, false},
		"writer, readers":  {[]mode{exclusive, shared, shared}, false},
	} {
		config := locks.Config{Heartbeat: time.Second, Log: slog.Default()}
		client := &engine.Client{Locks: locks.New(config)}
		of := &line{key: key{client: client}}
		for _, m := range append([]mode{exclusive}, c.further...) {
			caller := &caller{ctx: t.Context(), mode: m, answer: make(chan answer, 1)}
			of.callers = append(of.callers, caller)
		}
		request, _ := of.next()
		(&Locks{client: client}).give(of, exclusive, grant{})
		if ended := request.Err() == context.Canceled; ended != c.ends {
			t.Errorf("%s: the request ended: %v, want %v", name, ended, c.ends)
		}
	}
}

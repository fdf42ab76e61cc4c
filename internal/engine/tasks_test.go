package engine

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestBatchesFitTheLimitOfAStatement(t *testing.T) {
	batch := maxBatch
	const limit = 400 * time.Millisecond
	late := context.DeadlineExceeded
	for _, step := range []struct {
		took  time.Duration
		ended error
		batch int
	}{
		{limit, late, 2048}, {limit, late, 512}, {200 * time.Millisecond, nil, 512},
		{90 * time.Millisecond, nil, 1024}, {0, nil, 2048}, {0, context.Canceled, 4096}, {0, nil, 8192}, {0, nil, 8192},
		{limit, late, 2048}, {limit, late, 512}, {limit, late, 128}, {limit, late, 64}, {limit, late, 64},
	} {
		if batch = fitting(batch, maxBatch, step.took, limit, step.ended); batch != step.batch {
			t.Fatalf("after %v, %v: batches of %d, not %d", step.took, step.ended, batch, step.batch)
		}
	}
}

// A client that connects again and again behind a pooler logs that once.
func TestMissingNotificationsAreLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		e, _ := newThread()
		e.log = slog.New(slog.NewTextHandler(&log, nil))
		for _, arrives := range []bool{true, false, false, false, true, true} {
			e.saidArrives(arrives, time.Now())
			time.Sleep(time.Minute)
		}
		lines := strings.Split(strings.TrimSpace(log.String()), "\n")
		if len(lines) != 2 || !strings.Contains(lines[0], "notifications do not arrive") ||
			!strings.Contains(lines[1], `level=INFO msg="pgleases: notifications arrive again" for=3m0s`) {
			t.Errorf("logged %q", lines)
		}
	})
}

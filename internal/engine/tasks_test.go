package engine

import (
	"context"
	"testing"
	"time"
)

func TestBatchesFitTheLimitOfAStatement(t *testing.T) {
	batch := maxBatch
	const limit = 400 * time.Millisecond
	for _, step := range []struct {
		took  time.Duration
		ended error
		batch int
	}{
		{limit, context.DeadlineExceeded, 2048}, {limit, context.DeadlineExceeded, 512}, {200 * time.Millisecond, nil, 512},
		{90 * time.Millisecond, nil, 1024}, {0, nil, 2048}, {0, context.Canceled, 4096}, {0, nil, 8192}, {0, nil, 8192},
		{limit, context.DeadlineExceeded, 2048}, {limit, context.DeadlineExceeded, 512}, {limit, context.DeadlineExceeded, 128},
		{limit, context.DeadlineExceeded, 64}, {limit, context.DeadlineExceeded, 64},
	} {
		if batch = fitting(batch, maxBatch, step.took, limit, step.ended); batch != step.batch {
			t.Fatalf("after %v, %v: batches of %d, not %d", step.took, step.ended, batch, step.batch)
		}
	}
}

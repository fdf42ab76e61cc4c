package main

import (
	"bytes"
	"context"
	"strings"
	"testing"

	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestMetricsAreExported(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	url := pgtest.FreshDatabase(t)
	var out bytes.Buffer
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, url, &out) }()
	pool := testkit.Pool(t, url)
	testkit.Until(t, "a tick succeeds", func() bool {
		var n int
		err := pool.QueryRow(ctx, `SELECT count(*) FROM pgleases.history WHERE outcome = 'succeeded'`).Scan(&n)
		return err == nil && n > 0 // the table may not exist yet
	})
	stop()
	testkit.OK(t, <-ended)
	for _, name := range []string{
		"pgleases.heartbeat.margin.bucket", "pgleases.lease.joined", "pgleases.schedule.outcomes",
	} {
		if !strings.Contains(out.String(), `"`+name+`"`) {
			t.Errorf("%s was not exported", name)
		}
	}
}

package consumer_test

import (
	"testing"
	"time"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A process knows at once that the connection is lost on which notifications arrive.
func TestLostListenerIsReplacedAtOnce(t *testing.T) {
	t.Parallel()
	db := newDirectDatabase(t)
	w := db.begun(consumer.WithPoll(time.Hour))
	for range 3 {
		w.waits()
		w.pool.Reset() // only the process's own connections are left
		probes := w.Stats().Probes
		db.exec("SELECT pg_terminate_backend($1)", one[int](db, "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND query = 'commit' AND pid <> pg_backend_pid()"))
		testkit.Until(t, "it polls again", func() bool { return w.Stats().Probes > probes })
		db.insert(8, 8)
		db.empty("all is handled")
	}
	testkit.OK(t, w.end())
	db.exact(32)
}

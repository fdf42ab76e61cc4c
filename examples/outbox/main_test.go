package main

import (
	"os"
	"testing"
	"time"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

func TestMain(m *testing.M) {
	if os.Getenv(envURL) != "" {
		main()
		os.Exit(0)
	}
	testkit.Main(m)
}

func TestBrokerHasEachRowOnceInOrder(t *testing.T) {
	t.Parallel()
	testkit.OK(t, demonstrate(t.Context(), 500*time.Millisecond)) // frozen for longer than the TTL
}

func TestSummaryCountsWrongRows(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.OwnerURL(pgtest.Database(t)))
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, consumer.TableSQL("outbox", "", queue)+tables)
	// One customer has received 1, 3, 2 and 1 again, and misses 4. Of the other, 1 is left.
	testkit.Execute(t, pool, `
		UPDATE customers SET orders = CASE name WHEN 'customer-1' THEN 4 WHEN 'customer-2' THEN 1 ELSE 0 END;
		INSERT INTO received (customer, number) SELECT 'customer-1', unnest('{1,3,2,1}'::int[]);
		INSERT INTO outbox (customer, payload) VALUES ('customer-2', '1')`)
	var got [6]int
	testkit.OK(t, pool.QueryRow(t.Context(), summary).Scan(&got[0], &got[1], &got[2], &got[3], &got[4], &got[5]))
	if want := [6]int{5, 4, 1, 2, 0, 1}; got != want {
		t.Errorf("counted %v, want %v", got, want)
	}
}

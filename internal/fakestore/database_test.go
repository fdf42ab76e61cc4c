package fakestore_test

import (
	"reflect"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// started returns a database with one client, a member of lease x that has a restart grace.
func started(t *testing.T) (db *fakestore.Database, c *fakestore.Conn, look func() fakestore.Tables) {
	t.Helper()
	now := time.Now()
	db = fakestore.New()
	db.Keep = 10
	db.Clock = func() time.Time {
		now = now.Add(time.Second)
		return now
	}
	c = testkit.Must(db.Connect())(t)
	_, _, err := c.Register(t.Context(), store.Registration{ID: "a", Session: 1, Process: 1, TTL: time.Minute})
	testkit.OK(t, err)
	terms := store.Terms{Weight: 1, RestartGrace: time.Hour}
	testkit.Must(c.Join(t.Context(), 1, "x", 2, terms, 1))(t)
	return db, c, func() (tables fakestore.Tables) {
		db.Look(func(t *fakestore.Tables, _ int64) { tables = t.Clone() })
		return tables
	}
}

func TestCrashLosesTheLastHeartbeatsOnly(t *testing.T) {
	t.Parallel()
	db, c, look := started(t)
	heartbeat := func() fakestore.Tables {
		testkit.Must(c.Heartbeat(t.Context(), 1, 0, store.Renewal{}))(t)
		return look()
	}
	leave := []store.Leave{{Lease: "x", Returns: true}}
	heartbeat()
	testkit.Must(c.Release(t.Context(), 1, nil, leave, 1))(t) // it begins the restart grace
	if len(look().Graces) != 1 {
		t.Fatalf("the restart grace has not begun: %+v", look())
	}
	released, first := look(), heartbeat()
	heartbeat()
	heartbeat()
	if lost := db.Crash(2); lost != 2 || !reflect.DeepEqual(look(), first) {
		t.Errorf("%d lost, and then the tables are %+v, not %+v", lost, look(), first)
	}
	if lost := db.Crash(9); lost != 1 || !reflect.DeepEqual(look(), released) {
		t.Errorf("%d lost, and then the tables are %+v, not %+v", lost, look(), released)
	}
}

package consumer_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// prepare prepares a transaction that locks a key and inserts a row of it, and returns the function
// that commits it. PostgreSQL refuses that if the trigger notifies, so it is tried again until the
// notification is left out, because another insert has sent one a short time ago.
func (db *database) prepare(key string) (commit func()) {
	db.t.Helper()
	name := "consumer_" + rand.Text() // for the whole server
	statements := fmt.Sprintf(`BEGIN; SELECT FROM public.customers WHERE name = '%s' FOR NO KEY UPDATE;
		INSERT INTO public.outbox (customer, payload) VALUES ('%[1]s', '1'); PREPARE TRANSACTION '%s'`, key, name)
	testkit.Until(db.t, "it is prepared", func() bool {
		db.put("notifies")
		_, err := db.Exec(db.t.Context(), statements, pgx.QueryExecModeSimpleProtocol)
		if err != nil && store.Code(err) != "0A000" {
			db.t.Fatal(err)
		}
		return err == nil
	})
	ended := false
	db.t.Cleanup(func() { // otherwise the database cannot be dropped
		if !ended {
			_, _ = db.Exec(context.Background(), "ROLLBACK PREPARED '"+name+"'")
		}
	})
	return func() {
		db.t.Helper()
		ended = true
		db.exec("COMMIT PREPARED '" + name + "'")
	}
}

// insertLocked inserts a row of a key when it has locked the key.
func (db *database) insertLocked(key string) error {
	return pgx.BeginFunc(db.t.Context(), db.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(db.t.Context(), "SELECT FROM public.customers WHERE name = $1 FOR NO KEY UPDATE", key)
		if err != nil {
			return err
		}
		_, err = tx.Exec(db.t.Context(), "INSERT INTO public.outbox (customer, payload) VALUES ($1, '2')", key)
		return err
	})
}

// Rows of a prepared transaction are handled once after it is committed, however long it was prepared,
// although polls have passed them meanwhile because a key of their partition is blocked. No row of
// their key comes before them, because the transaction keeps its lock.
func TestRowsOfPreparedTransactions(t *testing.T) {
	t.Parallel()
	for _, trigger := range []bool{true, false} {
		t.Run(fmt.Sprintf("trigger %v", trigger), func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			if one[string](db, "SHOW max_prepared_transactions") == "0" {
				t.Skip("this server allows no prepared transactions")
			}
			if !trigger {
				db.exec("DROP TRIGGER consumer_inserted ON public.outbox")
			}
			of := db.alike(3)
			key, blocked, other := of[0], of[1], of[2]
			db.exec("CREATE TABLE public.customers (name text PRIMARY KEY)")
			db.exec("INSERT INTO public.customers VALUES ($1)", key)
			w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
				if row.Key == blocked {
					return errors.New("no such order")
				}
				return effect(ctx, tx, row)
			}), attempts(1))
			w.SweepEvery(200 * time.Millisecond)
			w.run()
			db.put(blocked, blocked)
			db.becomes("a key is blocked", 1, "pgleases.consumer_blocked")
			const left = "public.outbox WHERE customer NOT IN (SELECT key FROM pgleases.consumer_blocked)"
			rows := int64(0)
			for _, of := range []struct {
				polls int64 // while it is prepared; sweeps come during many
				later bool  // another writer of the key waits for it
			}{{3, false}, {20, false}, {3, true}} {
				commit, later := db.prepare(key), make(chan error, 1)
				db.put(blocked, other)
				db.becomes("a later row of another key is handled", 0, left)
				if of.later {
					go func() { later <- db.insertLocked(key) }()
				}
				w.polled(of.polls)
				expect(t, len(later), 0, "writers of the key that did not wait")
				commit()
				rows++
				if of.later {
					testkit.OK(t, testkit.Receive(t, "the later writer of the key", later))
					rows++
				}
				db.becomes("all is handled", 0, left)
				expect(t, db.count("public.effects WHERE customer = $1", key), rows, "rows of the key with effects")
			}
			testkit.OK(t, w.end())
			db.exact(one[int64](db, "SELECT count(DISTINCT id) FROM public.effects"))
		})
	}
}

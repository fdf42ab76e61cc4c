package consumer_test

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A touchy value's decoder is the application's code: what it does depends on the text that it
// reads.
type touchy struct{ text string }

var hung = make(chan struct{})

func (v *touchy) UnmarshalJSON(text []byte) error {
	v.text = string(text)
	return touched(text)
}

// A touchyScan is a touchy value that database/sql would read too.
type touchyScan struct{ text string }

func (v *touchyScan) Scan(value any) error {
	v.text = string(value.([]byte))
	return touched([]byte(v.text))
}

func touched(text []byte) error {
	switch text = bytes.TrimSpace(text); string(text) {
	case `"panic"`:
		panic("at the disco")
	case `"Goexit"`:
		runtime.Goexit()
	case `"nil error"`:
		return (*broken)(nil)
	case `"hang"`:
		<-hung
	case `"kill"`:
		os.Exit(killed)
	}
	return nil
}

type touchyOrder struct{ Payload touchy }

func handleTouchy(ctx context.Context, tx pgx.Tx, row consumer.Row[touchyOrder]) error {
	_, err := tx.Exec(ctx, "INSERT INTO public.effects (id, customer) VALUES ($1, $2)", row.ID, row.Key)
	return err
}

// Whatever the decoder of a value does, its row fails, the other keys continue, and the process
// lives.
func TestDecoderThatFailsBlocksItsKeyOnly(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	says := map[string]string{"panic": "panic: at the disco", "Goexit": "runtime.Goexit", "nil error": "<nil>"}
	type scanOrder struct{ Payload touchyScan }
	for name, begin := range map[string]func(*database, consumer.Option) *worker{
		"Each": func(db *database, opt consumer.Option) *worker {
			return newWorkerOf(db, outbox, consumer.Each(handleTouchy), opt)
		},
		"InTx": func(db *database, opt consumer.Option) *worker {
			h := consumer.InTx(func(ctx context.Context, tx pgx.Tx, rows []consumer.Row[touchyOrder]) error {
				for _, row := range rows {
					if err := handleTouchy(ctx, tx, row); err != nil {
						return err
					}
				}
				return nil
			})
			return newWorkerOf(db, outbox, h, opt)
		},
		"Scan": func(db *database, opt consumer.Option) *worker {
			h := consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[scanOrder]) error {
				_, err := tx.Exec(ctx, "INSERT INTO public.effects (id, customer) VALUES ($1, $2)", row.ID, row.Key)
				return err
			})
			return newWorkerOf(db, outbox, h, opt)
		},
	} {
		for poison, text := range says {
			t.Run(name+" "+poison, func(t *testing.T) {
				t.Parallel()
				db := newDatabase(t)
				db.insert(60, 20)
				db.exec("UPDATE public.outbox SET payload = to_jsonb($1::text) WHERE id = 30", poison)
				w := begin(db, attempts(1))
				contains(t, w.RunUntilEmpty(t.Context()), "only rows of blocked keys are left", text)
				db.exact(58)
			})
		}
	}
}

// A decoder that does not return is logged, as a handler is. Rows of other partitions that were read with
// its row are handled.
func TestDecoderThatHangsIsLogged(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	log := make(lines, 1000)
	w := newWorkerOf(db, outbox, consumer.Each(handleTouchy),
		consumer.WithTimeout(200*time.Millisecond), consumer.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
	w.LogOverrunAfter(10 * time.Millisecond)
	let := closer(t, hung)
	for partition := range partitions {
		db.put(db.customers(partition, 1)...)
	}
	db.exec("UPDATE public.outbox SET payload = to_jsonb('hang'::text) WHERE partition = 3")
	w.run()
	log.until(t, "decoder still running after its context ended")
	db.becomes("the other rows are handled", 1, "public.outbox")
	let()
	log.until(t, `level=INFO msg="consumer: decoder returned after its context ended"`)
	db.empty("the row is handled in the end")
	testkit.OK(t, w.end())
}

// A value that kills whoever decodes it is not decoded again after three crashes: its row has
// failed.
func TestDecoderThatKillsItsProcess(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	db := newDatabase(t)
	db.insert(60, 20)
	db.exec("UPDATE public.outbox SET payload = to_jsonb('kill'::text) WHERE id = 30")
	db.killed(5, victimDecodes)
	expect(t, db.left(), "30,50", "rows that are left")
	contains(t, db.failure("next_at = 'infinity'"), "3 processes crashed")
	db.exact(58)
}

var _ json.Unmarshaler = (*touchy)(nil)

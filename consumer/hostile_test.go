package consumer_test

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A hostile does what an application's code may do at a place, such as "handler hang".
type hostile struct{ let chan struct{} }

// at misbehaves if the text names the place, and then the way.
func (h *hostile) at(place, text string) {
	if way, is := strings.CutPrefix(text, place+" "); is {
		testkit.Misbehave(way, h.let)
	}
}

// A hostileError has methods that misbehave.
type hostileError struct {
	*hostile
	text string
}

func (e hostileError) Error() string   { e.at("Error", e.text); return e.text }
func (e hostileError) Unwrap() error   { e.at("Unwrap", e.text); return nil }
func (e hostileError) Is(error) bool   { e.at("Is", e.text); return false }
func (e hostileError) As(any) bool     { e.at("As", e.text); return false }
func (e hostileError) Timeout() bool   { e.at("Timeout", e.text); return false }
func (e hostileError) Temporary() bool { e.at("Timeout", e.text); return false }

// hostiles are the code that handles the rows of each kind of handler. The first word of a row
// names it, because pgx makes its decoder.
var hostiles = map[string]*hostile{
	"Each": {make(chan struct{})}, "InTx": {make(chan struct{})}, "AtLeastOnce": {make(chan struct{})},
}

func atRow(place, text string) {
	if kind, rest, _ := strings.Cut(text, " "); kind != "" {
		hostiles[kind].at(place, rest)
	}
}

type hostileText string

func (v *hostileText) UnmarshalJSON(text []byte) error {
	var s string
	if err := json.Unmarshal(text, &s); err != nil {
		return err
	}
	*v = hostileText(s)
	atRow("decoder", s)
	return nil
}

type hostileOrder struct{ Payload hostileText }

// What code of the application does for a row stops no other key, however it fails to return: the
// row fails, or its partition waits. With more hanging calls than workers, others have the
// workers.
func TestHostileCodeOfARowStopsNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	places := []string{"handler", "around", "decoder", "Error", "Unwrap", "Is", "As", "Timeout"}
	of := func(row consumer.Row[hostileOrder]) error {
		text := string(row.Value.Payload)
		atRow("handler", text)
		if kind, rest, _ := strings.Cut(text, " "); kind != "" {
			return hostileError{hostiles[kind], rest}
		}
		return nil
	}
	all := func(rows []consumer.Row[hostileOrder]) error {
		for i, row := range rows {
			if err := of(row); err != nil {
				return consumer.RowError(i, err)
			}
		}
		return nil
	}
	type order = consumer.Row[hostileOrder]
	for name, handler := range map[string]consumer.Handler[hostileOrder]{
		"Each":        consumer.Each(func(_ context.Context, _ pgx.Tx, row order) error { return of(row) }),
		"InTx":        consumer.InTx(func(_ context.Context, _ pgx.Tx, rows []order) error { return all(rows) }),
		"AtLeastOnce": consumer.AtLeastOnce(func(_ context.Context, rows []order) error { return all(rows) }),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			db.createMany()
			for _, place := range places {
				for _, way := range testkit.Misbehaves {
					text := name + " " + place + " " + way
					db.exec("INSERT INTO public.many (customer, payload) VALUES ($1, to_jsonb($1::text))", text)
				}
			}
			around := func(ctx context.Context, info consumer.Info, next func(context.Context) error) error {
				atRow("around", one[string](db, `
					SELECT customer FROM public.many WHERE partition = $1 ORDER BY id LIMIT 1`, info.Partition))
				return next(ctx)
			}
			w := newWorkerOf(db, many, handler, consumer.WithMaxRunning(2), consumer.WithBatch(1, 1<<20),
				consumer.WithTimeout(time.Second), attempts(1), consumer.WithAround(around))
			w.LogOverrunAfter(50 * time.Millisecond)
			closer(t, hostiles[name].let)
			w.run()
			hanging := int64(len(places)) - 1
			testkit.Until(t, "all that hang are overdue", func() bool { return w.Stats().Overdue >= hanging })
			db.exec(`
				INSERT INTO public.many (customer, payload)
				SELECT c, '""' FROM (SELECT 'd' || i AS c FROM generate_series(1, 100) AS i) AS d
				WHERE pgleases.partition_for(c, 256) NOT IN (SELECT partition FROM public.many WHERE payload <> '""')`)
			db.becomes("the others are handled", 0, `public.many WHERE payload = '""'`)
		})
	}
}

// A tracer that misbehaves at a statement stops no other partition, no poll and no end of Run.
func TestHostileTracerStopsNoOther(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	for place, text := range map[string]string{
		"poll":  "pg_snapshot_xmin",
		"begin": "consumer_begin",
		"end":   "consumer_end",
		"read":  "pgleases version",
		"why":   "rows, the first",
	} {
		t.Run(place, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			let := make(chan struct{})
			tracer := testkit.NewHostileTracer(text, let)
			db.tracer = tracer
			log := make(lines, 1000)
			// A batch that hangs keeps its partitions, so it has one.
			w := newWorker(db, consumer.Each(effect), consumer.WithBatch(1, 1<<20), consumer.WithTimeout(time.Second),
				consumer.WithMaxRunning(2), consumer.WithLogger(slog.New(slog.NewTextHandler(log, nil))))
			free := closer(t, let) // at the end of the test before the pool is closed
			w.LogOverrunAfter(50 * time.Millisecond)
			w.AnswerWithin(2 * time.Second)
			if place == "why" {
				testkit.OK(t, w.RunUntilEmpty(t.Context()))
				return
			}
			w.run()
			db.insert(8, 8) // when they are handled, it has joined the lease
			for !tracer.Done() && place != "end" {
				db.insert(8, 8)
				testkit.Becomes(t, db.Pool, "rows are handled", true, `
					SELECT count(*) <= 1 FROM (SELECT DISTINCT partition FROM public.outbox) AS p`)
			}
			if place == "read" {
				log.until(t, "batch still at work")
				free()
				log.until(t, `level=INFO msg="consumer: batch no longer at work"`)
			}
			db.empty("all is handled")
			testkit.OK(t, w.end())
		})
	}
}

// A log handler that misbehaves stops nothing.
func TestHostileLogHandlerStopsNothing(t *testing.T) {
	t.Parallel()
	db := newDatabase(t)
	db.insert(40, 20)
	hang := make(chan struct{})
	w := newWorker(db, consumer.Each(func(ctx context.Context, tx pgx.Tx, row consumer.Row[Order]) error {
		if row.Attempt == 1 && row.ID <= 5 {
			return errors.New("it fails, and that is logged")
		}
		return effect(ctx, tx, row)
	}), consumer.WithLogger(slog.New(testkit.NewHostileLog(hang))), backoff(time.Millisecond, time.Millisecond))
	closer(t, hang)
	testkit.OK(t, w.RunUntilEmpty(t.Context()))
	db.exact(40)
}

//go:build unix

package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Operators operate a fleet at random, several at once, while the fleet has faults.
type Operators struct {
	pool  *pgxpool.Pool // not through the workers' proxies
	lease string

	mu    sync.Mutex     // guards what follows
	Given map[string]int // executed verbs, by name
}

// opposites maps each verb that writes an override to the verb that takes it back.
var opposites = map[string]string{
	"drain":  "undrain",
	"cordon": "uncordon",
	"pause":  "resume",
	"freeze": "unfreeze",
	"pin":    "unpin",
}

// NewOperators returns operators of a lease. The pool's role must have the right to execute the
// verbs.
func NewOperators(pool *pgxpool.Pool, lease string) *Operators {
	return &Operators{pool: pool, lease: lease, Given: make(map[string]int)}
}

// Befall adds operators' verbs to the faults of a fleet. Each of these faults executes two verbs at
// once.
func (o *Operators) Befall(f *Fleet) {
	f.Faults = append(slices.Clip(f.Faults), hits("evict", 1, false, spare, o.evict))
	for _, verb := range []string{"drain", "cordon", "pause", "freeze", "pin", "take back"} {
		f.Faults = append(f.Faults, Fault{verb, 2, func(f *Fleet, ctx context.Context) (bool, error) {
			f.tell(nil, Incident{Fault: verb})
			second := []string{"drain", "cordon", "pin", "take back"}[f.random.IntN(4)]
			for i, verb := range []string{verb, second} {
				random := rand.New(rand.NewPCG(f.random.Uint64(), uint64(i)))
				f.waits.Go(func() {
					if err := o.give(ctx, verb, random); err != nil {
						f.mu.Lock()
						defer f.mu.Unlock()
						f.errs = append(f.errs, fmt.Errorf("faults: %s: %w", verb, err))
					}
				})
			}
			return true, nil
		}})
	}
}

// give executes a verb, for a random client, partition or time.
func (o *Operators) give(ctx context.Context, verb string, random *rand.Rand) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	if verb == "take back" {
		return o.takeBack(ctx, 1+random.IntN(5))
	}
	var client string
	var partition int
	until := "infinity"
	if verb == "pause" || random.IntN(4) > 0 { // while a lease is paused or frozen, little happens
		until = time.Now().Add(time.Duration(100+random.IntN(1900)) * time.Millisecond).Format(time.RFC3339Nano)
	}
	err := o.pool.QueryRow(ctx, `SELECT coalesce((SELECT id FROM pgleases.clients ORDER BY random() LIMIT 1), ''),
		coalesce((SELECT partition FROM pgleases.partitions WHERE lease = $1 ORDER BY random() LIMIT 1), 0)`, o.lease).Scan(&client, &partition)
	if err != nil {
		return unlessRefused(err)
	}
	call, args := "pgleases."+verb+"($1, 'a reason', until => $2)", []any{client, until}
	switch verb {
	case "pause", "freeze":
		args[0] = o.lease
	case "pin":
		call, args = "pgleases.pin($1, $2, $3, 'a reason', until => $4)", []any{o.lease, partition, client, until}
	}
	return o.carriedOut(ctx, verb, call, args...)
}

// carriedOut calls a verb's function, and counts the call.
func (o *Operators) carriedOut(ctx context.Context, verb, call string, args ...any) error {
	if _, err := o.pool.Exec(ctx, "SELECT "+call, args...); err != nil {
		return unlessRefused(err)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.Given[verb]++
	return nil
}

// unlessRefused returns the error, unless the verb refused an operation that makes no sense, or the
// database was not available.
func unlessRefused(err error) error {
	var refused *pgconn.PgError
	if !errors.As(err, &refused) {
		return nil // an error of the connection
	}
	for _, fine := range []string{"55000", "55006", "42704", "22023", // refused
		// A lock held by a fault; read-only; no free space or connections; the server stops.
		"55P03", "25006", "53", "57", "08"} {
		if strings.HasPrefix(refused.Code, fine) {
			return nil
		}
	}
	return err
}

// takeBack takes up to most overrides back.
func (o *Operators) takeBack(ctx context.Context, most int) error {
	type override struct {
		Verb, Of  string
		Partition *int
	}
	const some = "SELECT verb, coalesce(lease, client), partition FROM pgleases.overrides ORDER BY random() LIMIT $1"
	rows, _ := o.pool.Query(ctx, some, most) // CollectRows returns its error
	overrides, err := pgx.CollectRows(rows, pgx.RowToStructByPos[override])
	if err != nil {
		return unlessRefused(err)
	}
	for _, w := range overrides {
		call, args := "pgleases."+opposites[w.Verb]+"($1, 'enough')", []any{w.Of}
		if w.Partition != nil {
			call, args = "pgleases.unpin($1, $2, 'enough')", append(args, *w.Partition)
		}
		if err := o.carriedOut(ctx, opposites[w.Verb], call, args...); err != nil {
			return err
		}
	}
	return nil
}

// TakeAllBack takes all overrides back.
func (o *Operators) TakeAllBack(ctx context.Context) error {
	for {
		var left int
		err := o.pool.QueryRow(ctx, "SELECT count(*) FROM pgleases.overrides").Scan(&left)
		if err == nil && left == 0 || ctx.Err() != nil {
			return ctx.Err()
		}
		if err := o.takeBack(ctx, 1000); err != nil {
			return err
		}
	}
}

// evict evicts a worker, in some cases one that is paused or frozen. The worker must end.
func (o *Operators) evict(f *Fleet, m *member) error {
	m.outlive(f)
	f.waits.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		defer cancel()
		for {
			_, err := o.pool.Exec(ctx, "SELECT pgleases.evict_client($1, 'a reason')", m.Config.ID)
			if err == nil || unlessRefused(err) != nil || ctx.Err() != nil {
				f.mu.Lock()
				f.errs = append(f.errs, err)
				f.mu.Unlock()
				return
			}
			pause(ctx, 20*time.Millisecond)
		}
	})
	return nil
}

package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	_ "github.com/pgleases/pgleases" // sets seam.Replan
	"github.com/pgleases/pgleases/admin/sql"
	"github.com/pgleases/pgleases/internal/seam"
	"github.com/pgleases/pgleases/internal/store"
)

// A Preview is what a change would have the clients do.
type Preview struct {
	Moves   []Moving `json:"moves"`   // by lease, then first partition
	Forgets int      `json:"forgets"` // of Drop: how many partitions the lease has
	Leases  []string `json:"leases"`  // those looked at: that the change concerns, and that share a member with these, by name
}

// How is how partitions move.
type How string

// The ways.
const (
	Asked  How = "asked"     // their owner is asked for them, and hands them over when its work on them has ended
	Kept   How = "kept"      // their owner was asked for them, and keeps them now
	Expiry How = "at expiry" // their owner's session is revoked: others take over when it expires, within its TTL
	AtOnce How = "at once"   // they have no living owner
)

// Moving is partitions of a lease that move in the same way.
type Moving struct {
	Lease      string `json:"lease"`
	Partitions Ranges `json:"partitions"`
	From       string `json:"from"` // the client that owns them, or was the last; empty: they never had an owner
	To         string `json:"to"`   // the client that shall own them; empty: nobody
	How        How    `json:"how"`
}

// Preview tells what the clients would do at once if a change were applied now: it has them plan, by their own function, what the tables
// would say. Hand-overs that are under way already are not in it, but moves are that would come without the change, as after a join a
// moment ago. Where the clients have several leases, and not all the same ones, each plans those that it knows of: what is balanced over
// all of them may then come in other steps.
//
// Nothing is changed. The verb is carried out in a transaction that is rolled back, in one message with it: so Preview needs the rights of
// Apply, fails where Apply would, and has the leases locked for as long as the server takes to read them: where that is longer than a
// quarter of the least TTL, it is ErrRefused, as heartbeats wait for it. Reason may be empty.
func (a *Admin) Preview(ctx context.Context, c Change) (*Preview, error) {
	if c.Reason == "" {
		c.Reason = "preview"
	}
	read, err := a.try(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &Preview{Moves: []Moving{}, Leases: []string{}}
	for _, l := range read {
		p.Leases = append(p.Leases, l.Name)
		if c.Verb == Drop {
			p.Forgets += len(l.Owners)
		}
	}
	if c.Verb != Drop {
		p.Moves = movings(read)
	}
	return p, nil
}

// stopped is how long the server waits for a program that is stopped before it has taken what the
// server tells: heartbeats wait with it, and the least TTL is a second.
const stopped = 500 * time.Millisecond

// bounded bounds the statement after it: heartbeats wait for what the verb has locked, so reading it takes a quarter of the least TTL at most.
const bounded = `SELECT pg_catalog.set_config('statement_timeout', (SELECT least(coalesce(min(extract(epoch FROM c.ttl)) * 250, 1500), %[2]d)::int::pg_catalog.text FROM %[1]s.clients AS c), true)`

// try carries a change out, and rolls it back. It returns what a plan would read after it; of Drop before it, as nothing is left after it.
func (a *Admin) try(ctx context.Context, c Change) (read []store.LeasePlan, err error) {
	verb, args, err := a.statement(c)
	if err != nil {
		return nil, err
	}
	var lease, client *string
	switch c.Verb {
	case Pause, Resume, Freeze, Unfreeze, Pin, Unpin, Drop:
		lease = &c.Subject
	default:
		client = &c.Subject
	}
	err = pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('statement_timeout', $1, true), "+
			"pg_catalog.set_config('tcp_user_timeout', $2, true)", fmt.Sprint(answers.Milliseconds()), fmt.Sprint(stopped.Milliseconds()))
		change := func() { batch.Queue(verb, args...) }
		look := func() {
			batch.Queue(fmt.Sprintf(bounded, pgx.Identifier{a.options.schema}.Sanitize(), answers.Milliseconds()))
			batch.Queue(store.Texts(sql.Files, a.options.schema)("preview"), lease, client).Query(func(rows pgx.Rows) (err error) {
				read, err = store.CollectPlan(rows)
				return err
			})
		}
		if c.Verb == Drop {
			look()
			change()
		} else {
			change()
			look()
		}
		batch.Queue("ROLLBACK")
		return tx.SendBatch(ctx, &batch).Close()
	})
	if store.Code(err) == "57014" && ctx.Err() == nil {
		return nil, refusef(
			"admin: %s %q: %w\nheartbeats wait while the server reads what a plan depends on, so that may take a quarter of the least TTL; "+
				"nothing was done: try again when the server has less to do, or do it without a preview", c.Verb, c.Subject, err,
		)
	}
	return read, a.refusal(c, err)
}

// movings returns what a plan of what was read would move.
func movings(read []store.LeasePlan) []Moving {
	all := []Moving{}
	leases := make(map[string]int, len(read))
	for i, l := range read {
		leases[l.Name] = i
	}
	type kind struct{ lease, from, to, how string }
	places := make(map[kind]int)
	for _, move := range seam.Replan(read) {
		l := read[leases[move.Lease]]
		owner, target := memberOf(l, l.Owners[move.Partition]), memberOf(l, move.Target)
		m := Moving{Lease: l.Name, From: l.OwnerIDs[move.Partition], How: AtOnce}
		if target != nil {
			m.To = target.ID
		}
		if owner != nil {
			m.From, m.How = owner.ID, Asked
			switch {
			case owner.Session == move.Target:
				m.How = Kept
			case owner.Incarnation < 0:
				m.How = Expiry
			}
		}
		k := kind{m.Lease, m.From, m.To, string(m.How)}
		place, known := places[k]
		if !known {
			place = len(all)
			places[k], all = place, append(all, m)
		}
		all[place].Partitions = append(all[place].Partitions, Range{move.Partition, move.Partition})
	}
	for i := range all {
		all[i].Partitions = all[i].Partitions.merged()
	}
	return all
}

// memberOf returns the member that has a session; nil: none.
func memberOf(l store.LeasePlan, session int64) *store.Member {
	for i := range l.Members {
		if l.Members[i].Session == session {
			return &l.Members[i]
		}
	}
	return nil
}

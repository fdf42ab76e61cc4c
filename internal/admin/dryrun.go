package admin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	_ "github.com/pgleases/pgleases" // sets bridge.Plan
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
)

// A DryRun is the effect that a change would have.
type DryRun struct {
	Moves   []Move `json:"moves"`   // by lease, then first partition
	Forgets int    `json:"forgets"` // of Drop and Replace: the number of partitions of the lease
	// The leases that the change concerns, and those that share a member with them, by name.
	Leases []string `json:"leases"`
}

// MoveKind says how partitions move.
type MoveKind string

// The kinds of moves.
const (
	MoveAsked MoveKind = "asked" // the owner hands them over when its work on them has ended
	MoveKept  MoveKind = "kept"  // the owner was asked to hand them over, and keeps them now
	// The owner's session is revoked: others take over when it expires, within its TTL.
	MoveAtExpiry MoveKind = "at expiry"
	MoveAtOnce   MoveKind = "at once" // they have no live owner
)

// A Move is a set of partitions of a lease that move in the same way.
type Move struct {
	Lease      string   `json:"lease"`
	Partitions Ranges   `json:"partitions"`
	From       string   `json:"from"` // the current or last owner; empty: they never had an owner
	To         string   `json:"to"`   // the next owner; empty: no client
	Kind       MoveKind `json:"kind"`
}

// errDryRun ends the transaction of a dry run.
var errDryRun = errors.New("dry run")

// stopped is how long the server waits for a program that stops during a dry run. The SQL functions
// of the verbs set the same limit. Heartbeats wait meanwhile, and the shortest TTL is 1 s.
const stopped = 500 * time.Millisecond

// bounded limits the time of the next statement to 25 % of the shortest TTL, because heartbeats
// wait for the rows that the verb has locked.
const bounded = `
	SELECT pg_catalog.set_config('statement_timeout', (
		SELECT least(coalesce(min(extract(epoch FROM c.ttl)) * 250, 1500), %[2]d)::int::pg_catalog.text
		FROM %[1]s.clients AS c
	), true)`

// boundedClient bounds how long clients wait for a program that does not read the answer.
const boundedClient = `
	SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true),
	       pg_catalog.set_config('statement_timeout', $1, true),
	       pg_catalog.set_config('tcp_user_timeout', $2, true)`

// DryRun returns what the clients would do next if a change were applied now. It runs the clients'
// own planning function on the tables as they would be. The result leaves out handoffs in progress,
// and includes moves that would happen without the change, for example after a recent join. If
// clients have different sets of leases, each client plans the leases that it has, so balancing
// over all leases may take other steps.
//
// DryRun changes no row: it executes the verb in a transaction and rolls it back in the same
// message. So it needs the rights of Apply, and fails if Apply would fail. The leases are locked
// while the server reads them, and heartbeats wait for that. If the read takes longer than 25 % of
// the shortest TTL, DryRun returns ErrRefused. Reason may be empty.
func (a *Admin) DryRun(ctx context.Context, c Change) (*DryRun, error) {
	c.Reason = cmp.Or(c.Reason, "dry run")
	verb, args, err := a.call(c)
	if err != nil {
		return nil, err
	}
	lease, client := &c.Subject, (*string)(nil)
	if c.ofClient() {
		lease, client = nil, lease
	}
	// After the change; of Drop and Replace before it, because the lease is gone after it.
	var read []store.LeaseSnapshot
	err = pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var batch pgx.Batch
		batch.Queue(boundedClient, fmt.Sprint(answers.Milliseconds()), fmt.Sprint(stopped.Milliseconds()))
		if !c.closes() {
			batch.Queue(verb, args...)
		}
		batch.Queue(fmt.Sprintf(bounded, pgx.Identifier{a.schema}.Sanitize(), answers.Milliseconds()))
		batch.Queue(a.statement("dryrun"), lease, client).Query(func(rows pgx.Rows) (err error) {
			read, err = store.CollectSnapshots(rows)
			return err
		})
		if c.closes() {
			batch.Queue(verb, args...)
		}
		batch.Queue("ROLLBACK")
		return cmp.Or(tx.SendBatch(ctx, &batch).Close(), errDryRun)
	})
	switch {
	case errors.Is(err, errDryRun):
		return effect(c, read), nil
	case store.Code(err) == "57014" && ctx.Err() == nil:
		return nil, refusef("pgleases: %s %q: %w\nheartbeats wait while the server reads the inputs of a plan, "+
			"so the read may take 25 %% of the shortest TTL; "+
			"nothing was done: try again when the server is less busy, or without a dry run", c.Verb, c.Subject, err)
	}
	return nil, a.refusal(c, err)
}

// effect returns the effect of a change, from the inputs of the next plan.
func effect(c Change, read []store.LeaseSnapshot) *DryRun {
	p := &DryRun{Moves: []Move{}, Leases: []string{}}
	for _, l := range read {
		p.Leases = append(p.Leases, l.Name)
		if c.closes() {
			p.Forgets += len(l.Owners)
		}
	}
	if !c.closes() {
		p.Moves = movings(read)
	}
	return p
}

// movings returns the moves of a plan with these inputs.
func movings(read []store.LeaseSnapshot) []Move {
	all := []Move{}
	places, leases := make(map[[4]string]int), make(map[string]*store.LeaseSnapshot, len(read))
	for i := range read {
		leases[read[i].Name] = &read[i]
	}
	for _, move := range bridge.Plan(read) {
		l := leases[move.Lease]
		owner, target := memberOf(l, l.Owners[move.Partition]), memberOf(l, move.Target)
		m := Move{Lease: l.Name, From: l.OwnerIDs[move.Partition], Kind: MoveAtOnce}
		if target != nil {
			m.To = target.ID
		}
		if owner != nil {
			m.From, m.Kind = owner.ID, MoveAsked
			switch {
			case owner.Session == move.Target:
				m.Kind = MoveKept
			case owner.Incarnation < 0:
				m.Kind = MoveAtExpiry
			}
		}
		k := [4]string{m.Lease, m.From, m.To, string(m.Kind)}
		if _, known := places[k]; !known {
			places[k], all = len(all), append(all, m)
		}
		all[places[k]].Partitions = append(all[places[k]].Partitions, Range{move.Partition, move.Partition})
	}
	for i := range all {
		all[i].Partitions = all[i].Partitions.merged()
	}
	return all
}

// memberOf returns the member with a session, or nil.
func memberOf(l *store.LeaseSnapshot, session int64) *store.Member {
	return find(l.Members, func(m store.Member) bool { return m.Session == session })
}

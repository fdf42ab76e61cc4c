package admin

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	_ "github.com/pgleases/pgleases" // sets bridge.Plan
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/store"
)

// A DryRun is what a change would have the clients do.
type DryRun struct {
	Moves       []Move   `json:"moves"`       // by lease, then first partition
	Forgets     int      `json:"forgets"`     // of Drop: how many partitions the lease has
	Leases      []string `json:"leases"`      // those looked at: that the change concerns, and that share a member with these, by name
	Fingerprint string   `json:"fingerprint"` // of all that the plan depends on: see Change.IfUnchanged
}

// MoveKind is the way in which partitions move.
type MoveKind string

// The kinds of moves.
const (
	Asked  MoveKind = "asked"     // their owner is asked for them, and hands them over when its work on them has ended
	Kept   MoveKind = "kept"      // their owner was asked for them, and keeps them now
	Expiry MoveKind = "at expiry" // their owner's session is revoked: others take over when it expires, within its TTL
	AtOnce MoveKind = "at once"   // they have no live owner
)

// A Move is partitions of a lease that move in the same way.
type Move struct {
	Lease      string   `json:"lease"`
	Partitions Ranges   `json:"partitions"`
	From       string   `json:"from"` // the client that owns them, or was the last; empty: they never had an owner
	To         string   `json:"to"`   // the client that shall own them; empty: nobody
	Kind       MoveKind `json:"kind"`
}

// ErrChanged is returned by Apply for a Change with IfUnchanged, where that is not any more what
// DryRun told.
var ErrChanged = errors.New("admin: the state has changed since the dry run")

// errDryRun ends the transaction of a dry run.
var errDryRun = errors.New("dry run")

// DryRun tells what the clients would do at once if a change were applied now: it has them plan, by
// their own function, what the tables would say. Handoffs that are under way already are not in it,
// but moves are that would come without the change, as after a join a moment ago. Where the clients
// have several leases, and not all the same ones, each plans those that it knows of: what is
// balanced over all of them may then come in other steps.
//
// Nothing is changed. The verb is carried out in a transaction that is rolled back, in one message
// with it: so DryRun needs the rights of Apply, fails where Apply would, and has the leases locked
// for as long as the server takes to read them: where that is longer than a quarter of the least
// TTL, it is ErrRefused, as heartbeats wait for it. Reason may be empty.
func (a *Admin) DryRun(ctx context.Context, c Change) (*DryRun, error) {
	if c.IfUnchanged != "" {
		return nil, refusef("admin: dry run of %s with fingerprint %q: DryRun returns one", c.Verb, c.IfUnchanged)
	}
	c.Reason = cmp.Or(c.Reason, "dry run")
	read, err := a.try(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &DryRun{Moves: []Move{}, Leases: []string{}, Fingerprint: fingerprint(c, read)}
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

// stopped is how long the server waits for a program that stops in the middle of a change, as the
// verbs have it too: heartbeats wait with it, and the least TTL is a second.
const stopped = 500 * time.Millisecond

// bounded bounds the statement after it: heartbeats wait for what the verb has locked, so reading
// it takes a quarter of the least TTL at most.
const bounded = `SELECT pg_catalog.set_config('statement_timeout', (SELECT least(coalesce(min(extract(epoch FROM c.ttl)) * 250, 1500), %[2]d)::int::pg_catalog.text FROM %[1]s.clients AS c), true)`

// try carries a change out. Without IfUnchanged it is rolled back; with one it is committed where
// that is right. It returns what a plan would read after the change; of Drop before it, because
// nothing is left after it.
func (a *Admin) try(ctx context.Context, c Change) (read []store.LeasePlan, err error) {
	verb, args, err := a.call(c)
	if err != nil {
		return nil, err
	}
	lease, client := &c.Subject, (*string)(nil)
	if c.ofClient() {
		lease, client = nil, lease
	}
	committing := false
	err = pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var batch pgx.Batch
		// Nobody waits for long for a program that does not take what the server tells; nor, which the
		// verb sees to, for one that is stopped before the end of the transaction.
		batch.Queue("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('statement_timeout', $1, true), "+
			"pg_catalog.set_config('tcp_user_timeout', $2, true)", fmt.Sprint(answers.Milliseconds()), fmt.Sprint(stopped.Milliseconds()))
		change := func() { batch.Queue(verb, args...) }
		look := func() {
			batch.Queue(fmt.Sprintf(bounded, pgx.Identifier{a.schema}.Sanitize(), answers.Milliseconds()))
			batch.Queue(a.statement("dryrun"), lease, client).Query(func(rows pgx.Rows) (err error) {
				read, err = store.CollectPlan(rows)
				return err
			})
		}
		if c.Verb == Drop { // after it nothing can be read
			look()
			change()
		} else {
			change()
			look()
		}
		if c.IfUnchanged == "" {
			batch.Queue("ROLLBACK")
		}
		switch err := tx.SendBatch(ctx, &batch).Close(); {
		case err != nil:
			return err
		case c.IfUnchanged == "":
			return errDryRun
		case c.IfUnchanged != fingerprint(c, read):
			return ErrChanged
		}
		committing = true
		return nil
	})
	switch {
	case errors.Is(err, errDryRun):
		return read, nil
	case store.Code(err) == "57014" && ctx.Err() == nil:
		return nil, refusef("admin: %s %q: %w\nheartbeats wait while the server reads what a plan depends on, so that may take a quarter of the least TTL; nothing was done: try again when the server has less to do, or do it without a dry run", c.Verb, c.Subject, err)
	case errors.Is(err, ErrChanged):
		return nil, fmt.Errorf(
			"%w, or that was of another change: nothing was done\nRepeat the dry run; the overrides and the events tell what has happened", err,
		)
	}
	return nil, a.refusal(c, doubted(committing, err))
}

// fingerprint is the hash of the change and of all that a plan depends on that is made after it.
// The leases' generations are not in it, but for Drop, where nobody is left to raise them: they
// rise also when an owner is told of what it has been given.
func fingerprint(c Change, read []store.LeasePlan) string {
	hash := sha256.New()
	write := func(value any) {
		if err := json.NewEncoder(hash).Encode(value); err != nil {
			panic(err) // texts, numbers, booleans
		}
	}
	write([]any{c.Verb, c.Subject, c.Partition, c.Client, c.Next})
	for _, l := range read {
		if c.Verb != Drop {
			l.Generation = 0
		}
		// As JSON, what is told of each partition of 20 leases of 65,536 would take longer than the
		// server waits: see stopped. No ID has a zero byte.
		write(len(l.Owners))
		_ = binary.Write(hash, binary.BigEndian, slices.Concat(l.Owners, l.Targets)) // a hash takes all
		_, _ = io.WriteString(hash, strings.Join(slices.Concat(l.OwnerIDs, l.PreferredIDs), "\x00"))
		l.Owners, l.Targets, l.OwnerIDs, l.PreferredIDs = nil, nil, nil, nil
		write(l)
	}
	return fmt.Sprintf("%x", hash.Sum(nil)[:8])
}

var fingerprints = regexp.MustCompile(`^[0-9a-f]{16}$`)

// movings returns what a plan of what was read would move.
func movings(read []store.LeasePlan) []Move {
	all := []Move{}
	leases := make(map[string]int, len(read))
	for i, l := range read {
		leases[l.Name] = i
	}
	type kind struct{ lease, from, to, how string }
	places := make(map[kind]int)
	for _, move := range bridge.Plan(read) {
		l := read[leases[move.Lease]]
		owner, target := memberOf(l, l.Owners[move.Partition]), memberOf(l, move.Target)
		m := Move{Lease: l.Name, From: l.OwnerIDs[move.Partition], Kind: AtOnce}
		if target != nil {
			m.To = target.ID
		}
		if owner != nil {
			m.From, m.Kind = owner.ID, Asked
			switch {
			case owner.Session == move.Target:
				m.Kind = Kept
			case owner.Incarnation < 0:
				m.Kind = Expiry
			}
		}
		k := kind{m.Lease, m.From, m.To, string(m.Kind)}
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

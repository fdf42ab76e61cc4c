package admin

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	_ "github.com/pgleases/pgleases" // sets bridge.Plan
	"github.com/pgleases/pgleases/admin/sql"
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
	if c.Reason == "" {
		c.Reason = "dry run"
	}
	tried, err := a.try(ctx, c)
	if err != nil {
		return nil, err
	}
	p := &DryRun{Moves: []Move{}, Leases: []string{}, Fingerprint: tried.fingerprint(c)}
	for _, l := range tried.read {
		p.Leases = append(p.Leases, l.Name)
		if c.Verb == Drop {
			p.Forgets += len(l.Owners)
		}
	}
	if c.Verb != Drop {
		p.Moves = movings(tried.read)
	}
	return p, nil
}

// A trial is what a plan would read after a change; of Drop before it, as nothing is left after it.
type trial struct {
	read  []store.LeasePlan // not changed by others in between
	since string            // a snapshot: transactions that it does not see may not be in it
}

// stopped is how long the server waits for a program that stops in the middle of a change, as the
// verbs have it too: heartbeats wait with it, and the least TTL is a second.
const stopped = 500 * time.Millisecond

// bounded bounds the statement after it: heartbeats wait for what the verb has locked, so reading
// it takes a quarter of the least TTL at most.
const bounded = `SELECT pg_catalog.set_config('statement_timeout', (SELECT least(coalesce(min(extract(epoch FROM c.ttl)) * 250, 1500), %[2]d)::int::pg_catalog.text FROM %[1]s.clients AS c), true)`

// try carries a change out. Without IfUnchanged it is rolled back; with one it is committed where
// that is right.
func (a *Admin) try(ctx context.Context, c Change) (tried trial, err error) {
	verb, args, err := a.statement(c)
	if err != nil {
		return tried, err
	}
	var lease, client *string
	switch c.Verb {
	case Pause, Resume, Freeze, Unfreeze, Pin, Unpin, Drop:
		lease = &c.Subject
	default:
		client = &c.Subject
	}
	committing := false
	err = pgx.BeginTxFunc(ctx, a.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		var batch pgx.Batch
		// Nobody waits for long for a program that does not take what the server tells; nor, which the
		// verb sees to, for one that is stopped before the end of the transaction.
		batch.Queue("SELECT pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true), pg_catalog.set_config('statement_timeout', $1, true), "+
			"pg_catalog.set_config('tcp_user_timeout', $2, true)", fmt.Sprint(answers.Milliseconds()), fmt.Sprint(stopped.Milliseconds()))
		batch.Queue("SELECT pg_catalog.pg_current_snapshot()::pg_catalog.text").QueryRow(func(row pgx.Row) error { return row.Scan(&tried.since) })
		change := func() { batch.Queue(verb, args...) }
		read := func() {
			batch.Queue(fmt.Sprintf(bounded, pgx.Identifier{a.options.schema}.Sanitize(), answers.Milliseconds()))
			batch.Queue(store.Texts(sql.Files, a.options.schema)("dryrun"), lease, client).Query(func(rows pgx.Rows) (err error) {
				tried.read, err = store.CollectPlan(rows)
				return err
			})
		}
		if c.Verb == Drop { // after it nothing can be read
			read()
			change()
		} else {
			change()
			read()
		}
		if c.IfUnchanged == "" {
			batch.Queue("ROLLBACK")
		}
		switch err := tx.SendBatch(ctx, &batch).Close(); {
		case err != nil:
			return err
		case c.IfUnchanged == "":
			return errDryRun
		case hashOf(c.IfUnchanged) != hashOf(tried.fingerprint(c)):
			return ErrChanged
		}
		committing = true
		return nil
	})
	switch {
	case errors.Is(err, errDryRun):
		return tried, nil
	case store.Code(err) == "57014" && ctx.Err() == nil:
		return tried, refusef("admin: %s %q: %w\nheartbeats wait while the server reads what a plan depends on, so that may take a quarter of the least TTL; nothing was done: try again when the server has less to do, or do it without a dry run", c.Verb, c.Subject, err)
	case errors.Is(err, ErrChanged):
		return tried, fmt.Errorf("%w: %s\nRepeat the dry run", err, a.changes(ctx, c, tried.read))
	}
	return tried, a.refusal(c, doubted(committing, err))
}

// fingerprint is the hash of the change and of all that a plan depends on that is made after it.
// The leases' generations are not in it, but for Drop, where nobody is left to raise them: they
// rise also when an owner is told of what it has been given. Behind a dash stands the snapshot, by
// which to tell what has changed since.
func (t trial) fingerprint(c Change) string {
	hash := sha256.New()
	write := json.NewEncoder(hash).Encode
	failed := write([]any{c.Verb, c.Subject, c.Partition, c.Client, c.Next})
	for _, l := range t.read {
		if c.Verb != Drop {
			l.Generation = 0
		}
		hashPartitions(hash, l)
		l.Owners, l.Targets, l.OwnerIDs, l.PreferredIDs = nil, nil, nil, nil
		failed = errors.Join(failed, write(l))
	}
	if failed != nil {
		panic(failed) // texts, numbers, booleans
	}
	return fmt.Sprintf("%x-%s", hash.Sum(nil)[:8], t.since)
}

// hashPartitions adds what is told of each partition. As JSON, 20 leases of 65,536 partitions would
// take longer than the server waits: see stopped.
func hashPartitions(hash io.Writer, l store.LeasePlan) {
	of := binary.AppendVarint(nil, int64(len(l.Owners)))
	for p := range l.Owners {
		of = binary.AppendVarint(binary.AppendVarint(of, l.Owners[p]), l.Targets[p])
		for _, id := range []string{l.OwnerIDs[p], l.PreferredIDs[p]} {
			of = append(binary.AppendVarint(of, int64(len(id))), id...)
		}
	}
	_, _ = hash.Write(of) // a hash takes all
}

var fingerprints = regexp.MustCompile(`^[0-9a-f]{16}-[0-9]+:[0-9]+:[0-9,]*$`)

// hashOf is the hash alone.
func hashOf(text string) string {
	hash, _, _ := strings.Cut(text, "-")
	return hash
}

// changes says what has changed since a dry run.
func (a *Admin) changes(ctx context.Context, c Change, read []store.LeasePlan) string {
	names := []string{}
	for _, l := range read {
		names = append(names, l.Name)
	}
	_, since, _ := strings.Cut(c.IfUnchanged, "-")
	var changed, causes, of []string
	err := reading(ctx, a.pool, func(tx pgx.Tx) error {
		return tx.QueryRow(ctx, store.Texts(sql.Files, a.options.schema)("changed"), since, names).Scan(&changed, &causes, &of)
	})
	var events []string
	for i := range causes {
		events = append(events, fmt.Sprintf("%s of %q", causes[i], of[i]))
	}
	switch {
	case err != nil:
		return fmt.Sprintf("what cannot be told: %v", err)
	case len(changed)+len(events) == 0:
		return "it was of another change or database, or partitions have been handed over, or clients have left or joined"
	case len(events) == 0:
		return fmt.Sprintf("members, weights or targets of the leases %q", changed)
	}
	return fmt.Sprintf("of the leases %q, and the events since then are %s", changed, listed(events))
}

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

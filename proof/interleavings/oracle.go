package interleavings

import (
	"fmt"
	"slices"

	"github.com/pgleases/pgleases/internal/store"
)

// A commit is what the oracle knows of a transaction that has committed.
type commit struct {
	what     string
	planned  []store.LeaseSnapshot // the leases that a plan has written, as it had read them
	releases []store.Release       // what a release names
	by       int64                 // the session that releases
	cutoff   int64                 // of an eviction; microseconds
	watched  int64                 // likewise
	renewed  int64                 // the session that a heartbeat has renewed; 0: none
	freed    int64                 // the session that releases a lock; 0: none
}

// check compares what was committed before a step with what is committed after it. Of the commits
// in between at most one changed owners.
func check(before, now tablesState, commits []commit) (violations []string) {
	say := func(format string, args ...any) { violations = append(violations, fmt.Sprintf(format, args...)) }
	for i, p := range now.Partitions {
		checkPartition(before, now, before.Partitions[i], p, commits, say)
	}
	for _, c := range before.Clients {
		_, there := now.client(c.Session)
		expired := slices.ContainsFunc(commits, func(by commit) bool { return by.evicts(c) })
		if !there && !expired {
			say("session %d was evicted, though it expires at %d, with a TTL of %d us", c.Session, c.Expires, c.TTL)
		}
	}
	for _, l := range before.Leases {
		if now.generation(l.Name) < l.Generation {
			say("the generation of lease %s fell from %d to %d", l.Name, l.Generation, now.generation(l.Name))
		}
	}
	if now.Generation < before.Generation {
		say("the server generation fell from %d to %d", before.Generation, now.Generation)
	}
	for _, c := range commits {
		for _, l := range c.planned {
			is := before.generation(l.Name)
			if is != l.Generation {
				say("a plan of generation %d of lease %s was written over generation %d", l.Generation, l.Name, is)
			}
		}
		_, there := now.client(c.renewed)
		if c.renewed != 0 && !there {
			say("session %d was renewed, and is gone", c.renewed)
		}
	}
	checkLocks(before, now, commits, say)
	return violations
}

// evicts reports whether an eviction may remove a session.
func (c commit) evicts(s clientRow) bool { return s.Expires < c.cutoff && s.TTL <= c.watched }

func checkPartition(before, now tablesState, was, is partitionRow, commits []commit, say func(string, ...any)) {
	at := fmt.Sprintf("partition %d of lease %s", is.Partition, is.Lease)
	if is.Epoch < was.Epoch {
		say("the epoch of %s fell from %d to %d", at, was.Epoch, is.Epoch)
	}
	released := false
	for _, c := range commits {
		for _, r := range c.releases {
			if r.Lease != is.Lease || r.Partition != is.Partition || is.Epoch == was.Epoch {
				continue
			}
			released = c.by == was.Owner && r.Epoch == was.Epoch
			if !released {
				say("a release by %d under epoch %d changed %s: %+v", c.by, r.Epoch, at, was)
			}
		}
	}
	if is.Owner == was.Owner {
		return
	}
	if is.Epoch <= was.Epoch {
		say("%s went from %d to %d, and its epoch stayed %d", at, was.Owner, is.Owner, is.Epoch)
	}
	if before.lives(is.Lease, was.Owner) && !released {
		say("%s was taken from %d, which lives and has not released it", at, was.Owner)
	}
	to := ""
	if is.Owner != 0 {
		to = is.OwnerID
	}
	recorded := slices.ContainsFunc(now.Events, func(e eventRow) bool {
		isNew := !slices.ContainsFunc(before.Events, func(o eventRow) bool { return o.ID == e.ID })
		isMove := e.Cause == "given" || e.Cause == "handed over"
		isHere := e.Lease == is.Lease && slices.Contains(e.Partitions, is.Partition)
		return isNew && isMove && isHere && e.From == was.OwnerID && e.To == to
	})
	if !recorded {
		say("%s went from %q to %d, and no event says so: %+v", at, was.OwnerID, is.Owner, now.Events)
	}
}

func checkLocks(before, now tablesState, commits []commit, say func(string, ...any)) {
	highest, held := make(map[string]int64), make(map[string]lockRow)
	for _, l := range before.Locks {
		highest[l.Name] = max(highest[l.Name], l.Token)
		there := slices.ContainsFunc(now.Locks, func(n lockRow) bool {
			return n.Name == l.Name && n.Session == l.Session && n.Token >= l.Token
		})
		_, lives := before.client(l.Session)
		freed := slices.ContainsFunc(commits, func(c commit) bool { return c.freed == l.Session })
		if !there && lives && !freed {
			say("lock %s, or its place, was taken from %d, which lives and has not released it", l.Name, l.Session)
		}
	}
	for _, l := range now.Locks {
		if l.Token == 0 {
			continue
		}
		other, taken := held[l.Name]
		if taken && !(l.Shared && other.Shared) {
			say("lock %s has two holders, %d and %d", l.Name, other.Session, l.Session)
		}
		held[l.Name] = l
		if l.Token < highest[l.Name] {
			say("the token of lock %s fell from %d to %d", l.Name, highest[l.Name], l.Token)
		}
	}
}

// checkGuards compares guards with what is committed: a guard that has passed is of the owner until
// its transaction ends, and one that was refused is not.
func checkGuards(now tablesState, s *session) (violations []string) {
	if s.guard != nil && !now.owns(*s.guard) {
		violations = append(violations, fmt.Sprintf("%+v has passed, and is not of the owner: %+v", *s.guard, now))
	}
	for _, g := range s.refused {
		if now.passes(g) {
			violations = append(violations, fmt.Sprintf("%+v was refused, though it is of the owner: %+v", g, now))
		}
	}
	return violations
}

// owns reports whether what was guarded still belongs to its owner. A fence may raise the epoch of a
// partition meanwhile.
func (t tablesState) owns(g guard) bool {
	if g.lock != "" {
		return slices.ContainsFunc(t.Locks, func(l lockRow) bool {
			return l.Name == g.lock && l.Session == g.session && l.Token == g.epoch
		})
	}
	p := t.partition(g.place)
	return p.Owner == g.session && p.Epoch >= g.epoch
}

// passes reports whether a guard has to pass.
func (t tablesState) passes(g guard) bool {
	c, known := t.client(g.session)
	if g.lock != "" {
		return t.owns(g) && known && !c.Revoked
	}
	return t.owns(g) && t.partition(g.place).Epoch == g.epoch && g.epoch>>32 >= t.Generation && known && !c.Revoked
}

// checkEnd finds what is stuck after time has passed: see world.settle.
func checkEnd(now tablesState) (violations []string) {
	for _, p := range now.Partitions {
		works := slices.ContainsFunc(now.Members, func(m memberRow) bool {
			c, known := now.client(m.Session)
			return m.Lease == p.Lease && known && !c.Drained
		})
		if slices.Contains(now.Paused, p.Lease) {
			works = false
		}
		owner, known := now.client(p.Owner)
		stays := ""
		switch {
		case works && (!known || owner.Drained || !now.lives(p.Lease, p.Owner)):
			stays = "which cannot own it"
		case !works && known:
			stays = "though no client may own it"
		case known && p.Epoch>>32 < now.Generation:
			stays = "under an epoch of an earlier server"
		}
		if stays != "" {
			violations = append(violations, fmt.Sprintf("%+v stays with its owner, %s: %+v", p, stays, now))
		}
	}
	holders := make(map[string]bool)
	for _, l := range now.Locks {
		_, lives := now.client(l.Session)
		holders[l.Name] = holders[l.Name] || l.Token != 0 && lives
	}
	for name, held := range holders {
		if !held {
			violations = append(violations, fmt.Sprintf("lock %s stays without a holder: %+v", name, now.Locks))
		}
	}
	return violations
}

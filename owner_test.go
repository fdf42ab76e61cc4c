package pgleases_test

import (
	"context"
	"errors"
	"maps"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
)

// lookups is a text in the statement that reads owners.
const lookups = ".owners("

func TestOwnerHasEpochAndMetadata(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	metadata := map[string]string{"address": "10.0.0.1:80", "zone": `"ä" \ '$1'`, "long": strings.Repeat("x", 980)}
	a := joined(t, newClient(t, pool, pgleases.WithClientID("a"), pgleases.WithMetadata(metadata)), "work", 4)
	delete(metadata, "zone") // the client has its own copy
	metadata["zone"] = `"ä" \ '$1'`
	b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 4)
	other := newClient(t, pool, pgleases.WithClientID("c")) // is no member
	untilOwns(t, a, 2)
	untilOwns(t, b, 2)
	all := testkit.Must(a.Owners(t.Context()))(t)
	for n := range 4 {
		asked := time.Now()
		owner, owned, err := other.Owner(t.Context(), "work", n)
		want, id, has := map[string]string{}, "b", b
		if _, is := a.Partition(n); is {
			want, id, has = metadata, "a", a
		}
		p := ownership(t, has, n)
		isOwner := owned && owner.ID == id && owner.Epoch == p.Epoch && maps.Equal(owner.Metadata, want)
		if err != nil || !isOwner {
			t.Errorf("the owner of %d is %+v, %v, %v; want %s, epoch %d, metadata %v",
				n, owner, owned, err, id, p.Epoch, want)
		}
		if owner.AsOf.Before(asked) || owner.AsOf.After(time.Now()) {
			t.Errorf("an answer of %v is as of %v", asked, owner.AsOf)
		}
		if of := all[n]; of.ID != id || of.Epoch != owner.Epoch || !maps.Equal(of.Metadata, want) {
			t.Errorf("among all owners, that of %d is %+v, not %+v", n, of, owner)
		}
	}
	partition := b.PartitionFor("customer-1")
	owner, owned, err := b.OwnerOf(t.Context(), "customer-1")
	if err != nil || !owned || owner.ID != all[partition].ID {
		t.Errorf("the owner of a key is %+v, %v, %v; want that of partition %d, %+v",
			owner, owned, err, partition, all[partition])
	}
}

func TestOwnerOfNothing(t *testing.T) {
	t.Parallel()
	pool := testkit.Pool(t, pgtest.MigratedDatabase(t))
	c := newClient(t, pool, pgleases.WithClientID("a"))
	l := joined(t, c, "work", 2, pgleases.WithWeight(0))
	if owner, owned, err := l.Owner(t.Context(), 1); err != nil || owned || owner.ID != "" {
		t.Errorf("a partition without an owner: %+v, %v, %v", owner, owned, err)
	}
	if owners, err := l.Owners(t.Context()); err != nil || len(owners) != 0 {
		t.Errorf("a lease without owners: %v, %v", owners, err)
	}
	for partition, text := range map[int]string{2: "0 to 1", -1: "0 to 65535", 1 << 40: "0 to 65535"} {
		_, _, err := l.Owner(t.Context(), partition)
		refused(t, "no such partition", err, `lease "work"`, "out of range: "+text)
	}
	_, _, err := c.Owner(t.Context(), "other", 0)
	refused(t, "no such lease", err, `lease "other"`, "there is no such lease")
	_, _, err = c.Owner(t.Context(), "", 0)
	refused(t, "no name", err, "lease name")
	shut(t, c)
	_, _, err = l.Owner(t.Context(), 0)
	wraps(t, "after Close", err, pgleases.ErrClosed)
}

// A client that is no owner hears of a change among others at its next heartbeat. Then the next call
// reads the owners, once.
func TestOwnersAreReadAfterChangesOnly(t *testing.T) {
	t.Parallel()
	var wire testkit.Wire
	url := direct(t)
	pool := testkit.Pool(t, url)
	a := joined(t, newClient(t, pool, pgleases.WithClientID("a")), "work", 2)
	untilOwns(t, a, 2)
	follower := joined(t, newClient(t, testkit.Pool(t, url, wire.Carry)), "work", 2, pgleases.WithWeight(0))
	owns := func(id string) func() bool {
		return func() bool {
			owners, err := follower.Owners(t.Context())
			return err == nil && owners[0].ID == id && owners[1].ID == id
		}
	}
	testkit.Until(t, "it sees the owner", owns("a"))
	b := joined(t, newClient(t, pool, pgleases.WithClientID("b")), "work", 2, pgleases.WithWeight(0))
	testkit.OK(t, b.SetWeight(t.Context(), 1))
	testkit.OK(t, a.SetWeight(t.Context(), 0))
	untilOwns(t, b, 2)
	testkit.Until(t, "it sees the next owner", owns("b"))
	beats(t, newClient(t, pool), 1)
	wire.Count(lookups)
	for range 1000 {
		testkit.Must(follower.Owners(t.Context()))(t)
	}
	if n := wire.Counted(); n > 1 { // one, if it has just heard of the announcement
		t.Errorf("%d reads without a change", n)
	}
}

// If reading takes long, large leases are read less often.
func TestSlowOwnersAreReadSeldom(t *testing.T) {
	testkit.OnlyInCI(t)
	t.Parallel()
	var wire testkit.Wire
	url := direct(t)
	c := newClient(t, testkit.Pool(t, url, wire.Carry))
	l := joined(t, c, "work", 1000, pgleases.WithWeight(0))
	deliver := wire.Delay(lookups)
	time.AfterFunc(500*time.Millisecond, deliver) // so the next read is in 10 s
	testkit.Must(l.Owners(t.Context()))(t)
	read := time.Now()
	wire.Count(lookups)
	untilOwns(t, joined(t, newClient(t, testkit.Pool(t, url)), "work", 1000), 1000)
	beats(t, c, 1)
	for range 10 {
		testkit.Must(l.Owners(t.Context()))(t)
	}
	if n := wire.Counted(); n > 0 && time.Since(read) < 9*time.Second {
		t.Errorf("%d reads within the pause", n)
	}
}

// The owner itself hears of its loss at once.
func TestOwnersShowOwnLossAtOnce(t *testing.T) {
	t.Parallel()
	_, _, cb, a := twoClients(t, 1)
	testkit.Must(a.Owners(t.Context()))(t)
	b := joined(t, cb, "work", 1, pgleases.WithWeight(0))
	testkit.OK(t, b.SetWeight(t.Context(), 1))
	testkit.OK(t, a.SetWeight(t.Context(), 0))
	untilOwns(t, b, 1)
	if owners := testkit.Must(b.Owners(t.Context()))(t); owners[0].ID != "b" {
		t.Errorf("the new owner is not among the owners: %+v", owners)
	}
}

// So heartbeats wait for one of these statements at most. The map of 65,536 owners has 9 MB.
func TestLookupsThatWaitShareOneStatement(t *testing.T) {
	t.Parallel()
	var wire testkit.Wire
	c := newClient(t, testkit.Pool(t, direct(t), wire.Carry))
	l := joined(t, c, "work", 8)
	untilOwns(t, l, 8)
	var mu sync.Mutex // guards read
	read := make(map[uintptr]bool)
	wire.Count(lookups)
	deliver := wire.Delay("heartbeat(")
	testkit.Until(t, "a heartbeat waits for its answer", func() bool { return wire.Left() == 0 })
	var calls sync.WaitGroup
	for n := range 200 {
		calls.Go(func() {
			if owner, owned, err := l.Owner(t.Context(), n%8); err != nil || !owned || owner.ID != c.ID() {
				t.Errorf("the owner of %d: %+v, %v, %v", n%8, owner, owned, err)
			}
		})
		calls.Go(func() {
			owners, err := l.Owners(t.Context())
			if err != nil || len(owners) != 8 {
				t.Errorf("all owners: %v, %v", owners, err)
			}
			mu.Lock()
			defer mu.Unlock()
			read[reflect.ValueOf(owners).Pointer()] = true
		})
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, _, err := l.Owner(ctx, 0) // when it ends, the others have asked, unless the machine is busy
	wraps(t, "a call that stops waiting", err, context.DeadlineExceeded)
	deliver()
	calls.Wait()
	if n := wire.Counted(); n == 0 || n > 20 {
		t.Errorf("%d statements for 400 calls", n)
	} else if len(read) > n {
		t.Errorf("%d maps of %d answers", len(read), n)
	}
}

func TestOwnerWaitsForAConnection(t *testing.T) {
	t.Parallel()
	var wire testkit.Wire
	l := joined(t, newClient(t, testkit.Pool(t, direct(t), wire.Carry)), "work", 1)
	untilOwns(t, l, 1)
	wire.Cut()
	ctx, cancel := context.WithTimeoutCause(t.Context(), 300*time.Millisecond, errors.New("too late"))
	defer cancel()
	for {
		if _, _, err := l.Owner(ctx, 0); err != nil && strings.Contains(err.Error(), "too late") {
			break
		} else if ctx.Err() != nil {
			t.Fatalf("it returned %v", err)
		}
	}
	answered := make(chan error, 1)
	go func() {
		// The connection may still be on its way down.
		for err := errors.New(""); err != nil && t.Context().Err() == nil; {
			_, _, err = l.Owner(t.Context(), 0)
			if err == nil {
				answered <- nil
			}
		}
	}()
	wire.Mend()
	testkit.OK(t, testkit.Receive(t, "it returns", answered))
}

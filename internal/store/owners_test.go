package store_test

import (
	"fmt"
	"maps"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases/internal/engine"
	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A client that does not act as owner any longer is none, even before it is evicted.
func TestExpiredOrRevokedClientIsNoOwner(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.trio(3)
		a.give("l", a.session, b.session, c.session)
		whole := Span{Lease: "l", Last: 2}
		owners := func() string {
			text := make([]string, 3)
			for _, o := range testkit.Must(a.Owners(f.ctx, []Span{whole}))(f)[whole].Owners {
				for i, partition := range o.Partitions {
					text[partition] = fmt.Sprintf("%s %s %d", o.ID, o.Metadata, o.Epochs[i])
				}
			}
			return fmt.Sprintf("%q", text)
		}
		expect(t, owners(), `["a {\"id\": \"a\"} 1" "b {\"id\": \"b\"} 1" "c {\"id\": \"c\"} 1"]`, "owners")
		f.expire(b)
		f.edit(func(t *fakestore.Tables, _ int64) {
			revoked := t.Clients[c.session]
			revoked.Incarnation = -1
			t.Clients[c.session] = revoked
		})
		expect(t, owners(), `["a {\"id\": \"a\"} 1" "" ""]`, "owners while one has expired and one is revoked")
		b.beat()
		expect(t, owners(), `["a {\"id\": \"a\"} 1" "b {\"id\": \"b\"} 1" ""]`, "owners after its next heartbeat")
	})
}

// A reader keeps the owners of a lease, by partition, and reads what has changed.
type reader struct {
	owners map[int]string
	at     Point
	whole  bool // the last read was of all
}

func (r *reader) read(f *fixture, c engine.Conn, lease string) {
	f.Helper()
	span := Span{Lease: lease, Last: 9, Since: r.at}
	found, err := c.Owners(f.ctx, []Span{span})
	f.ok(err)
	read := found[span]
	next := reader{maps.Clone(r.owners), read.At, read.Covers(read.Partitions - 1)}
	if next.owners == nil {
		next.owners = make(map[int]string)
	}
	for i, first := range read.Firsts {
		for p := int(first); p <= int(read.Lasts[i]); p++ {
			delete(next.owners, p)
		}
	}
	for _, o := range read.Owners {
		for i, p := range o.Partitions {
			next.owners[int(p)] = fmt.Sprint(o.ID, " ", o.Epochs[i])
		}
	}
	*r = next
}

// changes reads what has changed, and checks that all that a reader knows is what it would read anew.
func (r *reader) changes(f *fixture, c engine.Conn, lease string) {
	f.Helper()
	r.read(f, c, lease)
	var anew reader
	anew.read(f, c, lease)
	expect(f, fmt.Sprint(r.owners), fmt.Sprint(anew.owners), "what the reader knows")
}

func TestReaderOfOwnersReadsWhatHasChanged(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		f.setMarker(7)
		a, b, _ := f.trio(4)
		a.give("l", a.session, a.session, a.session) // the last one never has an owner, so it never changes
		var r reader
		r.changes(f, a, "l")
		expect(t, r.whole, true, "the first read is of all")
		owner := map[*client]*client{a: b, b: a}
		for _, next := range []*client{b, a, b} {
			a.give("l", a.session, next.session)
			r.changes(f, a, "l")
			owner[next].release([]Release{{"l", 1, f.tables().Partitions["l"][1].Epoch}})
			r.changes(f, a, "l")
			expect(t, r.whole, false, "a read of what has changed is of all")
		}
		f.expire(b)
		a.evict()
		r.changes(f, a, "l")
		expect(t, fmt.Sprint(r.owners), "map[0:a 1 2:a 1]", "owners after an eviction")
		a.give("l", a.session, a.session)
		r.changes(f, a, "l")
		f.setMarker(8)
		r.changes(f, a, "l")
		expect(t, r.whole, true, "in another server incarnation, a read is of all")
	})
}

// Transactions commit in another order than they begin.
func TestReaderOfOwnersMissesNoLateCommit(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, _ := f.trio(4)
	f.setMarker(7)
	a.give("l", a.session, a.session, a.session)
	move := func(partition int) pgx.Tx { // as a release does
		tx := testkit.Must(f.raw().Begin(f.ctx))(f)
		testkit.Must(tx.Exec(f.ctx, `
			UPDATE pgleases.partitions SET owner = $1, epoch = epoch + 1 WHERE partition = $2`, b.session, partition))(f)
		testkit.Must(tx.Exec(f.ctx, `
			INSERT INTO pgleases.events (lease, cause, partitions)
			VALUES ('l', 'handed over', int4multirange(int4range($1, $1, '[]')))`, partition))(f)
		return tx
	}
	var r reader
	r.changes(f, a, "l")
	early := move(0)
	r.changes(f, a, "l")
	for partition := range 2 {
		f.ok(move(1 + partition).Commit(f.ctx))
		r.changes(f, a, "l")
	}
	f.ok(early.Commit(f.ctx))
	r.changes(f, a, "l")
	expect(t, fmt.Sprint(r.owners, r.whole), "map[0:b 2 1:b 2 2:b 2] false", "owners")
}

// Events that are gone cannot say what has changed.
func TestReaderOfOwnersMissesNoTrimmedEvent(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, b, _ := f.trio(4)
	f.setMarker(7)
	a.give("l", a.session, a.session, a.session)
	var r reader
	r.changes(f, a, "l")
	a.give("l", b.session)
	a.release([]Release{{"l", 0, 1}})
	// A dump of another server has such a number.
	f.exec("UPDATE events_kept SET age = '0', trimmed = '9000000000000000000'")
	testkit.Must(a.Tidy(f.ctx))(f)
	expect(t, value[int](f, "SELECT count(*) FROM events"), 0, "events")
	r.changes(f, a, "l")
	expect(t, r.whole, true, "a read after events were trimmed is of all")
}

// A reader of many changes reads all, which costs less.
func TestReaderOfOwnersReadsFewEvents(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	a, _ := f.pair(2)
	f.setMarker(7)
	var r reader
	r.changes(f, a, "l")
	for _, events := range []int{900, 1001} {
		f.exec(`
			INSERT INTO events (lease, cause, partitions)
			SELECT 'l', 'given', '{[0,1)}' FROM generate_series(1, $1)`, events)
		r.changes(f, a, "l")
		expect(t, r.whole, events > 1000, fmt.Sprintf("a read of %d events is of all", events))
	}
}

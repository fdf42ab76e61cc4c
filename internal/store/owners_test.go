package store_test

import (
	"fmt"
	"testing"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
	"github.com/pgleases/pgleases/internal/testkit"
)

// A client that does not act as owner any longer is none, even before it is evicted.
func TestExpiredOrRevokedClientIsNoOwner(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		a, b, c := f.trio(3)
		a.give("l", a.session, b.session, c.session)
		whole := Span{"l", 0, 2}
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

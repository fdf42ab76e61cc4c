package store_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/fakestore"
	. "github.com/pgleases/pgleases/internal/store"
)

// settled settles the server's timeline, and returns the epoch of the only partition then.
func settled(c *client, salt int64) int64 {
	c.f.Helper()
	done, busy, err := c.Settle(c.f.ctx, 10*time.Minute, c.run(), salt)
	c.f.ok(err)
	expect(c.f.TB, fmt.Sprint(done, busy), "true false", "settled, busy")
	return c.f.tables().Partitions["l"][0].Epoch
}

// Two standbys of one server, promoted one after the other, are on the same timeline and have the same era.
func TestCopiesOfOneStateGiveNoEpochTwice(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client("c")
	c.join("l", 1)
	c.give("l", c.session)
	f.server(func(s *fakestore.Server, _ int64) { s.Timeline = 77 }) // and a promotion
	f.exec("CREATE TABLE public.copied AS SELECT s.era, s.timeline, p.epoch FROM server AS s, partitions AS p")
	first := settled(c, 5)
	c.release([]Release{{"l", 0, first}})
	last := f.tables().Partitions["l"][0].Epoch

	second := value[int64](f, "SELECT floor(extract(epoch FROM clock_timestamp()))::bigint")
	f.until("the clock has gone on by a second", func() bool {
		return value[bool](f, "SELECT floor(extract(epoch FROM clock_timestamp())) > $1::bigint", second)
	})
	f.exec("UPDATE server SET era = copied.era, timeline = copied.timeline FROM public.copied")
	f.exec("UPDATE partitions SET epoch = copied.epoch FROM public.copied")
	if other := settled(c, 0); other <= last {
		t.Errorf("one copy gave epochs %d to %d, the other begins with %d", first, last, other)
	}

	// In the same second, as clocks say that are steered to each other.
	f.exec("UPDATE server SET era = copied.era, timeline = copied.timeline FROM public.copied")
	f.exec("UPDATE server SET era = (SELECT epoch FROM partitions) >> 32")
	f.exec("UPDATE partitions SET epoch = copied.epoch FROM public.copied")
	one := settled(c, 5)
	f.exec("UPDATE server SET era = server.era - 1, timeline = copied.timeline FROM public.copied")
	f.exec("UPDATE partitions SET epoch = copied.epoch FROM public.copied")
	if other := settled(c, 6_000_000); other == one {
		t.Errorf("both copies begin with epoch %d", one)
	}
}

// pg_upgrade begins with timeline 1 again.
func TestAnEraNeverFallsAndLeavesRoomForEpochs(t *testing.T) {
	onBoth(t, func(t *testing.T, f *fixture) {
		c := f.client("c")
		c.join("l", 1)
		c.give("l", c.session)
		before := int64(1)
		for _, era := range []int64{0, 0, 2_000_000_000} { // the last: as after a clock that was wrong by decades
			f.server(func(s *fakestore.Server, _ int64) { s.Timeline, s.Era = 77, max(s.Era, era) })
			epoch := settled(c, 1<<31-1)
			if epoch>>32 <= before>>32 || epoch>>32 > 2_000_000_001 {
				t.Errorf("epoch %d of era %d after %d of era %d", epoch, epoch>>32, before, before>>32)
			}
			before = epoch
		}
	})
}

func TestANewEraIsSettledAsAfterAPromotion(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	c := f.client("c")
	c.join("l", 2)
	c.give("l", c.session)
	f.exec("SELECT new_era()")
	beat := c.beat()
	expect(t, beat.Settled == beat.Run.Timeline, false, "settled at once")
	expect(t, c.apply(c.plan("l"), Move{"l", 1, c.session}).Applied, false, "given meanwhile")
	done, _, err := c.Settle(f.ctx, time.Second, c.run(), 0)
	f.ok(err)
	expect(t, done, false, "settled after a watch that is shorter than a TTL")
	if epoch := settled(c, 0); epoch>>32 < 200_000_000 {
		t.Errorf("epoch %d", epoch)
	}
	expect(t, c.apply(c.plan("l"), Move{"l", 1, c.session}).Applied, true, "given then")
}

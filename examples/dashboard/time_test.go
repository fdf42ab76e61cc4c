package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/pgleases/pgleases/consumer"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

// How long ago something was goes on, also if nothing else of its row changes.
func TestAgesGoOn(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	testkit.OK(t, schedule.Migrate(t.Context(), pool))
	testkit.OK(t, consumer.Migrate(t.Context(), pool))
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.schedule_groups VALUES ('g', 1);
		INSERT INTO pgleases.schedules
			(group_name, name, key, partition, kind, args, rule, anchor, declared, cursor, due, revision, registered,
			succeeded)
		VALUES ('g', 's', 'k', 0, 'kind', '{}', '@every 1h0m0s', now(), false, now(), now() + interval '1 hour', 1, now(),
			now());
		INSERT INTO pgleases.consumers (name, queue, id_column, key_column, partition_column, partitions)
		VALUES ('c', 'q', 'id', 'key', 'partition', 1);
		INSERT INTO pgleases.consumer_blocked (consumer, partition, id, key, version, attempts, error, next_at)
		VALUES ('c', 0, 1, 'k', 'v', 1, 'e', 'infinity')`)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "")
	for address, age := range map[string]string{
		"schedules/g":   "#schedule-list tbody td:nth-child(3)",
		"schedules/g/s": ".facts-list > div:nth-child(2)",
		"consumers/c":   "#blocked-rows td:nth-child(4)",
	} {
		x.show(address)
		x.until(fmt.Sprintf(`document.querySelector(%q) !== null`, age), matches(textOf(age), `[\d.]+ s ago$`))
		x.until(fmt.Sprintf(`%s !== %q`, textOf(age), eval[string](x, textOf(age))))
	}
}

// On a page that stays open, what happened before midnight gets its day.
func TestEventsOfYesterdayHaveTheirDay(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	join(t, openClient(t, pool, "one"), "orders", 8)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/orders")
	const first = ".band-events time"
	x.until(count(first) + ` > 0`)
	eval[bool](x, `(() => {
		const now = Date.now;
		window.Date = class extends Date {
			constructor(...of) { super(...(of.length > 0 ? of : [Date.now()])); }
			static now() { return now() + 24 * 3600e3; }
		};
		return true;
	})()`)
	x.until(matches(textOf(first), `^\d+ \w+, \d\d:\d\d:\d\d$`))
}

// A time of another year has its year, such as the next tick of a rule for 29 February.
func TestTimesOfOtherYearsHaveTheirYear(t *testing.T) {
	t.Parallel()
	url, _ := database(t)
	pool := newPool(t, pgtest.OwnerURL(url))
	testkit.Execute(t, pool, `
		INSERT INTO pgleases.leases VALUES ('l', 1, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.overrides (verb, lease, partition, client, until, since, actor, reason)
		VALUES ('pause', 'l', NULL, NULL, '2999-02-28 12:00Z', now(), 'ann', 'why')`)
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases/l")
	x.until(some("#override-list li", `until 28 Feb 2999, \d\d:\d\d:\d\d`))
}

// Two names that differ in spaces look different.
func TestSpacesInNamesAreSeen(t *testing.T) {
	t.Parallel()
	_, pool := database(t)
	c := openClient(t, pool, "one")
	names := []string{" a b", "a  b", "a b", "a b "}
	for _, name := range names {
		join(t, c, name, 1)
	}
	x := newTab(t, 1280, 900)
	x.signIn(serve(t, pool), "leases")
	x.until(count("#lease-rows tr") + ` === 4`)
	texts := eval[[]string](x, `[...document.querySelectorAll("#lease-rows th .name")].map(e => e.innerText)`)
	if slices.Sort(texts); !slices.Equal(texts, names) {
		t.Errorf("the names are %q", texts)
	}
}

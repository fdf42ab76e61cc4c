package admin_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/pgleases/pgleases/internal/admin"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/schedule"
)

const hour = time.Hour

// described returns the spells of a life, each with its times in minutes before the end.
func described(l *admin.Life) (all []string) {
	for _, s := range l.Spells {
		from, to := l.Until.Sub(s.Since).Round(time.Minute), l.Until.Sub(s.Until).Round(time.Minute)
		all = append(all, fmt.Sprintf("%v %v..%v %s %s", s.Partitions, from, to, s.Owner, s.Cause))
	}
	slices.Sort(all)
	return all
}

// A client that hands a partition over, one that is evicted, one that leaves without a successor,
// and a later process with the ID of an evicted one.
func TestLifeShowsOwnersAndGaps(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.clients
		SELECT s, id, 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now()
		FROM (VALUES (1, 'a'), (2, 'b')) AS v (s, id);
		INSERT INTO pgleases.leases VALUES ('l', 6, 5, 1, 0, 'infinity', now()), ('other', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since) VALUES
			('l', 0, 1, 1, 3, 'a', now()), ('l', 1, 1, 1, 3, 'a', now()), ('l', 2, 2, 2, 3, 'b', now()), ('l', 3, 2, 2, 3, 'b', now()),
			('l', 4, 99, 99, 3, 'c', now()), ('l', 5, NULL, NULL, 3, 'a', NULL);
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions, reason)
		SELECT clock_timestamp() - v.ago * interval '1 minute', v.lease, v.cause, v.f, v.t, v.p::int4multirange, v.why FROM (VALUES
			(50, 'l', 'given', NULL, 'a', '{[0,1)}', NULL), -- it had no owner before
			(45, 'l', 'handed over', 'a', NULL, '{[3,4)}', NULL), -- without a successor, until 44
			(44, 'l', 'given', 'a', 'b', '{[3,4)}', NULL),
			(40, 'other', 'given', 'a', 'z', '{[0,2)}', NULL),
			(30, NULL, 'evicted', 'a', NULL, NULL, 'host h, pid 1'),
			(29, 'l', 'given', 'a', 'b', '{[0,2)}', NULL),
			(20, 'l', 'handed over', 'b', 'a', '{[0,2)}', NULL),
			(10, NULL, 'evicted', 'c', NULL, NULL, 'host h, pid 2'),
			(5, 'l', 'handed over', 'a', NULL, '{[5,6)}', NULL)) AS v (ago, lease, cause, f, t, p, why)`)
	a := newAdmin(t, newPool(t, url))
	life := testkit.Must(a.Life(t.Context(), admin.Period{Last: hour}, "l", -1))(t)
	want := []string{
		"0 50m0s..30m0s a given",
		"0-1 20m0s..0s a handed over",
		"0-1 29m0s..20m0s b given",
		"0-1 30m0s..29m0s  evicted",
		"1 1h0m0s..30m0s a ",
		"2 1h0m0s..0s b ",
		"3 1h0m0s..45m0s a ",
		"3 44m0s..0s b given",
		"3 45m0s..44m0s  handed over",
		"4 10m0s..0s  evicted",
		"4 1h0m0s..10m0s c ",
		"5 1h0m0s..5m0s a ",
		"5 5m0s..0s  handed over",
	}
	if got := described(life); !slices.Equal(got, want) {
		t.Errorf("the spells are\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	if len(life.Events) != 8 || life.Partitions != 6 { // without the move of another lease
		t.Errorf("%d events of %d partitions: %+v", len(life.Events), life.Partitions, life.Events)
	}

	// Nobody evicts b, so it owned its partitions until its last heartbeat, or until it got them if that was later.
	exec(t, url, `
		UPDATE pgleases.clients SET ttl = '1 minute', expires_at = clock_timestamp() - interval '14 minutes'
		WHERE id = 'b'`, `
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions)
		VALUES (clock_timestamp() - interval '12 minutes', 'l', 'handed over', 'a', 'b', '{[2,3)}')`)
	silent := testkit.Must(a.Life(t.Context(), admin.Period{Last: hour}, "l", -1))(t)
	for _, want := range []string{
		"3 44m0s..15m0s b given",
		"3 15m0s..0s  silent",
		"2 12m0s..0s  silent",
		"2 1h0m0s..12m0s a ",
		"0-1 20m0s..0s a handed over",
	} {
		if got := described(silent); !slices.Contains(got, want) {
			t.Errorf("the spells are\n%s\nand lack %s", strings.Join(got, "\n"), want)
		}
	}
	if got := described(silent); len(got) != 15 {
		t.Errorf("the spells are\n%s", strings.Join(got, "\n"))
	}
	exec(t, url, `
		DELETE FROM pgleases.events
		WHERE at > clock_timestamp() - interval '13 minutes' AND partitions = '{[2,3)}'`, `
		UPDATE pgleases.clients SET ttl = '1 hour', expires_at = clock_timestamp() + interval '1 hour'
		WHERE id = 'b'`)

	one := testkit.Must(a.Life(t.Context(), admin.Period{Last: 25 * time.Minute}, "l", 1))(t)
	want = []string{"1 20m0s..0s a handed over", "1 25m0s..20m0s b "}
	if got := described(one); !slices.Equal(got, want) {
		t.Errorf("of one partition: %q, want %q", got, want)
	}
	// The eviction of a client that did not own it is not among its events.
	if len(one.Events) != 1 || one.Events[0].Cause != "handed over" {
		t.Errorf("the events of one partition are %+v", one.Events)
	}
	// A period that has ended shows who owned what then.
	now := one.Until
	earlier := admin.Period{From: now.Add(-28 * time.Minute), To: now.Add(-22 * time.Minute)}
	then := testkit.Must(a.Life(t.Context(), earlier, "l", 0))(t)
	if got, want := described(then), []string{"0 6m0s..0s b "}; !slices.Equal(got, want) {
		t.Errorf("of an earlier period: %q, want %q", got, want)
	}

	if _, err := a.Life(t.Context(), admin.Period{Last: hour}, "none", -1); !errors.Is(err, admin.ErrNoLease) {
		t.Errorf("of no lease: %v", err)
	}
	_, err := a.Life(t.Context(), admin.Period{Last: hour}, "l", 6)
	if !errors.Is(err, admin.ErrNoSuchPartition) || !fails(err, "which has 6") {
		t.Errorf("of no partition: %v", err)
	}
}

// The limit of events that are read counts those of the partition, and not those of its lease.
func TestLifeOfOnePartitionOfABusyLease(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.clients
		VALUES (1, 'b', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now());
		INSERT INTO pgleases.leases VALUES ('l', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since) VALUES
			('l', 0, 1, 1, 3, 'b', now()), ('l', 1, 1, 1, 3, 'b', now());
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions)
			VALUES (clock_timestamp() - interval '40 minutes', 'l', 'given', 'a', 'b', '{[0,1)}');
		INSERT INTO pgleases.events (lease, cause, from_id, to_id, partitions)
			SELECT 'l', 'handed over', 'b', 'b', '{[1,2)}' FROM generate_series(1, 3000);`)
	a := newAdmin(t, newPool(t, url))
	life := testkit.Must(a.Life(t.Context(), admin.Period{Last: hour}, "l", 0))(t)
	got, want := described(life), []string{"0 1h0m0s..40m0s a ", "0 40m0s..0s b given"}
	if !slices.Equal(got, want) {
		t.Errorf("the spells are %q, want %q", got, want)
	}
}

// Real clients: what the life ends with is what they own.
func TestLifeAgreesWithTheOwners(t *testing.T) {
	t.Parallel()
	pool := newPool(t, pgtest.MigratedDatabase(t))
	a := newAdmin(t, pool)
	for _, id := range []string{"one", "two", "three"} {
		joined(t, newClient(t, pool, id), "orders", 12)
	}
	hasOther := func(m admin.Member) bool { return m.Owned != 4 }
	s := awaitSnapshot(t, a, "each owns four", func(s *admin.Snapshot) bool {
		l := s.Lease("orders")
		return l != nil && len(l.Members) == 3 && !slices.ContainsFunc(l.Members, hasOther)
	})
	life := testkit.Must(a.Life(t.Context(), admin.Period{Last: hour}, "orders", -1))(t)
	for _, h := range s.Lease("orders").Holdings {
		for _, r := range h.Partitions {
			for p := r[0]; p <= r[1]; p++ {
				last := slices.IndexFunc(life.Spells, func(s admin.Spell) bool {
					return s.Until.Equal(life.Until.Truncate(time.Microsecond)) && s.Partitions.Contains(p)
				})
				if last < 0 || life.Spells[last].Owner != h.Owner {
					t.Errorf("partition %d is owned by %q: %+v", p, h.Owner, life.Spells)
				}
			}
		}
	}
}

func TestHappenedFindsByLeaseClientCauseAndPeriod(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions)
		SELECT clock_timestamp() - v.ago * interval '1 minute', v.lease, v.cause, v.f, v.t, '{[0,2)}' FROM (VALUES
			(90, 'l', 'given', NULL, 'old'), (30, 'l', 'given', 'a', 'b'), (20, 'm', 'handed over', 'b', 'c'),
			(10, NULL, 'evicted', 'b', NULL), (5, NULL, 'evicted', 'z', NULL)) AS v (ago, lease, cause, f, t)`)
	a := newAdmin(t, newPool(t, url))
	happened := func(last time.Duration, filter admin.EventFilter) *admin.Happened {
		return testkit.Must(a.Happened(t.Context(), admin.Period{Last: last}, filter))(t)
	}
	for _, test := range []struct {
		last   time.Duration
		filter admin.EventFilter
		want   string
	}{
		{hour, admin.EventFilter{}, "evicted z,evicted b,handed over b,given a"},
		{2 * hour, admin.EventFilter{Cause: "given"}, "given a,given "},
		{hour, admin.EventFilter{Lease: "l"}, "evicted b,given a"},
		{hour, admin.EventFilter{Client: "c"}, "handed over b"},
		{time.Minute, admin.EventFilter{}, ""},
		{hour, admin.EventFilter{Lease: "none"}, ""},
	} {
		h := happened(test.last, test.filter)
		var got []string
		for _, e := range h.Events {
			got = append(got, e.Cause+" "+e.From)
		}
		if strings.Join(got, ",") != test.want || h.More {
			t.Errorf("%v %+v: %q, more %v; want %q", test.last, test.filter, got, h.More, test.want)
		}
	}
	exec(t, url, `INSERT INTO pgleases.events (lease, cause) SELECT 'many', 'joined' FROM generate_series(1, 1001)`)
	if h := happened(hour, admin.EventFilter{Lease: "many"}); len(h.Events) != 1000 || !h.More {
		t.Errorf("of 1001 events it returns %d, more: %v", len(h.Events), h.More)
	}
	exec(t, url, `
		INSERT INTO pgleases.events (at, lease, cause)
		VALUES (clock_timestamp() - interval '40 minutes', 'few', 'left');
		INSERT INTO pgleases.events (lease, cause) SELECT 'many', 'joined' FROM generate_series(1, 20001)`)
	few := happened(hour, admin.EventFilter{Cause: "left"})
	if len(few.Events) != 1 || few.More {
		t.Errorf("behind 20001 others it finds %d events, more: %v", len(few.Events), few.More)
	}
	exec(t, url, `
		INSERT INTO pgleases.events (at, lease, cause, name, actor, reason)
		SELECT clock_timestamp() - interval '40 minutes', 'many', 'schedule paused', name, 'ann', 'why'
		FROM unnest('{close,open}'::text[]) AS name`)
	named := happened(hour, admin.EventFilter{Lease: "many", Name: "close"})
	if len(named.Events) != 1 || named.More || named.Events[0].Name != "close" {
		t.Errorf("behind 21002 others of its lease it finds %+v, more: %v", named.Events, named.More)
	}
}

// An outage of all clients is written down when it is over. It belongs to each period that it touches.
func TestOutageOfAllClientsIsShownInItsHours(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.clients
		VALUES (1, 'b', 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now());
		INSERT INTO pgleases.leases VALUES ('l', 2, 5, 1, 0, 'infinity', now());
		INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since) VALUES
			('l', 0, 1, 1, 3, 'b', now()), ('l', 1, 1, 1, 3, 'b', now());
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions, reason)
		SELECT v.at::timestamptz, v.lease, v.cause, v.f, v.t, v.p::int4multirange, v.why FROM (VALUES
			('2031-05-01 02:30:00Z', 'l', 'given', NULL, 'a', '{[0,1)}', NULL),
			('2031-05-01 05:00:06Z', NULL, 'evicted', 'a', NULL, NULL, 'host h, pid 1'),
			('2031-05-01 05:00:06Z', NULL, 'no live client', NULL, NULL, NULL,
				'from 2031-05-01T03:30:00Z to 2031-05-01T05:00:00Z'),
			('2031-05-01 05:00:07Z', 'l', 'given', 'a', 'b', '{[0,2)}', NULL),
			('2031-05-01 05:00:08Z', NULL, 'no live client', NULL, NULL, NULL, 'from time immemorial'),
			('2031-05-01 05:00:09Z', NULL, 'no live client', NULL, NULL, NULL, NULL)) AS v (at, lease, cause, f, t, p, why)`)
	a := newAdmin(t, newPool(t, url))
	clock := func(hour, minute int) time.Time { return time.Date(2031, 5, 1, hour, minute, 0, 0, time.UTC) }
	outage := admin.Outage{From: clock(3, 30), To: clock(5, 0)}
	for _, test := range []struct {
		from, to time.Time
		touched  bool
	}{
		{clock(2, 0), clock(3, 30), false}, {clock(3, 0), clock(4, 0), true}, {clock(4, 0), clock(4, 30), true},
		{clock(4, 30), clock(6, 0), true}, {clock(2, 0), clock(6, 0), true}, {clock(5, 0), clock(5, 1), false},
	} {
		p := admin.Period{From: test.from, To: test.to}
		s := testkit.Must(a.Moves(t.Context(), p))(t)
		var outages []admin.Outage
		if test.touched {
			outages = append(outages, outage)
		}
		if !slices.Equal(s.Outages, outages) {
			t.Errorf("from %v to %v the outages are %v", test.from, test.to, s.Outages)
		}
		for _, filter := range []admin.EventFilter{{}, {Cause: "no live client"}, {Lease: "l"}} {
			h := testkit.Must(a.Happened(t.Context(), p, filter))(t)
			n := 0
			for _, e := range h.Events {
				if e.Cause == "no live client" && e.Reason == "from 2031-05-01T03:30:00Z to 2031-05-01T05:00:00Z" {
					n++
				}
			}
			within := test.to.After(clock(5, 0)) // its event was written in the period
			if want := test.touched || within; (n == 1) != want {
				t.Errorf("from %v to %v, %+v: %d events about the outage: %+v", test.from, test.to, filter, n, h.Events)
			}
		}
		for _, filter := range []admin.EventFilter{{Client: "a"}, {Cause: "evicted"}} {
			h := testkit.Must(a.Happened(t.Context(), p, filter))(t)
			if slices.ContainsFunc(h.Events, func(e admin.Event) bool { return e.Cause == "no live client" }) {
				t.Errorf("from %v to %v, %+v: %+v", test.from, test.to, filter, h.Events)
			}
		}
	}
	// The partition had no owner from the last heartbeat on, although its owner was evicted later.
	life := testkit.Must(a.Life(t.Context(), admin.Period{From: clock(2, 0), To: clock(6, 0)}, "l", 0))(t)
	var got []string
	for _, s := range life.Spells {
		since, until := s.Since.Format("15:04:05"), s.Until.Format("15:04:05")
		got = append(got, fmt.Sprintf("%s..%s %s %s", since, until, s.Owner, s.Cause))
	}
	want := []string{
		"05:00:07..06:00:00 b given",
		"05:00:06..05:00:07  evicted",
		"03:30:00..05:00:06  no live client",
		"02:30:00..03:30:00 a given",
	}
	if !slices.Equal(got, want) {
		t.Errorf("the spells are %q, want %q", got, want)
	}
}

func TestStripsCountInSteps(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	owner := newPool(t, pgtest.OwnerURL(url)) // who may read the schedules
	a := newAdmin(t, owner)
	if _, err := a.Runs(t.Context(), admin.Period{Last: hour}); !errors.Is(err, admin.ErrNoSchedules) {
		t.Errorf("without the tables of package schedule: %v", err)
	}
	testkit.OK(t, schedule.Migrate(t.Context(), owner))
	exec(t, url, `
		INSERT INTO pgleases.events (at, lease, cause, partitions) VALUES
			('2031-05-01 10:00:10Z', 'l', 'given', '{[0,5),[7,9)}'), ('2031-05-01 10:00:50Z', 'l', 'given', '{[0,1)}'),
			('2031-05-01 10:01:00Z', NULL, 'evicted', NULL), ('2031-05-01 09:59:59Z', 'l', 'given', '{[0,1)}'),
			('2031-05-01 11:00:00Z', 'l', 'given', '{[0,1)}')`, `
		INSERT INTO pgleases.history (schedule, job, group_name, name, since, until, ticks, outcome, ended_at) VALUES
			(1, NULL, 'g', 'n', now(), now(), 3, 'skipped', '2031-05-01 10:00:10Z'),
			(1, NULL, 'g', 'n', now(), now(), 1, 'failed', '2031-05-01 10:00:20Z'),
			(NULL, 7, 'g', 'n', now(), now(), 1, 'succeeded', '2031-05-01 10:30:00Z'),
			(1, NULL, 'g', 'n', now(), now(), 1, 'failed', '2031-05-01 11:00:00Z')`)
	from := time.Date(2031, 5, 1, 10, 0, 0, 0, time.UTC)
	at := from.Unix()
	p := admin.Period{From: from, To: from.Add(hour)}
	for _, test := range []struct {
		read func(context.Context, admin.Period) (*admin.Strip, error)
		want []admin.Bar
	}{
		{a.Moves, []admin.Bar{{at, "given", 8}, {at + 60, "evicted", 1}}},
		{a.Runs, []admin.Bar{{at, "tick failed", 1}, {at, "tick skipped", 3}, {at + 1800, "job succeeded", 1}}},
	} {
		s := testkit.Must(test.read(t.Context(), p))(t)
		if !slices.Equal(s.Bars, test.want) || s.Step != 60 || !s.From.Equal(from) {
			t.Errorf("%+v, want %+v", s, test.want)
		}
	}
	exec(t, url, `
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id)
		SELECT '2031-05-01 10:00:10Z', 'l' || l, v.cause,
			CASE v.cause WHEN 'left' THEN v.id END, CASE v.cause WHEN 'joined' THEN v.id END
		FROM (VALUES ('joined', 'a'), ('joined', 'b'), ('joined', 'b'), ('left', 'a')) AS v (cause, id),
			generate_series(1, 4) AS l`)
	s := testkit.Must(a.Moves(t.Context(), p))(t)
	joined := admin.Bar{At: at, What: "joined", Count: 12}
	if fmt.Sprint(s.Clients) != "map[joined:2 left:1]" || !slices.Contains(s.Bars, joined) {
		t.Errorf("of the clients that joined and left: %+v", s)
	}
	day := 24 * hour
	for last, step := range map[time.Duration]int{hour: 60, day: 900, 7 * day: 3600, 30 * day: 21600} {
		if s := testkit.Must(a.Moves(t.Context(), admin.Period{Last: last}))(t); s.Step != step {
			t.Errorf("the step of %v is %d, want %d", last, s.Step, step)
		}
	}
}

func TestTicksCountTheOutcomesOfASchedule(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	owner := newPool(t, pgtest.OwnerURL(url)) // who may read the schedules
	a := newAdmin(t, owner)
	day := time.Date(2031, 5, 1, 0, 0, 0, 0, time.UTC)
	p := admin.Period{From: day, To: day.Add(31 * 24 * hour)}
	if _, err := a.Ticks(t.Context(), p, "g", "n"); !errors.Is(err, admin.ErrNoSchedules) {
		t.Errorf("without the tables of package schedule: %v", err)
	}
	testkit.OK(t, schedule.Migrate(t.Context(), owner))
	exec(t, url, `
		INSERT INTO pgleases.history
			(source, schedule, job, group_name, name, since, until, ticks, outcome, ended_at)
		SELECT v.source, 1, v.job, v.g, v.n, v.at::timestamptz, v.at::timestamptz, v.ticks, v.outcome, now() FROM (VALUES
			('tick', NULL, 'g', 'n', '2031-04-30 23:59:59Z', 1, 'failed'),
			('tick', NULL, 'g', 'n', '2031-05-01 00:00:00Z', 3, 'skipped'),
			('tick', NULL, 'g', 'n', '2031-05-01 00:29:59Z', 2, 'skipped'),
			('tick', NULL, 'g', 'n', '2031-05-01 00:30:00Z', 1, 'succeeded'),
			('extra', 7, 'g', 'n', '2031-05-01 00:30:00Z', 1, 'failed'),
			('tick', NULL, 'g', 'other', '2031-05-01 00:30:00Z', 1, 'failed'),
			('tick', NULL, 'other', 'n', '2031-05-01 00:30:00Z', 1, 'failed')) AS v (source, job, g, n, at, ticks, outcome)`)
	s := testkit.Must(a.Ticks(t.Context(), p, "g", "n"))(t)
	want := []admin.Bar{{day.Unix(), "skipped", 5}, {day.Unix() + 1800, "succeeded", 1}}
	if !slices.Equal(s.Bars, want) || !s.From.Equal(day) {
		t.Errorf("%+v, want %+v", s, want)
	}
	// A tick each 30 s has twice as many entries as are read.
	exec(t, url, `
		INSERT INTO pgleases.history
			(source, schedule, group_name, name, since, until, ticks, outcome, started_at, ended_at)
		SELECT 'tick', 1, 'g', 'often', at, at, 1, 'succeeded', at, at FROM generate_series(1, 89280) AS n,
			LATERAL (SELECT '2031-05-01'::timestamptz + n * interval '30 seconds' AS at) AS a`,
		"ANALYZE pgleases.history")
	often := testkit.Must(a.Ticks(t.Context(), p, "g", "often"))(t)
	sum := int64(0)
	for _, bar := range often.Bars {
		sum += bar.Count
	}
	if sum != 44640 || often.From.Before(day.Add(15*24*hour)) {
		t.Errorf("%d ticks are counted, from %v", sum, often.From)
	}
}

// A question of the past ends when its time is over, and says what to do.
func TestPastHasALimit(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.events (lease, cause, to_id)
		SELECT 'l', 'joined', 'c' || n FROM generate_series(1, 20000) AS n`)
	pool := newPool(t, url)
	short := newAdmin(t, pool, admin.WithPastLimit(time.Millisecond))
	_, err := short.Moves(t.Context(), admin.Period{Last: hour})
	if !fails(err, "the server took longer than 1ms: choose a shorter period") {
		t.Errorf("with 1 ms: %v", err)
	}
	long := newAdmin(t, pool)
	if _, err := long.Moves(t.Context(), admin.Period{Last: hour}); err != nil {
		t.Errorf("with more time: %v", err)
	}
}

// What a filter selects is found behind any number of other events of the lease.
func TestHappenedFindsWhatIsRareInABusyLease(t *testing.T) {
	t.Parallel()
	url := pgtest.MigratedDatabase(t)
	exec(t, url, `
		INSERT INTO pgleases.events (at, lease, cause, to_id) VALUES (now() - interval '3 hours', 'l', 'joined', 'w');
		INSERT INTO pgleases.events (at, cause, from_id) VALUES (now() - interval '2 hours', 'evicted', 'v');
		INSERT INTO pgleases.events (at, lease, cause, from_id, to_id, partitions)
		SELECT now() - n * interval '1 ms', 'l', 'handed over', 'v', 'u', '{[0,1)}' FROM generate_series(1, 20000) AS n;
		INSERT INTO pgleases.events (at, cause, from_id)
		SELECT now() - n * interval '1 ms', 'accepted', 'v' FROM generate_series(1, 20000) AS n`)
	a := newAdmin(t, newPool(t, url))
	for _, f := range []admin.EventFilter{
		{Lease: "l", Cause: "joined"}, {Lease: "l", Client: "w"}, {Lease: "l", Cause: "evicted"},
	} {
		h := testkit.Must(a.Happened(t.Context(), admin.Period{Last: 24 * time.Hour}, f))(t)
		if len(h.Events) != 1 || h.More {
			t.Errorf("%+v: %d events, want one", f, len(h.Events))
		}
	}
}

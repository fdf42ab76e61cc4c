package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/dashboard"
)

// scattered is a lease whose partitions 64 clients own in turns, so that no two neighbours have one owner.
const scattered = `
INSERT INTO pgleases.clients SELECT s, 'client-' || s, 1, clock_timestamp() + interval '1 hour', '1 hour', 'host', 7, now() FROM generate_series(1, 64) AS s;
INSERT INTO pgleases.leases VALUES ('wide', %[1]d, 5, 1, 0, 'infinity', now());
INSERT INTO pgleases.members (lease, session, weight, joined_at, join_number) SELECT 'wide', s, 1, now(), 1 FROM generate_series(1, 64) AS s;
INSERT INTO pgleases.partitions (lease, partition, owner, target, epoch, owner_id, owned_since)
SELECT 'wide', p, 1 + p %% 64, 1 + p %% 64, 3, 'client-' || 1 + p %% 64, now() FROM generate_series(0, %[1]d - 1) AS p`

// measureViewers has one look at the dashboard, and then a hundred.
func measureViewers(ctx context.Context, l *lab, out *part) error {
	url, drop, err := newDatabase(ctx, l.durable)
	if err != nil {
		return err
	}
	defer drop()
	var g gauge
	if g.pool, err = newPool(ctx, url); err != nil {
		return err
	}
	defer g.pool.Close()
	partitions, span := l.pick(100, 10_000), time.Duration(l.pick(1, 20))*time.Second
	if err = pgleases.Migrate(ctx, g.pool); err == nil {
		_, err = g.pool.Exec(ctx, fmt.Sprintf(scattered, partitions))
	}
	if err == nil && l.counts {
		err = g.countStatements(ctx)
	}
	if err == nil {
		g.postmaster, err = postmasterOf(ctx, g.pool)
	}
	if err != nil {
		return err
	}
	var before usage
	for i, viewers := range []int{1, l.pick(5, 100)} {
		now, err := g.watched(ctx, url, viewers, span)
		if err != nil {
			return fmt.Errorf("%d viewers: %w", viewers, err)
		}
		r := row{
			what:   fmt.Sprintf("%d who look at %s partitions: statements", viewers, grouped(partitions)),
			figure: persecond(now) + "/s",
			floors: []floor{{"processor time of the server meanwhile", duration(now.server), percent(share(now.server, now.span)) + " of a core"}},
		}
		if i > 0 {
			more := float64(calls(now.statements)) / now.span.Seconds() / (float64(calls(before.statements)) / before.span.Seconds())
			r.floors = append(
				r.floors,
				floor{"one who looks", persecond(before) + "/s, " + percent(share(before.server, before.span)) + " of a core", times(more)},
			)
			r.goal, r.met = "as one", judge(!g.counts || more < 1.2)
		}
		out.add(r)
		before = now
	}
	out.note("The dashboard looks once a second for all that look at it; %v of each, nothing moves. The processor time is that of the whole server.", span)
	return nil
}

// watched is what is used while so many look at a dashboard.
func (g *gauge) watched(ctx context.Context, url string, viewers int, span time.Duration) (u usage, err error) {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return u, err
	}
	defer pool.Close()
	a, err := admin.New(pool)
	if err != nil {
		return u, err
	}
	handler, err := dashboard.Handler(a, dashboard.Options{Authorize: func(*http.Request) (dashboard.Access, string) { return dashboard.ReadOnly, "" }})
	if err != nil {
		return u, err
	}
	server := httptest.NewServer(handler)
	defer server.Close()
	defer server.CloseClientConnections()
	for range viewers {
		response, err := http.Get(server.URL + "/stream")
		if err != nil {
			return u, err
		}
		defer response.Body.Close()
		stream := bufio.NewReader(response.Body)
		if _, err := stream.ReadString('\n'); err != nil || response.StatusCode != http.StatusOK {
			return u, errors.Join(fmt.Errorf("the stream begins with status %d", response.StatusCode), err)
		}
		go func() { _, _ = io.Copy(io.Discard, stream) }()
	}
	return g.rest(ctx, span)
}

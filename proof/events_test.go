//go:build unix

package proof_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/admin"
	"github.com/pgleases/pgleases/proof/pgserver"
)

// Who follows the events is told of each once, over a crash, and the promotion of a standby that lacks the last ones, and has given their numbers to others.
func TestWhoFollowsTheEventsIsToldOfEachOnceAcrossServers(t *testing.T) {
	t.Parallel()
	for _, unseen := range []bool{false, true} {
		t.Run(fmt.Sprintf("the pool connects again by itself: %t", unseen), func(t *testing.T) {
			t.Parallel()
			followAcrossServers(t, unseen)
		})
	}
}

func followAcrossServers(t *testing.T, unseen bool) {
	c := newCluster(t, 2)
	pool := newPool(t, c.url(t, c.doors...), func(config *pgxpool.Config) {
		config.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return unseen }
	})
	a, err := admin.New(pool, admin.WithInterval(100*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	old, next := c.servers[0], c.servers[1]
	happens := func(s *pgserver.Server, causes ...string) {
		t.Helper()
		for _, cause := range causes {
			if _, err := connection(t, s.URL()).Exec(t.Context(), "INSERT INTO pgleases.events (cause) VALUES ($1)", cause); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := pgleases.Migrate(t.Context(), newPool(t, old.URL())); err != nil {
		t.Fatal(err)
	}
	happens(old, "first")

	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	want := []string{"first", "crashed", "lost 1", "lost 2", "lost 3", "promoted 0", "promoted 1", "promoted 2", "promoted 3", "promoted 4"}
	var got []string
	outages := 0
	steps := map[string]func(){
		"first": func() {
			if err := old.Restart(t.Context(), pgserver.Immediate); err != nil {
				t.Fatal(err)
			}
			happens(old, "crashed")
		},
		"crashed": func() {
			caughtUp(t, old, next)
			if err := c.pipes[0].Reset(); err != nil { // the standby misses what follows
				t.Fatal(err)
			}
			happens(old, "lost 1", "lost 2", "lost 3")
		},
		"lost 3": func() {
			if err := old.Down(t.Context(), pgserver.Immediate); err != nil {
				t.Fatal(err)
			}
			if err := next.Promote(t.Context()); err != nil {
				t.Fatal(err)
			}
			var causes []string
			for i := range 5 { // more than are lost, so their numbers do not tell that some are
				causes = append(causes, fmt.Sprint("promoted ", i))
			}
			happens(next, causes...)
		},
	}
	for e, err := range a.Follow(ctx, "", 1) {
		if errors.Is(err, admin.ErrAway) {
			outages++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, e.Cause)
		if step := steps[e.Cause]; step != nil {
			step()
		}
		if len(got) == len(want) || e.Cause == "promoted 4" {
			break
		}
	}
	if !slices.Equal(got, want) || !unseen && outages == 0 {
		t.Errorf("%d outages; told of %q, want %q", outages, got, want)
	}
}

package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// marks tell the statements of the protocol apart, by what stands in only one of them.
var marks = []struct{ name, text string }{
	{"heartbeat", `.heartbeat(`}, {"register", `identity AS (`}, {"join", `created_generation`}, {"read", `.read(`},
	{"claim", `AS locked`}, {"plan", `.plan(`}, {"apply", `.apply(`}, {"release", `.release(`}, {"announce", `.announce(`}, {"evict", `.evict(`},
	{"acquire", `.lock_acquire(`}, {"release a lock", `.lock_release(`}, {"release locks", `.lock_releases(`}, {"look at locks", `.lock_look(`},
	{"look at schedules", `.schedule_look(`}, {"open a run", `.schedule_open_tick(`}, {"open a job", `.schedule_open_job(`}, {
		"close a run", `.schedule_done_tick(`,
	}, {"close a job", `.schedule_done_job(`}, {"guard", `.guard(`}, {"enqueue", `.schedule_enqueue(`},
	{"sweep locks", `.lock_sweep(`}, {"mark", `server_mark (mark)`}, {"connect", `pg_is_in_recovery`}, {"check the schema", `min_code`},
}

// A tally is how often a statement was run, and how long the server took over it in all.
type tally struct {
	calls int
	took  time.Duration
}

// tallies are the statements that were counted in a database, by name; the harness's own are not among them.
func tallies(ctx context.Context, pool *pgxpool.Pool) (map[string]tally, error) {
	rows, err := pool.Query(ctx, `SELECT query, calls, total_exec_time FROM pg_stat_statements
WHERE dbid = (SELECT oid FROM pg_database WHERE datname = current_database())`)
	if err != nil {
		return nil, err
	}
	all := make(map[string]tally)
	var query string
	var calls int
	var milliseconds float64
	_, err = pgx.ForEachRow(rows, []any{&query, &calls, &milliseconds}, func() error {
		for _, m := range marks {
			if strings.Contains(query, m.text) && !strings.Contains(query, "public.") {
				t := all[m.name]
				all[m.name] = tally{t.calls + calls, t.took + time.Duration(milliseconds*float64(time.Millisecond))}
				break
			}
		}
		return nil
	})
	return all, err
}

// since is what was added to the tallies of before.
func since(before, after map[string]tally) map[string]tally {
	diff := make(map[string]tally)
	for name, t := range after {
		if calls := t.calls - before[name].calls; calls > 0 {
			diff[name] = tally{calls, t.took - before[name].took}
		}
	}
	return diff
}

func calls(of map[string]tally) int {
	sum := 0
	for _, t := range of {
		sum += t.calls
	}
	return sum
}

// listed writes tallies, the longest first.
func listed(of map[string]tally) string {
	names := make([]string, 0, len(of))
	for name := range of {
		names = append(names, name)
	}
	slices.SortFunc(names, func(a, b string) int { return cmp.Or(cmp.Compare(of[b].took, of[a].took), cmp.Compare(a, b)) })
	for i, name := range names {
		t := of[name]
		names[i] = fmt.Sprintf("%s %s (%s each)", grouped(t.calls), name, duration(t.took/time.Duration(t.calls)))
	}
	return strings.Join(names, ", ")
}

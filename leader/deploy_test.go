package leader_test

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/testkit"
	"github.com/pgleases/pgleases/internal/testkit/clients"
	"github.com/pgleases/pgleases/leader"
)

// A deploy is processes of an old and a new version that are candidates.
type deploy struct {
	t     *testing.T
	pool  *pgxpool.Pool
	leads chan string // the name of each process that begins to lead
	pods  map[string]*pod
}

type pod struct {
	client *pgleases.Client
	stop   context.CancelFunc
	ended  chan error
}

// start starts a process, and waits until it is a candidate.
func (d *deploy) start(name string) {
	d.t.Helper()
	p := &pod{client: clients.New(d.t, d.pool), ended: make(chan error, 1)}
	var ctx context.Context
	ctx, p.stop = context.WithCancel(d.t.Context())
	go func() {
		p.ended <- leader.Run(ctx, p.client, "reports", leader.Callbacks{OnStartedLeading: func(ctx context.Context) {
			d.leads <- name
			<-ctx.Done()
		}})
	}()
	d.pods[name] = p
	testkit.Becomes(d.t, d.pool, name+" is a candidate", len(d.pods), "SELECT count(*) FROM pgleases.members")
}

// end ends a process in good order.
func (d *deploy) end(name string) {
	d.t.Helper()
	p := d.pods[name]
	delete(d.pods, name)
	p.stop()
	testkit.Receive(d.t, name+" ends", p.ended)
	testkit.OK(d.t, p.client.Close(d.t.Context()))
}

// Candidates take turns, so a rolling deploy changes the leader as often as it ends the one that
// leads: once if that comes last, and each time if the processes end in the order of their starts.
func TestDeployOrderDecidesHowOftenLeaderChanges(t *testing.T) {
	t.Parallel()
	for _, order := range []struct{ ends, leaders []string }{
		{[]string{"old-2", "old-3", "old-1"}, []string{"old-1", "new-2"}},
		{[]string{"old-2", "old-1", "old-3"}, []string{"old-1", "old-3", "new-2"}},
		{[]string{"old-1", "old-2", "old-3"}, []string{"old-1", "old-2", "old-3", "new-1"}},
	} {
		t.Run(strings.Join(order.ends, " "), func(t *testing.T) {
			t.Parallel()
			d := &deploy{
				t: t, pool: testkit.Pool(t, pgtest.MigratedDatabase(t)),
				leads: make(chan string, 100), pods: make(map[string]*pod),
			}
			var leaders []string
			next := func() { leaders = append(leaders, testkit.Receive(t, "a process leads", d.leads)) }
			d.start("old-1")
			next()
			d.start("old-2")
			d.start("old-3")
			for _, name := range order.ends {
				d.start(strings.Replace(name, "old", "new", 1))
				leads := leaders[len(leaders)-1] == name
				d.end(name)
				if leads {
					next()
				}
			}
			if !slices.Equal(leaders, order.leaders) || len(d.leads) > 0 {
				t.Errorf("the leaders were %q, not %q", leaders, order.leaders)
			}
		})
	}
}

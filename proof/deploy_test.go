//go:build unix

package proof_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/pgtest"
	"github.com/pgleases/pgleases/internal/timeguard"
	"github.com/pgleases/pgleases/proof/oracle"
	"github.com/pgleases/pgleases/proof/tally"
)

// A deployed fleet is clients of one lease, of which each is watched by the oracle.
type deployed struct {
	t      *timeguard.Try
	url    string
	option pgleases.LeaseOption
	alive  []*replica
	logs   []oracle.Log // of those that have closed
}

// A replica is a client of a deployed fleet.
type replica struct {
	client *pgleases.Client
	lease  *pgleases.Lease
	logs   func() []oracle.Log
}

const (
	replicas           = 5
	deployedPartitions = 20
)

// start starts a replica. Its log has a name of its own, because a later replica may have its ID.
func (d *deployed) start(id, name string) *replica {
	d.t.Helper()
	client := opened(d.t, d.url, id)
	lease := joined(d.t, client, "fleet", deployedPartitions, d.option, pgleases.WithHandoffDelay(0))
	return &replica{client, lease, watched(d.t, map[string]*pgleases.Lease{name: lease})}
}

// stop closes a replica in order.
func (d *deployed) stop(r *replica) {
	d.t.Helper()
	shut(d.t, r.client)
	d.logs = append(d.logs, r.logs()...)
}

// owned waits until each partition has an owner.
func (d *deployed) owned() {
	d.t.Helper()
	waitFor(d.t, patience, "each partition has an owner", func() bool {
		n := 0
		for _, r := range d.alive {
			n += len(r.lease.Values())
		}
		return n == deployedPartitions
	})
}

// planned waits until a plan has answered the last join, and what it moves has moved.
func (d *deployed) planned() {
	d.t.Helper()
	conn := connection(d.t, d.url)
	waitFor(d.t, patience, "a plan has answered the join", func() (is bool) {
		err := conn.QueryRow(d.t.Context(), `
			SELECT plan_due_at = 'infinity'
			   AND NOT EXISTS (SELECT FROM pgleases.partitions WHERE target IS DISTINCT FROM owner)
			FROM pgleases.leases`).Scan(&is)
		if err != nil {
			d.t.Fatal(err)
		}
		return is
	})
}

// Fleets with state are deployed in both ways. At no instant has a partition two owners, and in the
// end each has one. The bench counts how often they move.
func TestDeploysKeepOneOwner(t *testing.T) {
	t.Parallel()
	for name, way := range map[string]struct {
		before  pgleases.LeaseOption // of the replicas that are replaced
		option  pgleases.LeaseOption
		replace func(d *deployed, n int)
	}{
		"a new replica joins, and an old one closes": {
			pgleases.WithRebalanceDelay(0), // so that their shares are even at once
			pgleases.WithRebalanceDelay(time.Minute),
			func(d *deployed, n int) {
				d.alive = append(d.alive, d.start(fmt.Sprintf("new-%d", n), fmt.Sprintf("new-%d", n)))
				d.planned()
				old := d.alive[0]
				d.alive = d.alive[1:]
				d.stop(old)
			},
		},
		"each restarts under its own ID": {
			pgleases.WithRestartGrace(time.Minute),
			pgleases.WithRestartGrace(time.Minute),
			func(d *deployed, n int) {
				d.stop(d.alive[n])
				d.alive[n] = d.start(fmt.Sprintf("replica-%d", n), fmt.Sprintf("replica-%d-again", n))
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			timeguard.Run(t, func(t *timeguard.Try) {
				d := &deployed{t: t, url: pgtest.MigratedDatabase(t), option: way.before}
				for n := range replicas {
					id := fmt.Sprintf("replica-%d", n)
					d.alive = append(d.alive, d.start(id, id))
				}
				waitFor(t, patience, "the shares are even", func() bool {
					for _, r := range d.alive {
						if len(r.lease.Values()) != deployedPartitions/replicas {
							return false
						}
					}
					return true
				})
				deploy(t, d, way.option, way.replace)
			})
		})
	}
}

// deploy replaces each replica by one with an option. Each partition is gained once: by the replica that comes in place
// of its owner.
func deploy(t *timeguard.Try, d *deployed, option pgleases.LeaseOption, replace func(d *deployed, n int)) {
	t.Helper()
	d.option = option
	before := d.gains()
	for n := range replicas {
		replace(d, n)
		d.owned()
	}
	for _, r := range d.alive {
		d.logs = append(d.logs, r.logs()...)
	}
	tally.Checked(t, "replicas deployed", replicas)
	report := verify(t, d.logs)
	if gains := d.gains() - before; gains != deployedPartitions {
		t.Errorf("%d partitions were gained %d times, want once each", deployedPartitions, gains)
	}
	t.Log(report)
}

// gains returns how many partitions the database has given to clients. What a client sees of that comes later.
func (d *deployed) gains() (n int) {
	d.t.Helper()
	conn := connection(d.t, d.url)
	err := conn.QueryRow(d.t.Context(), `
		SELECT coalesce(sum(upper(r) - lower(r)), 0)
		FROM pgleases.events, unnest(partitions) AS r
		WHERE cause IN ('given', 'handed over') AND to_id IS NOT NULL`).Scan(&n)
	if err != nil {
		d.t.Fatal(err)
	}
	return n
}

package pgleases

import (
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/engine"
)

// What the packages of this module have of a client, and other modules have not.
func init() {
	bridge.CheckLease = func(lease string, partitions int, options any) error {
		o, err := newOptions(options.([]Option))
		if err == nil {
			_, err = newLeaseOptions(lease, partitions, o.TTL, nil)
		}
		return err
	}
	bridge.Engine = func(client any) *engine.Client { return client.(*Client).engine }
	bridge.Guarded = func(lease, partition any) engine.Guarded { return lease.(*Lease).guarded(partition.(Partition)) }
	bridge.LeaseNews = func(lease any) *engine.News { return lease.(*Lease).engine.News() }
	bridge.On = func(double *engine.Double) any {
		return Option{"on a double", func(o *options) { o.Double = double }}
	}
	bridge.OpenError = openError
	bridge.Plan = replan
}

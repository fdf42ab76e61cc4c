package clientgo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/wrap"
)

var _ resourcelock.Interface = (*Lock)(nil)

// ErrNotLeading is returned by Lock.Update if this process may not lead, or not for long enough.
var ErrNotLeading = errors.New("pgleases: not leading")

// A Lock is a candidate for a leader: client-go's resourcelock.Interface on a lease of one
// partition. It joins the lease with the elector's first attempt, and leaves it when the elector
// releases it or stops leading. Use one Lock for each elector, and one client for each Lock of a
// name: the electors of one client all lead. All methods are safe for concurrent use.
type Lock struct {
	Client *pgleases.Client
	Name   string        // of the lease
	Trust  time.Duration // for which a renewal needs trust: RenewDeadline plus RetryPeriod

	mu    sync.Mutex
	lease *pgleases.Lease // nil: not joined
	hold  *pgleases.Hold  // of the ownership under which the elector leads; nil: it does not lead
}

// Get returns which client leads. The first call joins the lease.
func (l *Lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, max(l.Trust, time.Second)) // the elector's first attempts have no limit
	defer cancel()
	lease, err := l.join(ctx)
	if err != nil {
		return nil, nil, err
	}
	record := resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1}
	_, p, leading := l.Leading()
	if leading {
		record.HolderIdentity = l.Identity()
	} else if p.Epoch == 0 { // it never led; after a loss the elector must not wait for the database
		owner, _, err := lease.Owner(ctx, 0)
		if err != nil {
			return nil, nil, wrap.Errorf("pgleases: read leader %q: %w", l.Name, err)
		}
		if owner.ID != l.Identity() { // otherwise it owns the partition, and does not lead yet
			record.HolderIdentity = owner.ID
		}
	}
	raw, err := json.Marshal(record)
	return &record, raw, err
}

// Create is Update: the database has the record.
func (l *Lock) Create(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	return l.Update(ctx, record)
}

// Update begins to lead, or renews, if this process owns the lease and its trust lasts for Trust.
// Without a holder it leaves the lease.
func (l *Lock) Update(ctx context.Context, record resourcelock.LeaderElectionRecord) error {
	err := l.renew()
	if record.HolderIdentity != "" {
		return err
	}
	leave := l.detach()
	if err == nil { // the elector's context has ended, and with it the leader's
		return leave(ctx)
	}
	go func() { _ = leave(context.Background()) }() // client-go cancels the leader's context after this call
	return nil
}

func (l *Lock) renew() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.lease == nil {
		return l.notLeading("it has not joined the lease")
	}
	p, owned := l.lease.Partition(0)
	if !owned {
		return l.notLeading("it does not own the lease")
	}
	left := time.Until(l.lease.TrustDeadline())
	if left < l.Trust {
		const why = "the trust lasts for %v, and %v are required"
		return l.notLeading(fmt.Sprintf(why, left.Round(time.Millisecond), l.Trust))
	}
	hold := l.hold
	if hold == nil {
		hold = l.lease.Hold(context.Background())
	}
	held, ok := hold.Partition(0)
	if !ok || held.Epoch != p.Epoch {
		if l.hold == nil {
			hold.Release()
		}
		return l.notLeading("the ownership under which it led has ended")
	}
	l.hold = hold
	return nil
}

func (l *Lock) notLeading(why string) error {
	return fmt.Errorf("lease %q: %w: %s", l.Name, ErrNotLeading, why)
}

// Leading returns the lease and the ownership under which this process leads now, for Guard and for
// its epoch, and whether it leads. It reads the clock. After a loss it returns the lost ownership,
// until the elector has stopped.
func (l *Lock) Leading() (*pgleases.Lease, pgleases.Partition, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.hold == nil {
		return nil, pgleases.Partition{}, false
	}
	p, ok := l.hold.Partition(0)
	now, owned := l.lease.Partition(0)
	return l.lease, p, ok && owned && now.Epoch == p.Epoch
}

// RecordEvent leaves the lease when the elector stops leading.
func (l *Lock) RecordEvent(event string) {
	if event == "stopped leading" {
		leave := l.detach()
		go func() { _ = leave(context.Background()) }() // client-go cancels the leader's context after this call
	}
}

// Identity returns the client's ID.
func (l *Lock) Identity() string { return l.Client.ID() }

// Describe returns the lease's name.
func (l *Lock) Describe() string { return "pgleases/" + l.Name }

func (l *Lock) join(ctx context.Context) (*pgleases.Lease, error) {
	l.mu.Lock()
	lease := l.lease
	l.mu.Unlock()
	if lease != nil {
		return lease, lease.Err()
	}
	lease, err := l.Client.Lease(ctx, l.Name, 1) // it may wait for the database, and others need mu
	if err != nil {
		return nil, err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lease = lease
	return lease, nil
}

// detach ends the candidacy, and returns a function that leaves the lease, so that another process
// leads.
func (l *Lock) detach() (leave func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	lease, hold := l.lease, l.hold
	l.lease, l.hold = nil, nil
	return func(ctx context.Context) error {
		if hold != nil {
			hold.Release()
		}
		if lease == nil {
			return nil
		}
		return lease.Leave(ctx)
	}
}

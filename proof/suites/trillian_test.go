package suites

import (
	"context"
	"sync"
	"testing"

	"github.com/google/trillian/util/election2"
	"github.com/google/trillian/util/election2/testonly"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/leader"
	"github.com/pgleases/pgleases/lock"
)

// TestTrillianElections runs the suite of github.com/google/trillian/util/election2 over three
// mappings of an election.
func TestTrillianElections(t *testing.T) {
	t.Parallel()
	for name, election := range map[string]func(*pgleases.Client, *site, string) *election{
		"lease": leaseElection, "leader": leaderElection, "lock": lockElection,
	} {
		for _, test := range testonly.Tests {
			t.Run(name+"/"+test.Name, func(t *testing.T) {
				t.Parallel()
				s := newSite(t)
				test.Run(t, factory(func(id string) election2.Election {
					e := election(s.client(), s, id)
					t.Cleanup(func() { _ = e.Resign(context.WithoutCancel(t.Context())) }) // some tests do not
					return e
				}))
			})
		}
	}
}

type factory func(id string) election2.Election

func (f factory) NewElection(_ context.Context, id string) (election2.Election, error) {
	return f(id), nil
}

// An election is one instance in an election. campaign begins to stand, returns a context that lives
// while the instance leads and a function that resigns, and blocks until it leads.
type election struct {
	campaign func(ctx context.Context) (term context.Context, resign func(context.Context) error, err error)

	mu     sync.Mutex
	term   context.Context                 // of the last campaign
	resign func(ctx context.Context) error // nil: it does not stand
}

func (e *election) Await(ctx context.Context) (err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.resign != nil && e.term.Err() == nil {
		return nil
	}
	e.term, e.resign, err = e.campaign(ctx)
	return err
}

func (e *election) WithMastership(ctx context.Context) (context.Context, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	ctx, cancel := context.WithCancel(ctx)
	if e.resign == nil {
		cancel()
	} else {
		context.AfterFunc(e.term, cancel)
	}
	return ctx, nil
}

func (e *election) Resign(ctx context.Context) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.resign == nil {
		return nil
	}
	err := e.resign(ctx)
	if err == nil {
		e.resign = nil
	}
	return err
}

func (e *election) Close(ctx context.Context) error { return e.Resign(context.WithoutCancel(ctx)) }

// leaseElection stands by joining a lease of one partition.
func leaseElection(client *pgleases.Client, _ *site, id string) *election {
	return &election{campaign: func(ctx context.Context) (context.Context, func(context.Context) error, error) {
		lease, err := client.Lease(ctx, id, 1)
		if err != nil {
			return nil, nil, err
		}
		for {
			changed := lease.Changed()
			if p, leads := lease.Partition(0); leads {
				return p.Context(), lease.Leave, nil
			}
			select {
			case <-changed:
			case <-ctx.Done():
				_ = lease.Leave(context.WithoutCancel(ctx))
				return nil, nil, ctx.Err()
			}
		}
	}}
}

// leaderElection stands by running an elector.
func leaderElection(client *pgleases.Client, _ *site, id string) *election {
	return &election{campaign: func(ctx context.Context) (context.Context, func(context.Context) error, error) {
		running, stop := context.WithCancel(context.WithoutCancel(ctx))
		terms, ended := make(chan context.Context, 1), make(chan error, 1)
		go func() {
			ended <- leader.Run(running, client, id, leader.Callbacks{OnStartedLeading: func(ctx context.Context) {
				terms <- ctx
				<-ctx.Done()
			}})
		}()
		resign := func(ctx context.Context) error {
			stop()
			select {
			case <-ended:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		select {
		case term := <-terms:
			return term, resign, nil
		case <-ctx.Done():
			_ = resign(context.WithoutCancel(ctx))
			return nil, nil, ctx.Err()
		}
	}}
}

// lockElection stands by acquiring a lock.
func lockElection(client *pgleases.Client, s *site, id string) *election {
	locks := lock.New(client, s.pool)
	return &election{campaign: func(ctx context.Context) (context.Context, func(context.Context) error, error) {
		held, err := locks.Acquire(ctx, id)
		if err != nil {
			return nil, nil, err
		}
		return held.Context(), held.Release, nil
	}}
}

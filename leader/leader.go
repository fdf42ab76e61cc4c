// Package leader elects one leader among the processes of an application, with the callbacks that
// users of client-go know. Call [Run] in each process:
//
//	err := leader.Run(ctx, client, "reports", leader.Callbacks{
//		OnStartedLeading: func(ctx context.Context) { makeReports(ctx, pool) }, // returns when ctx ends
//		OnStoppedLeading: func() { log.Print("standing by") },
//		OnNewLeader:      func(id string) { log.Print("the leader is ", id) },
//	})
//
// The leader is the owner of the only partition of a lease. So each leadership has an epoch, a
// number that rises with each new leader. [Guard] checks it in a transaction, and refuses the
// writes of a former leader that was frozen. [Epoch] returns it for other systems. [Context]
// returns a context that ends only if the leadership is lost.
//
// # What differs from client-go
//
//   - Candidates take turns. A leadership that is free goes to the one that has waited for longest.
//     So a candidate that fails and comes back does not keep the others from leading.
//   - A process that stops leading stands by, and leads again when it is elected.
//   - OnStoppedLeading and the end of Run wait for OnStartedLeading. So an os.Exit in
//     OnStoppedLeading does not stop work that hangs. The example of [Context] shows what does.
//   - OnNewLeader is called in order, from one goroutine.
//   - Each leadership has an epoch.
//
// If OnStartedLeading returns early, the process leads on without work, as it does with client-go.
package leader

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pgleases/pgleases"
	"github.com/pgleases/pgleases/internal/bridge"
	"github.com/pgleases/pgleases/internal/wrap"
)

// Callbacks are what a process does about the leadership. OnStartedLeading is required; the others
// may be nil.
type Callbacks struct {
	// OnStartedLeading is called each time that this process begins to lead. ctx ends when it has
	// to stop; return then. If it returns earlier, the process leads on.
	//
	// No other process leads before it has returned, unless this process lost the leadership: it
	// could not renew for 5.7 s, for example because it was frozen. That is the trust deadline of
	// the default TTL, see pgleases.WithTTL. The other causes are those of
	// pgleases.Partition.Context.
	OnStartedLeading func(ctx context.Context)
	// OnStoppedLeading is called once after each OnStartedLeading, when that has returned and the
	// leadership has ended or is to end; in a process that never led, not at all. The next leader
	// waits for it as well, unless this process lost the leadership. If OnStartedLeading panics, it
	// is not called.
	//
	// In this callback and in OnStartedLeading, Client.Close does not wait: it returns an error, and
	// the client ends when the callback has returned.
	OnStoppedLeading func()
	// OnNewLeader is called with the client ID of each new leader, which may be this process: in
	// order, and from one goroutine, which is not that of the other callbacks. It is up to a
	// heartbeat late, 2 s by default, or as late as heartbeats fail. A leader that led for less
	// than a heartbeat, or while a call had not returned yet, may be left out. No leadership waits
	// for this callback, and the end of Run waits for 1 s at most.
	OnNewLeader func(id string)
}

// An Elector is a candidate. All methods are safe for concurrent use.
type Elector struct {
	client *pgleases.Client
	name   string
	lease  atomic.Pointer[pgleases.Lease] // nil: Run is not under way
	leader atomic.Pointer[string]         // the ID that OnNewLeader had last; nil: there was none
}

// New returns an elector for the leadership of that name, which is also the name of its lease.
func New(client *pgleases.Client, name string) *Elector { return &Elector{client: client, name: name} }

// Run is New(client, name).Run(ctx, callbacks), for programs that need no Elector.
func Run(ctx context.Context, client *pgleases.Client, name string, callbacks Callbacks) error {
	return New(client, name).Run(ctx, callbacks)
}

// informFor is how long the end of Run waits for OnNewLeader, which may block.
const informFor = time.Second

// Run joins the lease, calls the callbacks until ctx or the client ends, and leaves the lease. It
// returns when OnStartedLeading and OnStoppedLeading have returned. The error wraps the cause. A
// second Run of the same name on the client at the same time returns an error.
func (e *Elector) Run(ctx context.Context, callbacks Callbacks) (err error) {
	if e.client == nil {
		return fmt.Errorf("pgleases: elect leader %q: client is nil; "+
			"pass the one that pgleases.NewClient has returned", e.name)
	}
	if callbacks.OnStartedLeading == nil {
		return fmt.Errorf("pgleases: elect leader %q: OnStartedLeading is nil; "+
			"pass the function that works while this process leads", e.name)
	}
	lease, err := e.client.Lease(ctx, e.name, 1)
	if err != nil {
		return wrap.Errorf("pgleases: elect leader %q: %w", e.name, err)
	}
	if !e.lease.CompareAndSwap(nil, lease) {
		return fmt.Errorf("pgleases: elect leader %q: another Run is under way", e.name)
	}
	defer e.lease.Store(nil)
	watched, cancel := context.WithCancel(ctx)
	defer cancel()
	informed := e.inform(watched, lease, callbacks.OnNewLeader)
	within := func(callback func()) {
		bridge.Engine(e.client).Within(fmt.Sprintf("a callback of leader %q", e.name), callback)
	}
	err = lease.Run(ctx, func(ctx context.Context, p pgleases.Partition) error {
		within(func() { e.lead(context.WithValue(ctx, leadershipKey{}, leadership{p, lease}), callbacks) })
		return nil
	})
	// Otherwise the client has ended, or another Run of this name is under way.
	if ctx.Err() != nil && errors.Is(err, context.Cause(ctx)) {
		err = errors.Join(err, lease.Leave(ctx)) // no work is left, so the next process leads at once
	}
	cancel()
	select {
	case <-informed:
	case <-time.After(informFor):
	}
	return err
}

// lead calls the callbacks of one leadership. OnStoppedLeading follows also if OnStartedLeading
// ends its goroutine. After a panic it is not called, because it may end the process and so hide
// the panic.
func (e *Elector) lead(ctx context.Context, callbacks Callbacks) {
	defer func() {
		if fault := recover(); fault != nil {
			panic(fault)
		}
		if ctx.Err() == nil {
			bridge.Engine(e.client).Log().Warn("pgleases: leader has no work, OnStartedLeading returned early",
				slog.String("lease", e.name), slog.Int64("epoch", Epoch(ctx)))
		}
		<-ctx.Done()
		if callbacks.OnStoppedLeading != nil {
			callbacks.OnStoppedLeading()
		}
	}()
	callbacks.OnStartedLeading(ctx)
}

// inform follows who leads, and calls onNew for each new leader, until ctx ends. The channel that
// it returns is closed when the last call has returned. A call that blocks delays only other
// calls.
func (e *Elector) inform(ctx context.Context, lease *pgleases.Lease, onNew func(id string)) <-chan struct{} {
	latest, informed := make(chan string, 1), make(chan struct{})
	go func() {
		defer close(latest)
		e.watch(ctx, lease, func(id string) {
			select {
			case <-latest: // its call has not begun
			default:
			}
			latest <- id
		})
	}()
	go func() {
		defer close(informed)
		for id := range latest {
			if onNew != nil {
				onNew(id)
			}
		}
	}()
	return informed
}

// watch calls onNew for each new leader. onNew must not wait.
func (e *Elector) watch(ctx context.Context, lease *pgleases.Lease, onNew func(id string)) {
	for {
		news, retry := bridge.LeaseNews(lease), (<-chan time.Time)(nil)
		owners, _ := lease.Owners(ctx)
		id := owners[0].ID
		if id == "" { // an error, or the leader's heartbeat is late, which makes no news when it comes
			retry = time.After(time.Second)
		}
		if id != "" && id != e.Leader() {
			e.leader.Store(&id)
			onNew(id)
		}
		select {
		case <-news.Next:
		case <-retry:
		case <-ctx.Done():
			return
		}
	}
}

// IsLeader reports whether this process leads now. It reads the clock: in a process that was frozen
// past its trust deadline, the first call returns false. It costs nanoseconds and delays no
// handoff. It is false outside of Run.
func (e *Elector) IsLeader() bool {
	lease := e.lease.Load()
	if lease == nil {
		return false
	}
	_, leads := lease.Partition(0)
	return leads
}

// Leader returns the client ID of the last leader that this process has heard of. It is empty if
// this process has heard of none. It costs nanoseconds, and is as late as OnNewLeader. So a process
// that was frozen may return its own ID when another one leads. For the present leader with its
// metadata, call Client.Owner(ctx, name, 0). Give ctx a deadline, because without a connection the
// call waits until ctx ends.
func (e *Elector) Leader() string {
	if id := e.leader.Load(); id != nil {
		return *id
	}
	return ""
}

// A leadership is what the context of OnStartedLeading has.
type leadership struct {
	pgleases.Partition
	lease *pgleases.Lease
}

type leadershipKey struct{}

func of(ctx context.Context) leadership {
	l, _ := ctx.Value(leadershipKey{}).(leadership)
	return l
}

// Guard fences a transaction, as pgleases.Lease.Guard does. The writes that follow it in tx commit
// only while this process leads under this epoch. ctx is that of OnStartedLeading, or derived from
// it. With any other context, and when the leadership has ended, the error wraps
// pgleases.ErrNotOwner. After the end of Run it wraps pgleases.ErrClosed.
func Guard(ctx context.Context, tx pgx.Tx) error {
	l := of(ctx)
	if l.lease == nil {
		return errNotOfLeader
	}
	return l.lease.Guard(ctx, tx, l.Partition)
}

// GuardSQL is Guard for a database/sql transaction, as pgleases.Lease.GuardSQL is.
func GuardSQL(ctx context.Context, tx *sql.Tx) error {
	l := of(ctx)
	if l.lease == nil {
		return errNotOfLeader
	}
	return l.lease.GuardSQL(ctx, tx, l.Partition)
}

var errNotOfLeader = wrap.Errorf(
	"pgleases: guard a leader: the context is not that of OnStartedLeading: %w", pgleases.ErrNotOwner)

// Context returns the context of the leadership, from the context of OnStartedLeading or one
// derived from it. Until the callbacks have returned, it ends only if the leadership is lost. Its
// cause is that of pgleases.Partition.Context. Finish an item in hand under it, or end the process
// with it if work may hang. From any other context, Context returns one that has ended, with the
// cause pgleases.ErrNotOwner.
func Context(ctx context.Context) context.Context { return of(ctx).Partition.Context() }

// Epoch returns the epoch (fencing token) of the leadership, from the context of OnStartedLeading
// or one derived from it. It is higher than that of each earlier leader. Send it with calls to
// systems that refuse lower epochs. From any other context, Epoch returns 0.
func Epoch(ctx context.Context) int64 { return of(ctx).Epoch }

// Package clientgo elects leaders for [client-go] and controller-runtime by a lease of one
// partition, without a Lease object of the API server.
//
//	const renewDeadline, retryPeriod = 10 * time.Second, 2 * time.Second
//	ttl, heartbeat := pgleases.WithTTL(15*time.Second), pgleases.WithHeartbeat(2*time.Second)
//	client, err := pgleases.NewClient(ctx, pool, ttl, heartbeat)
//	if err != nil {
//		return err
//	}
//	election := &clientgo.Lock{Client: client, Name: "controller", Trust: renewDeadline + retryPeriod}
//	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
//		Lock: election, LeaseDuration: 15 * time.Second, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
//		Callbacks: callbacks, ReleaseOnCancel: true,
//	})
//
// In controller-runtime, pass the Lock as LeaderElectionResourceLockInterface with LeaderElection.
//
// # Which times count
//
// The database decides which client leads, and the TTL decides when a crashed leader is replaced.
// LeaseDuration only has to be above RenewDeadline. A leader renews as long as its trust in the
// ownership lasts for [Lock].Trust. If Trust is RenewDeadline plus RetryPeriod, client-go cancels
// the leader's context before the trust ends, and so before another process leads. The TTL must be
// above 1.06 times the sum of Trust and a heartbeat. Otherwise renewals fail without an outage.
//
// After SIGKILL another process leads after the TTL, a heartbeat and 2.2 retry periods at most, if
// it has watched the database for a TTL. With ReleaseOnCancel the next one leads about a retry
// period after the end. A drain by an operator takes up to RenewDeadline, because the elector tries
// to renew for that long.
//
// # What is not promised
//
//   - No fence. client-go's interface has no token. A process that was frozen continues under its
//     context for up to RenewDeadline, because the elector tries to renew for that long, and
//     another process may lead by then. Use [Lock.Leading] for Guard and the epoch.
//   - An elector whose client has ended (Client.Done) tries without success, and does not return.
//     End it.
//   - client-go does not wait for the work of OnStartedLeading: it cancels the context, releases,
//     and returns. The next leader may begin while that work still ends. The same holds for
//     ReleaseOnCancel, which releases before the work has ended. End the process, as client-go
//     advises.
//   - In a drain, two may lead for a moment (up to 150 ms in the tests), because client-go releases
//     before it cancels the leader's context.
//   - IsLeader of client-go's elector reads what the last attempt observed, and not the clock. It
//     may return true for up to RenewDeadline after the loss. [Lock.Leading] reads the clock.
//   - A Lock whose elector ended before it led remains a candidate, and may become the owner
//     without work. Close the client when the elector ends.
//   - Records have no lasting fields. LeaderTransitions, AcquireTime, RenewTime, labels and events
//     are not stored, and coordinated leader election is not supported. An identity is the client's
//     ID.
//   - kubectl and other tools do not see the leader. The view pgleases.status does.
//
// [client-go]: https://pkg.go.dev/k8s.io/client-go/tools/leaderelection
package clientgo

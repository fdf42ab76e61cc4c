package leader_test

import (
	"context"
	"os"

	"github.com/pgleases/pgleases/leader"
)

// An emergency brake: the process ends if it loses the leadership before lead has returned, for
// example because it was frozen and lead hangs. A handoff alone does not end it.
func ExampleContext() {
	lead := func(context.Context) {} // the work
	_ = leader.Callbacks{
		OnStartedLeading: func(ctx context.Context) { leadOrExit(ctx, lead) },
	}
}

func leadOrExit(ctx context.Context, lead func(context.Context)) {
	// Until lead has returned, this context ends only if the leadership is lost.
	defer context.AfterFunc(leader.Context(ctx), func() { os.Exit(1) })()
	lead(ctx)
}

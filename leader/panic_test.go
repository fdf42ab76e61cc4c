package leader

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/pgleases/pgleases/pgleasestest"
)

// An os.Exit in OnStoppedLeading must not hide a panic of the work.
func TestPanicCallsNoOnStoppedLeading(t *testing.T) {
	fault := errors.New("the work has a fault")
	defer func() {
		if got := recover(); got != fault {
			t.Errorf("the panic is %v", got)
		}
	}()
	New(nil, "x").lead(t.Context(), Callbacks{
		OnStartedLeading: func(context.Context) { panic(fault) },
		OnStoppedLeading: func() { t.Error("OnStoppedLeading is called") },
	})
}

func TestRunWithoutAClientReturnsAnError(t *testing.T) {
	const want = `pgleases: elect leader "x": client is nil; pass the one that pgleases.NewClient has returned`
	for what, err := range map[string]error{
		"Run":            Run(t.Context(), nil, "x", Callbacks{}),
		"an Elector":     New(nil, "x").Run(t.Context(), Callbacks{}),
		"a zero Elector": (&Elector{name: "x"}).Run(t.Context(), Callbacks{}),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A callback that was forgotten would leave the process the leader without any work.
func TestRunWithoutWorkReturnsAnError(t *testing.T) {
	const want = `pgleases: elect leader "x": OnStartedLeading is nil; ` +
		`pass the function that works while this process leads`
	lease := pgleasestest.NewLease("x", 1)
	defer lease.Close()
	lease.Gain(0)
	others := Callbacks{OnStoppedLeading: func() {}, OnNewLeader: func(string) {}}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	for what, err := range map[string]error{
		"Run":        Run(ctx, lease.Client(), "x", others),
		"an Elector": New(lease.Client(), "x").Run(ctx, Callbacks{}),
	} {
		if err == nil || err.Error() != want {
			t.Errorf("%s: %v", what, err)
		}
	}
}

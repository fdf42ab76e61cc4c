package leader

import (
	"context"
	"errors"
	"testing"
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

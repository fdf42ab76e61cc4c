package testkit

import (
	"strings"
	"sync"
	"testing"
)

// programs are the programs that tests have started and still need.
var programs struct {
	mu   sync.Mutex // guards need
	need map[*program]bool
}

// A program is one that a test and its subtests need.
type program struct {
	test  string
	ended func() error
}

// Need makes the waits of a test and of its subtests fail at once when a program has ended that they
// need: Until, Becomes and Receive ask ended again and again, and it returns nil until then, and
// afterwards an error that tells how the program ended and what it printed.
func Need(t testing.TB, ended func() error) {
	p := &program{t.Name(), ended}
	programs.mu.Lock()
	defer programs.mu.Unlock()
	if programs.need == nil {
		programs.need = make(map[*program]bool)
	}
	programs.need[p] = true
	t.Cleanup(func() {
		programs.mu.Lock()
		defer programs.mu.Unlock()
		delete(programs.need, p)
	})
}

// lacks returns how a program ended that a test needs; nil: all of them run.
func lacks(t testing.TB) error {
	programs.mu.Lock()
	defer programs.mu.Unlock()
	for p := range programs.need {
		if t.Name() != p.test && !strings.HasPrefix(t.Name(), p.test+"/") {
			continue
		}
		if err := p.ended(); err != nil {
			return err
		}
	}
	return nil
}

// Package testkit has what the tests of several packages share.
package testkit

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/pgleases/pgleases/internal/pgtest"
)

// Patience bounds a wait. It is reached only if the awaited event never happens.
const Patience = 2 * time.Minute

// perProcessor is how many tests of a package run in parallel for each processor, unless -parallel is
// given. More would not end sooner, because the server is busy with these, and would wait longer for
// each answer.
const perProcessor = 2

// Main runs the tests of a package for its TestMain, and exits. It fails if they leave goroutines.
func Main(m *testing.M) {
	flag.Parse()
	setDefault("test.parallel", perProcessor*runtime.GOMAXPROCS(0))
	setDefault("rapid.checks", Rounds(100))
	if os.Getenv("PGCONNECT_TIMEOUT") == "" { // a busy machine may need longer than the 5 s of a client
		_ = os.Setenv("PGCONNECT_TIMEOUT", fmt.Sprintf("%.0f", Patience.Seconds()))
	}
	spared := pgtest.Spared()
	if spared != "" {
		_ = flag.Set("test.skip", spared)
	}
	end := pgtest.Keep()
	code := m.Run()
	err := end()
	if code == 0 && err == nil {
		err = Leftover()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "after all tests:", err)
		code = 1
	}
	os.Exit(code)
}

// setDefault sets a flag of the test, if the test has it and it was not given.
func setDefault(name string, value int) {
	f := flag.Lookup(name)
	if f != nil && f.Value.String() == f.DefValue {
		_ = flag.Set(name, strconv.Itoa(value))
	}
}

// OnlyInCI skips a test that keeps the processors busy for long, or that waits for what a machine
// with other work may not do in time. CI runs it, and so does CI=true go test.
func OnlyInCI(t testing.TB) {
	t.Helper()
	if !inCI() {
		t.Skip("runs in CI, or with CI=true")
	}
}

func inCI() bool { return os.Getenv("CI") != "" }

// Rounds returns how often a test repeats what it does: all times for CI, otherwise a quarter, to
// save time.
func Rounds(all int) int {
	if inCI() {
		return all
	}
	return (all + 3) / 4
}

// Some returns the cases of a test that are checked: all for CI, otherwise a quarter, another one
// in each run. It keeps their order.
func Some[T any](all ...T) (some []T) {
	count := Rounds(len(all))
	for i, first := 0, rand.IntN(len(all)); i < len(all); i++ {
		if (i-first+len(all))%len(all)*count%len(all) < count {
			some = append(some, all[i])
		}
	}
	return some
}

// Leftover waits until only the expected goroutines are left, and returns an error that lists any
// others.
func Leftover(expected ...goleak.Option) (err error) {
	for _, name := range pgtest.Goroutines {
		expected = append(expected, goleak.IgnoreAnyFunction(name))
	}
	for late := time.Now().Add(Patience); time.Now().Before(late); { // Find itself tries for 1 s
		err = goleak.Find(expected...)
		if err == nil {
			return nil
		}
	}
	return err
}

package store_test

import (
	"flag"
	"strconv"
	"testing"

	"github.com/pgleases/pgleases/internal/testkit"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // on a server each takes 200 ms
		_ = flag.Set(f.Name, strconv.Itoa(testkit.Rounds(10)))
	}
	testkit.Main(m)
}

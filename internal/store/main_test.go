package store_test

import (
	"flag"
	"os"
	"runtime"
	"strconv"
	"testing"
)

func TestMain(m *testing.M) {
	flag.Parse()
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue { // they wait most of the time
		_ = flag.Set(f.Name, strconv.Itoa(2*runtime.GOMAXPROCS(0)))
	}
	if f := flag.Lookup("rapid.checks"); f.Value.String() == f.DefValue { // on a server each takes a fifth of a second
		_ = flag.Set(f.Name, "20")
	}
	os.Exit(m.Run())
}

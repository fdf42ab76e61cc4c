//go:build unix

// Command worker is a worker of package faults and nothing else. It can be built with another version of the library.
package main

import (
	"fmt"
	"os"

	"github.com/pgleases/pgleases/proof/faults"
)

func main() {
	faults.Main()
	fmt.Fprintln(os.Stderr, "worker: only faults.Start starts it")
	os.Exit(2)
}

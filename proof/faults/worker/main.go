//go:build unix

// Command worker is a worker of package faults. It is a program of its own, so that it can be built
// with another version of the library.
package main

import (
	"fmt"
	"os"

	"github.com/pgleases/pgleases/proof/faults"
)

func main() {
	faults.Main()
	fmt.Fprintln(os.Stderr, "worker: not started by faults.Start")
	os.Exit(2)
}

//go:build unix

package faults

import "github.com/pgleases/pgleases"

// fastFailover returns the options that give a client fast failover.
func fastFailover() []pgleases.Option { return []pgleases.Option{pgleases.WithFastFailover()} }

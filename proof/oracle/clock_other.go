//go:build !linux

package oracle

import "time"

// Now returns the wall clock, which is the only clock of package time that processes share. It must
// not be set while the oracle runs.
func Now() Instant { return Instant(time.Now().UnixNano()) }

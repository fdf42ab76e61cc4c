//go:build !linux

package oracle

import "time"

// Now returns the wall clock, the only one that processes share by way of package time. While the oracle runs, nobody
// may set it.
func Now() Instant { return Instant(time.Now().UnixNano()) }

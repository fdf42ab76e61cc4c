//go:build !linux

package timeguard

import "time"

// Now returns the wall clock, which is the only clock of package time that processes share. It must
// not be set while tests run.
func Now() Instant { return Instant(time.Now().UnixNano()) }

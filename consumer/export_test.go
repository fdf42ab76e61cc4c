package consumer

import "time"

// SweepEvery sets the time between two looks for blocked rows that are gone or changed.
func (c *Consumer) SweepEvery(d time.Duration) { c.times.sweep = d }

// HoldForSuspects sets how long other work waits for crash suspects.
func (c *Consumer) HoldForSuspects(d time.Duration) { c.times.suspectHold = d }

// PauseAtMost sets the longest pause while something that handlers need is away.
func (c *Consumer) PauseAtMost(d time.Duration) { c.times.pauseMax = d }

// CrashSQL returns the statement of crash.sql.
func (c *Consumer) CrashSQL() string { return c.sql.Crash }

package schedule

import "time"

// Hasten has a scheduler look often, and believe the database's clock at once: for tests that set that clock.
func (s *Scheduler) Hasten() { s.lookEvery, s.doubted = 10*time.Millisecond, 0 }

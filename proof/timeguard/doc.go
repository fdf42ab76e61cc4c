// Package timeguard tells whether the machine kept time, and repeats what was tried while it did not.
//
// A promise of safety holds on any machine, however slow. A promise of time does not: where a process is not run for a
// second, its client loses its trust, and rightly so. So each process of an attack has a [Probe], which measures how late it is
// woken and how long a SELECT 1 takes. [Run] tries a scenario; where that misses a deadline, the probes decide. If they were
// on time, the test fails. If they were late, nothing is proved, and the scenario is tried again from its beginning. After five
// such tries the test fails, and tells when the machine was late, and by how much.
//
// Nothing passes because the machine was late: a test passes only when one of its tries has met every deadline.
package timeguard

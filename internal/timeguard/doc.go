// Package timeguard measures whether the machine kept time, and repeats a scenario if the machine
// was late.
//
// A promise of safety holds on any machine, however slow. A promise of time does not: if a process
// does not run for a second, its client loses its trust, as it should. So each process of an attack
// has a [Probe], which measures how late the process wakes up, and how long a SELECT 1 takes. [Run]
// tries a scenario. If the scenario misses a deadline, the probes decide. If they were on time, the
// test fails. If they were late, the try does not count, and Run tries the scenario again from its
// beginning. After five such tries the test fails, and reports when the machine was late, and by
// how much.
//
// Run probes the process of the test by itself. A test that starts further processes, or whose
// promise depends on how soon the machine does something else, adds a [Record] for them. Each
// repeated try is a note (package notes), which .ci/run counts.
//
// A late machine never makes a test pass: the test passes only if one of its tries meets every
// deadline.
package timeguard

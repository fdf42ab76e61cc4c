// Package oracle proves, from outside, whether two clients held a partition at the same instant. A [Recorder] reads
// Lease.Values of one client in a tight loop and writes what it saw to a file; [Check] compares the files of all
// clients, in one process or in many.
//
// A read that began at b and returned at e proves that the partition was held at some instant of [b, e], not that it was
// at b or at e: a process may be stopped anywhere in between. So an interval that a client held a partition is noted
// from the *return* of the first read that showed it to the *beginning* of the last one, which lies within the truth.
// Two intervals overlap for certain if each begins no later than the other ends; if not, there is an order of events
// in which they do not, and nothing is reported. This holds too for an interval of a single read, whose first lies
// after its last. Hence no false alarm, however noisy the machine; what goes unseen is shorter than two reads.
//
// A [Keeper] writes in the same way which locks of package lock were held, of which those that share one may overlap.
//
// The same goes for the epochs: that an older one was held after a newer one is reported only where it is certain.
//
// The file survives a kill -9, which loses no more than the last burst of reads, less than 100 µs on an idle machine.
package oracle

// Package oracle finds out, from outside, whether two clients held a partition at the same instant.
// The recorders of packages leases and locks write to files what each client saw, and [Check]
// compares the files of all clients, of one process or of many. Other oracles have packages of their
// own: writes for what was written under Guard, schedules and queues. Each has a function Read, which
// reads what happened, and a method Check, which returns the violations.
//
// A read that began at b and returned at e shows that the partition was held at some instant
// between b and e. It does not show that the partition was held at b or at e, because the process
// may be stopped anywhere in between. So the recorded interval of an ownership runs from the
// *return* of the first read that showed it to the *beginning* of the last one, which is within the
// true interval. Two intervals certainly overlap if each begins no later than the other ends.
// Otherwise an order of events without an overlap is possible, and Check reports no violation. The
// same rule holds for an interval of a single read, whose First is after its Last. Hence there is
// no false alarm, however slow the machine. An overlap shorter than two reads may go unseen.
//
// Epochs follow the same rule: Check reports that an older epoch was held after a newer one only if
// that is certain.
//
// The file survives a kill -9, which loses at most the last burst of reads, less than 100 µs on an
// idle machine.
package oracle

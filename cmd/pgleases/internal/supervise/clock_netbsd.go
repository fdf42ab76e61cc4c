package supervise

// bootClock is CLOCK_MONOTONIC, which package unix does not have for NetBSD.
const bootClock = 3

// A wall clock that can be set: the machine's time plus an offset in microseconds, which is in the
// file $PGSERVER_CLOCK. LD_PRELOAD loads it into a server. PostgreSQL reads the clock in signal
// handlers too, so this code must not allocate or lock. libfaketime does both, and some servers
// that used it crashed with a damaged heap.

#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static const int64_t *offset;

__attribute__((constructor)) static void find(void) {
	const char *path = getenv("PGSERVER_CLOCK");
	int file = path == NULL ? -1 : open(path, O_RDONLY | O_CLOEXEC);
	void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, file, 0);
	if (page == MAP_FAILED)
		abort();
	close(file);
	offset = page;
}

int clock_gettime(clockid_t id, struct timespec *now) {
	if (syscall(SYS_clock_gettime, id, now) != 0)
		return -1;
	if (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE) {
		int64_t micros = offset == NULL ? 0 : __atomic_load_n(offset, __ATOMIC_RELAXED);
		int64_t nanos = now->tv_nsec + micros % 1000000 * 1000;
		now->tv_sec += micros / 1000000 + (nanos >= 1000000000) - (nanos < 0);
		now->tv_nsec = (nanos + 1000000000) % 1000000000;
	}
	return 0;
}

int gettimeofday(struct timeval *now, void *zone) {
	(void)zone;
	struct timespec precise;
	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	now->tv_sec = precise.tv_sec;
	now->tv_usec = precise.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *now) {
	struct timespec precise;
	if (clock_gettime(CLOCK_REALTIME, &precise) != 0)
		return -1;
	if (now != NULL)
		*now = precise.tv_sec;
	return precise.tv_sec;
}

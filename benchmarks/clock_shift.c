/* A wall clock that is set while a program runs: LD_PRELOAD it, CLOCK_SHIFT_FILE holds 8 bytes of seconds.
   Clocks that only count, and waits, are left alone. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *shift(void) {
    static volatile long long none, *mapped;
    if (!mapped) {
        const char *name = getenv("CLOCK_SHIFT_FILE");
        int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
        void *place = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
        mapped = place == MAP_FAILED ? &none : place;
    }
    return mapped;
}

int clock_gettime(clockid_t id, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(id, now);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) now->tv_sec += *shift();
    return result;
}

int gettimeofday(struct timeval *now, void *zone) {
    struct timespec time;
    (void)zone;
    int result = clock_gettime(CLOCK_REALTIME, &time);
    now->tv_sec = time.tv_sec;
    now->tv_usec = time.tv_nsec / 1000;
    return result;
}

time_t time(time_t *place) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (place) *place = now.tv_sec;
    return now.tv_sec;
}


/* Loaded into a test's redis-server by LD_PRELOAD: its time of day is the machine's, moved. Redis looks by gettimeofday
 * alone, and for how much time has passed on another clock, which goes on as it is. */
#include <sys/time.h>

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &time);
    long long micros = time.tv_sec * 1000000LL + time.tv_nsec / 1000 + moved_by() * 1000;
    now->tv_sec = micros / 1000000;
    now->tv_usec = micros % 1000000;
    return 0;
}

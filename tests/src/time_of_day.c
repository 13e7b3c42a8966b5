/* Loaded into a test's redis-server by LD_PRELOAD. Its time of day is the machine's, moved by as many milliseconds as
 * stand in the file that TIME_OF_DAY names, which is read at every look. Redis looks by gettimeofday alone, and for how
 * much time has passed on another clock, which goes on as it is. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static long long moved_by(void) {
    char text[32] = {0};
    const char *name = getenv("TIME_OF_DAY");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    return length > 0 ? atoll(text) : 0;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    struct timespec time;
    (void)zone;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &time);
    long long micros = time.tv_sec * 1000000LL + time.tv_nsec / 1000 + moved_by() * 1000;
    now->tv_sec = micros / 1000000;
    now->tv_usec = micros % 1000000;
    return 0;
}

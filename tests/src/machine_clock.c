/* Loaded into a client by LD_PRELOAD: the time of day of its machine is moved by as many milliseconds as stand in the
 * file that TIME_OF_DAY names. All other clocks go on as they are. */
#include <fcntl.h>
#include <stdlib.h>
#include <sys/syscall.h>
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

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    if (clock == CLOCK_REALTIME) {
        long long millis = moved_by();
        now->tv_sec += millis / 1000;
    }
    return 0;
}

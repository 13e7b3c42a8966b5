/* What stands before a source that moves the time of day of a process: by so many milliseconds, which stand in the file
 * that TIME_OF_DAY names, and are read at every look. */
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

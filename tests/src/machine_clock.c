
/* Loaded into a client by LD_PRELOAD: the time of day of its machine is moved. All other clocks go on as they are. */
int clock_gettime(clockid_t clock, struct timespec *now) {
    if (syscall(SYS_clock_gettime, clock, now) != 0) return -1;
    if (clock == CLOCK_REALTIME) {
        long long millis = moved_by();
        now->tv_sec += millis / 1000;
    }
    return 0;
}
